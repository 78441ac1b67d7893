#' Start and stop the Python worker
#'
#' The first call that needs Python starts a worker process; it ends with the
#' R session, whatever ends that. `minhub_start()` starts it at once, and says
#' which Python it took and why. `minhub_stop()` ends the worker; models and
#' tokenizers are loaded again at their next use, except models with weights
#' from `load_state_dict()`. The choice of a Python is kept until
#' `minhub_stop()`.
#'
#' @section Which Python:
#' The first of these that exists, is 3.10 or newer, and has minhub_py:
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
#' @family functions for the Python side
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
#' installs anything. It replaces the virtualenv of an earlier call.
#'
#' On Linux the build of PyTorch on the package index brings CUDA, and takes 5.5
#' to 6.2 GB on disk; PyTorch's build for CPUs takes 1.0 GB.
#'
#' @param source What pip is to install: the path of a checkout or wheel of
#'   minhub_py, or an address that pip knows, such as `"git+https://..."`. If not
#'   given, what this package was installed from: the checkout in which
#'   `R CMD INSTALL` ran, or the repository of `remotes::install_github()`. A
#'   package that was installed from a file knows neither; then pip asks the
#'   package index for the release of minhub_py that has this package's version.
#' @param python The Python to make it with, 3.10 or newer; the first on the
#'   `PATH` that is, if not given.
#' @param pip_args Further arguments of `pip install`, such as
#'   `c("--index-url", "https://...")`.
#' @param torch The build of PyTorch: `"cpu"`; `"cuda"`, the one of the package
#'   index; or `"auto"`, which takes `"cpu"` on a Linux without an NVIDIA GPU and
#'   says so, if `pip_args` name no index.
#' @returns The path of the new Python, invisibly.
#' @family functions for the Python side
#' @examples
#' \dontrun{
#' minhub_install()
#' minhub_install("path/to/minhub_py", torch = "cpu")
#' }
#' @export
minhub_install <- function(source = NULL, python = NULL, pip_args = character(), torch = c("auto", "cpu", "cuda")) {
  not_now()
  source <- if (is.null(source)) own_source() else string(source)
  torch <- choice(torch, c("auto", "cpu", "cuda"))
  base <- if (is.null(python)) find_base_python() else path.expand(string(python))
  if (is.null(on_path(base))) fail(base, " is not there: give the path of a Python 3.10 or newer")
  if (!is.null(source) && file.exists(path.expand(source))) source <- normalizePath(source)
  folder <- private_virtualenv()
  dir.create(dirname(folder), recursive = TRUE, showWarnings = FALSE)
  disconnect()
  session$python <- NULL
  # A virtualenv works only where it was made, so the old one is moved aside, and back if this fails.
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
  pip <- c("-m", "pip", "install", "--disable-pip-version-check", pip_args)
  # minhub_py alone first, so that a wrong source fails before PyTorch is downloaded.
  if (is.null(source)) {
    install_release(python_in(folder), pip)
  } else {
    run(
      python_in(folder), c(pip, "--no-deps", shQuote(source)),
      "pip could not install it, for what it says above; minhub_install(\"/path/to/minhub_py\") takes a folder"
    )
  }
  if (takes_cpu_build(torch, base, pip_args)) {
    run(
      python_in(folder), c(pip, "--index-url", CPU_INDEX, "torch"),
      paste0("pip could not install PyTorch's CPU build, for what it says above; torch = \"cuda\" takes that of the package index")
    )
  }
  run(python_in(folder), c(pip, "minhub_py"), "pip could not install what minhub_py needs, for what it says above")
  done <- TRUE
  note("Installed: ", python_in(folder))
  invisible(python_in(folder))
}

CPU_INDEX <- "https://download.pytorch.org/whl/cpu"

# Installs the release with this package's version. If there is none, the error says so more clearly than pip.
install_release <- function(python, pip) {
  version <- as.character(utils::packageVersion("minhubpy"))
  said <- suppressWarnings(
    run_python(python, c(pip, "--retries", "1", "--no-deps", paste0("minhub_py==", version)), stdout = TRUE, stderr = TRUE)
  )
  status <- attr(said, "status")
  if (is.null(status)) return(invisible())
  if (any(grepl("No matching distribution", said, fixed = TRUE))) {
    fail(
      "the package index has no release ", version, " of minhub_py, or cannot be reached: ",
      "minhub_install(\"/path/to/minhub_py\") takes a checkout, minhub_install(\"git+https://...\") a repository"
    )
  }
  fail("pip could not install minhub_py ", version, ": ", c(said, paste("status", status))[[max(1L, length(said))]])
}

# Whether to take PyTorch from its index of CPU builds. Not if the user names an index, which decides the build.
takes_cpu_build <- function(torch, base, pip_args) {
  if (torch != "auto") return(torch == "cpu")
  named <- any(grepl("^(-i|--index-url|--extra-index-url|--no-index)", pip_args))
  if (named || Sys.info()[["sysname"]] != "Linux") return(FALSE)
  gpu <- has_nvidia_gpu(base)
  note(
    if (gpu) "Found an NVIDIA GPU: taking PyTorch with CUDA" else "Found no NVIDIA GPU: taking PyTorch's CPU build",
    if (gpu) " (5.5 to 6.2 GB; " else " (1.0 GB instead of 5.5 to 6.2; ",
    "torch = \"", if (gpu) "cpu" else "cuda", "\" takes the other)"
  )
  !gpu
}

# Asks the driver's own library, as `minhub doctor` does: nvidia-smi may hang, or be missing.
has_nvidia_gpu <- function(python) {
  code <- c(
    "import ctypes, sys", "n = ctypes.c_int()", "try:", "    cuda = ctypes.CDLL('libcuda.so.1')",
    "except OSError:", "    sys.exit(1)",
    "sys.exit(cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(n)) != 0 or n.value == 0)"
  )
  run_python(python, c("-c", shQuote(paste(code, collapse = "\n"))), stdout = FALSE, stderr = FALSE) == 0L
}

# The checkout in which R CMD INSTALL ran. This line is evaluated then, in the folder of the package's source.
CHECKOUT <- if (all(file.exists("../../pyproject.toml", "../../minhub_py"))) normalizePath("../..")

# The source of the Python half of this package; NULL if only a release can have it.
own_source <- function() {
  about <- utils::packageDescription("minhubpy")
  if (identical(about$RemoteType, "github")) {
    return(paste0("git+https://github.com/", about$RemoteUsername, "/", about$RemoteRepo, "@", about$RemoteSha))
  }
  if (!is.null(CHECKOUT) && file.exists(file.path(CHECKOUT, "pyproject.toml"))) CHECKOUT
}

# A call of minhub_install() that works here, whether or not there is a release.
install_call <- function() {
  if (is.null(own_source())) "minhub_install(\"/path/to/minhub_py\")" else "minhub_install()"
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

# Written by r_bridge/host/library.py.
installer <- function() {
  file <- system.file("python", package = "minhubpy")
  if (nzchar(file)) readLines(file, n = 1L, encoding = "UTF-8")
}

# The program of a name or path, or NULL. Not by Sys.which(), which runs a shell that Ctrl-C may end.
on_path <- function(name) {
  if (.Platform$OS.type == "windows") {
    files <- unname(Sys.which(name))
  } else if (grepl("/", name, fixed = TRUE)) {
    files <- name
  } else {
    files <- file.path(strsplit(Sys.getenv("PATH"), ":", fixed = TRUE)[[1L]], name)
  }
  programs <- files[file.access(files, 1L) == 0L & !dir.exists(files)]
  if (length(programs)) programs[[1L]]
}

project_virtualenv <- function(folder = getwd()) {
  repeat {
    if (file.exists(python_in(file.path(folder, ".venv")))) return(file.path(folder, ".venv"))
    if (dirname(folder) == folder) return(NULL)
    folder <- dirname(folder)
  }
}

# The path of the Python to use. It is looked for once in a session, which keeps list(path, why).
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
    "no Python with minhub_py was found; ", install_call(), " makes one, or set options(minhubpy.python = \"/path/to/python\")",
    if (length(problems)) "\nTried:", problems,
    class = "minhubpy_no_python"
  )
}

check_named <- function(path, why) {
  path <- path.expand(path)
  problem <- python_problem(path)
  if (!is.null(problem)) {
    # As long as a Python is named, the one of minhub_install() is not used.
    instead <- if (why == "the argument python") ", or run " else ", or name none and run "
    fail(path, " (", why, ") ", problem, ": name another Python", instead, install_call(), class = "minhubpy_no_python")
  }
  list(path = path, why = why)
}

# What a Python lacks to serve, or NULL. It imports only the standard library for this.
python_problem <- function(path) {
  if (is.null(on_path(path))) return("is not there")
  question <- paste(
    "import sys, importlib.util as u; sys.path[:] = [p for p in sys.path if p]",
    "print('minhubpy', sys.version_info >= (3, 10), *(u.find_spec(n) is not None for n in ('minhub_py', 'r_bridge', 'torch')))",
    sep = "; "
  )
  answer <- suspendInterrupts(python_output(path, question))
  told <- grep("^minhubpy ", answer, value = TRUE)
  if (!length(told)) return("is no Python 3")
  told <- strsplit(told[[1L]], " ")[[1L]][-1L] == "True"
  lacks <- c("is older than 3.10", "lacks minhub_py", "lacks minhub_py's r_bridge", "lacks PyTorch")
  if (all(told)) NULL else lacks[[which(!told)[[1L]]]]
}

# system2() for a Python, which runs as if R had not started it.
run_python <- function(python, arguments, ...) {
  if (.Platform$OS.type == "windows") return(system2(python, c("-X", "utf8", arguments), ...))
  system2("sh", c(without_r(), shQuote(python), arguments), ...)
}

without_r <- function() shQuote(c(system.file("without_r.sh", package = "minhubpy"), file.path(R.home("etc"), "ldpaths")))

# Runs Python code and returns the lines that it prints. Call it with interrupts suspended; Ctrl-C ends the wait.
python_output <- function(python, code, seconds = 30) {
  arguments <- c("-c", shQuote(code))
  if (.Platform$OS.type == "windows") {
    return(suppressWarnings(run_python(python, arguments, stdout = TRUE, stderr = FALSE, timeout = seconds)))
  }
  log <- tempfile("minhubpy-")
  pid <- NULL
  ended <- FALSE
  on.exit({
    if (!ended) kill(pid)
    unlink(log)
  })
  pid <- start_python(python, arguments, log)
  ended <- allowInterrupts(wait_until(function() !is_running(pid), seconds))
  readLines(log, warn = FALSE)
}

# Starts a Python without waiting for it. Returns its process id, or NULL on Windows, where R cannot learn it. Call it
# with interrupts suspended. Ctrl-C reaches R alone: a shell that is not interactive has commands before & ignore it.
start_python <- function(python, arguments, log) {
  if (.Platform$OS.type == "windows") {
    run_python(python, arguments, stdout = log, stderr = log, wait = FALSE)
    return(NULL)
  }
  command <- c("sh", without_r(), shQuote(python), arguments, ">", shQuote(log), "2>&1 </dev/null & echo $!")
  # No timeout: with one, R itself would not notice Ctrl-C.
  pid <- as.integer(suppressWarnings(system(paste(command, collapse = " "), intern = TRUE)))
  if (length(pid) == 1L) return(pid)
  allowInterrupts(Sys.sleep(0)) # an interrupt here, if Ctrl-C ended the shell
  fail("the shell did not start ", python, ": try again")
}

# Whether a process is running; yes for NULL, an unknown one. In a container whose first process does not wait for its
# children, a process that has ended stays as a zombie (state Z).
is_running <- function(pid) {
  if (is.null(pid)) return(TRUE)
  nothing <- function(condition) ""
  state <- tryCatch(readLines(file.path("/proc", pid, "stat"), warn = FALSE), error = nothing, warning = nothing)
  pskill(pid, 0L) && !any(grepl(") Z ", state, fixed = TRUE))
}

# Ends a process at once.
kill <- function(pid) if (!is.null(pid)) pskill(pid, tools::SIGKILL)

# Waits until a condition holds; FALSE after so many seconds. Call it in allowInterrupts(): Ctrl-C and setTimeLimit(),
# which R checks in Sys.sleep(), end it, also when the condition holds, since Ctrl-C may have ended the process.
wait_until <- function(condition, seconds) {
  deadline <- Sys.time() + seconds
  pause <- 0.005
  repeat {
    holds <- condition()
    late <- Sys.time() > deadline
    Sys.sleep(if (holds || late) 0 else pause)
    if (holds || late) return(holds)
    pause <- min(1.2 * pause, 0.05)
  }
}

set_environment <- function(values) {
  gone <- is.na(values)
  Sys.unsetenv(names(values)[gone])
  if (!all(gone)) do.call(Sys.setenv, as.list(values[!gone]))
}

find_base_python <- function() {
  for (path in c(on_path("python3"), on_path("python"))) {
    code <- shQuote("import sys; sys.exit(sys.version_info < (3, 10))")
    if (run_python(path, c("-c", code), stdout = FALSE, stderr = FALSE) == 0L) return(path)
  }
  fail("no Python 3.10 or newer is on the PATH: install one (on Debian: apt-get install python3-venv), or give python =")
}

is_hosted <- function() !is.null(session$link) && startsWith(session$link$epoch, "host")

# What each example ends with. A check as CRAN makes it wants no connection left open; in others the next example goes
# on with the same worker, which starts in seconds.
end_example <- function() {
  wanted <- tolower(Sys.getenv("_R_CHECK_CONNECTIONS_LEFT_OPEN_")) %in% c("true", "yes", "1")
  if (wanted && !is_hosted()) minhub_stop()
}

# Whether there is a Python to use, without installing anything: for examples.
is_ready <- function() {
  is_hosted() || tryCatch(
    {
      choose_python()
      TRUE
    },
    minhubpy_error = function(e) FALSE
  )
}
