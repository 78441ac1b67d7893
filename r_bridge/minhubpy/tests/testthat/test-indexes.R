# The check of package indexes by minhub_install(): with pip and local indexes, and with scripts that imitate pip and uv.

needs_shell <- function() {
  skip_on_os("windows")
  skip_if(minhubpy:::is_hosted(), "only a plain R session has a worker")
}

# An index in a folder, with these packages.
local_index <- function(...) {
  folder <- tempfile("index")
  for (package in c(...)) {
    dir.create(file.path(folder, package), recursive = TRUE)
    wheel <- paste0(package, "-3.0-py3-none-any.whl")
    writeLines(paste0("<a href=\"", wheel, "\">", wheel, "</a>"), file.path(folder, package, "index.html"))
  }
  paste0("file://", normalizePath(folder))
}

CLOSED <- "http://127.0.0.1:9/simple" # the discard protocol, which no machine serves

# Sets environment variables, without the settings of pip and uv of this machine. Returns the previous ones.
only_settings <- function(...) {
  names <- c("PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", minhubpy:::UV_INDEX_VARIABLES)
  before <- Sys.getenv(c(names, "UV_CONFIG_FILE", "R_USER_DATA_DIR", "PATH"), unset = NA, names = TRUE)
  Sys.unsetenv(c(names, "UV_CONFIG_FILE"))
  Sys.setenv(PIP_CONFIG_FILE = "/dev/null", R_USER_DATA_DIR = tempfile("data "))
  if (...length()) Sys.setenv(...)
  before
}

test_that("pip asks each index, and the error names the setting of one that cannot be reached", {
  needs_worker()
  needs_shell()
  minhub_start()
  python <- minhubpy:::session$python$path
  before <- only_settings()
  on.exit(minhubpy:::set_environment(before))
  check <- function(main, extra = NULL, torch = NULL, more = character()) {
    Sys.unsetenv(c("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"))
    Sys.setenv(PIP_INDEX_URL = main)
    if (!is.null(extra)) Sys.setenv(PIP_EXTRA_INDEX_URL = extra)
    minhubpy:::check_indexes(minhubpy:::pip_installer(python, more), python, more, torch, "torch_index")
  }
  refused <- function(..., message) {
    condition <- tryCatch(check(...), error = identity)
    expect_s3_class(condition, "minhubpy_error")
    expect_match(conditionMessage(condition), message, fixed = TRUE)
  }
  good <- local_index("filelock")
  expect_null(check(good))
  expect_null(check(good, extra = local_index("other"), torch = local_index("torch")))
  expect_null(check(local_index("other"), extra = good))
  answer <- "cannot be reached: Failed to establish a new connection: [Errno"
  refused(CLOSED, message = paste("the package index", CLOSED, "(index-url of pip's configuration)", answer))
  refused("http://me:secret@127.0.0.1:9/simple", message = paste("the package index", CLOSED, "(index-url"))
  refused(good, extra = CLOSED, message = paste("the package index", CLOSED, "(extra-index-url of pip's configuration)", answer))
  refused(good, torch = CLOSED, message = paste("the package index", CLOSED, "(torch_index)", answer))
  refused(good, more = c("--extra-index-url", CLOSED), message = paste("the package index", CLOSED, "(pip_args)", answer))
  # The proxy of the arguments and of the environment.
  proxy <- "http://127.0.0.1:9"
  refused("https://index.example.org/simple", more = paste0("--proxy=", proxy), message = "(index-url of pip's configuration) cannot be reached: ")
  # An index without the package.
  wrong <- local_index("other")
  refused(wrong, message = paste0("no package index has filelock, which minhub_py requires: ", wrong, " (index-url of pip's configuration)"))
  refused(good, torch = wrong, message = paste0("the package index ", wrong, " (torch_index) has no torch: set torch_index"))
  # A folder of wheels instead of an index.
  Sys.setenv(PIP_FIND_LINKS = tempdir())
  expect_null(check(wrong))
  expect_null(check(CLOSED, torch = CLOSED))
  expect_null(check(CLOSED, more = "--no-index"))
})

# A script that imitates Python with pip, and uv. `unreachable`: a part of the URL that does not answer.
imitation <- function(unreachable) {
  folder <- tempfile("python ")
  dir.create(folder)
  log <- file.path(folder, "log")
  python <- file.path(folder, "python")
  writeLines(c(
    "#!/bin/sh",
    "case \"$2\" in *ensurepip*) echo minhubpy 3.11.2; exit;; *minhubpy*) echo minhubpy 3 11; exit;; esac",
    "case \"$*\" in *'pip config list') exit;; esac",
    "[ \"$1\" = -c ] && exit 1",
    paste("echo \"$@\" >>", shQuote(log)),
    "case \"$2\" in venv) mkdir -p \"$3/bin\" && cp \"$0\" \"$3/bin/python\";; esac",
    paste0("case \"$*\" in *index' 'versions*", unreachable, "*) echo 'ERROR: HTTPS is broken'; exit 1;; esac")
  ), python)
  uv <- file.path(folder, "uv")
  writeLines(c(
    "#!/bin/sh",
    "[ \"$1\" = --version ] && echo 'uv 0.9.2 (abc 2026-01-01)' && exit",
    paste("echo \"$@\" >>", shQuote(log)),
    "for last; do :; done",
    paste("[ \"$1\" = venv ] && mkdir -p \"$last/bin\" && cp", shQuote(python), "\"$last/bin/python\""),
    paste0("case \"$*\" in *--dry-run*", unreachable, "*)"),
    "echo 'error: Request failed after 1 retry'; echo '  cause: dns error'; exit 2;; esac",
    "case \"$*\" in *--dry-run*wrong.example*) echo 'error: No solution found when resolving dependencies'; exit 1;; esac",
    paste("case \"$*\" in *--dry-run*) echo \"env $UV_INDEX $UV_HTTP_TIMEOUT\" >>", shQuote(log), ";; esac"),
    "exit 0"
  ), uv)
  Sys.chmod(c(python, uv), "755")
  list(python = python, uv = uv, calls = function() readLines(log))
}

test_that("minhub_install() asks all indexes before it builds anything, and keeps the previous installation", {
  needs_shell()
  before <- only_settings()
  on.exit(minhubpy:::set_environment(before))
  mirror <- "https://mirror.example.org/simple"
  arguments <- c("--index-url", mirror, "--extra-index-url=https://more.example.org/simple")
  install <- function(made, uv = FALSE, ...) minhub_install("x.whl", python = made$python, pip_args = arguments, uv = uv, ...)
  made <- imitation("nowhere")
  path <- suppressMessages(install(made))
  asked <- grep("index versions", made$calls())
  expect_identical(sub(".*--index-url ", "", made$calls()[asked]), c(paste(mirror, "filelock"), "https://more.example.org/simple filelock"))
  expect_true(max(asked) < min(grep("-m pip install", made$calls())))
  made <- imitation("more.example")
  expect_refused(install(made), "the package index https://more.example.org/simple (pip_args) cannot be reached: ERROR: HTTPS is broken. Nothing was installed: correct or remove")
  expect_false(any(grepl("pip install", made$calls())))
  expect_true(file.exists(path))
  made <- imitation("download.pytorch")
  expect_refused(
    install(made, torch = "cpu"),
    "the package index https://download.pytorch.org/whl/cpu (torch = \"cpu\") cannot be reached: ERROR: HTTPS is broken. Nothing was installed: set torch_index"
  )
  # uv, with one index at a time and a short wait
  made <- imitation("nowhere")
  Sys.setenv(UV_INDEX = "mine=https://uv.example.org/simple")
  install(made, uv = made$uv)
  asked <- grep("--dry-run", made$calls(), value = TRUE)
  expect_identical(sub(".*--default-index ([^ ]*) .*", "\\1", asked), c(mirror, "https://more.example.org/simple", "https://uv.example.org/simple"))
  expect_identical(unique(grep("^env", made$calls(), value = TRUE)), "env  15")
  expect_identical(Sys.getenv("UV_INDEX"), "mine=https://uv.example.org/simple")
  made <- imitation("uv.example")
  expect_refused(install(made, uv = made$uv), "the package index https://uv.example.org/simple (UV_INDEX) cannot be reached: dns error")
  arguments <- c("--index-url", "https://wrong.example.org")
  Sys.unsetenv("UV_INDEX")
  expect_refused(install(made, uv = made$uv), "no package index has filelock, which minhub_py requires: https://wrong.example.org (pip_args)")
  expect_false(any(grepl("no-deps x.whl", made$calls())))
})
