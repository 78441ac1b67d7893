# Writes the lines of an R package that its tests run to a .csv file: Rscript r_coverage.R PACKAGE FILE (make coverage).
# covr 3.6 stops at the incomplete trace of an R process that a test has killed, so that the traces are merged here.

arguments <- commandArgs(TRUE)
folder <- tempfile("covr")
tryCatch(
  invisible(covr::package_coverage(arguments[[1]], install_path = folder, clean = FALSE)),
  error = function(e) if (!identical(conditionCall(e)[[1]], quote(readRDS))) stop(e)
)
traces <- list.files(folder, "^covr_trace_", full.names = TRUE)
complete <- vapply(traces, function(file) !inherits(try(readRDS(file), silent = TRUE), "try-error"), TRUE)
lines <- covr::tally_coverage(structure(covr:::as_coverage(covr:::merge_coverage(traces[complete])), class = "coverage"))
utils::write.csv(lines, arguments[[2]], row.names = FALSE)
