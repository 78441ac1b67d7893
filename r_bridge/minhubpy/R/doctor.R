#' What is installed, and whether it fits together
#'
#' R, the Python that this package uses and why, Python's packages, devices
#' and CUDA, rpy2, R torch and its LibTorch against Python's, tokens and cache
#' folders. Nothing is changed, and no connection is opened.
#'
#' @returns A data frame with the columns `what`, `found`, `fits` and
#'   `advice`: the next step where something does not fit.
#' @examplesIf minhubpy:::is_ready()
#' minhub_doctor()
#' \dontshow{if (!minhubpy:::is_hosted()) minhub_stop()}
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
        finding("this session's Python", conditionMessage(e), FALSE, "minhub_install()")
      )
    }
  )
  structure(report, class = c("minhub_doctor", "data.frame"))
}

finding <- function(what, found, fits = TRUE, advice = "") {
  data.frame(what = what, found = found, fits = fits, advice = advice)
}

# What Python is told of this R; it judges (doctor.py), so that `minhub doctor` says the same.
own_facts <- function() {
  facts <- list(
    version = as.character(getRversion()), home = R.home(), minhubpy = version_of("minhubpy"),
    torch = version_of("torch")
  )
  if (!is.null(facts$torch)) {
    home <- Sys.getenv("TORCH_HOME")
    built <- file.path(if (nzchar(home)) home else system.file(package = "torch"), "build-version")
    facts$libtorch <- if (file.exists(built)) readLines(built, n = 1L, warn = FALSE)
    facts$torch_works <- torch_problem()
    if (is.null(facts$torch_works)) facts$torch_works <- "yes"
  }
  Filter(Negate(is.null), facts)
}

version_of <- function(package) {
  if (nzchar(system.file(package = package))) as.character(utils::packageVersion(package))
}

#' @export
format.minhub_doctor <- function(x, ...) {
  paste0(
    ifelse(x$fits, "ok  ", "NO  "), format(x$what), "  ", x$found, ifelse(nzchar(x$advice), paste0("\n      -> ", x$advice), "")
  )
}

#' @export
print.minhub_doctor <- function(x, ...) {
  if (all(c("what", "found", "fits", "advice") %in% names(x))) cat(format(x), sep = "\n") else NextMethod()
  invisible(x)
}

# NULL where R torch works, else what is wrong. torch_is_installed() says TRUE too where its library cannot be used.
torch_problem <- function() {
  tryCatch(
    {
      torch::torch_tensor(1)
      NULL
    },
    error = function(e) strsplit(conditionMessage(e), "\n")[[1L]][[1L]]
  )
}
