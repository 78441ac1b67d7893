# minhub_install() with a script that imitates Python and records its calls, without a network.

# A script that imitates Python, and its recorded calls. `gpu`: whether it detects an NVIDIA GPU; `released`: whether the
# index has minhub_py; `answer`: its version and missing modules; `config`: a line of pip's configuration.
imitation <- function(gpu = FALSE, released = FALSE, answer = "3.11.2", config = NULL, path = file.path(tempfile("python "), "python")) {
  folder <- dirname(path)
  dir.create(folder, recursive = TRUE, showWarnings = FALSE)
  log <- file.path(folder, "log")
  writeLines(c(
    "#!/bin/sh",
    paste0("case \"$2\" in *minhubpy*) echo minhubpy ", answer, "; exit;; esac"),
    paste0("case \"$*\" in *'pip config list') echo ", shQuote(config), "; exit;; esac"),
    paste0("[ \"$1\" = -c ] && exit ", if (gpu) 0 else 1),
    paste("echo \"$@\" >>", shQuote(log)),
    "case \"$2\" in venv) mkdir -p \"$3/bin\" && cp \"$0\" \"$3/bin/python\";; esac",
    if (!released) "case \"$*\" in *minhub_py==*) echo 'ERROR: No matching distribution found for minhub_py'; exit 1;; esac",
    "case \"$*\" in *broken*) exit 1;; esac"
  ), path)
  Sys.chmod(path, "755")
  list(path = path, calls = function() if (file.exists(log)) readLines(log) else character())
}

# Runs minhub_install() in a temporary folder. Returns the arguments of pip and the messages.
installed <- function(python, ...) {
  before <- Sys.getenv("R_USER_DATA_DIR", unset = NA, names = TRUE)
  old <- options(minhubpy.quiet = FALSE)
  on.exit({
    minhubpy:::set_environment(before)
    options(old)
  })
  data <- tempfile("data ")
  Sys.setenv(R_USER_DATA_DIR = data)
  said <- testthat::capture_messages(path <- minhub_install(..., python = python$path, uv = FALSE))
  expect_true(file.exists(path))
  expect_true(startsWith(path, data))
  pip <- sub("-m pip install --disable-pip-version-check ", "", grep("-m pip install", python$calls(), value = TRUE), fixed = TRUE)
  list(pip = pip, said = paste(said, collapse = ""))
}

EXTRAS <- "minhub_py[gguf,json,plot,probe,serve,tables,tensorboard]"

# Sets the PATH to these folders and a folder with a shell and without Python.
set_path <- function(...) {
  tools <- tempfile("tools ")
  dir.create(tools)
  file.symlink(c("/bin/sh", Sys.which("mkdir"), Sys.which("cp")), file.path(tools, c("sh", "mkdir", "cp")))
  Sys.setenv(PATH = paste(c(..., tools), collapse = ":"))
}

needs_shell <- function() {
  skip_on_os("windows")
  skip_if(minhubpy:::is_hosted(), "only a plain R session has a worker")
}

test_that("without an NVIDIA GPU the CPU build of PyTorch is installed, with a message", {
  needs_shell()
  skip_if_not(Sys.info()[["sysname"]] == "Linux", "only a worker on Linux has a choice: elsewhere there is one build")
  cpu <- "--index-url https://download.pytorch.org/whl/cpu torch"
  made <- installed(imitation(), "git+https://example.org/minhub_py")
  expect_identical(made$pip, c("--no-deps git+https://example.org/minhub_py", cpu, EXTRAS))
  expect_match(made$said, "downloads Python packages \\(about 400 MB .* at 100 Mbit/s.*\\) into .*minhubpy[.] Esc or Ctrl-C interrupts it")
  expect_match(made$said, "No NVIDIA GPU detected: installing PyTorch's CPU build (1.0 GB instead of 5.5 to 6.2 GB;", fixed = TRUE)
  made <- installed(imitation(gpu = TRUE), "x.whl")
  expect_identical(made$pip, c("--no-deps x.whl", EXTRAS))
  expect_match(made$said, "NVIDIA GPU detected: installing PyTorch with CUDA", fixed = TRUE)
  # An explicit build or index of the user is installed without a message.
  made <- installed(imitation(gpu = TRUE), "x.whl", torch = "cpu")
  expect_identical(made$pip, c("--no-deps x.whl", cpu, EXTRAS))
  expect_false(grepl("NVIDIA", made$said))
  expect_length(installed(imitation(), "x.whl", torch = "cuda")$pip, 2L)
  made <- installed(imitation(), "x.whl", pip_args = c("--index-url", "https://example.org/simple"))
  expect_identical(made$pip[[2L]], paste("--index-url https://example.org/simple", EXTRAS))
})

test_that("the release comes from the index, and its absence is an error with a solution", {
  needs_shell()
  python <- imitation()
  none <- tryCatch(minhubpy:::install_release(python$path, c("-m", "pip", "install")), error = identity)
  expect_s3_class(none, "minhubpy_error")
  version <- as.character(utils::packageVersion("minhubpy"))
  expect_match(
    conditionMessage(none), paste0("has no release ", version, " of minhub_py, or cannot be reached: pass a checkout, minhub_install(\"/path/to/minhub_py\")"),
    fixed = TRUE
  )
  python <- imitation(released = TRUE)
  expect_null(minhubpy:::install_release(python$path, c("-m", "pip", "install")))
  expect_identical(python$calls(), paste0("-m pip install --retries 1 --no-deps minhub_py==", version))
})

test_that("a failed installation keeps the previous one", {
  needs_shell()
  before <- Sys.getenv("R_USER_DATA_DIR", unset = NA, names = TRUE)
  on.exit(minhubpy:::set_environment(before))
  Sys.setenv(R_USER_DATA_DIR = tempfile("data "))
  path <- suppressMessages(minhub_install("x.whl", python = imitation()$path, uv = FALSE))
  expect_refused(minhub_install("broken.whl", python = imitation()$path, uv = FALSE), "pip could not install minhub_py, see the output above")
  expect_true(file.exists(path))
  expect_identical(dir(dirname(dirname(dirname(path)))), "venv")
})

test_that("extras are added to an earlier installation, or installed with the usual ones", {
  needs_shell()
  before <- Sys.getenv("R_USER_DATA_DIR", unset = NA, names = TRUE)
  old <- options(minhubpy.quiet = FALSE)
  on.exit({
    minhubpy:::set_environment(before)
    options(old)
  })
  Sys.setenv(R_USER_DATA_DIR = tempfile("data "))
  python <- imitation()
  add <- function(...) suppressMessages(minhub_install(..., python = python$path, uv = FALSE, torch = "cuda"))
  expect_refused(minhub_install(extras = "gui"), "extras must be one or more of gguf, json, plot, probe, serve, tables, tensorboard, wandb, not gui")
  expect_refused(minhub_install(extras = character()), "not empty")
  path <- add("x.whl", extras = "wandb") # there is no earlier installation
  expect_match(utils::tail(python$calls(), 1L), sub("]", ",wandb]", EXTRAS, fixed = TRUE), fixed = TRUE)
  mark <- file.path(dirname(dirname(path)), "mark")
  writeLines("the environment of the earlier call", mark)
  before_adding <- length(python$calls())
  expect_identical(add(extras = c("probe", "gguf")), path)
  expect_identical(python$calls()[-seq_len(before_adding)], "-m pip install --disable-pip-version-check minhub_py[gguf,probe]")
  expect_true(file.exists(mark))
  add("x.whl", extras = "probe") # another source: a new virtual environment
  expect_false(file.exists(mark))
})

test_that("messages contain a call of minhub_install() that works", {
  source <- minhubpy:::own_source()
  expect_identical(minhubpy:::install_call(), if (is.null(source)) 'minhub_install("/path/to/minhub_py")' else "minhub_install()")
  if (!is.null(source)) expect_true(startsWith(source, "git+") || file.exists(file.path(source, "pyproject.toml")))
})

test_that("PyTorch comes from the index of the user or of pip's configuration", {
  needs_shell()
  skip_if_not(Sys.info()[["sysname"]] == "Linux", "only a worker on Linux has a choice: elsewhere there is one build")
  mirror <- "https://mirror.example.org/pytorch/whl/cpu"
  for (torch in c("auto", "cpu")) {
    made <- installed(imitation(), "x.whl", torch = torch, torch_index = mirror)
    expect_identical(made$pip, c("--no-deps x.whl", paste("--index-url", mirror, "torch"), EXTRAS))
    expect_false(grepl("NVIDIA", made$said))
  }
  # The index of pip's configuration, without the user's password in the message.
  for (config in c("global.index-url='https://me:secret@mirror.example.org/simple'", ":env:.extra-index-url='https://mirror.example.org/simple'")) {
    made <- installed(imitation(config = config), "x.whl")
    expect_identical(made$pip, c("--no-deps x.whl", EXTRAS))
    expect_match(made$said, "pip is configured with (extra-)?index-url = https://mirror.example.org/simple: installing the PyTorch of that index")
    expect_length(installed(imitation(config = config), "x.whl", torch = "cpu")$pip, 3L)
  }
  made <- installed(imitation(config = "global.timeout='60'"), "x.whl")
  expect_length(made$pip, 3L)
  expect_refused(minhub_install("x.whl", python = imitation()$path, torch_index = 3, uv = FALSE), "torch_index must be text, not 3")
})

test_that("an unsuitable Python is an error before anything changes", {
  needs_shell()
  before <- Sys.getenv("R_USER_DATA_DIR", unset = NA, names = TRUE)
  on.exit(minhubpy:::set_environment(before))
  Sys.setenv(R_USER_DATA_DIR = tempfile("data "))
  refused <- function(python, message) expect_error(minhub_install("x.whl", python = python, uv = FALSE), message, fixed = TRUE, class = "minhubpy_error")
  refused("/no/python", "/no/python does not exist: pass a Python 3.10 or newer with the modules venv and ensurepip")
  refused(imitation(answer = "3.8.18 older")$path, "is Python 3.8.18, which is older than 3.10: pass a Python 3.10")
  refused(imitation(answer = "3.11.2 ensurepip")$path, "lacks the module ensurepip (on Debian: apt-get install python3-venv): pass")
  silent <- file.path(tempfile(), "python")
  dir.create(dirname(silent))
  writeLines(c("#!/bin/sh", "echo 'ImportError: no module named zlib' >&2; exit 1"), silent)
  Sys.chmod(silent, "755")
  refused(silent, "does not start as Python 3 (ImportError: no module named zlib): pass a Python")
  expect_false(dir.exists(minhubpy:::private_virtualenv()))
})

test_that("minhub_install() skips unsuitable Python versions on the PATH", {
  needs_shell()
  before <- Sys.getenv("PATH", names = TRUE)
  on.exit(minhubpy:::set_environment(before))
  folder <- tempfile("path ")
  at <- function(...) file.path(folder, ...)
  dir.create(folder)
  folder <- normalizePath(folder)
  found <- function() minhubpy:::find_base_python()
  imitation(path = at("old", "python3"), answer = "3.8.18 older")
  imitation(path = at("bare", "python3"), answer = "3.12.1 ensurepip")
  good <- imitation(path = at("good", "python3"))$path
  set_path(at("old"), at("bare"), at("good"))
  expect_identical(found(), good)
  # A versioned name after an old python3.
  newer <- imitation(path = at("old", "python3.12"))$path
  imitation(path = at("old", "python3.10"))
  set_path(at("old"))
  expect_identical(minhubpy:::base_pythons(), at("old", c("python3", "python3.12", "python3.10")))
  expect_identical(found(), newer)
  # A version of a version manager with shims.
  for (version in c("3.9.18", "3.10.4", "3.13.0", "pypy3.10")) imitation(path = at("pyenv", "versions", version, "bin", "python3"))
  imitation(path = at("asdf", "installs", "python", "3.12.7", "bin", "python3"))
  set_path(at("pyenv", "shims"), at("asdf", "shims"))
  expect_identical(
    minhubpy:::base_pythons(),
    c(
      at("pyenv", "versions", "3.13.0", "bin", "python3"), at("asdf", "installs", "python", "3.12.7", "bin", "python3"),
      at("pyenv", "versions", c("3.10.4", "pypy3.10", "3.9.18"), "bin", "python3")
    )
  )
  expect_identical(found(), at("pyenv", "versions", "3.13.0", "bin", "python3"))
  # The list of the launcher of Windows.
  lines <- c(" -V:3.12 *        C:\\Users\\A B\\Python312\\python.exe", "No installed Pythons found")
  expect_identical(minhubpy:::launcher_pythons(lines), "C:\\Users\\A B\\Python312\\python.exe")
})

test_that("without a suitable Python the error lists the candidates", {
  needs_shell()
  old <- imitation(answer = "3.8.18 older")$path
  before <- Sys.getenv("PATH", names = TRUE)
  on.exit(minhubpy:::set_environment(before))
  set_path(dirname(old))
  condition <- tryCatch(minhub_install("x.whl", uv = FALSE), error = identity)
  expect_s3_class(condition, "minhubpy_error")
  expect_identical(conditionMessage(condition), paste0(
    "no Python 3.10 or newer can create a virtual environment: install one (on Debian: apt-get install python3-venv), ",
    "or pass one, minhub_install(python = \"/path/to/python3\")\nTried:\n  ", old, " is Python 3.8.18, which is older than 3.10"
  ))
  set_path()
  expect_error(minhub_install("x.whl", uv = FALSE), "no Python 3.10 or newer can create a virtual environment", class = "minhubpy_error")
})

# A script that imitates uv. Its calls are in `log`.
imitated_uv <- function(python, path = file.path(tempfile("uv "), "uv")) {
  dir.create(dirname(path), recursive = TRUE, showWarnings = FALSE)
  log <- file.path(dirname(path), "log")
  writeLines(c(
    "#!/bin/sh",
    "[ \"$1\" = --version ] && echo 'uv 0.9.2 (abc 2026-01-01)' && exit",
    paste("echo \"$@\" >>", shQuote(log)),
    "for last; do :; done",
    paste("[ \"$1\" = venv ] && mkdir -p \"$last/bin\" && cp", shQuote(python), "\"$last/bin/python\""),
    "case \"$*\" in *broken*) exit 2;; esac"
  ), path)
  Sys.chmod(path, "755")
  list(path = path, calls = function() grep("--dry-run", readLines(log), value = TRUE, invert = TRUE)) # test-indexes.R
}

# Sets temporary folders for data and cache. Returns the previous environment variables.
data_folders <- function() {
  before <- Sys.getenv(c("R_USER_DATA_DIR", "R_USER_CACHE_DIR", "PATH", minhubpy:::UV_INDEX_VARIABLES), unset = NA, names = TRUE)
  Sys.unsetenv(minhubpy:::UV_INDEX_VARIABLES)
  Sys.setenv(R_USER_DATA_DIR = tempfile("data "), R_USER_CACHE_DIR = tempfile("cache "))
  before
}

test_that("uv installs with the indexes of pip's configuration", {
  needs_shell()
  skip_if_not(Sys.info()[["sysname"]] == "Linux", "only a worker on Linux has a choice: elsewhere there is one build")
  config <- "global.extra-index-url='https://a.example.org/simple https://b.example.org/simple'"
  python <- imitation(answer = "3 11", config = config)
  uv <- imitated_uv(python$path)
  before <- data_folders()
  on.exit(minhubpy:::set_environment(before))
  path <- minhub_install("x.whl", python = python$path, uv = uv$path)
  indexes <- paste(
    "--extra-index-url https://a.example.org/simple --extra-index-url https://b.example.org/simple",
    "--index-strategy unsafe-best-match"
  )
  install <- paste("pip install --python", path, indexes)
  folder <- dirname(dirname(path))
  expect_identical(uv$calls(), c(
    paste("venv --quiet --python", python$path, folder), paste(install, "--no-deps x.whl"), paste(install, EXTRAS)
  ))
  # The user's configuration of uv has precedence.
  Sys.setenv(UV_INDEX = "https://c.example.org/simple")
  minhub_install("x.whl", python = python$path, uv = uv$path)
  expect_identical(uv$calls()[5:6], paste("pip install --python", path, c("--no-deps x.whl", EXTRAS)))
  Sys.unsetenv("UV_INDEX")
  condition <- expect_refused(minhub_install("broken.whl", python = python$path, uv = uv$path), "uv could not install minhub_py")
  expect_match(conditionMessage(condition), "copy these files to this machine")
  expect_true(file.exists(path)) # the previous environment
  # Without a configuration, the CPU build comes from PyTorch's index.
  python <- imitation(answer = "3 11")
  uv <- imitated_uv(python$path)
  minhub_install("x.whl", python = python$path, uv = uv$path)
  expect_match(uv$calls()[[3L]], "--index-url https://download.pytorch.org/whl/cpu torch$")
})

test_that("uv on the PATH is found, and installs Python if there is no new one", {
  needs_shell()
  old <- imitation(answer = "3 8")
  uv <- imitated_uv(old$path)
  before <- data_folders()
  on.exit(minhubpy:::set_environment(before))
  set_path(dirname(uv$path), dirname(old$path))
  said <- testthat::capture_messages({
    options(minhubpy.quiet = FALSE)
    minhub_install("x.whl", torch = "cuda")
  })
  options(minhubpy.quiet = TRUE)
  expect_match(paste(said, collapse = ""), "Installing with uv 0.9.2 and a Python 3.12 that uv downloads", fixed = TRUE)
  expect_match(uv$calls()[[1L]], "venv --quiet --managed-python --python 3.12", fixed = TRUE)
})

test_that("errors without uv, Python or a network list the files to copy, and consent is required", {
  needs_shell()
  python <- imitation(answer = "3 8")
  before <- data_folders()
  on.exit(minhubpy:::set_environment(before))
  set_path()
  condition <- tryCatch(minhub_install("x.whl"), error = identity)
  expect_s3_class(condition, "minhubpy_error")
  for (part in c("no Python 3.10 or newer", "copy these files to this machine:\n1. uv-", "pip download --dest wheels")) {
    expect_match(conditionMessage(condition), part, fixed = TRUE)
  }
  expect_refused(minhub_install("x.whl", uv = "/no/uv"), "/no/uv is not a program")
  expect_refused(minhub_install("x.whl", uv = "/no/uv.whl"), "/no/uv.whl does not exist")
  expect_refused(minhub_install("x.whl", python = python$path, uv = imitated_uv(python$path)$path), "is Python 3.8, which is older")
  expect_refused(minhub_install("x.whl", ask = TRUE), "nothing was installed: answer y, or pass ask = FALSE")
  expect_false(dir.exists(minhubpy:::private_virtualenv()))
})

test_that("R extracts the wheel of uv where there is no Python", {
  needs_shell()
  skip_if(!nzchar(Sys.which("zip")), "zip is not installed")
  before <- data_folders()
  on.exit(minhubpy:::set_environment(before))
  wheel <- file.path(tempfile(), "uv-1.0-py3-none-any.whl")
  scripts <- file.path(dirname(wheel), "uv-1.0.data", "scripts")
  dir.create(scripts, recursive = TRUE)
  file.copy(imitated_uv("python")$path, file.path(scripts, "uv"))
  old <- setwd(dirname(wheel))
  utils::zip(wheel, "uv-1.0.data", flags = "-rq")
  setwd(old)
  found <- minhubpy:::find_uv(wheel, character())
  expect_identical(normalizePath(found), normalizePath(file.path(minhubpy:::own_uv_folder(), "uv")))
  expect_identical(minhubpy:::uv_version(found), "0.9.2")
  writeLines("no archive", wheel)
  expect_match(minhubpy:::find_uv(wheel, character()), "is not a wheel of uv")
})

test_that("minhub_uninstall() deletes the folders of minhub_install() and no others", {
  needs_shell()
  before <- Sys.getenv(c("R_USER_DATA_DIR", "R_USER_CACHE_DIR"), unset = NA, names = TRUE)
  old <- options(minhubpy.quiet = FALSE)
  on.exit({
    minhubpy:::set_environment(before)
    options(old)
  })
  Sys.setenv(R_USER_DATA_DIR = tempfile("data "), R_USER_CACHE_DIR = tempfile("cache "))
  remove <- function() {
    said <- testthat::capture_messages(removed <- minhub_uninstall(ask = FALSE))
    list(removed = removed, said = paste(said, collapse = ""))
  }
  expect_false(remove()$removed)
  suppressMessages(minhub_install("git+https://example.org/minhub_py", python = imitation()$path, uv = FALSE))
  venv <- minhubpy:::private_virtualenv()
  file.symlink(file.path(venv, "bin"), file.path(venv, "link"))
  size <- sum(file.size(list.files(file.path(venv, "bin"), full.names = TRUE)))
  uv <- minhubpy:::own_uv_folder()
  dir.create(uv, recursive = TRUE)
  writeBin(raw(2e6), file.path(uv, "uv"))
  mine <- file.path(dirname(uv), "mine")
  file.create(mine)
  expect_identical(minhubpy:::folder_size(venv), size) # without the link
  result <- remove()
  expect_true(result$removed)
  expect_match(result$said, paste0(venv, " (", minhubpy:::megabytes(size), ")"), fixed = TRUE)
  expect_match(result$said, paste0(uv, " (2 MB)"), fixed = TRUE)
  expect_false(any(dir.exists(c(venv, dirname(venv), uv))))
  expect_true(file.exists(mine))
  expect_false(remove()$removed)
  expect_refused(minhub_uninstall(ask = "yes"), "ask must be TRUE or FALSE")
})

test_that("minhub_uninstall() stops the worker only if it deletes its Python", {
  needs_worker()
  needs_shell()
  session <- minhubpy:::session
  before <- Sys.getenv(c("R_USER_DATA_DIR", "R_USER_CACHE_DIR"), unset = NA, names = TRUE)
  minhub_start()
  python <- session$python
  on.exit({
    minhubpy:::set_environment(before)
    session$python <- python
  })
  Sys.setenv(R_USER_DATA_DIR = tempfile("data "), R_USER_CACHE_DIR = tempfile("cache "))
  venv <- minhubpy:::private_virtualenv()
  base <- file.path(dirname(venv), "python", "bin", "python3")
  create <- function() for (folder in c(venv, dirname(base))) dir.create(folder, recursive = TRUE)
  create()
  link <- session$link
  expect_true(minhub_uninstall(ask = FALSE))
  expect_identical(session$link, link)
  expect_identical(session$python, python)
  create()
  file.create(base)
  elsewhere <- file.path(tempfile("venv "), "python") # a virtual environment of the installed Python
  dir.create(dirname(elsewhere))
  file.symlink(base, elsewhere)
  expect_false(minhubpy:::is_inside(elsewhere, venv))
  session$python <- list(path = elsewhere, why = "a link to a deleted Python")
  expect_true(minhub_uninstall(ask = FALSE))
  expect_null(session$link)
  expect_null(session$python)
  expect_true(minhubpy:::is_inside(minhubpy:::python_in(venv), venv))
})
