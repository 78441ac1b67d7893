#' Start and stop the Python worker
#'
#' The first call that requires Python starts a worker process, which ends with
#' the R session. `minhub_start()` starts it immediately and reports which Python
#' it selected, and why. `minhub_stop()` stops it. Models and tokenizers are
#' reloaded at their next use, except for weights from `load_state_dict()`. The
#' selected Python remains the same until `minhub_stop()`.
#'
#' @section Selection of a Python:
#' The package selects the first Python in this list that exists, is version 3.10
#' or newer, and has minhub_py:
#'
#' 1. the option `minhubpy.python`, then the environment variable
#'    `MINHUBPY_PYTHON` (if one of them is set, no other Python is tried);
#' 2. the environment variable `RETICULATE_PYTHON`;
#' 3. an active virtual environment (`VIRTUAL_ENV`) or conda environment
#'    (`CONDA_PREFIX`);
#' 4. `.venv` in the working directory or a directory above it;
#' 5. the Python whose `minhub r --install` installed this package;
#' 6. the virtual environment of [minhub_install()];
#' 7. `python3`, then `python`, on the `PATH`.
#'
#' @section Threads:
#' PyTorch and the C decoder compute with one thread per core, or with the number
#' in the environment variable `OMP_NUM_THREADS`. `minhub_start(threads = 2)`, or
#' `options(minhubpy.threads = 2)` before the worker starts, sets another number.
#' Fewer threads than cores are often faster on a machine that other programs use.
#'
#' A forked child, as of `parallel::mclapply()`, starts another worker, which
#' computes with one thread unless one of these settings exists: the children
#' share the cores. Load this package before the fork. The workers of
#' `future::plan("multisession")` and `parallel::makeCluster()` are separate R
#' sessions: set the option in each of them.
#'
#' @param python A Python's path, which overrides the list.
#' @param threads The number of threads of the worker. Restarts a running worker.
#'   Applies until `minhub_stop()`. `NULL`: see below.
#' @returns `minhub_start()` returns a list, invisibly: `python` (the path),
#'   `why` (the reason for the selection), the versions `version` (of Python),
#'   `minhub_py` and `torch`, and `threads`, the requested number, or `NULL` for
#'   PyTorch's default. `minhub_stop()` returns `NULL`, invisibly.
#' @family functions for the Python side
#' @examplesIf minhubpy:::is_ready()
#' str(minhub_start())
#' minhub_stop()
#' @export
minhub_start <- function(python = NULL, threads = NULL) {
  if (!is.null(threads)) {
    not_now()
    if (is_hosted()) fail("R runs inside a Python process, which determines the threads: set OMP_NUM_THREADS before it starts")
    threads <- whole_number(threads, min = 1)
    disconnect()
    session$threads <- threads
  }
  if (!is.null(python)) {
    not_now()
    if (is_hosted()) fail("R runs inside a Python process and cannot use another Python: start a plain R session")
    python <- check_named(string(python), "the argument python")
    disconnect()
    session$python <- python
  }
  about <- suppressMessages(ask("hello"))
  why <- if (is.null(session$python)) "it hosts this R session" else session$python$why
  note("Python ", about$python, " (", about$executable, "): ", why)
  invisible(list(
    python = about$executable, why = why, version = about$python,
    minhub_py = about$minhub_py, torch = about$torch, threads = about$threads
  ))
}

#' @rdname minhub_start
#' @export
minhub_stop <- function() {
  not_now()
  if (is_hosted()) fail("R runs inside a Python process, which minhub_stop() cannot stop")
  disconnect()
  session$python <- NULL
  session$threads <- NULL
  invisible()
}

# The environment variables that set the number of threads of a new worker; none for PyTorch's default.
thread_variables <- function() {
  threads <- session$threads
  if (is.null(threads)) threads <- optional(getOption("minhubpy.threads"), whole_number, what = "the option minhubpy.threads", min = 1)
  is_forked <- !identical(session$process, Sys.getpid())
  if (is.null(threads) && is_forked && !nzchar(Sys.getenv("OMP_NUM_THREADS"))) threads <- 1L
  if (is.null(threads)) return(character())
  threads <- format(threads, scientific = FALSE)
  c(OMP_NUM_THREADS = threads, MKL_NUM_THREADS = threads)
}

# Sets environment variables, a named vector. Returns the previous values for set_environment().
replace_environment <- function(values) {
  before <- Sys.getenv(names(values), unset = NA, names = TRUE)
  if (length(values)) do.call(Sys.setenv, as.list(values))
  before
}

private_virtualenv <- function() file.path(tools::R_user_dir("minhubpy", "data"), "venv")

python_in <- function(folder) {
  if (.Platform$OS.type == "windows") file.path(folder, "Scripts", "python.exe") else file.path(folder, "bin", "python")
}

# Candidates in the order that ?minhub_start documents.
python_candidates <- function() {
  variable <- function(name) {
    value <- Sys.getenv(name)
    if (nzchar(value)) value
  }
  inside <- function(folder) if (!is.null(folder)) python_in(folder)
  candidates <- list(
    RETICULATE_PYTHON = variable("RETICULATE_PYTHON"),
    "the active virtualenv" = inside(variable("VIRTUAL_ENV")),
    "the active conda environment" = conda_python(variable("CONDA_PREFIX")),
    "the .venv of this folder" = inside(project_virtualenv()),
    "the Python that installed this package" = installer(),
    "created by minhub_install()" = if (dir.exists(private_virtualenv())) python_in(private_virtualenv()),
    "python3 on the PATH" = on_path("python3"),
    "python on the PATH" = on_path("python")
  )
  Filter(Negate(is.null), candidates)
}

conda_python <- function(prefix) {
  if (is.null(prefix)) return(NULL)
  if (.Platform$OS.type == "windows") file.path(prefix, "python.exe") else python_in(prefix)
}

# r_bridge/host/library.py writes this file.
installer <- function() {
  file <- system.file("python", package = "minhubpy")
  if (nzchar(file)) readLines(file, n = 1L, encoding = "UTF-8")
}

# A program's path, or NULL.
on_path <- function(name) {
  programs <- programs_on_path(name)
  if (length(programs)) programs[[1L]]
}

# All programs with this name on the PATH, or the program at a path. Sys.which() runs a shell, which Ctrl-C may end.
programs_on_path <- function(name) {
  if (.Platform$OS.type == "windows") {
    files <- unname(Sys.which(name))
  } else {
    files <- if (grepl("/", name, fixed = TRUE)) name else file.path(path_folders(), name)
  }
  files[file.access(files, 1L) == 0L & !dir.exists(files)]
}

path_folders <- function() strsplit(Sys.getenv("PATH"), .Platform$path.sep, fixed = TRUE)[[1L]]

project_virtualenv <- function(folder = getwd()) {
  if (is.null(folder)) return(NULL) # the working directory was removed
  repeat {
    if (file.exists(python_in(file.path(folder, ".venv")))) return(file.path(folder, ".venv"))
    if (dirname(folder) == folder) return(NULL)
    folder <- dirname(folder)
  }
}

# The path of the selected Python. The session stores list(path, why).
choose_python <- function() {
  if (is.null(session$python)) {
    session$python <- look_for_python()
    if (interactive()) note("Using ", session$python$path, " (", session$python$why, ")")
  }
  session$python$path
}

look_for_python <- function() {
  path <- getOption("minhubpy.python")
  if (!is.null(path)) return(check_named(string(path, "the option minhubpy.python"), "the option minhubpy.python"))
  path <- Sys.getenv("MINHUBPY_PYTHON")
  if (nzchar(path)) return(check_named(path, "the environment variable MINHUBPY_PYTHON"))
  candidates <- python_candidates()
  problems <- character()
  for (why in names(candidates)) {
    problem <- python_problem(candidates[[why]])
    if (is.null(problem)) return(list(path = candidates[[why]], why = why))
    problems <- c(problems, paste0("\n  ", candidates[[why]], " (", why, ") ", problem))
  }
  fail(
    "no Python with minhub_py was found: run ", install_call(), ", or set options(minhubpy.python = \"/path/to/python\")",
    if (length(problems)) "\nTried:", problems,
    class = "minhubpy_no_python"
  )
}

check_named <- function(path, why) {
  path <- path.expand(path)
  problem <- python_problem(path)
  if (is.null(problem)) return(list(path = path, why = why))
  # minhub_install() does not repair a Python that does not start, and the setting has precedence over its Python.
  install <- if (!inherits(problem, "start_problem")) {
    paste0(if (why == "the argument python") ", or run " else ", or unset it and run ", install_call())
  }
  fail(path, " (", why, ") ", problem, ": set another Python", install, class = "minhubpy_no_python")
}

# The reason why a Python cannot run the worker, or NULL. Imports the standard library only.
python_problem <- function(path) {
  modules <- "'minhub_py', 'r_bridge', 'torch'"
  answer <- query_python(path, c(
    "import sys",
    "new = sys.version_info >= (3, 10)",
    "sys.path[:] = [p for p in sys.path if p]",
    "util = __import__('importlib.util', fromlist=['find_spec']) if new else None",
    paste0("found = [util.find_spec(name) is not None for name in (", modules, ")] if new else []"),
    "sys.stdout.write('minhubpy ' + ' '.join(map(str, [new] + found)))"
  ))
  if (is_problem(answer)) return(answer)
  lacks <- c("is older than 3.10", "lacks minhub_py", "lacks minhub_py's r_bridge", "lacks PyTorch")
  missing <- which(answer != "True")
  if (length(missing)) lacks[[missing[[1L]]]]
}

# The words that Python code prints after "minhubpy", or the reason why it prints none, as a problem. The statements
# share one line, because a command line of Windows is a single line.
query_python <- function(path, code) {
  if (is.null(on_path(path))) return(new_problem("does not exist"))
  output <- suspendInterrupts(python_output(path, paste(code, collapse = "; ")))
  answer <- grep("^minhubpy ", output, value = TRUE)
  if (length(answer)) return(strsplit(answer[[1L]], " ", fixed = TRUE)[[1L]][-1L])
  home <- Sys.getenv("PYTHONHOME")
  new_problem(
    "does not start as Python 3 (", error_line(output) %||% "it prints nothing",
    if (nzchar(home)) paste0("; the environment variable PYTHONHOME is ", home, ": unset it with Sys.unsetenv(\"PYTHONHOME\")"),
    ")",
    class = "start_problem"
  )
}

new_problem <- function(..., class = NULL) structure(paste0(...), class = c(class, "problem"))

is_problem <- function(x) inherits(x, "problem")

# The line of Python's output with the error: the last line that names an error, or the last line. NULL without output.
error_line <- function(lines) {
  lines <- trimws(lines)
  lines <- lines[nzchar(lines)]
  errors <- grep("^[A-Za-z_.]*(Error|Exception|error)\\b.*:|^Fatal Python error|: command not found$", lines, value = TRUE)
  shown <- if (length(errors)) errors else lines
  if (length(shown)) substr(shown[[length(shown)]], 1L, 200L)
}

# system2() for Python, without the environment variables that R sets.
run_python <- function(python, arguments, ...) {
  if (.Platform$OS.type == "windows") return(system2(python, c("-X", "utf8", arguments), ...))
  system2("sh", c(without_r(), shQuote(python), arguments), ...)
}

without_r <- function() shQuote(c(system.file("without_r.sh", package = "minhubpy"), file.path(R.home("etc"), "ldpaths")))

# Runs Python code and returns its output and errors. Requires suspended interrupts; Ctrl-C ends the wait.
python_output <- function(python, code, seconds = 30) {
  arguments <- c("-c", shQuote(code))
  if (.Platform$OS.type == "windows") {
    return(suppressWarnings(run_python(python, arguments, stdout = TRUE, stderr = TRUE, timeout = seconds)))
  }
  folder <- private_folder() # tempdir() may be full
  log <- file.path(folder, "log")
  pid <- NULL
  ended <- FALSE
  on.exit({
    if (!ended) kill(pid)
    unlink(folder, recursive = TRUE)
  })
  pid <- start_python(python, arguments, log)
  ended <- allowInterrupts(wait_until(function() !is_running(pid), seconds))
  readLines(log, warn = FALSE)
}

# Starts a Python process in the background. Returns its process ID, or NULL on Windows, where it is not available.
# Requires suspended interrupts. Ctrl-C does not reach the process, because a shell ignores it for background commands.
start_python <- function(python, arguments, log) {
  if (.Platform$OS.type == "windows") {
    run_python(python, arguments, stdout = log, stderr = log, wait = FALSE)
    return(NULL)
  }
  command <- c("sh", without_r(), shQuote(python), arguments, ">", shQuote(log), "2>&1 </dev/null & echo $!")
  # With a timeout, R would not notice Ctrl-C.
  pid <- as.integer(suppressWarnings(system(paste(command, collapse = " "), intern = TRUE)))
  if (length(pid) == 1L) return(pid)
  allowInterrupts(Sys.sleep(0)) # handles a Ctrl-C that ended the shell
  fail("the shell did not start ", python, ": try again")
}

# Whether a process is running; TRUE for NULL, an unknown process. A process that has ended may remain as a zombie
# (state Z) in a container whose first process does not wait for its children.
is_running <- function(pid) {
  if (is.null(pid)) return(TRUE)
  # A handler of the warning would leave R before it frees the connection, and R has 128.
  state <- suppressWarnings(tryCatch(readLines(file.path("/proc", pid, "stat"), warn = FALSE), error = function(condition) ""))
  pskill(pid, 0L) && !any(grepl(") Z ", state, fixed = TRUE))
}

# Continues a stopped process. On Windows, any signal would end the process.
resume_process <- function(pid) if (!is.null(pid) && .Platform$OS.type != "windows") pskill(pid, tools::SIGCONT)

kill <- function(pid) if (!is.null(pid)) pskill(pid, tools::SIGKILL)

# Waits until a condition holds. Returns FALSE after a timeout in seconds. Requires allowInterrupts(): R checks for
# Ctrl-C and setTimeLimit() in Sys.sleep(), which also runs if the condition holds, because Ctrl-C may have ended the
# process.
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

is_hosted <- function() !is.null(session$link) && startsWith(session$link$epoch, "host")

# The last line of the examples. CRAN's checks reject open connections. Otherwise all examples share one worker.
end_example <- function() {
  strict <- tolower(Sys.getenv("_R_CHECK_CONNECTIONS_LEFT_OPEN_")) %in% c("true", "yes", "1")
  if (strict && !is_hosted()) minhub_stop()
}

# Whether examples can run: a Python with minhub_py, with an extra of it if `extra` is set, and with a complete model in
# the cache if `model` is set.
is_ready <- function(extra = NULL, model = NULL) {
  ready <- tryCatch(
    {
      if (!is_hosted()) choose_python()
      if (!is.null(extra)) require_extra(extra)
      if (is.null(model)) TRUE else model %in% cached_models()
    },
    minhubpy_error = function(e) FALSE
  )
  if (!ready && !(is.null(extra) && is.null(model))) end_example() # a worker has started
  ready
}

# Raises an error with the installation command if Python lacks an extra of minhub_py.
require_extra <- function(name) ask("require_extra", name = name)

cached_models <- function() {
  models <- ask("list_models")
  models$model[models$complete]
}
