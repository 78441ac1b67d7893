# Conversations. tests/chat/test_chat.py tests the content of replies.

test_that("a conversation can be printed, subset, converted and plotted", {
  bot <- minhub_chat(a_model(), max_new_tokens = 12, seed = 1)
  expect_s3_class(bot, "minhub_chat")
  expect_length(bot, 0L)
  expect_identical(nrow(as.data.frame(bot)), 0L)
  expect_null(bot$last)
  reply <- bot$say("Good morrow!")
  expect_identical(c(nrow(reply$tokens), reply$end), c("12", "length"))
  expect_identical(trimws(paste(reply$tokens$token, collapse = ""), "left"), reply$text)
  expect_identical(bot$last, reply)
  expect_true(all(reply$tokens$prob > 0 & reply$tokens$prob <= 1))
  expect_identical(tabulate(reply$top$position), rep(5L, 12L))
  bot$say("And you?")
  expect_gt(bot$last$kept, 0L)
  table <- as.data.frame(bot)
  expect_identical(table$turn, c(1L, 1L, 2L, 2L))
  expect_identical(table$role, rep(c("user", "assistant"), 2L))
  expect_identical(table$tokens, c(NA, 12L, NA, 12L))
  expect_equal(table$logprob[[2L]], sum(reply$tokens$logprob))
  expect_true(all(table$seconds[c(2L, 4L)] > 0))
  shown <- paste(capture.output(print(bot)), collapse = "\n")
  expect_match(shown, "2 turns>")
  expect_match(shown, "you  Good morrow!", fixed = TRUE)
  file <- tempfile(fileext = ".pdf")
  grDevices::pdf(file)
  expect_identical(plot(reply), reply)
  grDevices::dev.off()
  expect_gt(file.size(file), 1000)
  unlink(file)
})

test_that("undo, regenerate, forks and files", {
  bot <- minhub_chat(a_model(), max_new_tokens = 8, temperature = 1)
  draw <- function(bot, ...) {
    set.seed(3)
    bot$say(...)$text
  }
  first <- draw(bot, "one")
  expect_identical(bot$undo(), "one")
  expect_identical(draw(bot, "one"), first) # reproducible by set.seed()
  draw(bot, "two")
  fork <- bot[1L]
  expect_length(fork, 1L)
  expect_identical(draw(fork, "two"), bot$last$text)
  expect_length(bot, 2L)
  expect_false(identical(bot$regenerate(seed = 99)$text, fork$last$text))
  expect_length(bot, 2L)
  file <- tempfile(fileext = ".rds")
  saveRDS(bot, file)
  read <- readRDS(file)
  unlink(file)
  expect_identical(as.data.frame(read), as.data.frame(bot))
  expect_identical(draw(read, "three"), draw(bot, "three"))
  expect_error(bot[5L], "between 1 and 3, the number of turns")
})

test_that("pieces are streamed, and an interrupted reply keeps the text generated so far", {
  bot <- minhub_chat(a_model(), max_new_tokens = 500, seed = 1)
  pieces <- character()
  stopped <- tryCatch(
    bot$say("Good morrow!", stream = function(piece) {
      pieces <<- c(pieces, piece)
      if (length(pieces) == 5L) minhubpy:::interrupt()
    }),
    interrupt = function(i) "stopped"
  )
  expect_identical(stopped, "stopped")
  expect_identical(bot$last$text, paste(pieces, collapse = ""))
  expect_identical(bot$last$end, "interrupted")
  expect_gte(nrow(bot$last$tokens), 5L)
  expect_identical(bot$say("Go on", max_new_tokens = 3)$end, "length")
  shown <- capture.output(bot$say("And on", max_new_tokens = 3, stream = TRUE))
  expect_match(paste(shown, collapse = "\n"), bot$last$text, fixed = TRUE)
})

# A tokenizer with one token per byte and an end-of-sequence token, for grammars of llguidance.
byte_tokenizer <- function() {
  as_they_are <- c(33:126, 161:172, 174:255)
  chars <- intToUtf8(c(as_they_are, 255 + seq_len(256 - length(as_they_are))), multiple = TRUE)
  chars <- sub('(["\\\\])', "\\\\\\1", chars)
  bytes <- '{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}'
  end <- paste(
    '{"id": 256, "content": "<end>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,',
    '"normalized": false}'
  )
  file <- tempfile(fileext = ".json")
  writeLines(enc2utf8(paste0(
    '{"version": "1.0", "added_tokens": [', end, '], "pre_tokenizer": ', bytes, ', "decoder": ', bytes,
    ', "model": {"type": "BPE", "merges": [], "vocab": {', toString(sprintf('"%s": %d', chars, 0:255)), "}}}"
  )), file, useBytes = TRUE)
  on.exit(unlink(file))
  tokenizer$from_file(file)
}

test_that("the default sampling settings are those of the model", {
  sampling <- function(bot) attr(bot, "self")$settings[c("temperature", "top_k", "top_p", "repetition_penalty")]
  expect_identical(sampling(minhub_chat(a_model())), list(temperature = 0.7, top_k = NULL, top_p = 0.95, repetition_penalty = 1))
  folder <- tempfile()
  save_pretrained(a_model(), folder)
  writeLines('{"temperature": 0.3, "top_k": 7}', file.path(folder, "generation_config.json"))
  bot <- minhub_chat(gpt2_from_pretrained(folder), top_k = NULL, max_new_tokens = 5)
  expect_equal(sampling(bot), list(temperature = 0.3, top_k = NULL, top_p = NULL, repetition_penalty = 1))
  again <- minhub_chat(gpt2_from_pretrained(folder), temperature = 2, top_k = 7, seed = 3, max_new_tokens = 5)
  expect_identical(bot$say("Hi", temperature = 2, top_k = "auto", seed = 3)$text, again$say("Hi")$text)
  expect_refused(minhub_chat(a_model(), temperature = "hot"), "temperature must be")
})

test_that("replies have the sampling settings of generate()", {
  bot <- minhub_chat(a_model(), max_new_tokens = 5, temperature = 0)
  first <- bot$say("Hi")$tokens$id
  bias <- stats::setNames(-100, first[[1L]])
  again <- minhub_chat(a_model(), max_new_tokens = 5, temperature = 0, logit_bias = bias)
  expect_false(first[[1L]] %in% again$say("Hi")$tokens$id)
  ids <- generate(a_model(), list(first), 5, temperature = 0)[[1L]]
  bias <- stats::setNames(-100, ids[[1L]])
  expect_false(ids[[1L]] %in% generate(a_model(), list(first), 5, temperature = 0, logit_bias = bias)[[1L]])
  expect_identical(ids, generate(a_model(), list(first), 5, min_p = 1, presence_penalty = 0)[[1L]])
})

test_that("a reply follows a schema and is available as data", {
  needs_extra("json")
  schema <- list(
    type = "object", required = c("mood", "marks", "sure", "who"),
    properties = list(
      mood = list(enum = "good"), sure = list(const = TRUE),
      marks = list(type = "array", items = list(type = "integer", minimum = 1, maximum = 9), minItems = 2, maxItems = 2),
      who = list(type = "object", properties = list(name = list(enum = c("Tybalt", "Paris"))), required = "name")
    )
  )
  model <- gpt2(vocab_size = 257, n_embd = 16, n_head = 2, n_layer = 1, n_positions = 1024, eos_token_id = 256, seed = 1)
  tok <- byte_tokenizer()
  bot <- minhub_chat(model$eval(), max_new_tokens = 400, seed = 1, tokenizer = tok)
  data <- bot$say("How are you?", schema = schema)$data
  expect_named(data, c("mood", "sure", "marks", "who"), ignore.order = TRUE)
  expect_identical(list(data$mood, data$sure), list("good", TRUE))
  expect_type(data$marks, "integer")
  expect_length(data$marks, 2L)
  expect_true(data$who$name %in% c("Tybalt", "Paris"))
  expect_named(data$who, "name") # objects with `properties` have no others
  expect_null(bot$say("And now?", max_new_tokens = 5)$data)
  expect_null(bot$say("And now?", schema = schema, max_new_tokens = 5)$data) # truncated
  json <- '{"type": "array", "items": {"enum": ["a", null]}, "minItems": 2, "maxItems": 3}'
  bot <- minhub_chat(model, max_new_tokens = 100, seed = 2, schema = json, tokenizer = tok)
  expect_true(all(bot$say("Which?")$data %in% c("a", NA)))
  expect_null(bot$say("And plainly?", schema = NULL, max_new_tokens = 5)$data)
  expect_refused(bot$say("Hi", schema = "{"), "schema must be valid JSON")
  expect_refused(bot$say("Hi", schema = list(type = "hiccup")), "hiccup")
  expect_error(bot$say("Hi", schema = 7), "schema must be a named list or JSON text, not")
  expect_error(bot$say("Hi", schema = list("object")), "schema must be a named list")
  expect_length(bot, 2L)
})

test_that("wrong messages and settings are errors", {
  bot <- minhub_chat(a_model())
  expect_refused(bot$say(""), "text is empty: pass a message")
  expect_error(bot$say("Hi", heat = 1), "a reply accepts only the settings")
  expect_error(bot$say("Hi", temperature = -1), "temperature must be at least 0")
  expect_error(bot$undo(), "no message to remove")
  expect_error(bot$regenerate(), "no reply to regenerate")
  expect_error(minhub_chat(1), "model must be a model")
  expect_error(minhub_chat(a_model(), system = 7), "system must be text")
  expect_length(bot, 0L)
})

test_that("a note after a displayed reply starts a new line", {
  bot <- minhub_chat(a_model(), max_new_tokens = 4, seed = 1, stream = TRUE)
  old <- options(minhubpy.quiet = FALSE)
  on.exit(options(old))
  shown <- utils::capture.output(withCallingHandlers(bot$say("Good morrow!"), message = function(note) {
    cat(conditionMessage(note))
    invokeRestart("muffleMessage")
  }))
  expect_match(shown, "^The reply was truncated after 4 tokens", all = FALSE)
})

test_that("R functions are tools, and their results are in the next prompt", {
  needs_extra("json")
  tok <- byte_tokenizer()
  model <- gpt2(vocab_size = 257, n_embd = 16, n_head = 2, n_layer = 1, n_positions = 4096, eos_token_id = 256, seed = 1)
  model <- model$eval()
  numbers <- c()
  add <- minhub_tool(function(n, m = 2) {
    numbers <<- c(numbers, n)
    if (length(numbers) > 1L) stop("too many")
    n + m
  }, "Adds", list(n = list(type = "integer", minimum = 0, maximum = 99), m = "integer"))
  bot <- minhub_chat(model, max_new_tokens = 150, seed = 1, tools = list(add = add), tool_choice = "required", tokenizer = tok)
  reply <- bot$say("Add")
  expect_gt(length(numbers), 0L)
  expect_true(all(numbers >= 0 & numbers <= 99))
  expect_length(bot, 1L)
  expect_match(attr(bot, "self")$exchanges[[1L]]$steps, "tool_call_id", fixed = TRUE)
  expect_null(reply$reasoning)
  bot$say("And now?", tool_choice = "none", max_new_tokens = 4)
  expect_length(bot, 2L)
  expect_match(format(add), "function(n, m): Adds", fixed = TRUE)
  expect_output(print(add), "minhub_tool", fixed = TRUE)
  expect_refused(
    minhub_chat(model, tools = list(add), tokenizer = tok),
    "tools must have names, unlike position 1: pass list(weather = function(city) ...)"
  )
  expect_refused(minhub_chat(model, tools = list(a = add, add), tokenizer = tok), "tools must have names, unlike position 2")
  expect_refused(minhub_chat(model, tools = list(a = add, a = add), tokenizer = tok), "tools must have different names: a is repeated")
  expect_refused(minhub_chat(model, tools = add, tokenizer = tok), "tools must be a list of functions with names, list(weather")
  expect_error(minhub_tool(3), "fun must be a function")
  expect_error(minhub_tool(function(...) 1), "use arguments with names only")
  expect_error(minhub_tool(function(a) 1, arguments = list(b = "string")), "names of the arguments of fun: a")
  expect_refused(bot$say("Add", tool_choice = "other"), "must be auto, none, required or a tool (add)")
})
