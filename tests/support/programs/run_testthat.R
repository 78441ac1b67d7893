# Runs files of R tests in the given order: Rscript run_testthat.R FOLDER FILE...
# Changes that a file leaves behind are printed; the next file would see them.

variables <- c("PATH", "HOME", "MINHUBPY_PYTHON", "RETICULATE_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "R_USER_DATA_DIR")
state <- function() list(
  folder = getwd(), devices = dev.list(), variables = Sys.getenv(variables),
  options = options()[grep("^minhubpy", names(options()))],
  python = if (identical(minhubpy:::session$python$why, "the argument python")) minhubpy:::session$python
)
library(minhubpy)
options(minhubpy.quiet = TRUE) # as helper.R does
# Without the garbage collection before each load, which takes three quarters of R's time here: testthat's heap is large.
# test_models_are_released_at_once in test_r_processes.py tests it.
utils::assignInNamespace("collect_handles", function() NULL, "minhubpy")
before <- state()
results <- list()
for (file in commandArgs(TRUE)[-1]) {
  name <- sub("^test-(.*)[.]R$", "\\1", file)
  results <- c(results, testthat::test_dir(
    commandArgs(TRUE)[[1]], filter = paste0("^", name, "$"), package = "minhubpy", load_package = "installed",
    reporter = "check", stop_on_failure = FALSE
  ))
  left <- all.equal(before, state())
  if (!isTRUE(left)) cat("\nminhub-result", file, "left", "after all", toString(left), sep = "\t")
}
line <- function(file, test, result) {
  kind <- sub("expectation_", "", class(result)[[1]])
  message <- gsub("[[:space:]]+", " ", conditionMessage(result))
  cat("\nminhub-result", file, kind, test, message, sep = "\t")
}
for (test in results) for (result in test$results) line(test$file, test$test, result)
