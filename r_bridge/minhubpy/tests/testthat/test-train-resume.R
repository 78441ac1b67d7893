# Interrupted and resumed runs. Python's tests verify that a resumed run has the same steps; these tests verify it for
# interrupts of R.

test_that("a finished run can be continued and read from its folder", {
  needs_python()
  run <- small(out = file.path(tempdir(), "more steps"))
  again <- minhub_run(file.path(tempdir(), "more steps"))
  expect_identical(again$losses, run$losses)
  expect_identical(again$model(1:3), run$model(1:3))
  more <- minhub_resume(run, steps = 30)
  expect_identical(more$losses$step, c(0L, 10L, 20L, 30L))
  expect_identical(more$losses[1:3, ], run$losses)
  expect_identical(more$settings$steps, 30L)
  card <- readLines(file.path(more$folder, "README.md"))
  expect_match(card, "^minhub train --resume 'more steps' --steps 30$", all = FALSE)
  expect_identical(minhub_resume(more$folder)$losses, more$losses) # no steps remain
})

test_that("a resumed run has the same result as an uninterrupted run", {
  needs_python()
  # The run does not finish before the interrupt, and the learning rate does not depend on the number of steps.
  long <- function(steps = 1e5, ...) small(steps = steps, floor = 1, evaluate_every = 20, ...)
  news_of <- list(begins = function(news) news$event == "begins", later = function(news) identical(news$step, 20L))
  for (is_time in news_of) {
    out <- tempfile("stopped-")
    condition <- outcome(long(out = out, progress = function(news) if (is_time(news)) minhubpy:::interrupt()))
    expect_s3_class(condition, "interrupt")
    after <- stopped_at(out)
    step <- if (length(after)) paste(" after step", format(after, big.mark = ","))
    expect_identical(conditionMessage(condition), paste0("Stopped", step, ': continue with minhub_resume("', out, '")'))
    if (!length(after)) after <- 0L # interrupted in the first evaluation, before a checkpoint
    expect_length(after, 1L)
    expect_lt(after, 1e5)
    heard <- NULL
    steps <- after + 25L
    run <- minhub_resume(out, steps = steps, progress = function(news) if (news$event == "begins") heard <<- news$step)
    expect_identical(heard, after)
    whole <- long(steps)
    expect_identical(steps_of(run), steps_of(whole))
    expect_identical(run$model(1:9), whole$model(1:9))
  }
})

test_that("a run that was interrupted during the preparation of its text can be resumed", {
  needs_python()
  text <- rep(VERSE, 2000)
  for (given in list(text, local({
    file <- tempfile(fileext = ".txt")
    writeLines(text, file)
    file
  }))) {
    out <- tempfile("prepared-")
    settings <- list(steps = 2, seed = 3, layers = 1, width = 8, context = 8, batch = 2, evaluate_tokens = 64)
    stop_it <- at("preparing", function() minhubpy:::interrupt())
    condition <- outcome(do.call(minhub_train, c(list(given, out = out, progress = stop_it), settings)))
    expect_s3_class(condition, "interrupt")
    expect_identical(conditionMessage(condition), sprintf('Stopped: continue with minhub_resume("%s")', out))
    expect_true(file.exists(file.path(out, "tokens", "begun.json")))
    expect_refused(minhub_run(out), paste0("interrupted: continue it with minhub_resume(\"", out, "\")"), class = "FileNotFoundError")
    run <- minhub_resume(out)
    whole <- do.call(minhub_train, c(list(given), settings))
    expect_identical(steps_of(run), steps_of(whole))
    expect_identical(run$model(1:5), whole$model(1:5))
  }
})

test_that("resuming a finished run prints a message", {
  needs_python()
  old <- options(minhubpy.quiet = FALSE)
  on.exit(options(old))
  said <- testthat::capture_messages(minhub_resume(a_run(), progress = TRUE))
  expect_match(said, "^already finished after step 20: train further with minhub_resume\\(out, steps = 40\\)", all = FALSE)
  expect_no_match(paste(said, collapse = ""), "HELD OUT")
})

test_that("an error in the progress function stops a run with a checkpoint, and the run can be resumed", {
  needs_python()
  out <- tempfile("broken-")
  condition <- outcome(small(steps = 1e5, out = out, progress = at("evaluated", function() stop("the user's own"))))
  expect_identical(conditionMessage(condition), "the user's own")
  after <- stopped_at(out)
  expect_length(after, 1L)
  # Python does not continue: the checkpoint is the same after other calls.
  a_model()(rep(1L, 100))
  expect_identical(stopped_at(out), after)
  expect_identical(minhub_resume(out, steps = after + 5)$losses$step[[1L]], 0L)
  # The progress function cannot call Python.
  condition <- outcome(small(steps = 1e5, progress = at("begins", function() generate(a_model(), "a"))))
  expect_match(conditionMessage(condition), "a callback cannot call Python while a call is running")
})

test_that("Ctrl-C stops a run with a checkpoint, and the session and the worker remain", {
  needs_worker()
  out <- tempfile("ctrl-c-")
  pid <- worker_pid()
  old <- options(minhubpy.quiet = FALSE)
  on.exit(options(old))
  said <- testthat::capture_messages({
    condition <- outcome(small(steps = 1e6, out = out, progress = at("evaluated", function() {
      tools::pskill(Sys.getpid(), tools::SIGINT)
      Sys.sleep(30) # the signal ends the sleep
    })))
  })
  expect_s3_class(condition, "interrupt")
  expect_identical(said, paste0(conditionMessage(condition), "\n"))
  expect_match(said, "^Stopped after step [0-9,]+: continue with minhub_resume\\(.*\\)\n$")
  expect_length(stopped_at(out), 1L)
  expect_identical(worker_pid(), pid)
})

test_that("a killed worker is an error with the call to resume the run", {
  needs_worker()
  out <- tempfile("killed-")
  pid <- worker_pid()
  kill_it <- at("evaluated", function() tools::pskill(pid, tools::SIGKILL))
  condition <- outcome(small(steps = 1e6, out = out, progress = kill_it))
  expect_s3_class(condition, "minhubpy_worker_lost")
  expect_match(conditionMessage(condition), paste0("continue with minhub_resume(\"", out, "\")"), fixed = TRUE)
  run <- minhub_resume(out, steps = max(10L, stopped_at(out)) + 10L)
  expect_identical(run$losses$step[[1L]], 0L)
  # A run's model is reloaded like other models.
  logits <- run$model(1:3)
  minhub_stop()
  expect_identical(run$model(1:3), logits)
  path <- tempfile(fileext = ".rds")
  saveRDS(run, path)
  expect_identical(readRDS(path)$model(1:3), logits)
})

test_that("the error for a corrupt run states how to recover it", {
  needs_python()
  run <- small(out = tempfile("damaged-"))
  file.remove(file.path(run$folder, "checkpoints", "step-00000020", "progress.json"))
  message <- sprintf(
    'progress.json is missing: the run cannot continue, but its best model is intact in %s; start a new run from it with from = "%s"',
    run$folder, run$folder
  )
  expect_refused(minhub_resume(run, steps = 30), message, class = "CorruptError")
  expect_identical(small(from = run$folder, family = NULL, steps = 2, layers = NULL, width = NULL)$model$family, "lstm")
  unlink(file.path(run$folder, "tokens"), recursive = TRUE)
  expect_refused(minhub_run(run$folder), "tokens.json is missing: the run cannot continue, but its best model is intact")
})
