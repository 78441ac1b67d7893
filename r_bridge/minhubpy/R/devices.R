#' List the devices that models can run on
#'
#' @returns A data frame with a row for each device that was probed: `device`,
#'   `works`, `dtypes` (those that it computes in), `detail`, and `picked`,
#'   which is `TRUE` for the one that `"auto"` picks. It is printed as a line
#'   for each.
#' @family functions for the Python side
#' @examplesIf minhubpy:::is_ready()
#' minhub_devices()
#' \dontshow{minhubpy:::end_example()}
#' @export
minhub_devices <- function() structure(ask("devices"), class = c("minhub_devices", "data.frame"))

#' @export
format.minhub_devices <- function(x, ...) {
  about <- paste0(x$detail, ifelse(nzchar(x$dtypes), paste0("; ", x$dtypes), ""))
  names <- paste0(ifelse(x$works, "yes", "no "), "  ", format(x$device), "  ")
  room <- max(20L, getOption("width") - max(0L, nchar(names)))
  unlist(Map(function(name, text) paste0(c(name, rep(strrep(" ", nchar(name)), length(text) - 1L)), text), names, lapply(about, strwrap, room)), use.names = FALSE)
}

#' @export
print.minhub_devices <- function(x, ...) {
  if (!all(c("device", "works", "dtypes", "detail", "picked") %in% names(x))) return(NextMethod())
  cat(format(x), if (any(x$picked)) paste0("\"auto\" picks ", x$device[x$picked]), sep = "\n")
  invisible(x)
}
