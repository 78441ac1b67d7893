# minhub_install() with a Python that only notes what it is asked, and a network that is never there.

# A script that stands for a Python, and what it was called with. `gpu`: whether it finds an NVIDIA GPU; `released`:
# whether the index has minhub_py.
imitation <- function(gpu = FALSE, released = FALSE) {
  folder <- tempfile("python ")
  dir.create(folder)
  path <- file.path(folder, "python")
  log <- file.path(folder, "log")
  writeLines(c(
    "#!/bin/sh",
    paste0("[ \"$1\" = -c ] && exit ", if (gpu) 0 else 1),
    paste("echo \"$@\" >>", shQuote(log)),
    "case \"$2\" in venv) mkdir -p \"$3/bin\" && cp \"$0\" \"$3/bin/python\";; esac",
    if (!released) "case \"$*\" in *minhub_py==*) echo 'ERROR: No matching distribution found for minhub_py'; exit 1;; esac",
    "case \"$*\" in *broken*) exit 1;; esac"
  ), path)
  Sys.chmod(path, "755")
  list(path = path, calls = function() if (file.exists(log)) readLines(log) else character())
}

# minhub_install() into a folder of its own: the arguments of pip, and what is said.
installed <- function(python, ...) {
  before <- Sys.getenv("R_USER_DATA_DIR", unset = NA, names = TRUE)
  old <- options(minhubpy.quiet = FALSE)
  on.exit({
    minhubpy:::set_environment(before)
    options(old)
  })
  data <- tempfile("data ")
  Sys.setenv(R_USER_DATA_DIR = data)
  said <- testthat::capture_messages(path <- minhub_install(..., python = python$path))
  expect_true(file.exists(path))
  expect_true(startsWith(path, data))
  pip <- sub("-m pip install --disable-pip-version-check ", "", grep("-m pip install", python$calls(), value = TRUE), fixed = TRUE)
  list(pip = pip, said = paste(said, collapse = ""))
}

needs_shell <- function() {
  skip_on_os("windows")
  skip_if(minhubpy:::is_hosted(), "only a plain R session has a worker")
}

test_that("without an NVIDIA GPU PyTorch's CPU build is taken, and it is said", {
  needs_shell()
  skip_if_not(Sys.info()[["sysname"]] == "Linux", "only a worker on Linux has a choice: elsewhere there is one build")
  cpu <- "--index-url https://download.pytorch.org/whl/cpu torch"
  made <- installed(imitation(), "git+https://example.org/minhub_py")
  expect_identical(made$pip, c("--no-deps git+https://example.org/minhub_py", cpu, "minhub_py"))
  expect_match(made$said, "Found no NVIDIA GPU: taking PyTorch's CPU build (1.0 GB instead of 5.5 to 6.2;", fixed = TRUE)
  made <- installed(imitation(gpu = TRUE), "x.whl")
  expect_identical(made$pip, c("--no-deps x.whl", "minhub_py"))
  expect_match(made$said, "Found an NVIDIA GPU: taking PyTorch with CUDA", fixed = TRUE)
  # What is asked for is taken without a word, and so is an index that the user names.
  made <- installed(imitation(gpu = TRUE), "x.whl", torch = "cpu")
  expect_identical(made$pip, c("--no-deps x.whl", cpu, "minhub_py"))
  expect_false(grepl("NVIDIA", made$said))
  expect_length(installed(imitation(), "x.whl", torch = "cuda")$pip, 2L)
  made <- installed(imitation(), "x.whl", pip_args = c("--index-url", "https://example.org/simple"))
  expect_identical(made$pip[[2L]], "--index-url https://example.org/simple minhub_py")
})

test_that("a release is asked of the index, and where there is none the next step is one that works", {
  needs_shell()
  python <- imitation()
  none <- tryCatch(minhubpy:::install_release(python$path, c("-m", "pip", "install")), error = identity)
  expect_s3_class(none, "minhubpy_error")
  version <- as.character(utils::packageVersion("minhubpy"))
  expect_match(
    conditionMessage(none), paste0("has no release ", version, " of minhub_py, or cannot be reached: minhub_install(\"/path/to/minhub_py\")"),
    fixed = TRUE
  )
  python <- imitation(released = TRUE)
  expect_null(minhubpy:::install_release(python$path, c("-m", "pip", "install")))
  expect_identical(python$calls(), paste0("-m pip install --retries 1 --no-deps minhub_py==", version))
})

test_that("what was installed before stays where an installation fails", {
  needs_shell()
  before <- Sys.getenv("R_USER_DATA_DIR", unset = NA, names = TRUE)
  on.exit(minhubpy:::set_environment(before))
  Sys.setenv(R_USER_DATA_DIR = tempfile("data "))
  path <- suppressMessages(minhub_install("x.whl", python = imitation()$path))
  expect_refused(minhub_install("broken.whl", python = imitation()$path), "pip could not install it, for what it says above")
  expect_true(file.exists(path))
  expect_identical(dir(dirname(dirname(dirname(path)))), "venv")
})

test_that("messages name a call of minhub_install() that works here", {
  source <- minhubpy:::own_source()
  expect_identical(minhubpy:::install_call(), if (is.null(source)) 'minhub_install("/path/to/minhub_py")' else "minhub_install()")
  if (!is.null(source)) expect_true(startsWith(source, "git+") || file.exists(file.path(source, "pyproject.toml")))
})
