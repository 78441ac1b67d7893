# Runs of small models on small texts: settings, results, output and comparison.

test_that("a run contains its best model, losses, folder and settings", {
  run <- a_run()
  expect_s3_class(run, "minhub_run")
  expect_named(run, c("model", "tokenizer", "losses", "best_loss", "best_step", "folder", "settings"))
  losses <- run$losses
  expect_s3_class(losses, c("minhub_losses", "data.frame"), exact = TRUE)
  expect_named(losses, c(
    "step", "tokens", "train_loss", "held_out_loss", "learning_rate", "gradient_norm", "tokens_per_second", "seconds"
  ))
  expect_identical(losses$step, c(0L, 10L, 20L))
  expect_identical(losses$tokens, c(0, 640, 1280))
  expect_identical(is.na(losses$train_loss), c(TRUE, FALSE, FALSE))
  expect_false(any(is.nan(losses$train_loss)))
  expect_true(all(diff(losses$held_out_loss) < 0))
  expect_identical(run$best_loss, losses$held_out_loss[[3L]])
  expect_identical(run$best_step, 20L)

  written <- utils::read.csv(file.path(run$folder, "losses.csv"))
  expect_equal(written$held_out_loss, losses$held_out_loss)
  expect_equal(written$train_loss, losses$train_loss)
  told <- run$settings[c("steps", "width", "batch", "family")]
  expect_identical(told, list(steps = 20L, width = 16L, batch = 4L, family = "lstm"))
  expect_null(run$settings$from)

  expect_s3_class(run$model, "minhub_model")
  expect_identical(run$model$config$hidden_size, 16L)
  expect_false(run$model$training)
  expect_identical(run$tokenizer$decode(run$tokenizer$encode("To be")$ids), "To be")
  # Functions that accept a model accept a run.
  expect_identical(generate(run, "To", 10, seed = 1), generate(run$model, "To", 10, seed = 1))
  expect_identical(nchar(generate(run, "To", 10, seed = 1)), 10L)
  expect_identical(token_logprobs(run, "To be"), token_logprobs(run$model, "To be"))
  expect_identical(dim(save_pretrained(run, tempfile())), NULL)
})

test_that("a run and its losses have print methods", {
  run <- a_run()
  shown <- capture.output(seen <- withVisible(print(run)))
  expect_identical(seen, list(value = run, visible = FALSE))
  expect_match(shown[[1L]], "^<run: LSTM, [0-9.k]+ parameters, 20 steps>$")
  expect_identical(shown[[2L]], sprintf("  held-out loss  %.4f nats per token after step 20: run$model", run$best_loss))
  expect_match(shown[[3L]], "^  took           [0-9].* s, [0-9,]+ tokens/s$")
  expect_identical(shown[[4L]], paste0("  folder         ", run$folder))
  expect_length(capture.output(print(run$losses)), if (getOption("width") > 100) 4L else 8L)
  expect_output(str(run), "<run: LSTM")
})

test_that("set.seed() and seed make a run reproducible", {
  needs_python()
  set.seed(3)
  one <- small(seed = NULL)
  set.seed(3)
  two <- small(seed = NULL)
  other <- small(seed = NULL)
  expect_identical(steps_of(one), steps_of(two))
  expect_false(identical(steps_of(one), steps_of(other)))
  expect_false(one$settings$seed == other$settings$seed)
  state <- .Random.seed
  expect_identical(small(seed = 2^40)$settings$seed, 2^40)
  expect_identical(.Random.seed, state)
})

test_that("text may be lines, a string or files, and temporary files are removed", {
  needs_python()
  before <- dir(tempdir(), "^minhub-text-")
  lines <- small(VERSE)
  string <- small(paste0(VERSE, "\n", collapse = ""))
  expect_identical(steps_of(string), steps_of(lines))
  folder <- tempfile("texts of one's own ")
  dir.create(folder)
  here <- setwd(folder)
  on.exit(setwd(here))
  writeLines(VERSE[1:60], "one.txt")
  writeLines(VERSE[61:120], "two")
  expect_identical(steps_of(small(c("one.txt", "two"))), steps_of(lines))
  expect_identical(steps_of(small(file.path(folder, c("one.txt", "two")))), steps_of(lines))
  expect_identical(dir(tempdir(), "^minhub-text-"), before)
  # Characters of any script and encoding.
  odd <- rep(c("caf\u00e9 \u65e5\u672c\u8a9e \U1F600", iconv("na\u00efve", "UTF-8", "latin1")), 30)
  run <- small(odd, context = 4)
  expect_true(all(c("\u00e9", "\u672c", "\U1F600", "\u00ef", "\n") %in% run$tokenizer$get_vocab()$token))
  expect_identical(dir(tempdir(), "^minhub-text-"), before)
})

test_that("integers may be doubles, NULL is Python's default, and further settings are passed by name", {
  needs_python()
  run <- small(steps = 4, clip = 2, held_out = 0.2, carry = FALSE, sample_tokens = 5, learning_rate = 1, dropout = 0L)
  told <- run$settings
  expect_identical(told[c("steps", "clip", "held_out", "carry", "sample_tokens", "learning_rate", "dropout")], list(
    steps = 4L, clip = 2, held_out = 0.2, carry = FALSE, sample_tokens = 5L, learning_rate = 1, dropout = 0
  ))
  expect_identical(told[c("beta2", "accumulate", "device")], list(beta2 = 0.99, accumulate = 1L, device = "auto"))
  sized <- small(steps = 2, config = list(embedding_size = 8))
  expect_identical(sized$model$config$embedding_size, 8L)
  local <- list(window_size = 4, attention_types = list(list(list("local"), 1)))
  gpt <- small(family = "gptneo", steps = 2, heads = 2, config = local)
  expect_identical(gpt$model$family, "gptneo")
  expect_identical(gpt$model$config$window_size, 4L)
  bpe <- small(steps = 2, tokenizer = "bpe", vocab_size = 270)
  expect_identical(bpe$model$vocab_size, 270L)
})

test_that("from may be a run, a model, a folder or a built-in model", {
  first <- a_run()
  minhub_train <- function(...) {
    minhubpy::minhub_train(VERSE, steps = 2, batch = 2, context = 8, evaluate_every = 2, seed = 1, ...)
  }
  for (from in list(first, first$model, first$folder)) {
    run <- minhub_train(from = from)
    expect_identical(run$settings$from, first$folder)
    expect_equal(run$losses$held_out_loss[[1L]], first$best_loss, tolerance = 0.05)
  }
  run <- minhub_train(from = BUILT_IN[[2L]])
  expect_identical(run$model$family, "gptneo")
  expect_identical(run$model$vocab_size, 65L)
  expect_identical(minhub_train(tokenizer = a_tokenizer(), width = 8)$model$vocab_size, 65L)

  random <- a_random_model()
  expect_refused(minhubpy::minhub_train(VERSE, from = random), "from must be a model in a folder or on the Hub: save the model with save_pretrained()")
  changed <- from_pretrained(first$folder)
  changed$load_state_dict(changed$state_dict())
  expect_refused(minhubpy::minhub_train(VERSE, from = changed), "from must be a model in a folder or on the Hub: save the model with save_pretrained()")
  path <- tempfile(fileext = ".json")
  a_tokenizer()$save(path)
  of_a_file <- tokenizer$from_file(path)
  expect_refused(minhubpy::minhub_train(VERSE, tokenizer = of_a_file), "tokenizer must be from tokenizer_from_pretrained(), not from a file: pass the folder")
  expect_refused(minhubpy::minhub_train(VERSE, "gpt2", from = BUILT_IN[[3L]]), "contains a lstm model, not gpt2: remove family")
})

test_that("wrong arguments of a training are errors", {
  needs_python()
  train <- minhub_train
  expect_refused(minhub_train(character()), "text is empty: pass text or the paths of text files")
  expect_refused(minhub_train(c("", "")), "text is empty: pass text or the paths of text files")
  expect_refused(minhub_train(NA), "text must be text, not NA")
  expect_refused(minhub_train(c("a", NA)), "text must not contain NA, as at position 2: drop or replace it")
  expect_refused(minhub_train(1:3), "text must be text")
  expect_refused(minhub_train("nothing.txt"), 'the text file "nothing.txt" does not exist: check its name')
  expect_refused(minhub_train("no/thing"), 'the text file "no/thing" does not exist: check its name')
  expect_refused(minhub_train(tempdir()), "is a folder: pass its files")
  expect_refused(minhub_train("short\n"), "use a longer text, or context = ", class = "ValueError")
  expect_refused(minhub_train(VERSE, batch = 2000), "a smaller batch or context, or carry = FALSE", class = "ValueError")
  expect_refused(minhub_train(VERSE, steps = 1.5), "steps must be an integer, not 1.5")
  expect_refused(minhub_train(VERSE, steps = NA), "steps must not be NA: pass a value or omit it")
  expect_refused(minhub_train(VERSE, width = "8"), "width must be an integer, not '8'")
  expect_refused(minhub_train(VERSE, layers = 1:2), "layers must be one number")
  expect_refused(minhub_train(VERSE, seed = NA), "seed must be one number, not NA")
  expect_refused(minhub_train(VERSE, seed = -1), "seed must be between 0 and 9223372036854775807, not -1")
  expect_refused(minhub_train(VERSE, family = "gpt3"), "family must be one of gpt2, ")
  expect_refused(minhub_train(VERSE, heads = 2), "heads: lstm has no attention heads; remove this setting")
  expect_refused(minhub_train(VERSE, passes = 9), "unknown setting passes; the settings are family, from, tokenizer")
  expect_refused(minhub_train(VERSE, warmup = 3), "unknown setting warmup; did you mean warm_up?")
  expect_refused(minhub_train(VERSE, start = "gpt2"), "unknown setting start; the settings are family, from")
  expect_refused(minhub_train(VERSE, config = list(n_embd = 8)), "config: unknown setting n_embd; the settings of lstm are vocab_size")
  expect_refused(minhub_train(VERSE, config = list(8)), "settings must have names, such as config = list(window_size = 64)")
  expect_refused(minhub_train(VERSE, config = list(a = NA)), "the setting a must not be NA")
  expect_refused(minhub_train(VERSE, progress = NA), "progress must be TRUE or FALSE, not NA")
  expect_refused(minhub_train(VERSE, out = ""), "out is empty: pass a path")
  run <- a_run()
  expect_refused(minhub_train(VERSE, out = run$folder), "resume it with minhub_resume(\"", class = "FileExistsError")
  expect_refused(minhub_resume(run, width = 3), "width cannot change when a run is resumed", class = "ValueError")
  expect_refused(minhub_resume(run, 30, FALSE, 3), "settings must have names, such as warm_up = 20")
  expect_refused(minhub_resume(tempfile()), "is not a run of minhub_train(): it has no settings.json", class = "FileNotFoundError")
  expect_refused(minhub_run(tempdir()), "is not a run of minhub_train(): it has no settings.json")
  expect_refused(minhub_run(NULL), "out must be text, not NULL")
})

test_that("progress = TRUE prints lines and samples, and the default outside a console prints nothing", {
  needs_python()
  expect_silent(small(steps = 2))
  expect_silent(small(steps = 2, progress = TRUE)) # minhubpy.quiet
  old <- options(minhubpy.quiet = FALSE)
  on.exit(options(old))
  expect_silent(small(steps = 2))
  said <- testthat::capture_messages(run <- small(progress = TRUE, sample = "To", sample_tokens = 5))
  text <- paste(said, collapse = "")
  expect_no_match(text, "\r")
  lines <- grep("^the machine is busy", strsplit(text, "\n")[[1L]], value = TRUE, invert = TRUE)
  expect_match(lines[[1L]], "^LSTM, [0-9,]+ parameters, on cpu, float32$")
  expect_match(lines[[2L]], "^[0-9,]+ tokens to train on, [0-9,]+ held out; 20 steps of 4 x 16; losses in nats per token$")
  expect_match(lines[[3L]], "^about [0-9]+ (s|min) for 20 steps of [0-9.e-]+ s and 3 evaluations$")
  expect_identical(lines[[4L]], "    STEP  TRAINING  HELD OUT    TOKENS/S          TIME")
  row <- run$losses[2L, ]
  expect_match(text, sprintf("\n      10  %8.4f  %8.4f  ", row$train_loss, row$held_out_loss), fixed = TRUE)
  expect_no_match(text, "NA", fixed = TRUE) # no training loss before the first step
  samples <- readLines(file.path(run$folder, "samples.txt"))
  expect_length(grep("^==== step", samples), 3L)
  expect_match(text, samples[[2L]], fixed = TRUE)
  # Notes are always printed, once.
  for (progress in c(TRUE, FALSE)) {
    said <- testthat::capture_messages(small(c(VERSE, "\u00e9"), tokenizer = BUILT_IN[[3L]], steps = 1, progress = progress))
    expect_length(grep("not in the tokenizer's vocabulary", said), 1L)
  }
  said <- testthat::capture_messages(minhub_resume(run, steps = 22, progress = TRUE))
  expect_match(said, "^continues after step 20\n$", all = FALSE)
  said <- testthat::capture_messages(minhub_resume(run, steps = 24))
  expect_match(said, "^Note: from step 22 the learning rate follows a cosine that ends at step 24, not at 22")
})

test_that("outside a console, a line is printed at least once a minute", {
  screen <- new.env()
  screen$moves <- FALSE
  screen$printed <- minhubpy:::seconds_now()
  news <- list(
    event = "stepped", step = 2L, steps = 10L, loss = 1.5, tokens_per_second = 1234.5, seconds_left = 90, time_left = "9 s"
  )
  expect_silent(minhubpy:::show_event(screen, news))
  screen$printed <- screen$printed - 60
  expect_message(minhubpy:::show_event(screen, news), "^step 2 of 10  loss 1.5000  1,234 tokens/s  9 s left\n$")
  expect_silent(minhubpy:::show_event(screen, news))
  estimate <- list(event = "estimated", time = "2 s", steps = 1, step_seconds = 1, evaluations = 2, busy = "", seconds = 2)
  expect_message(minhubpy:::show_event(screen, estimate), "^about 2 s for 1 step of 1 s and 2 evaluations\n$")
})

test_that("the status line of a console fits the width and is erased", {
  old <- options(width = 40)
  on.exit(options(old))
  screen <- new.env()
  screen$moves <- TRUE
  screen$shown <- 0L
  stepped <- list(
    event = "stepped", step = 1200L, steps = 10000L, loss = 1.5, tokens_per_second = 1234.5, seconds_left = 90,
    time_left = "1 min 30 s"
  )
  screen_shows <- function(code) paste(testthat::capture_messages(code), collapse = "")
  first <- screen_shows(minhubpy:::show_event(screen, stepped))
  expect_identical(first, "\rstep 1,200 of 10,000  loss 1.5000  1,23")
  stepped$step <- 2L
  second <- screen_shows(minhubpy:::show_event(screen, stepped))
  expect_identical(second, "\rstep 2 of 10,000  loss 1.5000  1,234 to")
  expect_identical(nchar(second), nchar(first))
  kept <- screen_shows(minhubpy:::say_line(screen, "a line"))
  expect_identical(kept, paste0("\r", strrep(" ", 39), "\ra line\n"))
  expect_identical(screen_shows(minhubpy:::move_line(screen, "")), "")
})

test_that("a progress function receives all events", {
  needs_python()
  heard <- list()
  run <- small(sample = "To", sample_tokens = 3, progress = function(news) heard[[length(heard) + 1L]] <<- news)
  events <- vapply(heard, `[[`, "", "event")
  by_time <- c("preparing", "working", "stepped")
  expect_true(all(events %in% c(by_time, "begins", "estimated", "evaluated", "sampled")))
  expect_identical(events[!events %in% by_time], c("begins", "estimated", rep(c("evaluated", "sampled"), 3L)))
  rows <- heard[events == "evaluated"]
  expect_identical(vapply(rows, `[[`, 0L, "step"), run$losses$step)
  expect_identical(vapply(rows, `[[`, 0, "held_out_loss"), run$losses$held_out_loss)
  expect_identical(vapply(rows, `[[`, 0, "train_loss"), run$losses$train_loss)
  expect_true(all(vapply(rows, `[[`, NA, "best")))
  expect_identical(heard[[which(events == "begins")]]$steps, 20L)
})

test_that("runs are compared by loss, with their names", {
  run <- a_run()
  longer <- small(steps = 40)
  both <- minhub_compare(run, longer)
  expect_s3_class(both, c("minhub_comparison", "data.frame"), exact = TRUE)
  expect_identical(both$run, c("longer", "run"))
  expect_identical(both$steps, c(40L, 20L))
  expect_equal(both$loss, c(longer$best_loss, run$best_loss))
  expect_identical(both$unit, rep("nats per token", 2L))
  expect_equal(both$nats_per_character, both$loss, tolerance = 0.02) # tokens are characters
  expect_identical(both$family, c("lstm", "lstm"))
  expect_identical(both$parameters, rep(as.double(sum(run$model$parameters()$numel)), 2L))
  expect_identical(minhub_compare(a = run, run$folder)$run, c("a", basename(run$folder)))
  name <- basename(run$folder)
  expect_identical(minhub_compare(c(run$folder, run$folder), list(x = run))$run, c(name, paste0(name, ".1"), "x"))
  expect_no_match(capture.output(print(both)), "folder")
  grDevices::pdf(NULL)
  on.exit(grDevices::dev.off())
  expect_identical(withVisible(plot(both)), list(value = both, visible = FALSE))
  expect_silent(plot(both[2L, ], against = "tokens"))
  expect_identical(withVisible(plot(run)), list(value = run, visible = FALSE))
  expect_refused(minhub_compare(), "minhub_compare() requires at least one run: pass runs or their folders")
  expect_refused(minhub_compare(3), "a run must be the result of minhub_train() or its folder, not 3")
  expect_refused(minhub_compare(tempdir()), "is not a run of minhub_train()")
})
