# Texts, seeds, ends and streams. test-parity.R compares the values with Python.

test_that("set.seed() and seed make texts reproducible", {
  model <- a_model()
  draw <- function(...) generate(model, "ROMEO:", 20, ...)
  set.seed(1)
  first <- c(draw(), draw())
  set.seed(1)
  expect_identical(c(draw(), draw()), first)
  expect_false(first[1] == first[2])
  state <- .Random.seed
  expect_identical(draw(seed = 7), draw(seed = 7))
  expect_false(draw(seed = 7) == draw(seed = 8))
  expect_identical(.Random.seed, state) # a seed does not change R's random numbers
  # Texts of a batch match single calls. Equal prompts with equal seeds have equal texts.
  both <- generate(model, c("ROMEO:", "To be"), 20, seed = c(7, 8))
  expect_identical(both, c(draw(seed = 7), generate(model, "To be", 20, seed = 8)))
  same <- generate(model, c("ROMEO:", "ROMEO:"), 20, seed = 7)
  expect_identical(same[1], same[2])
  expect_identical(draw(seed = -2^53), draw(seed = -2^53))
})

test_that("speculative decoding does not change the text", {
  model <- a_model()
  for (seed in list(NULL, 7)) {
    draw <- function(...) generate(model, "ROMEO:", 60, temperature = if (is.null(seed)) 0 else 0.7, seed = seed, ...)
    expect_identical(draw(speculate = 8), draw())
  }
  expect_error(draw(speculate = -1), "speculate")
  expect_error(draw(speculate = NA), "speculate")
})

test_that("max_new_tokens, stop strings and end ids end a text", {
  model <- a_model()
  plain <- generate(model, "ROMEO:", 60, temperature = 0)
  expect_identical(nchar(plain), 60L) # tokens are characters
  expect_identical(generate(model, "ROMEO:", 0), "")
  expect_identical(generate(model, 1:3, 0), list(integer()))
  expect_match(plain, "the")
  stopped <- generate(model, "ROMEO:", 60, temperature = 0, stop = c("the", "zzz"))
  expect_identical(stopped, sub("the.*", "", plain))
  pieces <- character()
  streamed <- generate(model, "ROMEO:", 60, temperature = 0, stop = "the", stream = function(piece) pieces <<- c(pieces, piece))
  expect_identical(streamed, stopped)
  expect_identical(paste(pieces, collapse = ""), stopped)
  end <- a_tokenizer()$encode("e")$ids
  ended <- generate(model, "ROMEO:", 60, temperature = 0, eos_id = end)
  expect_identical(ended, sub("(e).*", "\\1", plain))
  expect_identical(generate(model, "ROMEO:", 60, temperature = 0, eos_id = NULL), plain)
})

test_that("a stream returns all pieces in order, and printed text is returned invisibly", {
  model <- a_model()
  plain <- generate(model, c(a = "ROMEO:"), 40, temperature = 0)
  expect_named(plain, "a")
  pieces <- character()
  made <- withVisible(generate(model, c(a = "ROMEO:"), 40, temperature = 0, stream = function(piece) {
    pieces <<- c(pieces, piece)
  }))
  expect_identical(made$value, plain)
  expect_gt(length(pieces), 20L)
  expect_identical(paste(pieces, collapse = ""), unname(plain))
  shown <- capture.output(made <- withVisible(generate(model, "ROMEO:", 40, temperature = 0, stream = TRUE)))
  expect_false(made$visible)
  expect_identical(paste(shown, collapse = "\n"), paste0("ROMEO:", plain))
  expect_identical(capture.output(made <- withVisible(generate(model, "ROMEO:", 40, temperature = 0))), character())
  expect_true(made$visible)
  # Several prompts and token IDs are not printed.
  expect_identical(capture.output(made <- generate(model, c("a", "b"), 4, stream = TRUE)), character())
  expect_length(made, 2L)
})

test_that("only a complete expression at the console is streamed", {
  call <- quote(generate(model, "ROMEO:"))
  alone <- function(..., depth = 1L) minhubpy:::was_typed(call, depth, c(...))
  expect_true(alone('generate(model, "ROMEO:")'))
  expect_true(alone("x <- 1", "generate(model,  'ROMEO:')  # a comment"))
  expect_true(alone("for (i in 1:3) {", "generate(model, 'ROMEO:')", "}"))
  expect_true(alone("x <- generate(model, 'ROMEO:')", "(generate(model, 'ROMEO:'))"))
  expect_true(alone("x <- 1; generate(model, 'ROMEO:')"))
  expect_false(alone("x <- generate(model, 'ROMEO:')"))
  expect_false(alone("generate(model, 'ROMEO:')", "x = generate(model, 'ROMEO:')"))
  expect_false(alone("generate(model, 'ROMEO:') -> x"))
  expect_false(alone("texts$one <-", "  generate(model, 'ROMEO:')"))
  expect_false(alone("x <- generate(", "  model, 'ROMEO:'", ")"))
  expect_false(alone("for (i in 1:3) texts[i] <- generate(model, 'ROMEO:')"))
  expect_false(alone("nchar(generate(model, 'ROMEO:'))"))
  expect_false(alone("invisible(generate(model, 'ROMEO:'))"))
  # FALSE in another function, and TRUE at top level without a history.
  expect_false(alone("generate(model, 'ROMEO:')", depth = 2L))
  expect_true(alone())
  expect_true(alone("something(else)"))
})

test_that("next tokens of several prompts match single calls", {
  model <- a_model()
  both <- next_tokens(model, c(a = "To b", b = "or no"), 3)
  expect_named(both, c("prompt", "token", "id", "prob", "logprob"))
  expect_identical(both$prompt, factor(rep(c("a", "b"), each = 3L)))
  one <- next_tokens(model, "or no", 3)
  expect_identical(as.list(both[4:6, -1L]), as.list(one))
  expect_identical(next_tokens(model, list(1:2, 3:4), 2)$prompt, c(1L, 1L, 2L, 2L))
})

test_that("log-probabilities keep the names of texts", {
  model <- a_model()
  scores <- token_logprobs(model, c(verse = "To be", "", verse = "or not"))
  expect_identical(levels(scores$text), c("verse", "2", "verse.1"))
  expect_identical(as.integer(scores$text), rep(c(1L, 3L), c(4L, 5L)))
  expect_identical(scores$logprob, token_logprobs(model, c("To be", "or not"))$logprob)
  short <- summary(scores)
  expect_identical(as.character(short$text), c("verse", "verse.1"))
  expect_identical(short$tokens, c(4L, 5L))
})

test_that("next tokens, log-probabilities and perplexity are data frames with consistent values", {
  model <- a_model()
  likely <- next_tokens(model, "ROMEO", n = 5)
  expect_s3_class(likely, "data.frame")
  expect_named(likely, c("token", "id", "prob", "logprob"))
  expect_identical(nrow(likely), 5L)
  expect_false(is.unsorted(-likely$prob))
  expect_identical(a_tokenizer()$token_to_id(likely$token), likely$id)
  expect_equal(sum(next_tokens(model, "ROMEO", n = 1e6)$prob), 1, tolerance = 1e-6)
  logits <- model(a_tokenizer()$encode("ROMEO"))[1, 5, ]
  expect_equal(likely$logprob, (logits - log(sum(exp(logits))))[likely$id + 1L], tolerance = 1e-5)

  texts <- c(x = "To be, or not to be", y = "", z = "ROMEO")
  scores <- token_logprobs(model, texts)
  expect_s3_class(scores, "data.frame")
  expect_identical(scores$text, factor(rep(c("x", "z"), c(18L, 4L)), names(texts)))
  expect_identical(token_logprobs(model, unname(texts))$text, rep(c(1L, 3L), c(18L, 4L)))
  expect_identical(scores$position, c(2:19, 2:5))
  expect_identical(paste(scores$token[scores$text == "z"], collapse = ""), "OMEO")
  expect_equal(perplexity(model, texts), c(x = exp(-mean(scores$logprob[1:18])), y = NA, z = exp(-mean(scores$logprob[19:22]))))
  short <- summary(scores)
  expect_identical(short$text, factor(c("x", "z"), names(texts)))
  expect_identical(short$tokens, c(18L, 4L))
  expect_equal(short$perplexity, unname(perplexity(model, texts)[c(1, 3)]))
  # Token IDs work without a tokenizer.
  random <- a_random_model()
  expect_identical(next_tokens(random, 1:3, 2)$token, c(NA_character_, NA_character_))
  fresh <- gpt2(vocab_size = 11, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 8, seed = 1) # in training mode
  expect_identical(next_tokens(fresh, 1:3, 11), next_tokens(fresh, 1:3, 11))
  expect_true(fresh$training)
  expect_refused(generate(random, "text"), "this model has no tokenizer: pass ids, or tokenizer =")
  expect_refused(generate(random, "text", tokenizer = a_tokenizer()), "the tokenizer does not match the model")
})

test_that("generate() is a generic that rejects unknown arguments", {
  model <- a_model()
  expect_refused(generate("gpt2", "To be"), 'model must be a model, as from_pretrained() returns, not "gpt2"')
  expect_refused(generate(model, "To be", sedd = 1), "unknown argument sedd: did you mean seed?")
  expect_refused(generate(model, "To be", max_tokens = 1), "unknown argument max_tokens: did you mean max_new_tokens?")
  expect_refused(generate(model, "To be", n = 3), "unknown argument n: see ?generate for the arguments")
  expect_refused(generate(model, "To be", quick = 1), "unknown argument quick: see ?generate for the arguments")
  expect_refused(generate(model), "prompts is missing: pass text")
  expect_refused(generate(model = model, prompts = "To be"), "unknown argument model")
  expect_identical(generate(x = model, prompts = "To be", 8, seed = 1), generate(model, "To be", 8, seed = 1))
})

test_that("drafts of the model's own head for multi-token prediction do not change the tokens", {
  needs_python()
  settings <- list(vocab_size = 65, hidden_size = 16, intermediate_size = 32, num_hidden_layers = 4, head_dim = 8, num_attention_heads = 2,
                   num_key_value_heads = 1, linear_num_key_heads = 1, linear_num_value_heads = 2, linear_key_head_dim = 8, linear_value_head_dim = 8,
                   partial_rotary_factor = 0.5, seed = 1)
  model <- do.call(from_config, c("qwen3_5_text", settings, mtp_layers = 1))$eval()
  ids <- function(...) generate(model, list(1:9, 3:4), max_new_tokens = 20, seed = 1:2, ...)
  expect_identical(ids(draft = "mtp"), ids())
  folder <- tempfile("qwen ")
  save_pretrained(model, folder)
  model <- from_pretrained(folder, device = "cpu", mtp = TRUE)
  expect_identical(ids(draft = "mtp"), ids())
  model <- from_pretrained(folder, device = "cpu")
  expect_refused(ids(draft = "mtp"), "draft = \"mtp\": the model has no head for multi-token prediction", class = "ValueError")
})

test_that("a draft model does not change the text, and its accepted tokens are reported", {
  needs_decoder()
  model <- a_model()
  small <- gpt2(vocab_size = 65, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 256, seed = 1)$eval()
  text <- function(...) generate(model, c("To be", "O "), max_new_tokens = 20, seed = 1:2, ...)
  expect_identical(text(draft = small), text())
  options(minhubpy.quiet = FALSE)
  on.exit(options(minhubpy.quiet = TRUE))
  expect_message(text(draft = model, temperature = 0), "^([0-9]+) of \\1 draft tokens were accepted")
  expect_refused(generate(model, "To", draft = "gpt2"), "draft must be a model, as from_pretrained() returns, not \"gpt2\"")
  expect_refused(generate(model, "To", draft = lstm_from_pretrained(BUILT_IN[[3L]])), "the draft model must be", class = "ValueError")
})

test_that("beam search returns the most likely sequence, without sampling settings", {
  model <- a_model()
  likely <- generate(model, c(a = "ROMEO:", b = NA, c = "To be"), 12, beams = 4, early_stopping = "never")
  expect_named(likely, c("a", "b", "c"))
  expect_identical(is.na(likely), c(a = FALSE, b = TRUE, c = FALSE))
  expect_identical(generate(model, "ROMEO:", 12, beams = 4, early_stopping = "never"), likely[["a"]])
  expect_identical(generate(model, "ROMEO:", 12, beams = 1), generate(model, "ROMEO:", 12, temperature = 0))
  expect_identical(length(unique(strsplit(generate(model, "ROMEO:", 12, beams = 2, no_repeat_ngram_size = 1), "")[[1]])), 12L)
  expect_error(generate(model, "ROMEO:", 12, beams = 2, stream = TRUE), "no text before its end")
  expect_error(generate(model, "ROMEO:", 12, length_penalty = 2), "set beams too")
  expect_error(generate(model, "ROMEO:", 12, beams = 2, top_k = 3), "top_k has no effect on beam search")
  expect_error(generate(model, "ROMEO:", 12, beams = 0), "beams must be")
  expect_error(generate(model, "ROMEO:", 12, beams = 2, early_stopping = "always"), "early_stopping must be")
})
