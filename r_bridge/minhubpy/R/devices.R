#' Devices that models can run on
#'
#' @returns A data frame with a row for each device that was probed: `device`,
#'   `works`, `dtypes` (those that it computes in), `detail`, and `picked`,
#'   which is `TRUE` for the one that `"auto"` picks.
#' @examplesIf minhubpy:::is_ready()
#' minhub_devices()
#' \dontshow{if (!minhubpy:::is_hosted()) minhub_stop()}
#' @export
minhub_devices <- function() ask("devices")
