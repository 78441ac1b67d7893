# minhub_install(), the only function of this package that installs anything.

#' Create a Python for this package
#'
#' Creates a virtualenv in the user's data folder, with minhub_py and its
#' dependencies (PyTorch is the largest), including the optional packages that
#' functions of this package use. It replaces the virtualenv of an earlier call.
#' No other function installs anything.
#'
#' @section Optional Python packages:
#' Three extras of minhub_py are needed by some functions only. `minhub_install()`
#' installs them; a Python of your own may lack them, and
#' [minhub_doctor()] lists those that are missing.
#'
#' * `minhub_py[serve]`: [minhub_serve()].
#' * `minhub_py[json]`: replies that follow a `schema`.
#' * `minhub_py[gguf]`: GGUF files.
#'
#' `python -m pip install "minhub_py[serve,json,gguf]"` adds them to another
#' Python.
#'
#' @section PyTorch and package indexes:
#' On Linux the build of PyTorch on the package index brings CUDA, and takes 5.5
#' to 6.2 GB on disk; PyTorch's build for CPUs takes 1.0 GB and comes from
#' PyTorch's own index, `https://download.pytorch.org/whl/cpu`.
#'
#' Where only a mirror is reachable, name the mirror's copy of that index as
#' `torch_index`. If pip is configured with an index (the environment variables
#' `PIP_INDEX_URL` and `PIP_EXTRA_INDEX_URL`, or a pip.conf), or if `pip_args`
#' names one, `torch = "auto"` installs the build that this index offers.
#'
#' @param source The package that pip installs: the path of a checkout or wheel
#'   of minhub_py, or a URL that pip knows, such as `"git+https://..."`. If not
#'   given, the source of this package: the checkout from which `R CMD INSTALL`
#'   installed it, or the repository of `remotes::install_github()`. A package that was
#'   installed from a file knows neither; then pip asks the package index for
#'   the release of minhub_py with this package's version.
#' @param python The Python that creates the virtualenv: 3.10 or newer, with the
#'   modules venv and ensurepip. If not given, the first suitable one of:
#'   `python3` and `python` in all folders of the `PATH`, `python3.14` to
#'   `python3.10`, the versions of pyenv, asdf or mise if their shims are on the
#'   `PATH`, and on Windows the Pythons that the `py`
#'   launcher lists.
#' @param pip_args Further arguments of `pip install`, such as
#'   `c("--index-url", "https://...")`.
#' @param torch The build of PyTorch: `"cpu"`; `"cuda"`, the one of the package
#'   index; or `"auto"`, which selects `"cpu"` on Linux without an NVIDIA GPU,
#'   and says so.
#' @param torch_index The URL of the index with PyTorch's build, in place of
#'   PyTorch's own index.
#' @returns The path of the new Python, invisibly.
#' @family functions for the Python side
#' @examples
#' \dontrun{
#' minhub_install()
#' minhub_install("path/to/minhub_py", torch = "cpu")
#' minhub_install(torch_index = "https://mirror.example.org/pytorch/whl/cpu")
#' }
#' @export
minhub_install <- function(source = NULL, python = NULL, pip_args = character(), torch = c("auto", "cpu", "cuda"),
                           torch_index = NULL) {
  not_now()
  source <- if (is.null(source)) own_source() else string(source)
  pip_args <- if (length(pip_args)) texts(pip_args) else character()
  torch <- choice(torch, c("auto", "cpu", "cuda"))
  torch_index <- optional(torch_index, string, what = "torch_index")
  base <- if (is.null(python)) find_base_python() else check_base(path.expand(string(python)))
  if (!is.null(source) && file.exists(path.expand(source))) source <- normalizePath(source)
  folder <- private_virtualenv()
  dir.create(dirname(folder), recursive = TRUE, showWarnings = FALSE)
  disconnect()
  session$python <- NULL
  # A virtualenv cannot be moved while in use: the old one is set aside, and restored if this fails.
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
  new <- python_in(folder)
  pip <- c("-m", "pip", "install", "--disable-pip-version-check", shQuote(pip_args))
  # minhub_py alone first, so that a wrong source fails before PyTorch is downloaded.
  if (is.null(source)) {
    install_release(new, pip)
  } else {
    run(
      new, c(pip, "--no-deps", shQuote(source)),
      "pip could not install it, for the reason above; minhub_install(\"/path/to/minhub_py\") takes a folder"
    )
  }
  index <- torch_index %||% if (takes_cpu_build(torch, base, pip_args, new)) CPU_INDEX
  if (!is.null(index)) {
    run(
      new, c(pip, "--index-url", shQuote(index), "torch"),
      paste0(
        "pip could not install PyTorch from ", index, ", for the reason above; torch_index = \"https://...\" names a mirror, ",
        "torch = \"cuda\" takes the build of the package index"
      )
    )
  }
  run(new, c(pip, shQuote(WITH_EXTRAS)), "pip could not install the packages that minhub_py needs, for the reason above")
  done <- TRUE
  note("Installed: ", new)
  invisible(new)
}

CPU_INDEX <- "https://download.pytorch.org/whl/cpu"

# The extras of minhub_py that functions of this package use.
WITH_EXTRAS <- "minhub_py[gguf,json,serve]"

# Installs the release with this package's version. Without one, the error is clearer than pip's.
install_release <- function(python, pip) {
  version <- as.character(utils::packageVersion("minhubpy"))
  output <- suppressWarnings(
    run_python(python, c(pip, "--retries", "1", "--no-deps", paste0("minhub_py==", version)), stdout = TRUE, stderr = TRUE)
  )
  status <- attr(output, "status")
  if (is.null(status)) return(invisible())
  if (any(grepl("No matching distribution", output, fixed = TRUE))) {
    fail(
      "the package index has no release ", version, " of minhub_py, or cannot be reached: ",
      "minhub_install(\"/path/to/minhub_py\") takes a checkout, minhub_install(\"git+https://...\") a repository"
    )
  }
  fail("pip could not install minhub_py ", version, ": ", error_line(output) %||% paste("status", status))
}

# Whether to install PyTorch from its index of CPU builds. Not if the user names an index, which then selects the build.
takes_cpu_build <- function(torch, base, pip_args, python) {
  if (torch != "auto") return(torch == "cpu")
  named <- any(grepl("^(-i|--index-url|--extra-index-url|--no-index)", pip_args))
  if (named || Sys.info()[["sysname"]] != "Linux") return(FALSE)
  index <- configured_index(python)
  if (!is.null(index)) {
    note(
      "pip is configured with ", index, ": installing the PyTorch of that index (torch = \"cpu\" takes the CPU build ",
      "of PyTorch's own index, torch_index = \"https://...\" names another)"
    )
    return(FALSE)
  }
  gpu <- has_nvidia_gpu(base)
  note(
    if (gpu) "Found an NVIDIA GPU: taking PyTorch with CUDA" else "Found no NVIDIA GPU: taking PyTorch's CPU build",
    if (gpu) " (5.5 to 6.2 GB; " else " (1.0 GB instead of 5.5 to 6.2; ",
    "torch = \"", if (gpu) "cpu" else "cuda", "\" takes the other)"
  )
  !gpu
}

# An index in pip's configuration, which includes environment variables: "index-url = https://...". NULL without one.
configured_index <- function(python) {
  lines <- suppressWarnings(run_python(python, c("-m", "pip", "config", "list"), stdout = TRUE, stderr = FALSE))
  found <- grep("^(global|install|:env:)[.](extra-index-url|index-url|no-index)=", lines, value = TRUE)
  # Credentials in a URL are not shown.
  if (length(found)) gsub("//[^/@]*@", "//", sub("^[^.]*[.]([a-z-]+)='?(.*?)'?$", "\\1 = \\2", found[[1L]], perl = TRUE))
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

# The checkout that holds the package's source. R CMD INSTALL evaluates this line in the folder of the source.
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

# The Python that creates the virtualenv

check_base <- function(path) {
  problem <- base_problem(path)
  if (!is.null(problem)) fail(path, " ", problem, ": name a Python 3.10 or newer with the modules venv and ensurepip")
  path
}

# The first Python that can create the virtualenv.
find_base_python <- function() {
  candidates <- base_pythons()
  problems <- character()
  for (path in candidates) {
    problem <- base_problem(path)
    if (is.null(problem)) return(path)
    problems <- c(problems, paste0("\n  ", path, " ", problem))
  }
  fail(
    "found no Python 3.10 or newer that can create a virtualenv: install one (on Debian: apt-get install python3-venv), ",
    "or name one, as in minhub_install(python = \"/path/to/python3\")", if (length(problems)) "\nTried:", problems
  )
}

# Why a Python cannot create the virtualenv, or NULL.
base_problem <- function(path) {
  answer <- query_python(path, c(
    "import sys",
    "new = sys.version_info >= (3, 10)",
    "util = __import__('importlib.util', fromlist=['find_spec']) if new else None",
    "missing = [name for name in ('venv', 'ensurepip') if new and util.find_spec(name) is None]",
    "sys.stdout.write('minhubpy ' + sys.version.split()[0] + ' ' + ' '.join(['older'] * (not new) + missing))"
  ))
  if (is_problem(answer)) return(answer)
  if (length(answer) < 2L) return(NULL)
  if (answer[[2L]] == "older") return(paste0("is Python ", answer[[1L]], ", which is older than 3.10"))
  paste0("lacks the module ", answer[[2L]], " (on Debian: apt-get install python3-venv)")
}

# Every Python of this machine that has a usual name or location: the default ones first, then by version.
base_pythons <- function() {
  defaults <- unlist(lapply(c("python3", "python"), programs_on_path))
  versions <- unlist(lapply(paste0("python3.", 14:10), programs_on_path))
  found <- c(defaults, versions, shimmed_pythons(), launcher_pythons())
  found[!duplicated(found)]
}

# The Pythons behind the shims of pyenv, asdf and mise: a shim runs the version of the current folder only.
shimmed_pythons <- function() {
  roots <- dirname(grep("/shims/?$", path_folders(), value = TRUE))
  found <- Sys.glob(file.path(rep(roots, each = 2L), c("versions", "installs/python"), "*", "bin", "python3"))
  if (!length(found)) return(character())
  version <- numeric_version(sub("^[^0-9]*([0-9]+([.][0-9]+)+).*$|.*", "\\1", basename(dirname(dirname(found)))), strict = FALSE)
  found[order(version, decreasing = TRUE, na.last = TRUE)]
}

# The Pythons that the launcher of Windows lists.
launcher_pythons <- function(lines = launcher_lines()) {
  pattern <- "[A-Za-z]:\\\\.*python[0-9.]*[.]exe"
  regmatches(lines, regexpr(pattern, lines))
}

launcher_lines <- function() {
  py <- if (.Platform$OS.type == "windows") on_path("py")
  if (is.null(py)) return(character())
  suppressWarnings(system2(py, "-0p", stdout = TRUE, stderr = FALSE))
}
