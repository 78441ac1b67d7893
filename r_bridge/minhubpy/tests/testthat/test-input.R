# Wrong input: an error of the package with the user's call. Valid input in all documented forms.

# Values that no string, number or flag accepts.
NEVER <- list(
  NA, NA_character_, list(1:3, "a"), c("a", NA), "\xff\xfe", mean, quote(x), quote(f(x)), new.env(), y ~ x, 1i, raw(3),
  as.POSIXlt(0, origin = "1970-01-01", tz = "UTC"), data.frame(a = 1:3), data.frame(), factor(c("a", NA)), logical(),
  array(1:8, c(2, 2, 2)), c("a", "b"), 1:300
)

# The call and the message of a function's error, or NULL.
refusal <- function(f, value) {
  condition <- tryCatch(
    {
      f(value)
      NULL
    },
    error = identity
  )
  if (is.null(condition)) return(NULL)
  if (!inherits(condition, "minhubpy_error")) return(paste("not ours:", conditionMessage(condition)))
  conditionMessage(condition)
}

test_that("invalid token IDs are errors in every function", {
  model <- a_model()
  expect_refused(model(NULL), "idx must be token IDs, not NULL: encode text with tok$encode()")
  expect_refused(model("ROMEO"), 'idx must be token IDs, not "ROMEO"')
  expect_refused(model(integer()), "idx is empty: pass at least one token ID")
  expect_refused(model(list()), "idx is empty: pass at least one token ID")
  expect_refused(model(matrix(0L, 0, 3)), "idx is empty: pass at least one token ID")
  expect_refused(model(c(1L, NA)), "row 1: an id is NA; drop or replace it first", class = "ValueError")
  expect_refused(model(c(1, NA)), "row 1: an id is NA; drop or replace it first")
  expect_refused(model(NaN), "row 1: an id is NA")
  expect_refused(model(-1L), "row 1: ids must be between 0 and 64, not -1")
  expect_refused(model(c(0, 65)), "row 1: ids must be between 0 and 64, not 65")
  expect_refused(model(3e9), "row 1: ids must be between 0 and 64, not 3000000000")
  expect_refused(model(Inf), "row 1: ids must be between 0 and 64, not inf")
  expect_refused(model(c(1, 1.5)), "row 1: ids must be whole numbers, not 1.5")
  expect_refused(model(matrix(c(1, 2, 3, 99), 2)), "row 2: ids must be between 0 and 64, not 99")
  expect_refused(model(TRUE), "idx must be token IDs, not TRUE")
  expect_refused(model(NA), "idx must be token IDs, not NA")
  expect_refused(model(factor(1:3)), "idx must be token IDs, not a factor")
  expect_refused(model(data.frame(a = 1:3)), "idx must be token IDs, not a <data.frame> of length 1")
  expect_refused(model(as.POSIXlt(0, origin = "1970-01-01")), "idx must be token IDs, not a <POSIXlt>")
  expect_refused(model(mean), "idx must be token IDs, not a function")
  expect_refused(model(model), "idx must be token IDs, not a <minhub_gpt2>")
  expect_refused(model(array(1:8, c(2, 2, 2))), "ids have 3 dimensions: pass a vector, a matrix")
  expect_refused(model(list(1:3, 4:5)), "all rows must have the same length, not 2 to 3 ids")
  expect_refused(model(list(1:2, NULL)), "idx must be token IDs, not NULL")
  expect_refused(model(list(list(1, 2))), "row 1: ids must be whole numbers, not a list of 2")
  expect_refused(model(rep(1L, 300)), "300")

  expect_refused(generate(model, c(1L, NA)), "row 1: an id is NA", class = "ValueError")
  expect_refused(generate(model, list(1:2, c(3, 0.5))), "row 2: ids must be whole numbers, not 0.5")
  expect_refused(generate(model, list(1L, 65L)), "row 2: ids must be between 0 and 64, not 65")
  expect_refused(generate(model, list(1:2, integer())), "prompts is empty: pass at least one token ID")
  expect_refused(token_logprobs(model, c(0L, -1L)), "row 1: ids must be between 0 and 64, not -1")
  expect_refused(perplexity(model, list(1:2, c(NA, 1L))), "row 2: an id is NA")
  expect_refused(next_tokens(model, NULL), "prompt is empty: pass at least one text")
})

test_that("all forms of token IDs have equal results", {
  model <- a_random_model()
  plain <- model(c(1L, 2L, 3L))
  expect_identical(model(c(1, 2, 3)), plain)
  expect_identical(model(c(a = 1, b = 2, c = 3)), plain)
  expect_identical(model(list(c(x = 1L, y = 2L, z = 3L))), plain)
  expect_identical(model(list(row = 1:3)), plain)
  expect_identical(model(matrix(1:3, 1)), plain)
  expect_identical(model(array(1:3, 3)), plain)
  expect_identical(model(c(1, 2, 3) + 1e-320), plain) # rounds to whole numbers
  expect_identical(dim(model(0L)), c(1L, 1L, 10L))
  expect_identical(dimnames(plain), NULL)

  ids <- list(first = 1:3, second = c(4, 5))
  made <- generate(model, ids, 3, temperature = 0)
  expect_identical(names(made), c("first", "second"))
  expect_type(made$first, "integer")
  expect_identical(generate(model, c(a = 1, b = 2, c = 3), 3, temperature = 0), unname(made[1]))
  matrix <- rbind(u = 1:3, v = c(4L, 5L, 6L))
  expect_named(generate(model, matrix, 3, temperature = 0), c("u", "v"))
  expect_identical(generate(model, matrix, 3, temperature = 0)$u, made$first)
  expect_identical(names(perplexity(model, c(a = 1, b = 2, c = 3))), NULL)
  expect_named(perplexity(model, ids), c("first", "second"))
  expect_equal(unname(perplexity(model, ids)), c(perplexity(model, 1:3), perplexity(model, 4:5)))
})

test_that("invalid texts are errors in every function", {
  model <- a_model()
  expect_refused(generate(model, NULL), "prompts is empty: pass at least one text")
  expect_refused(generate(model, ""), "prompt 1 has no tokens: pass a text")
  suppressWarnings(
    expect_refused(generate(model, c("a", "\U1F600")), "prompt 2 has no tokens"),
    classes = "minhubpy_warning"
  )
  expect_refused(generate(model, "a", stop = rep(NA_character_, 9)), "stop must not contain NA, as at position 1, 2, 3, 4, 5, ...:")
  expect_refused(tuned_lens(model, c("a", NA), steps = 1), "texts must not contain NA, as at position 2: drop or replace it")
  expect_refused(attention_weights(model, NA_character_), "text must not contain NA, as at position 1")
  expect_refused(generate(model, c("a", "\xff")), "prompts must be valid UTF-8, unlike position 2: convert it with iconv()")
  expect_refused(generate(model, list("a", c("b", "c"))), "prompts must be text, not a list of length 2")
  expect_refused(generate(model, list("a", 1L)), 'prompts must be token IDs, not "a"')
  expect_refused(generate(model, data.frame(a = "x")), "not a <data.frame> of length 1")
  expect_refused(generate(model, TRUE), "text or token IDs, not TRUE")
  expect_refused(token_logprobs(model, NULL), "texts is empty")
  expect_refused(perplexity(model, "\xff"), "texts must be valid UTF-8, unlike position 1")
  expect_refused(next_tokens(model, c("a", "")), "prompt 2 has no tokens")

  tok <- a_tokenizer()
  expect_refused(tok$encode(c("a", "b")), "sequence must be one string, not 2 strings")
  expect_refused(tok$encode(NA), "sequence must be text, not NA")
  expect_refused(tok$encode(NULL), "sequence must be text, not NULL")
  expect_refused(tok$encode(strrep("a", 1000), pair = NA), "pair must be text, not NA")
  expect_refused(tok$encode("a", is_pretokenized = TRUE), "is_pretokenized = TRUE is not supported: pass text")
  expect_refused(tok$encode_batch(list("a", "\xff")), "input must be valid UTF-8, unlike position 2")
  expect_refused(tok$encode_batch(1:3), "input must be text, not an integer of length 3")
  expect_refused(tok$token_to_id(5), "tokens must be text, not 5")
  expect_refused(tok$decode("a"), 'ids must be token IDs, not "a"')
  expect_refused(tok$decode(c(1, NA)), "an id is NA")
  expect_refused(tok$decode(c(1L, NA)), "an id is NA")
  expect_refused(tok$decode(-1), "ids must be between 0 and 64, not -1")
  expect_refused(tok$decode(65L), "ids must be between 0 and 64, not 65")
  expect_refused(tok$decode(list(1, 2)), "ids must be a vector of token IDs: use tok$decode_batch() for a list")
  expect_refused(tok$decode_batch(list(1:3, c(1L, NA))), "row 2: an id is NA")
  expect_refused(tok$decode_batch(list(1:3, 0.5)), "row 2: ids must be whole numbers, not 0.5")
  expect_refused(tok$decode_batch(list(1:3, "a")), 'sequences must be token IDs, not "a"')
  expect_refused(tok$id_to_token("a"), 'ids must be token IDs, not "a"')
  expect_refused(tok$frobnicate, "a tokenizer has no frobnicate; it has padding, truncation, encode(), encode_batch()")
})

test_that("all forms of texts have equal results", {
  model <- a_model()
  plain <- generate(model, c("To be", "or not"), 5, temperature = 0)
  expect_type(plain, "character")
  expect_identical(generate(model, list("To be", "or not"), 5, temperature = 0), plain)
  expect_identical(generate(model, factor(c("To be", "or not")), 5, temperature = 0), plain)
  expect_identical(generate(model, c(a = "To be", b = "or not"), 5, temperature = 0), c(a = plain[1], b = plain[2]))
  expect_identical(generate(model, matrix(c("To be", "or not"), 1), 5, temperature = 0), plain)
  expect_identical(token_logprobs(model, factor("To be")), token_logprobs(model, "To be"))
  expect_identical(token_logprobs(model, a_tokenizer()$encode("To be"))$logprob, token_logprobs(model, "To be")$logprob)
  expect_named(perplexity(model, c(x = "To be", y = "")), c("x", "y"))
  expect_identical(is.na(perplexity(model, c("To be", "", "a", NA))), c(FALSE, TRUE, TRUE, TRUE))
  expect_identical(perplexity(model, NA), NA_real_)
  expect_identical(perplexity(model, factor(c(NA, "To be"))), perplexity(model, c("", "To be")))
  expect_identical(token_logprobs(model, c(NA, "To be"))$logprob, token_logprobs(model, "To be")$logprob)
  expect_identical(token_logprobs(model, c(NA, "To be"))$text, rep(2L, 4L))
  nothing <- token_logprobs(model, c("", "a"))
  expect_identical(nrow(nothing), 0L)
  expect_identical(lapply(nothing, typeof), lapply(token_logprobs(model, "ab"), typeof))
})

test_that("numbers and texts of a class have the results of plain ones, and other classes are rejected by name", {
  model <- a_model()
  plain <- generate(model, "To be", 5, seed = 7)
  expect_identical(generate(model, "To be", as_integer64(5), seed = as_integer64(7)), plain)
  expect_identical(generate(model, structure("To be", class = c("glue", "character")), I(5), seed = 7), plain)
  expect_identical(generate(model, list(I("To be")), structure(5, class = c("haven_labelled", "vctrs_vctr", "double")), seed = 7), plain)
  expect_identical(generate(model, list(factor("To be"), "or"), 5, temperature = 0), generate(model, c("To be", "or"), 5, temperature = 0))
  ids <- c(0, 3, 1)
  expect_identical(model(as_integer64(ids)), model(ids))
  expect_identical(model(matrix(I(ids), 1L)), model(ids))
  expect_identical(generate(model, list(as_integer64(ids), 2L), 2, temperature = 0), generate(model, list(ids, 2L), 2, temperature = 0))
  expect_identical(a_random_model()$config$n_embd, gpt2(vocab_size = 10, n_embd = as_integer64(8), n_head = 2, n_layer = 1)$config$n_embd)
  # Negative integers of bit64 are NaN as doubles.
  data <- data.frame(word = c("a", "b", "c", "d"), text = c(-1, -1, -2, -2))
  expected <- word_logprobs(model, data, by = "text")$logprob
  data$text <- as_integer64(data$text)
  expect_identical(word_logprobs(model, data, by = "text")$logprob, expected)
  rater <- c(1, 2, -2, NA)
  expect_identical(
    label_agreement(as_integer64(rater), rater, bootstrap = 0)$statistics, label_agreement(rater, rater, bootstrap = 0)$statistics
  )

  expect_refused(generate(model, "A", as.Date("2026-01-01")), "max_new_tokens must be one number, not a <Date> of length 1")
  expect_refused(generate(model, "A", temperature = as.difftime(1, units = "secs")), "temperature must be one number, not a <difftime>")
  expect_refused(generate(model, "A", seed = as.POSIXct(5, origin = "1970-01-01")), "one for each prompt, not a <POSIXct> of length 1")
  expect_refused(generate(model, "A", as_integer64(2^53)), "max_new_tokens must contain integers below 2^53, unlike position 1")
  expect_refused(generate(model, "A", as_integer64(NA)), "max_new_tokens must be one number, not NA")
  expect_refused(generate(model, as.Date("2026-01-01")), "prompts must be text or token IDs, not a <Date> of length 1")
  expect_refused(generate(model, list("A", as.Date("2026-01-01"))), "prompts must be")
  expect_refused(model(as.hexmode(3L)), "idx must be token IDs, not a <hexmode> of length 1")
  expect_refused(gpt2(vocab_size = as.Date("2026-01-01")), "the setting vocab_size must not be a <Date> of length 1")
  expect_refused(model$load_state_dict(list(wte.weight = as.Date(1:2, origin = "1970-01-01"))), "")
  expect_refused(minhubpy:::ask("nothing", x = list(list(a = as.Date("2026-01-01")))), "x must not contain a <Date> of length 1: convert it")
})

# Functions with a separate result for each text. `several`: a text has several rows. `lists`: a list with a matrix or an
# encoding for each text.
per_text <- function() {
  model <- a_model()
  masked <- a_masked_model()
  tok <- a_tokenizer()
  list(
    generate = list(function(x) generate(model, x, 2, seed = 1)),
    next_tokens = list(function(x) next_tokens(model, x, n = 2), several = TRUE),
    token_logprobs = list(function(x) token_logprobs(model, x), several = TRUE),
    targets = list(function(x) token_logprobs(model, if (!is.null(x)) rep("To", length(x)), targets = x), several = TRUE),
    perplexity = list(function(x) perplexity(model, x)),
    text_embeddings = list(function(x) text_embeddings(model, x)),
    activations = list(function(x) activations(model, x, "layers.1.resid", pool = "mean")[[1L]]),
    activations_of_tokens = list(function(x) activations(model, x, "layers.1.resid")[[1L]], several = TRUE),
    logprob_matrix = list(function(x) logprob_matrix(model, x), lists = TRUE),
    word_logprobs = list(function(x) word_logprobs(model, x, context = "O")),
    target_logprobs = list(function(x) target_logprobs(model, "O", x)),
    annotate_texts = list(function(x) annotate_texts(model, x, c("joy", "grief"))),
    classify_texts = list(function(x) classify_texts(a_classifier(), x)),
    zero_shot = list(function(x) classify_texts(an_entailment_model(), x, labels = c("a", "b"))),
    classify_tokens = list(function(x) classify_tokens(a_token_classifier(), x, ignore = NULL), several = TRUE),
    decide_texts = list(function(x) decide_texts(a_decider(), x, list(sad = list(type = "noul")))),
    answer_questions = list(function(x) answer_questions(a_question_model(), "Who is it?", x)),
    rerank = list(function(x) rerank(a_cross_encoder(), "the king", x)[c("rank", "score")]),
    masked_tokens = list(function(x) masked_tokens(masked, if (!is.null(x)) replace(rep("the [MASK]", length(x)), is.na(x), NA), n = 2), several = TRUE),
    masked_logprobs = list(function(x) masked_logprobs(masked, "the", x)),
    pseudo_logprobs = list(function(x) pseudo_logprobs(masked, x), several = TRUE),
    encode_batch = list(function(x) tok$encode_batch(x), lists = TRUE)
  )
}

test_that("no texts have an empty result, and a missing text the result NA or no rows, in all functions", {
  cases <- per_text()
  rows <- function(x) if (is.null(dim(x))) length(x) else nrow(x)
  for (name in names(cases)) {
    f <- cases[[name]][[1L]]
    one <- f("the king")
    columns <- function(x) lapply(if (is.data.frame(x)) x[setdiff(names(x), c("text", "prompt"))] else list(x), function(x) c(typeof(x), class(x)))
    none <- f(character())
    expect_identical(rows(none), 0L, info = name)
    expect_identical(rows(f(factor(character()))), 0L, info = name)
    expect_error(f(NULL), class = "minhubpy_error", info = name)
    if (isTRUE(cases[[name]]$lists)) {
      expect_identical(none, list(), info = name)
      expect_length(f(c("the king", NA)), 2L)
      expect_identical(rows(f(c("the king", NA))[[2L]]), 0L, info = name)
      next
    }
    expect_identical(columns(none), columns(one), info = name)
    if (is.matrix(one)) expect_identical(ncol(none), ncol(one), info = name)
    missing <- f(c(NA, "the king"))
    alone <- f(NA)
    if (isTRUE(cases[[name]]$several)) {
      expect_identical(rows(missing), rows(one), info = name)
      expect_identical(rows(alone), 0L, info = name)
      if (is.data.frame(missing)) expect_true(all(missing[[intersect(c("text", "prompt"), names(missing))]] == 2L), info = name)
    } else {
      expect_identical(rows(missing), 2L, info = name)
      expect_identical(rows(alone), 1L, info = name)
      expect_true(anyNA(if (is.data.frame(alone)) unlist(alone) else alone), info = name)
      first <- if (is.data.frame(missing)) missing[[intersect(c("prob", "score"), names(missing))[[1L]]]][1L] else if (is.matrix(missing)) missing[1L, 1L] else missing[[1L]]
      if (name != "rerank") expect_true(is.na(first), info = name) # sorted, missing texts last
    }
  }
  expect_identical(generate(a_model(), c(a = NA, b = "To"), 2, temperature = 0), c(a = NA, b = generate(a_model(), "To", 2, temperature = 0)))
  expect_identical(attr(activations(a_model(), c("To", NA), "layers.1.resid", pool = "last"), "rows")$token, c("o", NA))
  expect_identical(names(perplexity(a_model(), c(a = NA, b = "To be"))), c("a", "b"))
})

test_that("errors of numbers, flags and names contain the user's call", {
  model <- a_model()
  expect_refused(generate(model, "A", -1), "max_new_tokens must be at least 0 and at most 2147483647, not -1")
  expect_refused(generate(model, "A", 1.5), "max_new_tokens must be a whole number, not 1.5")
  expect_refused(generate(model, "A", 1:2), "max_new_tokens must be one number, not an integer of length 2")
  expect_refused(generate(model, "A", 3e9), "max_new_tokens must be at least 0 and at most 2147483647, not 3e+09")
  expect_refused(generate(model, "A", NULL), "max_new_tokens must be one number, not NULL")
  expect_refused(generate(model, "A", 1, temperature = -0.1), "temperature must be at least 0 and at most 1000000")
  expect_refused(generate(model, "A", 1, temperature = Inf), "not Inf")
  expect_refused(generate(model, "A", 1, top_k = 0), "top_k must be at least 1")
  expect_refused(generate(model, "A", 1, top_p = 0), "top_p must be above 0 and at most 1, not 0")
  expect_refused(generate(model, "A", 1, top_p = 1.01), "top_p must be above 0 and at most 1, not 1.01")
  expect_refused(generate(model, "A", 1, repetition_penalty = 0), "repetition_penalty must be above 0")
  expect_refused(generate(model, "A", 1, min_p = 2), "min_p must be at least 0 and at most 1, not 2")
  expect_refused(generate(model, "A", 1, presence_penalty = 3), "presence_penalty must be at least -2 and at most 2, not 3")
  expect_refused(generate(model, "A", 1, logit_bias = c(a = 1)), "logit_bias must be numbers named by token IDs")
  expect_refused(generate(model, "A", 1, logit_bias = c("99999" = 1)), "logit_bias has token 99999")
  expect_refused(generate(model, "A", 1, seed = 1.5), "seed must be a whole number, or one for each prompt, not 1.5")
  expect_refused(generate(model, c("A", "B"), 1, seed = 1:3), "not an integer of length 3")
  expect_refused(generate(model, "A", 1, eos_id = 1.5), 'eos_id must be "auto", NULL or token IDs, not 1.5')
  expect_refused(generate(model, "A", 1, eos_id = Inf), 'eos_id must be "auto", NULL or token IDs, not Inf')
  expect_refused(generate(model, "A", 1, eos_id = 1e10), 'eos_id must be "auto", NULL or token IDs, not 1e+10')
  expect_refused(generate(model, "A", 1, eos_id = "never"), 'not "never"')
  expect_refused(generate(model, "A", 1, stop = c("x", "")), "stop must not contain an empty string")
  expect_refused(generate(model, "A", 1, stop = 5), "stop must be text, not 5")
  expect_refused(generate(model, "A", 1, stream = NA), "stream must be TRUE or FALSE, not NA")
  expect_refused(generate(model, c("A", "B"), 1, stream = "yes"), 'stream must be TRUE or FALSE, not "yes"')
  expect_refused(generate(model, c("A", "B"), 1, stream = print), "stream must not be a function for several prompts")
  expect_refused(generate(model, "A", 1, tokenizer = model), "tokenizer must be a tokenizer, as tokenizer_from_pretrained() returns")
  expect_refused(generate("gpt2", "A"), 'model must be a model, as from_pretrained() returns, not "gpt2"')
  expect_refused(token_logprobs(NULL, "A"), "model must be a model, as from_pretrained() returns, not NULL")
  expect_refused(perplexity(1, "A"), "model must be a model")
  expect_refused(next_tokens(mean, "A"), "model must be a model, as from_pretrained() returns, not a function")
  expect_refused(next_tokens(model, "A", n = 0), "n must be at least 1")
  expect_refused(save_pretrained(NULL, tempdir()), "model must be a model")
  expect_refused(save_pretrained(model, 5), "folder must be text, not 5")
  expect_refused(save_pretrained(model, tempfile(), tokenizer = 5), "tokenizer must be a tokenizer, as tokenizer_from_pretrained()")
  expect_refused(save_pretrained(model, tempfile(), tokenizer = model), "tokenizer must be a tokenizer")
  expect_refused(model$train("x"), 'mode must be TRUE or FALSE, not "x"')
  expect_refused(model$to(device = 5), "device must be text, not 5")
  expect_refused(model$to(device = "abacus"), "device 'abacus' is unknown", class = "ValueError")
  expect_refused(model$to(dtype = "int3"), "dtype 'int3' is unknown", class = "ValueError")
  expect_refused(model$parameter(NA), "name must be text, not NA")
  expect_refused(model$parameter("nope"), "the model has no weight 'nope'; see names(model$parameters)")
  # R reports another call for these operators.
  expect_error(model[[5]], "must be selected by name", class = "minhubpy_error")
  expect_error(model$eval <- 1, "the fields of a model are read-only, as is eval", class = "minhubpy_error")
  expect_refused(from_pretrained(""), "'' is neither a folder nor a name on the Hub", class = "ValueError")
  expect_refused(from_pretrained(c("a", "b")), "identifier must be one string, not 2 strings")
  expect_refused(from_pretrained(BUILT_IN[[1]], device = "abacus"), "device 'abacus' is unknown")
  expect_refused(from_pretrained(BUILT_IN[[1]], local_files_only = NA), "local_files_only must be TRUE or FALSE")
  expect_refused(lstm_from_pretrained(BUILT_IN[[1]]), "has a model of the architecture gpt2, not lstm: use from_pretrained()")
  expect_refused(gpt2_from_config(BUILT_IN[[1]], seed = -1), "seed must be at least 0")
  expect_refused(from_pretrained("nobody/nothing", local_files_only = TRUE), "nobody/nothing", class = "FileNotFoundError")
  expect_refused(tokenizer_from_pretrained(tempdir()), "tokenizer")
  expect_refused(tokenizer$from_file("/nonexistent/tokenizer.json"), "/nonexistent/tokenizer.json")
  expect_refused(gpt2(vocab_size = NA), "the setting vocab_size must not be NA")
  expect_refused(gpt2(vocab_size = 0), "GPT-2: vocab_size cannot be 0", class = "ValueError")
  expect_refused(gpt2(vocab_size = "\xff"), "the setting vocab_size must not be")
  expect_refused(gpt2(vocab_size = mean), "the setting vocab_size must not be a function")
  expect_refused(gpt2(wocab_size = 5), "GPT-2 has no setting wocab_size; did you mean vocab_size?")
  expect_refused(gpt2(colour = 5), "GPT-2 has no setting colour; its settings are vocab_size")
  expect_refused(from_config("mixtral", num_local_expert = 5), "Mixtral has no setting num_local_expert; did you mean num_local_experts?")
  expect_refused(from_config("gpt2", "main", 5), 'settings must have names, such as from_config("gpt2", vocab_size = 65)')
  expect_refused(from_config("gpt2", n_layer = NA), "the setting n_layer must not be NA")
  expect_refused(gptneo(5), "settings must have names, such as gptneo(vocab_size = 65)")
  expect_refused(gptneo(hidden_size = 8, hidden_size = 9), "settings must not be repeated: hidden_size")
  expect_refused(lstm(hidden_size = NULL), "hidden_size cannot be None", class = "ValueError")
  small <- from_config(
    "phi3",
    vocab_size = 9, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
    pad_token_id = NULL
  )
  expect_null(small$config$pad_token_id)
  expect_refused(minhub_install(source = NA), "source must be text, not NA")
  expect_refused(minhub_install(python = "/nonexistent/python"), "/nonexistent/python does not exist")
  expect_refused(minhub_install(torch = "gpu"), 'torch must be one of "auto", "cpu", "cuda", not "gpu"')
  expect_error(plot(model), "a model has no plot: use plot(next_tokens(model", fixed = TRUE, class = "minhubpy_error")
})

test_that("arguments reject values of wrong types with errors of the package", {
  needs_python()
  model <- a_model()
  random <- a_random_model()
  tok <- a_tokenizer()
  name <- BUILT_IN[[1L]]
  checked <- list(
    `model(idx)` = model,
    `model$train(mode)` = random$train,
    `model$to(device)` = function(x) random$to(device = x),
    `model$parameter(name)` = random$parameter,
    `generate(model)` = function(x) generate(x, "A", 1),
    `generate(max_new_tokens)` = function(x) generate(model, "A", x),
    `generate(temperature)` = function(x) generate(model, "A", 1, temperature = x),
    `generate(top_k)` = function(x) generate(model, "A", 1, top_k = x),
    `generate(top_p)` = function(x) generate(model, "A", 1, top_p = x),
    `generate(repetition_penalty)` = function(x) generate(model, "A", 1, repetition_penalty = x),
    `generate(min_p)` = function(x) generate(model, "A", 1, min_p = x),
    `generate(presence_penalty)` = function(x) generate(model, "A", 1, presence_penalty = x),
    `generate(frequency_penalty)` = function(x) generate(model, "A", 1, frequency_penalty = x),
    `generate(logit_bias)` = function(x) generate(model, "A", 1, logit_bias = x),
    `generate(seed)` = function(x) generate(model, "A", 1, seed = x),
    `generate(tokenizer)` = function(x) generate(model, "A", 1, tokenizer = x),
    `next_tokens(n)` = function(x) next_tokens(model, "A", n = x),
    `token_logprobs(tokenizer)` = function(x) token_logprobs(model, "AB", tokenizer = x),
    `from_pretrained(identifier)` = from_pretrained,
    `from_pretrained(revision)` = function(x) from_pretrained(name, revision = x),
    `from_pretrained(device)` = function(x) from_pretrained(name, device = x),
    `from_pretrained(dtype)` = function(x) from_pretrained(name, dtype = x),
    `from_pretrained(token)` = function(x) from_pretrained(name, token = x),
    `from_pretrained(local_files_only)` = function(x) from_pretrained(name, local_files_only = x),
    `gpt2(vocab_size)` = function(x) gpt2(vocab_size = x, n_embd = 8, n_head = 2, n_layer = 1),
    `gpt2(seed)` = function(x) gpt2(vocab_size = 5, n_embd = 8, n_head = 2, n_layer = 1, seed = x),
    `tok$encode(sequence)` = tok$encode,
    `tok$encode(add_special_tokens)` = function(x) tok$encode("a", add_special_tokens = x),
    `tok$decode(skip_special_tokens)` = function(x) tok$decode(1, skip_special_tokens = x),
    `tok$get_vocab_size(with_added_tokens)` = tok$get_vocab_size,
    `tok$save(path)` = tok$save,
    `tokenizer$from_file(path)` = tokenizer$from_file,
    `save_pretrained(folder)` = function(x) save_pretrained(random, x),
    `minhub_install(source)` = function(x) minhub_install(source = x, python = "/nonexistent")
  )
  bad <- character() # thousands of expectations would be slow
  for (argument in names(checked)) {
    for (value in NEVER) {
      said <- refusal(checked[[argument]], value)
      good <- is.character(said) && sum(nchar(said)) < 400 &&
        !any(grepl("^not ours|in Python:|damaged|Traceback", said))
      if (!good) bad <- c(bad, paste0(argument, " given ", minhubpy:::describe(value), " says ", toString(said)))
    }
  }
  expect_identical(bad, character())
})

test_that("any text is encoded and decoded without loss and marked as UTF-8", {
  needs_python()
  # Every character has tokens in a vocabulary of bytes.
  skip_if_not(nzchar(Sys.getenv("MINHUBPY_REFERENCE")), "MINHUBPY_REFERENCE is not set: there is no tokenizer for all text")
  tok <- tokenizer$from_file(file.path(Sys.getenv("MINHUBPY_REFERENCE"), "bytes.json"))
  latin <- "fa\xE7ile"
  Encoding(latin) <- "latin1"
  bytes <- "fa\xE7ile"
  Encoding(bytes) <- "bytes"
  texts <- c(
    "plain", latin, "\U1F468\u200D\U1F469\u200D\U1F467", "e\u0301 and \u00e9", "\u4e2d\u6587", "\u05e9\u05dc\u05d5\u05dd",
    "\\ \" ' \t\r\n", "\ufeffBOM", "\U10FFFF", " ", strrep("\u00e9", 1e5)
  )
  for (text in texts) {
    ids <- tok$encode(text)$ids
    expect_identical(length(ids), nchar(enc2utf8(text), "bytes"))
    back <- tok$decode(ids)
    expect_identical(back, enc2utf8(text))
    expect_identical(charToRaw(back), charToRaw(enc2utf8(text)))
    if (any(charToRaw(back) > 0x7f)) expect_identical(Encoding(back), "UTF-8")
  }
  expect_identical(tok$decode_batch(lapply(tok$encode_batch(texts), function(x) x$ids)), enc2utf8(texts))
  expect_identical(tok$decode(tok$encode(latin)$ids), "fa\u00e7ile")
  expect_refused(tok$encode(bytes), "sequence must be valid UTF-8, unlike position 1: convert it with iconv()")
  # An incomplete character is decoded to U+FFFD, as in Python.
  expect_identical(tok$decode(tok$encode("\u00e9")$ids[1]), "\ufffd")
  # A NUL does not end a text.
  expect_identical(tok$decode(c(tok$encode("a")$ids, 188L, tok$encode("b")$ids)), "a\ufffdb")
})

test_that("messages escape control characters in file names and tokens", {
  evil <- paste0("a\033]0;title\a\033[2J b", "\u009b1m \u007f")
  error <- expect_error(minhubpy:::fail("there is no ", evil), class = "minhubpy_error")
  expect_false(grepl("[[:cntrl:]]", conditionMessage(error)))
  expect_match(conditionMessage(error), "\\033[2J b", fixed = TRUE)
  before <- options(minhubpy.quiet = FALSE)
  output <- tryCatch(minhubpy:::note(evil), message = conditionMessage, finally = options(before))
  expect_match(output, "\\033[2J", fixed = TRUE)
  plain <- c("caf\u00e9\n\ttwo", "C:\\folder", "", NA)
  expect_identical(minhubpy:::printable(plain), plain)
  expect_identical(minhubpy:::printable("bad \xff"), "bad <ff>")
  expect_identical(minhubpy:::printable(character()), character())
})
