#' Install minhub_py
#'
#' Creates a virtual environment in the user's data folder and installs minhub_py
#' with its dependencies (PyTorch is the largest) and the optional packages that
#' functions of this package use. Replaces the virtual environment of an earlier
#' call. No other function of this package installs anything.
#'
#' With PyTorch's CPU build, the call downloads about 400 MB, takes 1.3 GB on disk, and
#' about 2 minutes at 100 Mbit/s. After an interrupt (Esc or Ctrl-C), the same call
#' continues with the downloaded packages, and an earlier installation remains.
#'
#' @section Optional Python packages:
#' Some functions require an extra of minhub_py. `minhub_install()` installs all
#' of them, except wandb. [minhub_doctor()] lists the extras that another Python
#' lacks.
#'
#' * `gguf`: GGUF files.
#' * `json`: replies that follow a `schema`.
#' * `plot`: the picture of the losses in a run's folder.
#' * `probe`: [linear_probe()], and [steering_direction()] with
#'   `method = "logistic"`.
#' * `serve`: [minhub_serve()].
#' * `tables`: training on .parquet files.
#' * `tensorboard`, `wandb`: the `metrics` of [minhub_train()].
#'
#' `minhub_install(extras = "wandb")` adds extras to the virtual environment of an
#' earlier call; models remain loaded. To add them to another Python, run
#' `python -m pip install "minhub_py[probe,serve]"`.
#'
#' @section PyTorch and package indexes:
#' On Linux, PyTorch's build on the package index includes CUDA and takes 5.5 to
#' 6.2 GB on disk. The CPU build takes 1.0 GB and comes from PyTorch's own index,
#' `https://download.pytorch.org/whl/cpu`.
#'
#' If only a mirror is reachable, pass the mirror's copy of that index as
#' `torch_index`. If pip is configured with an index (the environment variables
#' `PIP_INDEX_URL` and `PIP_EXTRA_INDEX_URL`, or a pip.conf), or if `pip_args`
#' contains an index, `torch = "auto"` installs the build of that index.
#'
#' @section uv, mirrors and machines without a network:
#' The packages are installed by [uv](https://docs.astral.sh/uv/), which is
#' several times faster than pip and also installs Python if it is missing or too
#' old. `minhub_install()` uses the uv on the `PATH`. Otherwise, it gets the
#' wheel of a pinned version of uv from the package index with any Python 3.6 or
#' newer, checks its SHA-256 and stores uv in
#' `tools::R_user_dir("minhubpy", "cache")`. If that fails, it uses Python's venv
#' and pip.
#'
#' Proxies and certificates come from the environment (`HTTPS_PROXY`,
#' `SSL_CERT_FILE`). A mirror is used if uv (`UV_DEFAULT_INDEX`, `UV_INDEX`) or pip is configured
#' with it. Before anything is built or downloaded, uv or pip asks each index for a
#' package; the error names the setting of an index that does not answer in 15
#' seconds. On a machine without a network, the error lists the files to copy.
#'
#' @param source The package for pip to install: the path of a checkout or wheel
#'   of minhub_py, or a URL that pip supports, such as `"git+https://..."`. By
#'   default, the source of this package: the checkout of `R CMD INSTALL`, or the
#'   repository of `remotes::install_github()`. For a package that was installed
#'   from a file, pip installs the release of minhub_py with the same version.
#' @param python The Python that creates the virtual environment: 3.10 or newer,
#'   with the modules venv and ensurepip. By default, the first suitable one of
#'   `python3` and `python` in all folders of the `PATH`, `python3.14` to
#'   `python3.10`, the versions of pyenv, asdf or mise if their shims are on the
#'   `PATH`, and on Windows the versions that the `py` launcher lists.
#' @param pip_args Further arguments of `pip install`, such as
#'   `c("--index-url", "https://...")`.
#' @param torch The build of PyTorch: `"cpu"`; `"cuda"`, the build on the package
#'   index; or `"auto"`, which selects `"cpu"` on Linux without an NVIDIA GPU and
#'   reports its choice.
#' @param torch_index The URL of an index with PyTorch's build, instead of
#'   PyTorch's own index.
#' @param uv The path of uv or of its wheel. `NULL`: see below. `FALSE`: venv and
#'   pip.
#' @param ask Whether to ask before the download. Not in scripts, where the call
#'   is the consent. A message states size, place and time in any case.
#' @param extras Extras of minhub_py, see above, to add to the virtual environment
#'   of an earlier call. Without an earlier call, or with a `source`, they are
#'   installed in addition to the usual ones.
#' @returns The path of the new Python, invisibly.
#' @family functions for the Python side
#' @examples
#' \dontrun{
#' minhub_install()
#' minhub_install("path/to/minhub_py", torch = "cpu")
#' minhub_install(torch_index = "https://mirror.example.org/pytorch/whl/cpu")
#' minhub_install(extras = "wandb")
#' }
#' @export
minhub_install <- function(source = NULL, python = NULL, pip_args = character(), torch = c("auto", "cpu", "cuda"),
                           torch_index = NULL, uv = NULL, ask = interactive(), extras = NULL) {
  not_now()
  extras <- check_extras(extras)
  if (!is.null(extras) && is.null(source) && file.exists(python_in(private_virtualenv()))) {
    return(add_extras(extras, uv, python, pip_args, flag(ask)))
  }
  source <- if (is.null(source)) own_source() else string(source)
  pip_args <- if (length(pip_args)) texts(pip_args) else character()
  torch <- choice(torch, c("auto", "cpu", "cuda"))
  torch_index <- optional(torch_index, string, what = "torch_index")
  if (!is.null(source) && file.exists(path.expand(source))) source <- normalizePath(source)
  folder <- private_virtualenv()
  announce(folder, flag(ask))
  before <- set_uv_folders()
  on.exit(set_environment(before))
  installer <- choose_installer(uv, if (!is.null(python)) path.expand(string(python)), pip_args)
  dir.create(dirname(folder), recursive = TRUE, showWarnings = FALSE)
  disconnect()
  session$python <- NULL
  # Set the previous virtual environment aside, and restore it if the installation fails.
  backup <- paste0(folder, "-backup")
  if (dir.exists(folder)) file.rename(folder, backup)
  installed <- FALSE
  on.exit(if (installed) {
    unlink(backup, recursive = TRUE)
  } else {
    unlink(folder, recursive = TRUE)
    if (dir.exists(backup)) file.rename(backup, folder)
  }, add = TRUE)
  installer$create(folder)
  new <- python_in(folder)
  program <- if (installer$name == "uv") installer$program else new
  install <- installer$arguments(new)
  cpu <- is.null(torch_index) && takes_cpu_build(torch, pip_args, installer$pythons, new)
  index <- torch_index %||% if (cpu) CPU_INDEX
  check_indexes(installer, new, pip_args, index, if (cpu) "torch = \"cpu\"" else "torch_index")
  # Install minhub_py first, so that a wrong source fails before the download of PyTorch.
  if (is.null(source)) {
    install_release(program, install, installer$name)
  } else {
    run(program, c(install, "--no-deps", shQuote(source)), paste0(
      installer$name, " could not install minhub_py, see the output above; a folder works too: minhub_install(\"/path/to/minhub_py\")"
    ), files_to_copy)
  }
  if (!is.null(index)) {
    run(
      program, c(install, "--index-url", shQuote(index), "torch"),
      paste0(installer$name, " could not install PyTorch from ", without_password(index), ", see the output above: ", OTHER_TORCH), files_to_copy
    )
  }
  run(
    program, c(install, shQuote(with_extras(c(EXTRAS, extras)))),
    paste0(installer$name, " could not install the dependencies of minhub_py, see the output above"), files_to_copy
  )
  installed <- TRUE
  note("Installed: ", new)
  invisible(new)
}

#' Remove the installation of minhub_py
#'
#' Deletes what [minhub_install()] has created: the virtual environment in
#' `tools::R_user_dir("minhubpy", "data")`, uv's Python there, and uv with its
#' cache in `tools::R_user_dir("minhubpy", "cache")`. Prints the folders and their
#' sizes first, and stops a worker that runs in them. Other installations of
#' Python and downloaded models remain: [minhub_delete()] deletes models, and
#' `remove.packages("minhubpy")` this package.
#'
#' @param ask Whether to ask for confirmation before deleting the folders. The
#'   default is `TRUE` in an interactive session.
#' @returns `TRUE` if folders were deleted, otherwise `FALSE`, invisibly.
#' @family functions for the Python side
#' @examples
#' \dontrun{
#' minhub_uninstall()
#' }
#' @export
minhub_uninstall <- function(ask = interactive()) {
  not_now()
  ask <- flag(ask)
  folders <- Filter(dir.exists, installed_folders())
  if (!length(folders)) {
    note("Nothing to remove: minhub_install() has created no folder in ", dirname(private_virtualenv()))
    return(invisible(FALSE))
  }
  sizes <- vapply(folders, folder_size, 0)
  note("minhub_uninstall() deletes\n", paste0("  ", folders, " (", vapply(sizes, megabytes, ""), ")", collapse = "\n"))
  if (ask && !isTRUE(utils::askYesNo("Delete these folders?", default = FALSE))) {
    note("Nothing was deleted")
    return(invisible(FALSE))
  }
  if (!is_hosted() && !is.null(session$python) && is_inside(session$python$path, folders)) {
    disconnect()
    session$python <- NULL
  }
  unlink(folders, recursive = TRUE)
  remaining <- Filter(dir.exists, folders)
  if (length(remaining)) fail("these folders could not be deleted: ", toString(remaining), "; close programs that use them, and try again")
  for (parent in unique(dirname(folders))) if (!length(list.files(parent, all.files = TRUE, no.. = TRUE))) unlink(parent, recursive = TRUE)
  note("Deleted ", megabytes(sum(sizes)))
  invisible(TRUE)
}

# The folders that minhub_install() creates, unless uv's variables select others.
installed_folders <- function() {
  c(
    private_virtualenv(), paste0(private_virtualenv(), "-backup"), file.path(tools::R_user_dir("minhubpy", "data"), "python"),
    own_uv_folder(), file.path(tools::R_user_dir("minhubpy", "cache"), "uv-cache")
  )
}

# Whether a Python, or the Python that it links to, is in one of the folders.
is_inside <- function(python, folders) {
  whole <- function(paths) normalizePath(paths, "/", mustWork = FALSE)
  paths <- c(file.path(whole(dirname(python)), basename(python)), whole(python))
  any(outer(paths, paste0(whole(folders), "/"), startsWith))
}

# The bytes of the files in a folder. A virtual environment contains links to its own folders and to other Pythons.
folder_size <- function(folder) {
  files <- unique(normalizePath(list.files(folder, recursive = TRUE, all.files = TRUE, full.names = TRUE), mustWork = FALSE))
  sum(file.size(files[startsWith(files, normalizePath(folder))]), na.rm = TRUE)
}

# Installs extras into an earlier call's virtual environment. A running worker finds their modules.
add_extras <- function(extras, uv, python, pip_args, ask) {
  new <- python_in(private_virtualenv())
  announce(private_virtualenv(), ask, paste0("for ", with_extras(extras)))
  before <- set_uv_folders()
  on.exit(set_environment(before))
  installer <- choose_installer(uv, if (!is.null(python)) path.expand(string(python)), if (length(pip_args)) texts(pip_args) else character())
  program <- if (installer$name == "uv") installer$program else new
  run(program, c(installer$arguments(new), shQuote(with_extras(extras))), paste0(
    installer$name, " could not install ", with_extras(extras), ", see the output above; minhub_install() without extras creates a new virtual environment"
  ), files_to_copy)
  note("Installed: ", with_extras(extras), " in ", new)
  invisible(new)
}

check_extras <- function(extras) {
  if (is.null(extras)) return(NULL)
  extras <- texts(extras)
  unknown <- setdiff(extras, c(EXTRAS, OTHER_EXTRAS))
  if (!length(extras) || length(unknown)) {
    fail("extras must be one or more of ", toString(c(EXTRAS, OTHER_EXTRAS)), ", not ", if (length(unknown)) unknown[[1L]] else "empty")
  }
  extras
}

# States size, place and time of an installation. An error unless the user agrees, if `ask`.
announce <- function(folder, ask, what = SIZE) {
  note("minhub_install() downloads Python packages ", what, " into ", dirname(folder), ". Esc or Ctrl-C interrupts it; the same call continues.")
  answer <- if (ask) readline("Continue? [y/N] ") else "y"
  if (!tolower(trimws(answer)) %in% c("y", "yes")) fail("nothing was installed: answer y, or pass ask = FALSE")
}

# Of Python 3.11 on Linux: docs/internals/r_platforms.md.
SIZE <- "(about 400 MB with PyTorch's CPU build, 1.3 GB on disk, 2 minutes at 100 Mbit/s; with CUDA up to 6.2 GB on disk)"

# The program that installs: uv, or venv and pip. A list with its name, the functions `create`, which creates the virtual
# environment in a folder, `query`, which asks an index for a package, and `arguments`, the arguments of an installation, and
# `pythons`, which may have pip.
choose_installer <- function(uv, python, pip_args) {
  if (isFALSE(uv)) return(pip_installer(if (is.null(python)) find_base_python() else check_base(python), pip_args))
  problem <- if (!is.null(python)) version_problem(python)
  if (!is.null(problem)) fail(python, " ", problem, ": pass a Python 3.10 or newer, or none, and uv installs one")
  pythons <- c(python, base_pythons())
  found <- find_uv(uv, pythons)
  if (!is_problem(found)) return(uv_installer(found, python, pythons, pip_args))
  if (!is.null(uv)) fail("uv is not usable: ", found, files_to_copy())
  note("uv is not available (", found, "): installing with venv and pip, which takes longer")
  base <- if (is.null(python)) find_base_python(files_to_copy) else check_base(python)
  pip_installer(base, pip_args)
}

pip_installer <- function(base, pip_args) {
  list(
    name = "pip", pythons = NULL,
    create = function(folder) {
      run(base, c("-m", "venv", shQuote(folder)), "python3 -m venv failed: on Debian, run apt-get install python3-venv")
    },
    query = query_by_pip,
    arguments = function(new) c("-m", "pip", "install", "--disable-pip-version-check", shQuote(pip_args))
  )
}

uv_installer <- function(uv, python, pythons, pip_args) {
  # uv stops at a shim of a version manager, so it gets the path of a Python that starts.
  suitable <- python %||% Find(function(path) is.null(version_problem(path)), pythons)
  indexes <- pip_indexes(pythons)
  if (length(indexes)) note("uv uses the package indexes of pip's configuration")
  list(
    name = "uv", program = uv, pythons = pythons,
    create = function(folder) {
      chosen <- if (is.null(suitable)) c("--managed-python", "--python", "3.12") else c("--python", shQuote(suitable))
      note(
        "Installing with uv ", uv_version(uv), " and ",
        if (is.null(suitable)) "a Python 3.12 that uv downloads" else paste("the Python", suitable)
      )
      run(uv, c("venv", "--quiet", chosen, shQuote(folder)), "uv could not create a virtual environment, see the output above", files_to_copy)
    },
    query = function(...) query_by_uv(uv, ...),
    arguments = function(new) c("pip", "install", "--python", shQuote(new), shQuote(indexes), shQuote(pip_args))
  )
}

CPU_INDEX <- "https://download.pytorch.org/whl/cpu"

# The extras of minhub_py that functions of this package use.
EXTRAS <- c("gguf", "json", "plot", "probe", "serve", "tables", "tensorboard")
OTHER_EXTRAS <- "wandb" # a client of a service that few use

# minhub_py with extras, as pip and uv name it.
with_extras <- function(extras) paste0("minhub_py[", paste(sort(unique(extras), method = "radix"), collapse = ","), "]")

# Installs the release with this package's version. Replaces pip's unclear error if the index does not contain it.
install_release <- function(program, install, name = "pip") {
  version <- as.character(utils::packageVersion("minhubpy"))
  retries <- if (name == "pip") c("--retries", "1")
  output <- suppressWarnings(
    run_program(program, c(install, retries, "--no-deps", paste0("minhub_py==", version)), stdout = TRUE, stderr = TRUE)
  )
  status <- attr(output, "status")
  if (is.null(status)) return(invisible())
  if (any(grepl("No matching distribution|No solution found|not found in the", output))) {
    fail(
      "the package index has no release ", version, " of minhub_py, or cannot be reached: ",
      "pass a checkout, minhub_install(\"/path/to/minhub_py\"), or a repository, minhub_install(\"git+https://...\")", if (name == "uv") files_to_copy()
    )
  }
  fail(name, " could not install minhub_py ", version, ": ", error_line(output) %||% paste("status", status))
}

# Whether to install PyTorch from its index of CPU builds. An index of the user has precedence.
takes_cpu_build <- function(torch, pip_args, pythons, python) {
  if (torch != "auto") return(torch == "cpu")
  named <- any(grepl("^(-i|--index-url|--extra-index-url|--no-index|--default-index|--index)", pip_args))
  if (named || Sys.info()[["sysname"]] != "Linux") return(FALSE)
  if (!is.null(pythons) && is_uv_configured()) return(FALSE)
  index <- configured_index(pythons %||% python)
  if (!is.null(index)) {
    note(
      "pip is configured with ", index, ": installing the PyTorch of that index (torch = \"cpu\" selects the CPU build ",
      "of PyTorch's own index, torch_index = \"https://...\" another index)"
    )
    return(FALSE)
  }
  gpu <- has_nvidia_gpu(python)
  note(
    if (gpu) "NVIDIA GPU detected: installing PyTorch with CUDA" else "No NVIDIA GPU detected: installing PyTorch's CPU build",
    if (gpu) " (5.5 to 6.2 GB; " else " (1.0 GB instead of 5.5 to 6.2 GB; ",
    "torch = \"", if (gpu) "cpu" else "cuda", "\" selects the other build)"
  )
  !gpu
}

# Calls the driver's library, like `minhub doctor`: nvidia-smi may hang or be missing.
has_nvidia_gpu <- function(python) {
  code <- c(
    "import ctypes, sys", "n = ctypes.c_int()", "try:", "    cuda = ctypes.CDLL('libcuda.so.1')",
    "except OSError:", "    sys.exit(1)",
    "sys.exit(cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(n)) != 0 or n.value == 0)"
  )
  run_python(python, c("-c", shQuote(paste(code, collapse = "\n"))), stdout = FALSE, stderr = FALSE) == 0L
}

# The checkout with the package's source. R CMD INSTALL evaluates this line in the source folder.
CHECKOUT <- if (all(file.exists("../../pyproject.toml", "../../minhub_py"))) normalizePath("../..")

# The source of minhub_py; NULL for a release.
own_source <- function() {
  about <- utils::packageDescription("minhubpy")
  if (identical(about$RemoteType, "github")) {
    return(paste0("git+https://github.com/", about$RemoteUsername, "/", about$RemoteRepo, "@", about$RemoteSha))
  }
  if (!is.null(CHECKOUT) && file.exists(file.path(CHECKOUT, "pyproject.toml"))) CHECKOUT
}

# A call of minhub_install() that also works without a release.
install_call <- function() {
  if (is.null(own_source())) "minhub_install(\"/path/to/minhub_py\")" else "minhub_install()"
}

# `more`: a function that returns further advice.
run <- function(command, arguments, advice, more = function() NULL) {
  status <- run_program(command, arguments)
  if (status != 0L) fail(advice, " (", command, " exited with status ", status, ")", more())
}

# The Python that creates the virtual environment
check_base <- function(path) {
  problem <- base_problem(path)
  if (!is.null(problem)) fail(path, " ", problem, ": pass a Python 3.10 or newer with the modules venv and ensurepip")
  path
}

find_base_python <- function(more = function() NULL) {
  candidates <- base_pythons()
  problems <- character()
  for (path in candidates) {
    problem <- base_problem(path)
    if (is.null(problem)) return(path)
    problems <- c(problems, paste0("\n  ", path, " ", problem))
  }
  fail(
    "no Python 3.10 or newer can create a virtual environment: install one (on Debian: apt-get install python3-venv), ",
    "or pass one, minhub_install(python = \"/path/to/python3\")", if (length(problems)) "\nTried:", problems, more()
  )
}

# The reason why a Python cannot create the virtual environment, or NULL.
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

# The reason why a Python cannot be the base of uv's virtual environment, or NULL.
version_problem <- function(path) {
  answer <- query_python(path, c("import sys", "sys.stdout.write('minhubpy ' + ' '.join(map(str, sys.version_info[:2])))"))
  if (is_problem(answer)) return(answer)
  version <- numeric_version(paste(answer, collapse = "."))
  if (version < "3.10") paste0("is Python ", version, ", which is older than 3.10")
}

# The Python installations with a usual name or location: first the default ones, then by version.
base_pythons <- function() {
  defaults <- unlist(lapply(c("python3", "python"), programs_on_path))
  versions <- unlist(lapply(paste0("python3.", 14:10), programs_on_path))
  found <- c(defaults, versions, shimmed_pythons(), launcher_pythons())
  found[!duplicated(found)]
}

# The versions of pyenv, asdf and mise. Their shims only run the version selected for the current folder.
shimmed_pythons <- function() {
  roots <- dirname(grep("/shims/?$", path_folders(), value = TRUE))
  found <- Sys.glob(file.path(rep(roots, each = 2L), c("versions", "installs/python"), "*", "bin", "python3"))
  if (!length(found)) return(character())
  version <- numeric_version(sub("^[^0-9]*([0-9]+([.][0-9]+)+).*$|.*", "\\1", basename(dirname(dirname(found)))), strict = FALSE)
  found[order(version, decreasing = TRUE, na.last = TRUE)]
}

# The versions that the py launcher of Windows lists.
launcher_pythons <- function(lines = launcher_lines()) {
  pattern <- "[A-Za-z]:\\\\.*python[0-9.]*[.]exe"
  regmatches(lines, regexpr(pattern, lines))
}

launcher_lines <- function() {
  py <- if (.Platform$OS.type == "windows") on_path("py")
  if (is.null(py)) return(character())
  suppressWarnings(system2(py, "-0p", stdout = TRUE, stderr = FALSE))
}
