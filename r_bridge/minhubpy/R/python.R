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

private_virtualenv <- function() file.path(tools::R_user_dir("minhubpy", "data"), "venv")

python_in <- function(folder) {
  if (.Platform$OS.type == "windows") file.path(folder, "Scripts", "python.exe") else file.path(folder, "bin", "python")
}

# Candidates in the order of the help page of minhub_start().
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

# The program of a name or path, or NULL.
on_path <- function(name) {
  programs <- programs_on_path(name)
  if (length(programs)) programs[[1L]]
}

# All programs of a name on the PATH, or the program of a path. Not by Sys.which(), which runs a shell that Ctrl-C may end.
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
  if (is.null(problem)) return(list(path = path, why = why))
  # A named Python takes precedence over the one of minhub_install(), which fixes none that does not start.
  install <- if (!inherits(problem, "start_problem")) {
    paste0(if (why == "the argument python") ", or run " else ", or name none and run ", install_call())
  }
  fail(path, " (", why, ") ", problem, ": name another Python", install, class = "minhubpy_no_python")
}

# Why a Python cannot run the worker, or NULL. Imports the standard library only.
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

# The words that code prints after "minhubpy"; if it prints none, the reason, as a problem.
# The statements share one line, as a command line of Windows requires.
query_python <- function(path, code) {
  if (is.null(on_path(path))) return(new_problem("is not there"))
  output <- suspendInterrupts(python_output(path, paste(code, collapse = "; ")))
  answer <- grep("^minhubpy ", output, value = TRUE)
  if (length(answer)) return(strsplit(answer[[1L]], " ", fixed = TRUE)[[1L]][-1L])
  home <- Sys.getenv("PYTHONHOME")
  new_problem(
    "does not start as Python 3 (", error_line(output) %||% "it prints nothing",
    if (nzchar(home)) paste0("; the environment variable PYTHONHOME is ", home, ", which Sys.unsetenv(\"PYTHONHOME\") removes"),
    ")",
    class = "start_problem"
  )
}

new_problem <- function(..., class = NULL) structure(paste0(...), class = c(class, "problem"))

is_problem <- function(x) inherits(x, "problem")

# The line of a Python's output that states its error: the last that names one, or else the last. NULL if it has no line.
error_line <- function(lines) {
  lines <- trimws(lines)
  lines <- lines[nzchar(lines)]
  errors <- grep("^[A-Za-z_.]*(Error|Exception|error)\\b.*:|^Fatal Python error|: command not found$", lines, value = TRUE)
  shown <- if (length(errors)) errors else lines
  if (length(shown)) substr(shown[[length(shown)]], 1L, 200L)
}

# system2() for a Python, which runs as if R had not started it.
run_python <- function(python, arguments, ...) {
  if (.Platform$OS.type == "windows") return(system2(python, c("-X", "utf8", arguments), ...))
  system2("sh", c(without_r(), shQuote(python), arguments), ...)
}

without_r <- function() shQuote(c(system.file("without_r.sh", package = "minhubpy"), file.path(R.home("etc"), "ldpaths")))

# Runs Python code and returns the lines of its output and errors. Call it with interrupts suspended; Ctrl-C ends the wait.
python_output <- function(python, code, seconds = 30) {
  arguments <- c("-c", shQuote(code))
  if (.Platform$OS.type == "windows") {
    return(suppressWarnings(run_python(python, arguments, stdout = TRUE, stderr = TRUE, timeout = seconds)))
  }
  folder <- private_folder() # not tempdir(), which may be full
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

# Lets a stopped process continue; no effect on a running one. Not on Windows, where every signal ends the process.
resume_process <- function(pid) if (!is.null(pid) && .Platform$OS.type != "windows") pskill(pid, tools::SIGCONT)

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

is_hosted <- function() !is.null(session$link) && startsWith(session$link$epoch, "host")

# What each example ends with. A check as CRAN makes it wants no connection left open; in others the next example goes
# on with the same worker, which starts in seconds.
end_example <- function() {
  wanted <- tolower(Sys.getenv("_R_CHECK_CONNECTIONS_LEFT_OPEN_")) %in% c("true", "yes", "1")
  if (wanted && !is_hosted()) minhub_stop()
}

# Whether there is a Python to use, with an extra of minhub_py if one is named: for examples, which install nothing.
is_ready <- function(extra = NULL) {
  ready <- tryCatch(
    {
      if (!is_hosted()) choose_python()
      if (!is.null(extra)) require_extra(extra)
      TRUE
    },
    minhubpy_error = function(e) FALSE
  )
  if (!ready && !is.null(extra)) end_example() # the question has started a worker
  ready
}

# Fails if this session's Python lacks an extra of minhub_py; the message has the command that installs it.
require_extra <- function(name) ask("require_extra", name = name)
