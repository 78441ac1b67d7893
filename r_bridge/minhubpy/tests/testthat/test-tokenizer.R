# Tokenizers, compatible with the package tok.

test_that("encodings have the fields of tok", {
  tok <- a_tokenizer()
  found <- tok$encode("ROMEO: o")
  expect_type(found$ids, "integer")
  expect_identical(found$tokens, strsplit("ROMEO: o", "")[[1L]])
  expect_identical(found$attention_mask, rep(1L, 8L))
  expect_identical(length(found), 8L)
  expect_identical(as.integer(found), found$ids)
  expect_output(print(found), "<encoding of 8 tokens>")
  expect_output(str(found), "<encoding of 8 tokens>")
  expect_refused(found$no_such_thing, "an encoding has no no_such_thing; it has ids, tokens, attention_mask, type_ids")
  expect_identical(tok$encode("")$ids, integer())
  expect_identical(tok$encode("")$tokens, character())
  many <- tok$encode_batch(c("To", "", "be"))
  expect_identical(lapply(many, function(each) each$ids), list(tok$encode("To")$ids, integer(), tok$encode("be")$ids))
  expect_identical(tok$encode_batch(list("To", "be"))[[2L]]$ids, tok$encode("be")$ids)
  expect_identical(tok$encode_batch(character()), list())
  expect_identical(tokenizer$from_pretrained(BUILT_IN[[1L]])$encode("To be")$ids, tok$encode("To be")$ids)
})

a_word_piece <- function() {
  needs_python()
  path <- tempfile(fileext = ".json")
  writeLines(word_piece(ENCODER_WORDS), path)
  tokenizer$from_file(path)
}

test_that("a pair of texts is encoded with the type of each token", {
  tok <- a_word_piece()
  found <- tok$encode("the king", "is dead")
  expect_identical(found$tokens, c("[CLS]", "the", "king", "[SEP]", "is", "dead", "[SEP]"))
  expect_identical(found$type_ids, rep(0:1, c(4, 3)))
  expect_identical(tok$encode("the king", pair = "is dead", add_special_tokens = FALSE)$type_ids, c(0L, 0L, 1L, 1L))
  expect_identical(tok$encode("the king")$type_ids, rep(0L, 4L))
  expect_identical(tok$encode("", add_special_tokens = FALSE)$type_ids, integer())
  expect_refused(tok$encode("the king", pair = c("is", "dead")), "pair must be one string")
})

test_that("texts of any lengths are matrices with an attention mask", {
  tok <- a_word_piece()
  input <- c("the king is dead", NA, "my")
  found <- tok$encode_matrix(input)
  expect_identical(names(found), c("ids", "attention_mask", "type_ids"))
  long <- tok$encode(input[[1L]])$ids
  expect_identical(found$ids, rbind(long, rep(0L, 6), c(tok$encode("my")$ids, 0L, 0L, 0L), deparse.level = 0))
  expect_identical(found$attention_mask, rbind(rep(1L, 6), rep(0L, 6), rep(1:0, each = 3), deparse.level = 0))
  pairs <- tok$encode_matrix(c("the king", "my"), c("is dead", "lord"))
  expect_identical(pairs$type_ids, rbind(rep(0:1, c(4, 3)), c(0L, 0L, 0L, 1L, 1L, 0L, 0L), deparse.level = 0))
  expect_identical(dim(tok$encode_matrix(character())$ids), c(0L, 0L))
  # A model's results for a padded text equal its results for the text alone.
  model <- a_masked_model()
  padded <- model(found$ids[c(1, 3), ], attention_mask = found$attention_mask[c(1, 3), ])
  expect_equal(padded[2, 1:3, ], model(tok$encode("my")$ids)[1, , ], tolerance = 1e-4)
  expect_refused(tok$encode_matrix(input[-2], "a"), "pair must have as many texts as input, 2, not 1")
  expect_refused(a_tokenizer()$encode_matrix(c("To", "b")), "no padding token")
  expect_identical(a_tokenizer()$encode_matrix(c("To", "be"))$attention_mask, matrix(1L, 2, 2))
})

test_that("padding and truncation are settings of one tokenizer object, as in tok", {
  tok <- a_word_piece()
  expect_identical(tok$enable_padding(direction = "left", length = 5, pad_to_multiple_of = 4), tok)
  found <- tok$encode_batch(c("the king", "my"))
  expect_identical(found[[2L]]$tokens, c(rep("[PAD]", 5), "[CLS]", "my", "[SEP]"))
  expect_identical(found[[2L]]$attention_mask, rep(0:1, c(5, 3)))
  expect_identical(length(found[[1L]]), 8L)
  expect_identical(tok$padding$pad_token, "[PAD]")
  expect_identical(tok$encode_matrix(c(NA, "my"))$ids[1L, ], rep(0L, 8))
  tok$enable_padding(pad_id = 4)
  expect_identical(tok$encode_batch(c("the king", "my"))[[2L]]$tokens[[4L]], "[MASK]")
  expect_null(tok$no_padding()$padding)
  tok$enable_truncation(4)
  expect_identical(tok$encode("the king is dead")$tokens, c("[CLS]", "the", "king", "[SEP]"))
  tok$enable_truncation(max_length = 6, strategy = "only_first", direction = "left")
  expect_identical(tok$encode("the king is", "dead")$tokens, c("[CLS]", "king", "is", "[SEP]", "dead", "[SEP]"))
  expect_identical(tok$truncation$max_length, 6L)
  # Not in other functions, nor in other objects.
  expect_identical(length(token_logprobs(a_model(), "To be, or not", tokenizer = a_tokenizer()$enable_truncation(2))$token), 12L)
  a_tokenizer()$no_truncation()
  expect_null(a_word_piece()$truncation)
  # In a copy of saveRDS(), and in a new worker.
  expect_identical(unserialize(serialize(tok, NULL))$encode("the king is", "dead")$ids, tok$encode("the king is", "dead")$ids)
  expect_identical(length(tok$no_truncation()$encode("the king is dead")), 6L)
  expect_refused(tok$enable_padding(pad_token = "nope"), "the vocabulary has no token 'nope'")
  expect_refused(tok$enable_padding(direction = "up"), "direction must be one of")
  expect_refused(tok$enable_truncation(4, stride = 2), "stride must be 0")
})

test_that("a tokenizer is trained on texts", {
  needs_python()
  text <- rep(c("the king is dead", "long lives the k\u00efng"), 20)
  tok <- tokenizer$train(text, vocab_size = 280)
  expect_identical(tok$decode(tok$encode(text[[2L]])$ids), text[[2L]])
  expect_identical(tok$token_to_id("<|endoftext|>"), 0L)
  expect_lt(length(tok$encode("the king")), nchar("the king"))
  expect_output(print(tok), "<tokenizer of texts: 2[0-9]{2} tokens>")
  copy <- unserialize(serialize(tok, NULL))
  expect_identical(copy$encode(text[[1L]])$ids, tok$encode(text[[1L]])$ids)
  words <- tokenizer$train(text, 60, "wordpiece", special_tokens = "[NEW]")
  expect_identical(words$id_to_token(0:5), c("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[NEW]"))
  expect_identical(words$encode("The King")$tokens[2:3], c("the", "king"))
  expect_refused(tokenizer$train(NA, 300), "texts must be text")
  expect_refused(tokenizer$train(text, 0), "vocab_size must be at least 1")
})

test_that("every function warns about characters without a token", {
  model <- a_model()
  tok <- a_tokenizer()
  text <- "To b\u00e9, or n\u00f6t"
  calls <- list(
    quote(tok$encode(text)), quote(tok$encode_batch(c("a", text))), quote(perplexity(model, c("a b", text))),
    quote(token_logprobs(model, text)), quote(generate(model, text, 1)), quote(next_tokens(model, text)),
    quote(generate(model, text, 1, stream = function(piece) NULL))
  )
  for (call in calls) {
    told <- testthat::capture_warnings(value <- eval(call))
    expect_identical(told, "not in the tokenizer's vocabulary, and left out: '\u00e9' '\u00f6'", info = deparse(call))
    condition <- tryCatch(eval(call), warning = identity)
    expect_s3_class(condition, "minhubpy_warning")
    expect_identical(conditionCall(condition), call)
  }
  expect_silent(tok$encode("To be"))
  expect_silent(perplexity(model, c("To be", "")))
  # A vocabulary with <unk>.
  folder <- tempfile()
  dir.create(folder)
  writeLines('["<unk>", "a", "b"]', file.path(folder, "vocab.json"))
  small <- tokenizer_from_pretrained(folder)
  expect_warning(ids <- small$encode("a<cb")$ids, "vocabulary, and read as <unk>: '<' 'c'", fixed = TRUE)
  expect_identical(ids, c(1L, 0L, 0L, 2L))
})

test_that("token IDs are decoded singly and in batches", {
  tok <- a_tokenizer()
  text <- "Now is the winter of our discontent"
  expect_identical(tok$decode(tok$encode(text)$ids), text)
  expect_identical(tok$decode(tok$encode(text)), text)
  expect_identical(tok$decode(as.double(tok$encode(text)$ids)), text)
  expect_identical(tok$decode(integer()), "")
  expect_identical(tok$decode_batch(list(tok$encode("a")$ids, integer(), tok$encode("bc"))), c("a", "", "bc"))
  expect_identical(tok$decode_batch(list()), character())
  expect_identical(tok$decode_batch(rbind(tok$encode("ab")$ids, tok$encode("cd")$ids)), c("ab", "cd"))
  expect_identical(tok$decode_batch(tok$encode_batch(c("ab", "c"))), c("ab", "c"))
  long <- random_text(50000)
  expect_identical(tok$decode(tok$encode(long)$ids), long)
})

test_that("the vocabulary is a data frame in the order of the token IDs", {
  tok <- a_tokenizer()
  expect_identical(tok$get_vocab_size(), 65L)
  vocab <- tok$get_vocab()
  expect_identical(vocab$id, 0:64)
  expect_identical(tok$token_to_id(vocab$token), 0:64)
  expect_identical(tok$id_to_token(c(64, 0, 65)), c(vocab$token[c(65, 1)], NA))
  expect_identical(tok$token_to_id(c("a", "nope", "")), c(tok$encode("a")$ids, NA, NA))
  expect_output(print(tok), "<tokenizer of minhub/shakespeare-gpt2: 65 tokens>")
  expect_output(str(tok), "<tokenizer of")
  expect_output(print(tokenizer), "from_pretrained")
})

test_that("a saved tokenizer is equal after loading", {
  tok <- a_tokenizer()
  path <- tempfile("tok \u00e9", fileext = ".json")
  expect_identical(tok$save(path), path)
  expect_identical(tokenizer$from_file(path)$get_vocab(), tok$get_vocab())
  expect_refused(tok$save(file.path(path, "below")), basename(path))
  writeLines("{", path)
  expect_refused(tokenizer$from_file(path), "tok")
})
