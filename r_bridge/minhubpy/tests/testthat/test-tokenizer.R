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

test_that("a pair of texts is encoded with the type of each token", {
  needs_python()
  folder <- tempfile()
  dir.create(folder)
  writeLines(word_piece(ENCODER_WORDS), file.path(folder, "tokenizer.json"))
  tok <- tokenizer$from_file(file.path(folder, "tokenizer.json"))
  found <- tok$encode("the king", "is dead")
  expect_identical(found$tokens, c("[CLS]", "the", "king", "[SEP]", "is", "dead", "[SEP]"))
  expect_identical(found$type_ids, rep(0:1, c(4, 3)))
  expect_identical(tok$encode("the king", pair = "is dead", add_special_tokens = FALSE)$type_ids, c(0L, 0L, 1L, 1L))
  expect_identical(tok$encode("the king")$type_ids, rep(0L, 4L))
  expect_identical(tok$encode("", add_special_tokens = FALSE)$type_ids, integer())
  expect_refused(tok$encode("the king", pair = c("is", "dead")), "pair must be one string")
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
