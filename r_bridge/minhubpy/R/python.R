#' Start and stop the Python worker
#'
#' The first call that needs Python starts a worker process; it ends with the
#' R session, however that ends. `minhub_start()` does so on purpose, and says
#' which Python was taken and why. `minhub_stop()` ends the worker; models and
#' tokenizers are loaded again when they are next used, but for models whose
#' weights came by `load_state_dict()`. The choice of a Python is kept until
#' `minhub_stop()`.
#'
#' @section Which Python:
#' The first of these that there is, is 3.10 or newer, and has minhub_py:
#'
#' 1. the option `minhubpy.python`, then the environment variable
#'    `MINHUBPY_PYTHON`: with one of them set, no other is tried;
#' 2. the environment variable `RETICULATE_PYTHON`;
#' 3. an active virtualenv (`VIRTUAL_ENV`) or conda environment
#'    (`CONDA_PREFIX`);
#' 4. `.venv` in the working directory or a directory above it;
#' 5. the Python whose `minhub r --install` installed this package;
#' 6. the virtualenv that [minhub_install()] made;
#' 7. `python3`, then `python`, on the `PATH`.
#'
#' @param python The path of a Python to use instead.
#' @returns `minhub_start()`: a list with `python`, `why`, and the versions
#'   `version`, `minhub_py` and `torch`, invisibly. `minhub_stop()`: nothing.
#' @examplesIf minhubpy:::is_ready()
#' str(minhub_start())
#' minhub_stop()
#' @export
minhub_start <- function(python = NULL) {
  if (!is.null(python)) {
    not_now()
    if (is_hosted()) fail("this R runs inside Python, and can use no other")
    python <- check_named(string(python), "the argument python")
    disconnect()
    session$python <- python
  }
  about <- suppressMessages(ask("hello"))
  found <- if (is.null(session$python)) list(why = "it hosts this R") else session$python
  note("Python ", about$python, " (", about$executable, "): ", found$why)
  invisible(list(
    python = about$executable, why = found$why, version = about$python,
    minhub_py = about$minhub_py, torch = about$torch
  ))
}

#' @rdname minhub_start
#' @export
minhub_stop <- function() {
  not_now()
  if (is_hosted()) fail("this R runs inside Python, which cannot be stopped from here")
  disconnect()
  session$python <- NULL
  invisible()
}

#' Make a Python for this package
#'
#' Makes a virtualenv in the user's data folder, with minhub_py and what it
#' needs (PyTorch is the largest part). No other function of this package
#' installs anything. What an earlier call made is replaced.
#'
#' @param source What pip is to install: the path of a folder or wheel, an
#'   address that pip knows, or a name. If not given, the repository and commit
#'   that `remotes::install_github()` had this package from, else the release of
#'   minhub_py that has this package's version.
#' @param python The Python to make it with, 3.10 or newer; the first on the
#'   `PATH` that is, if not given.
#' @param pip_args Further arguments of `pip install`, such as
#'   `c("--index-url", "https://...")`.
#' @returns The path of the new Python, invisibly.
#' @examples
#' \dontrun{
#' minhub_install()
#' }
#' @export
minhub_install <- function(source = NULL, python = NULL, pip_args = character()) {
  not_now()
  source <- if (is.null(source)) default_source() else string(source)
  base <- if (is.null(python)) find_base_python() else path.expand(string(python))
  if (!nzchar(Sys.which(base))) fail(base, " is not there: give the path of a Python 3.10 or newer")
  folder <- private_virtualenv()
  if (file.exists(source)) source <- normalizePath(source)
  dir.create(dirname(folder), recursive = TRUE, showWarnings = FALSE)
  disconnect()
  session$python <- NULL
  # A virtualenv cannot be moved, so the one that is there makes room, and comes back if this fails.
  before <- paste0(folder, "-before")
  if (dir.exists(folder)) file.rename(folder, before)
  done <- FALSE
  on.exit(if (done) {
    unlink(before, recursive = TRUE)
  } else {
    unlink(folder, recursive = TRUE)
    if (dir.exists(before)) file.rename(before, folder)
  })
  run(base, c("-m", "venv", shQuote(folder)), "python3 -m venv failed; on Debian: apt-get install python3-venv")
  run(
    python_in(folder), c("-m", "pip", "install", "--disable-pip-version-check", pip_args, shQuote(source)),
    "pip could not install it, for what it says above; minhub_install(\"/path/to/a/checkout\") takes a folder"
  )
  done <- TRUE
  note("Installed: ", python_in(folder))
  invisible(python_in(folder))
}

# The Python half of this very package.
default_source <- function() {
  about <- utils::packageDescription("minhubpy")
  if (!identical(about$RemoteType, "github")) return(paste0("minhub_py==", about$Version))
  paste0("git+https://github.com/", about$RemoteUsername, "/", about$RemoteRepo, "@", about$RemoteSha)
}

run <- function(command, arguments, advice) {
  status <- run_python(command, arguments)
  if (status != 0L) fail(advice, " (", command, " ended with status ", status, ")")
}

private_virtualenv <- function() file.path(tools::R_user_dir("minhubpy", "data"), "venv")

python_in <- function(folder) {
  if (.Platform$OS.type == "windows") file.path(folder, "Scripts", "python.exe") else file.path(folder, "bin", "python")
}

# Candidates in the order that the help page of minhub_start() gives.
python_candidates <- function() {
  variable <- function(name) {
    value <- Sys.getenv(name)
    if (nzchar(value)) value
  }
  inside <- function(folder) if (!is.null(folder)) python_in(folder)
  found <- list(
    RETICULATE_PYTHON = variable("RETICULATE_PYTHON"),
    "the active virtualenv" = inside(variable("VIRTUAL_ENV")),
    "the active conda environment" = conda_python(variable("CONDA_PREFIX")),
    "the .venv of this folder" = inside(project_virtualenv()),
    "it installed this package" = installer(),
    "made by minhub_install()" = if (dir.exists(private_virtualenv())) python_in(private_virtualenv()),
    "python3 on the PATH" = on_path("python3"),
    "python on the PATH" = on_path("python")
  )
  Filter(Negate(is.null), found)
}

conda_python <- function(prefix) {
  if (is.null(prefix)) return(NULL)
  if (.Platform$OS.type == "windows") file.path(prefix, "python.exe") else python_in(prefix)
}

# Written by library.py.
installer <- function() {
  file <- system.file("python", package = "minhubpy")
  if (nzchar(file)) readLines(file, n = 1L, encoding = "UTF-8")
}

on_path <- function(name) {
  path <- unname(Sys.which(name))
  if (nzchar(path)) path
}

project_virtualenv <- function(folder = getwd()) {
  repeat {
    if (file.exists(python_in(file.path(folder, ".venv")))) return(file.path(folder, ".venv"))
    if (dirname(folder) == folder) return(NULL)
    folder <- dirname(folder)
  }
}

# The Python to use, found once in a session: list(path, why).
choose_python <- function() {
  if (is.null(session$python)) {
    session$python <- look_for_python()
    if (interactive()) note("Using ", session$python$path, " (", session$python$why, ")")
  }
  session$python$path
}

look_for_python <- function() {
  wanted <- getOption("minhubpy.python")
  if (!is.null(wanted)) return(check_named(string(wanted, "the option minhubpy.python"), "the option minhubpy.python"))
  wanted <- Sys.getenv("MINHUBPY_PYTHON")
  if (nzchar(wanted)) return(check_named(wanted, "the environment variable MINHUBPY_PYTHON"))
  candidates <- python_candidates()
  problems <- character()
  for (why in names(candidates)) {
    problem <- python_problem(candidates[[why]])
    if (is.null(problem)) return(list(path = candidates[[why]], why = why))
    problems <- c(problems, paste0("\n  ", candidates[[why]], " (", why, ") ", problem))
  }
  fail(
    "no Python with minhub_py was found; minhub_install() makes one, or set options(minhubpy.python = \"/path/to/python\")",
    if (length(problems)) "\nTried:", problems,
    class = "minhubpy_no_python"
  )
}

check_named <- function(path, why) {
  path <- path.expand(path)
  problem <- python_problem(path)
  if (!is.null(problem)) {
    fail(path, " (", why, ") ", problem, ": name another Python, or run minhub_install()", class = "minhubpy_no_python")
  }
  list(path = path, why = why)
}

# NULL for a Python that can serve, else what it lacks. Nothing but the standard library is imported for it.
python_problem <- function(path) {
  if (!nzchar(Sys.which(path))) return("is not there")
  question <- paste(
    "import sys, importlib.util as u; sys.path[:] = [p for p in sys.path if p]",
    "print('minhubpy', sys.version_info >= (3, 10), *(u.find_spec(n) is not None for n in ('minhub_py', 'r_bridge', 'torch')))",
    sep = "; "
  )
  answer <- suppressWarnings(run_python(path, c("-c", shQuote(question)), stdout = TRUE, stderr = FALSE, timeout = 30))
  allowInterrupts(Sys.sleep(0.001)) # Ctrl-C ended it, not what it is: here R hears of that
  told <- grep("^minhubpy ", answer, value = TRUE)
  if (!length(told)) return("is no Python 3")
  told <- strsplit(told[[1L]], " ")[[1L]][-1L] == "True"
  lacks <- c("is older than 3.10", "lacks minhub_py", "lacks minhub_py's r_bridge", "lacks PyTorch")
  if (all(told)) NULL else lacks[[which(!told)[[1L]]]]
}

# system2() for a Python that is to run as if R had not started it.
run_python <- function(...) {
  values <- c(PYTHONUTF8 = "1", LD_LIBRARY_PATH = library_path_without_r())
  before <- Sys.getenv(names(values), unset = NA, names = TRUE)
  on.exit(set_environment(before))
  set_environment(values)
  system2(...)
}

# Starts it and does not wait. Its number, or NULL where R cannot learn that. It hears nothing of Ctrl-C, since a shell
# that is not interactive starts what is behind an & so.
start_python <- function(python, arguments, log) {
  if (.Platform$OS.type == "windows") {
    run_python(python, arguments, stdout = log, stderr = log, wait = FALSE)
    return(NULL)
  }
  command <- paste(shQuote(python), paste(arguments, collapse = " "), ">", shQuote(log), "2>&1 </dev/null & echo $!")
  as.integer(run_python("sh", c("-c", shQuote(command)), stdout = TRUE))
}

is_running <- function(pid) is.null(pid) || tools::pskill(pid, 0L)

set_environment <- function(values) {
  gone <- is.na(values)
  Sys.unsetenv(names(values)[gone])
  if (!all(gone)) do.call(Sys.setenv, as.list(values[!gone]))
}

# R puts folders of its own before LD_LIBRARY_PATH, in which a Python may find another Python's library.
library_path_without_r <- function() {
  path <- Sys.getenv("LD_LIBRARY_PATH", unset = NA)
  script <- file.path(R.home("etc"), "ldpaths")
  if (is.na(path) || !file.exists(script)) return(path)
  asked <- paste0("unset LD_LIBRARY_PATH; . ", shQuote(script), "; echo \"$LD_LIBRARY_PATH\"")
  added <- system2("sh", c("-c", shQuote(asked)), stdout = TRUE)
  rest <- if (startsWith(path, added)) sub("^:", "", substring(path, nchar(added) + 1L)) else path
  if (nzchar(rest)) rest else NA
}

find_base_python <- function() {
  for (path in c(on_path("python3"), on_path("python"))) {
    code <- shQuote("import sys; sys.exit(sys.version_info < (3, 10))")
    if (run_python(path, c("-c", code), stdout = FALSE, stderr = FALSE) == 0L) return(path)
  }
  fail("no Python 3.10 or newer is on the PATH: install one (on Debian: apt-get install python3-venv), or give python =")
}

is_hosted <- function() !is.null(session$link) && startsWith(session$link$epoch, "host")

# Whether Python can be had without installing anything: for examples.
is_ready <- function() {
  is_hosted() || tryCatch(
    {
      choose_python()
      TRUE
    },
    minhubpy_error = function(e) FALSE
  )
}
