# Faults of the Python worker and of running calls. tests/r_bridge/test_r_processes.py tests a killed R session, a full
# disk, foreign connections and interrupts at any moment.

# Waits for the end of the process after the signal.
end_process <- function(pid, signal = tools::SIGKILL) {
  tools::pskill(pid, signal)
  deadline <- Sys.time() + 20
  while (is_running(pid) && Sys.time() < deadline) Sys.sleep(0.01)
}

# A process whose parent has not waited for it is a zombie (Z). Its files are closed when only its first thread remains.
is_running <- function(pid) {
  said <- suppressWarnings(tryCatch(readLines(file.path("/proc", pid, "stat"), warn = FALSE), error = function(e) ") Z"))
  !grepl(") Z", said, fixed = TRUE) || length(list.files(file.path("/proc", pid, "task"))) > 1L
}

# Four types of Python objects and their results.
things <- function() {
  tok <- a_tokenizer()
  path <- tempfile(fileext = ".json")
  tok$save(path)
  list(
    pretrained = a_model(),
    random = gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, seed = 3)$eval(),
    configured = lstm_from_config(BUILT_IN[[3L]], seed = 4)$eval(),
    tokenizer = tok,
    from_file = tokenizer$from_file(path)
  )
}

answers <- function(things) {
  list(
    things$pretrained(1:3), things$random(1:3), things$configured(1:3), things$tokenizer$encode("To be")$ids,
    things$from_file$decode(20:25), generate(things$pretrained, "ROMEO", 8, temperature = 0)
  )
}

test_that("a worker killed while idle is replaced, and all objects are reloaded", {
  needs_worker()
  made <- things()
  before <- answers(made)
  pid <- worker_pid()
  end_process(pid)
  expect_identical(answers(made), before)
  expect_false(worker_pid() == pid)

  minhub_stop()
  expect_false(is_running(pid))
  expect_identical(answers(made), before)
  # The mode is restored.
  fresh <- gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, pdrop = 0.5, seed = 3)
  expect_true(fresh$training)
  end_process(worker_pid())
  expect_false(identical(fresh(1:3), fresh(1:3)))
  expect_false(identical(made$random$training, fresh$training))
})

test_that("a message states once that a new worker reloads a model", {
  needs_worker()
  model <- a_model()
  model(1L)
  end_process(worker_pid())
  old <- options(minhubpy.quiet = FALSE)
  on.exit(options(old))
  said <- testthat::capture_messages(model(1L))
  expect_match(paste(said, collapse = ""), "The Python worker ended.*Loading minhub/shakespeare-gpt2 again in the new Python worker")
  expect_identical(testthat::capture_messages(model(1L)), character())
})

test_that("a worker killed during a call causes one error", {
  needs_worker()
  made <- things()
  before <- answers(made)
  pid <- worker_pid()
  expect_refused(
    generate(made$pretrained, "ROMEO", 5000, stream = function(piece) end_process(pid)),
    "the Python worker ended unexpectedly", class = "minhubpy_worker_lost"
  )
  expect_identical(answers(made), before)

  pid <- worker_pid()
  events <- 0
  condition <- tryCatch(
    minhubpy:::ask("score", model = made$pretrained, texts = random_text(20000), tokenizer = NULL, on_event = function(event) {
      events <<- events + 1
      end_process(pid)
    }),
    error = identity
  )
  expect_s3_class(condition, "minhubpy_worker_lost")
  expect_identical(events, 1)
  expect_identical(answers(made), before)
})

test_that("R waits for a stopped worker", {
  needs_worker()
  model <- a_random_model()
  logits <- model(1:3)
  pid <- worker_pid()
  tools::pskill(pid, tools::SIGSTOP)
  system2("sh", c("-c", shQuote(paste("sleep 0.3; kill -CONT", pid))), wait = FALSE)
  expect_identical(model(1:3), logits)
  expect_identical(worker_pid(), pid)
})

test_that("an error in a callback stops the generation", {
  model <- a_model()
  plain <- generate(model, "ROMEO:", 50, temperature = 0)
  for (nth in c(1, 2, 17)) {
    pieces <- character()
    condition <- tryCatch(
      generate(model, "ROMEO:", 50, temperature = 0, stream = function(piece) {
        pieces <<- c(pieces, piece)
        if (length(pieces) == nth) stop("the user's own")
      }),
      error = identity
    )
    expect_identical(conditionMessage(condition), "the user's own")
    expect_false(inherits(condition, "minhubpy_error"))
    expect_length(pieces, nth)
    expect_true(startsWith(plain, paste(pieces, collapse = "")))
    expect_identical(generate(model, "ROMEO:", 50, temperature = 0), plain)
  }
  # Python does not continue a long generation: the next call does not wait.
  for (i in 1:20) try(generate(model, "ROMEO:", 1e5, stream = function(piece) stop("enough")), silent = TRUE)
  expect_identical(generate(model, "ROMEO:", 50, temperature = 0), plain)
})

test_that("a callback cannot call Python", {
  model <- a_model()
  tok <- a_tokenizer()
  plain <- generate(model, "ROMEO:", 20, temperature = 0)
  expect_error(
    generate(model, "ROMEO:", 20, temperature = 0, stream = function(piece) tok$encode("To be")),
    "a callback cannot call Python while a call is running", class = "minhubpy_error"
  )
  expect_identical(tok$decode(tok$encode("To be")$ids), "To be")
  # A callback that catches the error receives the complete text.
  pieces <- character()
  made <- generate(model, "ROMEO:", 20, temperature = 0, stream = function(piece) {
    pieces <<- c(pieces, piece)
    try(tok$encode("To be"), silent = TRUE)
  })
  expect_identical(made, plain)
  expect_identical(paste(pieces, collapse = ""), plain)
})

test_that("Ctrl-C stops a generation, and the session, the model and the worker remain", {
  needs_worker()
  model <- a_model()
  plain <- generate(model, "ROMEO:", 30, temperature = 0)
  pid <- worker_pid()
  for (i in 1:5) {
    outcome <- tryCatch(
      generate(model, "ROMEO:", 1e6, stream = function(piece) {
        tools::pskill(Sys.getpid(), tools::SIGINT)
        Sys.sleep(30) # the signal ends the sleep
      }),
      interrupt = function(condition) "interrupted"
    )
    expect_identical(outcome, "interrupted")
    expect_identical(generate(model, "ROMEO:", 30, temperature = 0), plain)
  }
  expect_identical(worker_pid(), pid)
})

test_that("a forked process starts a separate worker", {
  needs_worker()
  skip_on_os("windows")
  model <- a_model()
  plain <- model(1:3)
  pid <- worker_pid()
  children <- lapply(1:2, function(i) {
    parallel::mcparallel(list(worker = worker_pid(), logits = model(1:3), text = generate(model, "To", 5, temperature = 0)))
  })
  rest <- lapply(1:20, function(i) model(1:3))
  results <- unname(parallel::mccollect(children))
  pids <- vapply(results, function(result) result$worker, 0L)
  expect_length(unique(c(pid, pids)), 3L)
  for (result in results) expect_identical(result$logits, plain)
  expect_identical(results[[1L]]$text, generate(model, "To", 5, temperature = 0))
  expect_identical(rest, rep(list(plain), 20))
  expect_identical(worker_pid(), pid)
  deadline <- Sys.time() + 10
  while (any(vapply(pids, is_running, NA)) && Sys.time() < deadline) Sys.sleep(0.01)
  expect_false(any(vapply(pids, is_running, NA)))
})

test_that("Python releases models after R's garbage collection", {
  needs_python()
  # A released model no longer exists in Python.
  model <- gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, seed = 1)
  number <- attr(model, "self")$handle$number
  expect_identical(minhubpy:::ask("parameters", model = number)$dtype[[1L]], "float32")
  rm(model)
  gc()
  condition <- tryCatch(minhubpy:::ask("parameters", model = number), error = identity)
  expect_match(conditionMessage(condition), "model no longer exists in Python")
  # Other models remain.
  kept <- a_random_model()
  invisible(gc())
  expect_identical(dim(kept(1:3)), c(1L, 3L, 10L))
})

test_that("only registered methods with their arguments can be called", {
  needs_python()
  for (name in c("__import__", "keep", "method", "Service", "eval", "os.system", "", "run", "Generate")) {
    condition <- tryCatch(minhubpy:::ask(name), error = identity)
    expect_s3_class(condition, "minhubpy_error")
    expect_match(conditionMessage(condition), "minhub_py has no method '.*' for R")
  }
  condition <- tryCatch(minhubpy:::ask("nothing", x = 1), error = identity)
  expect_match(conditionMessage(condition), "nothing has no argument x")
  condition <- tryCatch(minhubpy:::ask("parameters"), error = identity)
  expect_s3_class(condition, "minhubpy_error")
  condition <- tryCatch(minhubpy:::ask("parameters", model = 1e9), error = identity)
  expect_match(conditionMessage(condition), "model no longer exists in Python")
})

# Creates an executable script with these commands.
script_in <- function(folder, name, ...) {
  path <- file.path(folder, name)
  writeLines(c("#!/bin/sh", ...), path)
  Sys.chmod(path, "755")
  path
}

test_that("an unsuitable Python is an error, and the previous worker remains", {
  needs_worker()
  python <- minhub_start()$python
  on.exit(minhub_stop()) # also resets the selected Python
  folder <- tempfile("a folder with spaces ")
  dir.create(folder)
  script <- function(...) script_in(folder, ...)
  pid <- worker_pid()
  cases <- list(
    list(file.path(folder, "nothing here"), "does not exist"),
    list(folder, "does not exist"),
    list("", "does not exist"),
    list(script("mute", "exit 0"), "does not start as Python 3 (it prints nothing)"),
    list(script("loud", "echo hello; echo goodbye >&2; exit 3"), "does not start as Python 3 (goodbye)"),
    list(script("broken", "echo 'ImportError: no zlib' >&2; echo; echo '  <no Python frame>'"), "does not start as Python 3 (ImportError: no zlib)"),
    list(script("old", "echo minhubpy False"), "is older than 3.10"),
    list(script("bare", "echo minhubpy True False False True"), "lacks minhub_py"),
    list(script("half", "echo minhubpy True True False True"), "lacks minhub_py's r_bridge"),
    list(script("torchless", "echo minhubpy True True True False"), "lacks PyTorch")
  )
  for (case in cases) {
    condition <- tryCatch(minhub_start(case[[1L]]), error = identity)
    expect_s3_class(condition, "minhubpy_no_python")
    expect_identical(conditionCall(condition)[[1L]], quote(minhub_start))
    expect_match(
      conditionMessage(condition), paste0(case[[1L]], " (the argument python) ", case[[2L]], ": set another Python"),
      fixed = TRUE
    )
  }
  expect_refused(minhub_start(NA), "python must be text, not NA")
  expect_identical(worker_pid(), pid)

  # A script that answers the check and is not a worker.
  liar <- script("liar", 'case "$2" in *worker*) echo "No module named x" >&2;; *) echo minhubpy True True True True;; esac')
  expect_refused(minhub_start(liar), "the Python worker did not start")
  expect_refused(minhub_start(liar), "No module named x")
  # A suitable Python at a link whose path contains a space.
  good <- script("good", paste("exec", shQuote(python), '"$@"'))
  about <- minhub_start(good)
  expect_identical(about$why, "the argument python")
  expect_identical(dim(a_random_model()(1:3)), c(1L, 3L, 10L))
})

test_that("the option, the environment variable and the order select the Python", {
  needs_worker()
  python <- minhub_start()$python
  variables <- c("MINHUBPY_PYTHON", "RETICULATE_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "R_USER_DATA_DIR", "HOME")
  before <- Sys.getenv(variables, unset = NA, names = TRUE)
  here <- getwd()
  named <- options(minhubpy.python = NULL)
  empty <- tempfile()
  dir.create(file.path(empty, "project", "deep"), recursive = TRUE)
  on.exit({
    minhub_stop()
    setwd(here)
    options(named)
    minhubpy:::set_environment(before)
  })
  virtualenv <- file.path(empty, "virtualenv")
  dir.create(file.path(virtualenv, "bin"), recursive = TRUE)
  script_in(file.path(virtualenv, "bin"), "python", paste("exec", shQuote(python), '"$@"'))
  why <- function() {
    minhub_stop()
    minhub_start()$why
  }
  options(minhubpy.python = python)
  expect_identical(why(), "the option minhubpy.python")
  options(minhubpy.python = "~/no/python")
  expect_error(why(), "/no/python \\(the option minhubpy.python\\) does not exist", class = "minhubpy_no_python")
  options(minhubpy.python = NULL)
  Sys.setenv(MINHUBPY_PYTHON = python)
  expect_identical(why(), "the environment variable MINHUBPY_PYTHON")
  Sys.setenv(MINHUBPY_PYTHON = "/no/python")
  expect_error(
    why(), "/no/python (the environment variable MINHUBPY_PYTHON) does not exist: set another Python, or unset it and run",
    fixed = TRUE
  )
  Sys.unsetenv(c("MINHUBPY_PYTHON", "RETICULATE_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX"))
  Sys.setenv(R_USER_DATA_DIR = empty, PATH = paste("/usr/bin", "/bin", sep = ":"))
  setwd(file.path(empty, "project", "deep"))

  none <- tryCatch(why(), error = identity)
  skip_if_not(inherits(none, "condition"), "the system's own Python has minhub_py")
  expect_s3_class(none, "minhubpy_no_python")
  advice <- paste0("no Python with minhub_py was found: run ", minhubpy:::install_call(), ", or set options(")
  expect_match(conditionMessage(none), advice, fixed = TRUE)
  expect_identical(minhub_doctor()$advice[[2L]], minhubpy:::install_call())

  file.symlink(virtualenv, file.path(empty, "project", ".venv"))
  expect_identical(why(), "the .venv of this folder")
  Sys.setenv(VIRTUAL_ENV = virtualenv)
  expect_identical(why(), "the active virtualenv")
  Sys.setenv(RETICULATE_PYTHON = python)
  expect_identical(why(), "RETICULATE_PYTHON")
  Sys.setenv(RETICULATE_PYTHON = "/no/python") # an invalid value is skipped
  expect_identical(why(), "the active virtualenv")
})

test_that("files of results are deleted after reading", {
  needs_worker()
  model <- a_random_model()
  folder <- minhubpy:::session$link$folder
  worker_pid()
  folder <- minhubpy:::session$link$folder
  expect_identical(as.character(file.info(folder)$mode), "700")
  large <- lapply(1:3, function(i) model(matrix(rep(0:9, 1000), 1000)))
  expect_identical(dim(large[[1L]]), c(1000L, 10L, 10L))
  expect_identical(large[[1L]], large[[3L]])
  expect_identical(list.files(folder, all.files = TRUE, no.. = TRUE), "log")
  minhub_stop()
  expect_false(dir.exists(folder))
})

test_that("a file is read while it is written, and read again if it was incomplete", {
  folder <- tempfile()
  dir.create(folder)
  whole <- serialize(array(runif(24), c(2, 3, 4)), NULL, xdr = FALSE, version = 2L)
  path <- file.path(folder, "12-7")
  frame <- function(kind) {
    c(writeBin(c(minhubpy:::MAGIC, kind, 7L, nchar(path, "bytes")), raw()), charToRaw(path))
  }
  received <- function(kind, link) {
    link$socket <- rawConnection(frame(kind))
    on.exit(close(link$socket))
    minhubpy:::receive_frame(link, 7L)
  }
  ahead <- minhubpy:::KINDS[["ahead"]]
  done <- minhubpy:::KINDS[["done"]] + minhubpy:::FILE
  for (there in c(length(whole) - 8L, length(whole))) {
    link <- list2env(list(folder = folder))
    writeBin(whole[seq_len(there)], path)
    expect_null(received(ahead, link))
    expect_identical(is.null(link$ahead), there < length(whole))
    writeBin(whole, path)
    expect_identical(received(done, link), list(kind = "done", value = unserialize(whole)))
    expect_null(link$ahead)
    expect_false(file.exists(path))
  }
  unlink(folder, recursive = TRUE)
})

test_that("a large array arrives in order", {
  needs_python()
  model <- gpt2(n_layer = 1, n_embd = 8, n_head = 1, n_positions = 192, seed = 1)$eval()
  logits <- model(1:192)
  expect_identical(dim(logits), c(1L, 192L, 50257L))
  expect_equal(logits[1L, 1:3, ], model(1:3)[1L, , ], tolerance = 1e-5)
  last <- next_tokens(model, 1:192, n = 3)
  expect_identical(order(logits[1L, 192L, ], decreasing = TRUE)[1:3] - 1L, last$id)
})

test_that("calls work without a working directory", {
  needs_worker()
  skip_on_os(c("windows", "solaris"))
  script <- tempfile(fileext = ".R")
  writeLines(c(
    "library(minhubpy)", "options(minhubpy.quiet = TRUE)", "folder <- tempfile()", "dir.create(folder)", "setwd(folder)",
    "unlink(folder, recursive = TRUE)", 'model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")',
    'cat(nrow(next_tokens(model, "To be", n = 3)), "rows\n")', "cat(is.matrix(logprob_matrix(model, strrep('To be ', 50))), \"\n\")",
    'tryCatch(word_logprobs(model, "a", resume = "x.rds"), error = function(e) message(conditionMessage(e)))',
    "minhub_stop()", 'Sys.unsetenv(c("MINHUBPY_PYTHON", "RETICULATE_PYTHON"))', "cat(is.list(minhubpy:::python_candidates()), \"\n\")"
  ), script)
  said <- system2(file.path(R.home("bin"), "Rscript"), c("--no-init-file", shQuote(script)), stdout = TRUE, stderr = TRUE)
  expect_match(said, "^3 rows", all = FALSE)
  expect_match(said, "the working directory was removed: change to another one with setwd()", fixed = TRUE, all = FALSE)
  expect_length(grep("^TRUE", said), 2L)
})

test_that("checks of ended processes leave no connection open", {
  skip_on_os("windows")
  for (i in 1:200) minhubpy:::is_running(.Machine$integer.max)
  file <- tempfile()
  writeLines("open", file)
  expect_identical(readLines(file), "open")
})
