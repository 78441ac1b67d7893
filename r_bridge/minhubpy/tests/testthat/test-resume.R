# Files of results: valid after kills and full disks, locked by one session, and specific to a model.

# A job of five parts, and the rows of each part.
by <- rep(seq_len(2500), each = 2)
run <- function(file, work = function(rows, news) data.frame(row = rows)) minhubpy:::in_parts(by, file, list(1), work)

# Runs code in another R session and returns its output. With wait = FALSE, it runs in the background.
other_session <- function(code, wait = TRUE, before = "") {
  script <- tempfile(fileext = ".R")
  log <- paste0(script, ".log")
  writeLines(c("library(minhubpy)", "options(minhubpy.quiet = TRUE)", code), script)
  command <- paste(before, shQuote(file.path(R.home("bin"), "Rscript")), "--no-init-file", shQuote(script), ">", shQuote(log), "2>&1")
  system(paste("sh -c", shQuote(command)), wait = wait)
  if (wait) readLines(log, warn = FALSE) else log
}

test_that("only one session at a time can use a file", {
  needs_worker()
  file <- tempfile(fileext = ".rds")
  call <- sprintf('cat(tryCatch(minhubpy:::in_parts(%s, "%s", list(1), identity), error = conditionMessage))', "rep(1:2500, each = 2)", file)
  said <- NULL
  found <- run(file, function(rows, news) {
    if (is.null(said)) said <<- other_session(call)
    data.frame(row = rows)
  })
  expect_match(said, paste0("resume: another session is using ", file, ": wait until it ends, or use another file"), fixed = TRUE, all = FALSE)
  expect_identical(found$row, seq_along(by))
  expect_identical(run(file, function(rows, news) stop("all is there")), found)
  expect_identical(list.files(dirname(file), paste0("^", basename(file))), basename(file)) # the lock is deleted
})

test_that("two concurrent sessions write each part once", {
  needs_worker()
  file <- tempfile(fileext = ".rds")
  code <- sprintf(
    paste(
      'model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")',
      "for (try in 1:200) {",
      '  found <- tryCatch(word_logprobs(model, rep(c("To", "be"), 1500), by = rep(1:1500, each = 2), resume = "%s"), error = function(e) NULL)',
      "  if (!is.null(found)) break",
      "}",
      "cat(identical(found, word_logprobs(model, rep(c('To', 'be'), 1500), by = rep(1:1500, each = 2))))",
      sep = "\n"
    ), file
  )
  log <- other_session(code, wait = FALSE)
  expect_match(other_session(code), "TRUE", all = FALSE)
  expect_true(minhubpy:::wait_until(function() any(grepl("TRUE|FALSE", readLines(log, warn = FALSE))), 120))
  expect_match(readLines(log, warn = FALSE), "TRUE", all = FALSE)
  expect_identical(parts_in(file), 3L)
})

test_that("the end of a killed session releases its lock", {
  needs_worker()
  file <- tempfile(fileext = ".rds")
  work <- "function(rows, news) if (rows[[1]] > 2000) tools::pskill(Sys.getpid(), tools::SIGKILL) else data.frame(row = rows)"
  other_session(sprintf('minhubpy:::in_parts(rep(1:2500, each = 2), "%s", list(1), %s)', file, work))
  expect_identical(parts_in(file), 2L)
  expect_true(file.exists(paste0(file, ".lock")))
  expect_identical(run(file)$row, seq_along(by))
})

test_that("a new worker locks the file again", {
  needs_worker()
  file <- tempfile(fileext = ".rds")
  seen <- 0L
  found <- run(file, function(rows, news) {
    seen <<- seen + 1L
    if (seen == 3L) {
      tools::pskill(worker_pid(), tools::SIGKILL)
      minhubpy:::wait_until(function() !minhubpy:::session$link$is_alive(), 30)
    }
    data.frame(row = rows)
  })
  expect_identical(found$row, seq_along(by))
  expect_identical(parts_in(file), 5L)
})

test_that("a full disk leaves a valid file", {
  skip_on_os("windows")
  needs_worker()
  file <- tempfile(fileext = ".rds")
  code <- sprintf('cat(tryCatch(minhubpy:::in_parts(rep(1:2500, each = 2), "%s", list(1), %s), error = conditionMessage))', file,
                  "function(rows, news) data.frame(row = rows, value = rnorm(length(rows)))")
  # A file size limit imitates a full disk: Python gets an error.
  said <- other_session(code, before = "trap '' XFSZ; ulimit -f 60;")
  expect_match(said, paste0("resume: ", file, " cannot be written (File too large): free disk space, and run the same call again"), fixed = TRUE, all = FALSE)
  expect_gt(parts_in(file), 0L)
  expect_lt(parts_in(file), 5L)
  expect_identical(run(file, function(rows, news) data.frame(row = rows, value = 1))$row, seq_along(by))
})

test_that("a change by another program is an error", {
  needs_python()
  file <- tempfile(fileext = ".rds")
  expect_error(
    run(file, function(rows, news) {
      if (file.exists(file) && rows[[1L]] > 2000L) cat("x", file = file, append = TRUE)
      data.frame(row = rows)
    }), "another program has changed"
  )
  unlink(file)
})

test_that("truncated files and parts in a wrong order never cause wrong results", {
  needs_python()
  file <- tempfile(fileext = ".rds")
  expected <- run(file)
  bytes <- readBin(file, "raw", file.size(file))
  starts <- cumsum(c(0, vapply(objects_in(file), function(object) length(serialize(object, NULL)), 0L)))
  for (size in c(0, 1, starts[[2]] - 1, starts[[2]], starts[[2]] + 1, starts[[3]] - 1, starts[[3]] + 100, length(bytes) - 1)) {
    writeBin(utils::head(bytes, size), file)
    expect_identical(run(file), expected)
    expect_identical(readBin(file, "raw", length(bytes) + 1), bytes)
  }
  objects <- objects_in(file)
  for (order in list(c(1, 3, 2, 4, 5, 6), c(1, 2, 2, 3), c(1, 2, 4), c(1, 2, 3, 4, 5, 6, 6))) {
    writeBin(do.call(c, lapply(objects[order], serialize, NULL)), file)
    expect_identical(run(file), expected)
  }
  # The parts of two concurrent sessions.
  mixed <- as.vector(rbind(bytes[(starts[[2]] + 1):starts[[3]]], bytes[(starts[[2]] + 1):starts[[3]]]))
  writeBin(c(bytes[seq_len(starts[[2]])], mixed), file)
  expect_identical(run(file), expected)
})

test_that("results belong to the weights of a model, not to its path", {
  needs_python()
  folder <- tempfile()
  file <- tempfile(fileext = ".rds")
  make <- function(seed) gpt2(vocab_size = 65, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 64, seed = seed)
  save_pretrained(make(1), folder, tokenizer = a_tokenizer())
  words <- c("To", "be,", "or")
  model <- from_pretrained(folder)
  first <- word_logprobs(model, words, resume = file)
  expect_identical(word_logprobs(from_pretrained(folder), words, resume = file), first)
  save_pretrained(make(2), folder, tokenizer = a_tokenizer())
  expect_refused(word_logprobs(model, words, resume = file), "have changed since the model was loaded: load the model again")
  expect_refused(word_logprobs(from_pretrained(folder), words, resume = file), "belongs to another job (other words, model or settings)")
  save_pretrained(make(1), folder, tokenizer = a_tokenizer())
  expect_identical(word_logprobs(from_pretrained(folder), words, resume = file), first)
  # The tokenizer argument is part of the job.
  tokenizer <- tokenizer_from_pretrained(folder)
  expect_refused(word_logprobs(from_pretrained(folder), words, tokenizer = tokenizer, resume = file), "belongs to another job")
  # A model from a config.
  path <- file.path(folder, "config.json")
  file2 <- tempfile(fileext = ".rds")
  word_logprobs(gpt2_from_config(folder, seed = 1), words, tokenizer = tokenizer, resume = file2)
  writeLines(sub('"n_layer": 1', '"n_layer": 2', readLines(path)), path)
  expect_refused(
    word_logprobs(gpt2_from_config(folder, seed = 1), words, tokenizer = tokenizer, resume = file2), "belongs to another job"
  )
})

test_that("a finished file requires no write permission", {
  needs_python()
  folder <- tempfile()
  dir.create(folder)
  file <- file.path(folder, "x.rds")
  expected <- run(file)
  Sys.chmod(folder, "555")
  on.exit(Sys.chmod(folder, "755"))
  expect_identical(run(file, function(rows, news) stop("all is there")), expected)
})
