#' Check what is installed, and whether it fits together
#'
#' R, the Python that this package uses and why, Python's packages and the extras
#' of minhub_py that some functions need (see [minhub_install()]), devices
#' and CUDA, rpy2, R torch and its LibTorch against Python's, tokens and cache
#' folders. It changes nothing and opens no connection.
#'
#' @returns A data frame with the columns `what`, `found`, `fits` and
#'   `advice`: the next step where something does not fit.
#' @family functions for the Python side
#' @examplesIf minhubpy:::is_ready()
#' minhub_doctor()
#' \dontshow{minhubpy:::end_example()}
#' @export
minhub_doctor <- function() {
  report <- tryCatch(
    {
      about <- suppressMessages(minhub_start())
      rbind(
        finding("this session's Python", paste0(about$python, ": ", about$why)),
        ask("doctor", facts = own_facts())
      )
    },
    minhubpy_error = function(e) {
      rbind(
        finding("R", paste0(getRversion(), ", home ", R.home())),
        finding("this session's Python", conditionMessage(e), FALSE, install_call())
      )
    }
  )
  structure(report, class = c("minhub_doctor", "data.frame"))
}

finding <- function(what, found, fits = TRUE, advice = "") {
  data.frame(what = what, found = found, fits = fits, advice = advice)
}

# Facts about this R for Python, whose doctor.py judges them, so that `minhub doctor` says the same.
own_facts <- function() {
  facts <- list()
  r_facts(function(key, value) facts[[key]] <<- value)
  facts
}

#' @export
format.minhub_doctor <- function(x, ...) {
  if (!nrow(x)) return("nothing")
  paste0(
    ifelse(x$fits, "ok  ", "NO  "), format(x$what), "  ", x$found, ifelse(nzchar(x$advice), paste0("\n      -> ", x$advice), "")
  )
}

#' @export
print.minhub_doctor <- function(x, ...) {
  if (all(c("what", "found", "fits", "advice") %in% names(x))) cat(format(x), sep = "\n") else NextMethod()
  invisible(x)
}
