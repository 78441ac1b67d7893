#' Diagnose the installation
#'
#' Checks R, the selected Python, the versions of Python packages, the extras of
#' minhub_py (see [minhub_install()]), devices and CUDA, rpy2, R torch and
#' whether its LibTorch is compatible with Python's PyTorch, tokens and cache
#' folders. `minhub_doctor()` changes nothing and opens no connection.
#'
#' @returns A data frame of class `minhub_doctor` with one row per check and the
#'   columns `what` (the component), `found` (its state), `fits` (`TRUE` without
#'   a problem) and `advice` (how to fix a problem).
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

# Facts about this R session. Python evaluates them, so that `minhub doctor` reports the same problems.
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
