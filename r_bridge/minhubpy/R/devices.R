#' List devices
#'
#' Lists the devices that models can run on, and the device that
#' `device = "auto"` selects.
#'
#' @returns A data frame of class `minhub_devices` with one row per probed
#'   device and the columns `device`, `works`, `dtypes` (supported dtypes),
#'   `detail`, and `picked` (`TRUE` for the device that `"auto"` selects).
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
  cat(format(x), if (any(x$picked)) paste0("\"auto\" selects ", x$device[x$picked]), sep = "\n")
  invisible(x)
}
