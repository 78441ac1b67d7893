# What stands before each R program of r_processes.py: say() here is hear() there, and the other way round.

library(minhubpy)
options(minhubpy.quiet = TRUE)
say <- function(...) { cat("@", ..., "\n"); flush(stdout()) }
heard <- file("stdin", "r")
hear <- function() readLines(heard, 1)
pid <- function() { minhubpy:::ask("nothing"); minhubpy:::session$link$pid }
message_of <- function(expr) tryCatch({ expr; "no error" }, minhubpy_error = conditionMessage)

