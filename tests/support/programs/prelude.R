# The beginning of each R program of r_processes.py: receive() in Python returns the lines of say() in R, and vice versa.

library(minhubpy)
options(minhubpy.quiet = TRUE)
say <- function(...) { cat("@", ..., "\n"); flush(stdout()) }
input <- file("stdin", "r")
receive <- function() readLines(input, 1)
pid <- function() { minhubpy:::ask("nothing"); minhubpy:::session$link$pid }
message_of <- function(expr) tryCatch({ expr; "no error" }, minhubpy_error = conditionMessage)

