# uv, the package installer of minhub_install(): finds it, or gets the pinned wheel with a Python that exists.

UV_VERSION <- "0.13.9"

# SHA-256 of its wheels on the package index. inst/get_uv.py selects the one for this machine.
UV_WHEELS <- c(
  "uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl" =
    "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",
  "uv-0.13.9-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl" =
    "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
  "uv-0.13.9-py3-none-musllinux_1_1_x86_64.whl" = "2c45530751517d6c3bbc69a19473f6effe47cce047bede01ffd8af7ea7b36b25",
  "uv-0.13.9-py3-none-macosx_11_0_arm64.whl" = "66c512266d633bef48384a1f53003f41f2a8e7b36fe6e7fbfd3e0fd52d96fa63",
  "uv-0.13.9-py3-none-macosx_10_12_x86_64.whl" = "c16ed11e013557536b3e60065f1b912f6407bd6518e041b961e23ef9e6b4fbf5",
  "uv-0.13.9-py3-none-win_amd64.whl" = "6a44b2ed8111d2f60d2b92627c5dccda3f7ed7570b18ce115e569cd68c28246b",
  "uv-0.13.9-py3-none-win_arm64.whl" = "eeb92051c2123b9730c46b04cc843cfa4bc7d7b0aec56df431a2215ef4cb0273"
)

own_uv_folder <- function() file.path(tools::R_user_dir("minhubpy", "cache"), "uv")

# The path of uv, or the reason why it is unavailable, as a problem. `uv`: NULL, or the path of the program or of its wheel.
# `pythons`: Python installations that can download the wheel.
find_uv <- function(uv = NULL, pythons = base_pythons()) {
  if (!is.null(uv)) {
    uv <- path.expand(string(uv))
    if (grepl("[.]whl$", uv)) return(get_uv(pythons, normalizePath(uv, mustWork = FALSE)))
    if (is.null(uv_version(uv))) return(new_problem(uv, " is not a program that answers to --version as uv does"))
    return(uv)
  }
  program <- if (.Platform$OS.type == "windows") "uv.exe" else "uv"
  known <- c(programs_on_path("uv"), path.expand(file.path("~/.local/bin", program)), file.path(own_uv_folder(), program))
  for (path in known) if (file.access(path, 1L) == 0L && !is.null(uv_version(path))) return(path)
  get_uv(pythons)
}

# The version of uv; NULL if the program is missing, fails, or is too old for the options used here.
uv_version <- function(path) {
  if (!file.exists(path)) return(NULL)
  output <- suppressWarnings(run_program(path, "--version", stdout = TRUE, stderr = FALSE))
  version <- regmatches(output, regexpr("(?<=^uv )[0-9]+([.][0-9]+)+", output, perl = TRUE))
  if (length(version) && numeric_version(version[[1L]]) >= "0.6.0") version[[1L]]
}

# Gets the pinned wheel with the first Python that can, also one without pip. Returns the path of uv or a problem.
get_uv <- function(pythons, wheel = NULL) {
  problems <- character()
  for (python in pythons) {
    pins <- paste0(names(UV_WHEELS), "=", UV_WHEELS)
    arguments <- shQuote(c(system.file("get_uv.py", package = "minhubpy"), own_uv_folder(), pins, wheel))
    output <- suppressWarnings(run_python(python, arguments, stdout = TRUE, stderr = TRUE))
    answer <- sub("^minhubpy ", "", grep("^minhubpy ", output, value = TRUE))
    if (length(answer) && !startsWith(answer[[1L]], "problem ")) return(answer[[1L]])
    reason <- if (length(answer)) sub("^problem ", "", answer[[1L]]) else error_line(output) %||% "it prints nothing"
    problems <- c(problems, paste0(python, ": ", reason))
  }
  if (!is.null(wheel) && !length(problems)) return(extract_uv(wheel))
  if (!length(problems)) return(new_problem("there is no Python that can download it"))
  new_problem(paste(problems, collapse = "\n  "))
}

# Extracts uv from a wheel of the user, without Python and thus without a check of its SHA-256, which R 4.2 cannot compute.
extract_uv <- function(wheel) {
  if (!file.exists(wheel)) return(new_problem(wheel, " does not exist"))
  program <- if (.Platform$OS.type == "windows") "uv.exe" else "uv"
  inside <- tryCatch(utils::unzip(wheel, list = TRUE)$Name, error = function(e) character())
  inside <- grep(paste0("[.]data/scripts/", program, "$"), inside, value = TRUE)
  if (!length(inside)) return(new_problem(wheel, " is not a wheel of uv"))
  dir.create(own_uv_folder(), recursive = TRUE, showWarnings = FALSE)
  path <- utils::unzip(wheel, files = inside, junkpaths = TRUE, exdir = own_uv_folder(), unzip = "internal")
  Sys.chmod(path, "755")
  if (is.null(uv_version(path))) return(new_problem(wheel, " is not a wheel for this machine"))
  path
}

# system2() for a program, without the environment variables that R sets.
run_program <- function(program, arguments, ...) {
  if (.Platform$OS.type == "windows") return(system2(program, arguments, ...))
  run_python(program, arguments, ...)
}

# Sets uv's folders for its own files to folders of this package, unless the user has chosen others.
# Returns the previous values for set_environment().
set_uv_folders <- function() {
  folders <- c(
    UV_CACHE_DIR = file.path(tools::R_user_dir("minhubpy", "cache"), "uv-cache"),
    UV_PYTHON_INSTALL_DIR = file.path(tools::R_user_dir("minhubpy", "data"), "python")
  )
  before <- Sys.getenv(c(names(folders), "SSL_CERT_FILE"), unset = NA, names = TRUE)
  missing <- names(folders)[is.na(before[names(folders)])]
  if (length(missing)) do.call(Sys.setenv, as.list(folders[missing]))
  before
}

# The environment variables that select uv's package indexes.
UV_INDEX_VARIABLES <- c("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX")

is_uv_configured <- function() any(nzchar(Sys.getenv(UV_INDEX_VARIABLES))) || nzchar(Sys.getenv("UV_CONFIG_FILE"))

# The options of uv for the indexes that pip is configured with: uv reads neither pip.conf nor pip's variables. Empty if
# the user has configured uv.
pip_indexes <- function(pythons) {
  if (is_uv_configured()) return(character())
  options <- list()
  for (line in pip_configuration(pythons)) {
    name <- sub("^[^.]*[.]([a-z-]+)=.*$", "\\1", line)
    options[[name]] <- strsplit(gsub("^[^=]*='?|'$", "", line), "(\\\\n|[[:space:]])+")[[1L]]
  }
  cert <- options[["cert"]]
  if (length(cert) && is.na(Sys.getenv("SSL_CERT_FILE", unset = NA))) Sys.setenv(SSL_CERT_FILE = cert[[1L]])
  # pip takes the newest version of all indexes.
  several <- if (length(options[["extra-index-url"]])) c("--index-strategy", "unsafe-best-match")
  no_index <- if (isTRUE(options[["no-index"]][[1L]] %in% c("true", "True", "1", "yes", "on"))) "--no-index"
  c(
    unlist(lapply(c("index-url", "extra-index-url", "find-links", "constraint"), function(name) {
      rbind(rep(paste0("--", name), length(options[[name]])), options[[name]])
    })),
    no_index, several
  )
}

# The lines of `pip config list` that select indexes, of the first Python with pip.
pip_configuration <- function(pythons) {
  for (python in pythons) {
    lines <- suppressWarnings(run_python(python, c("-m", "pip", "config", "list"), stdout = TRUE, stderr = FALSE))
    if (is.null(attr(lines, "status"))) {
      return(grep("^(global|install|:env:)[.](index-url|extra-index-url|find-links|no-index|constraint|cert)=", lines, value = TRUE))
    }
  }
  character()
}

# The files that a machine without a network needs.
files_to_copy <- function() {
  machine <- if (Sys.info()[["machine"]] %in% c("arm64", "aarch64")) "(arm64|aarch64)" else "(x86_64|amd64)"
  system <- c(Linux = "manylinux", Darwin = "macosx", Windows = "win")[[Sys.info()[["sysname"]]]]
  wheel <- grep(paste0("-", system, "_.*", machine), names(UV_WHEELS), value = TRUE)[1L]
  paste0(
    "\nWithout a network, copy these files to this machine:",
    "\n1. ", wheel, ", from the package index: minhub_install(uv = \"", wheel, "\")",
    "\n2. Python 3.10 or newer, if it is missing: minhub_install(python = \"/path/to/python3\")",
    "\n3. a folder with the wheels of minhub_py and its dependencies. On a similar machine, run",
    "\n   python -m pip download --dest wheels \"", with_extras(EXTRAS), "\"",
    "\n   Then: minhub_install(\"wheels/minhub_py-....whl\", pip_args = c(\"--no-index\", \"--find-links\", \"wheels\"))"
  )
}
