# Log-probabilities of words in R. tests/analysis/test_surprisal.py verifies the values.

SENTENCES <- data.frame(
  item = c("b", "b", "b", "a", "a", "a", "a"),
  word = c("To", "be,", "or", "My", "good", "lord,", "speak"),
  stringsAsFactors = FALSE
)

test_that("the log-probability of a word is the sum over its tokens, for groups in any order", {
  model <- a_model()
  words <- c("To", "be,", "or", "not")
  found <- word_logprobs(model, words)
  expect_named(found, words)
  expect_true(is.na(found[[1L]]))
  tokens <- token_logprobs(model, "To be, or not") # tokens are characters
  expect_equal(unname(found[-1L]), unname(tapply(tokens$logprob[-1L], rep(2:4, nchar(words[-1L]) + 1L), sum)), tolerance = 1e-6, ignore_attr = TRUE)
  both <- word_logprobs(model, SENTENCES, by = "item")
  expect_identical(both[names(SENTENCES)], SENTENCES)
  expect_named(both, c("item", "word", "tokens", "logprob", "surprisal", "entropy"))
  expect_identical(both$tokens[1:3], c(2L, 4L, 3L))
  expect_identical(which(is.na(both$logprob)), c(1L, 4L))
  expect_equal(both$surprisal, -both$logprob / log(2))
  alone <- word_logprobs(model, SENTENCES$word[4:7])
  expect_identical(both$logprob[4:7], unname(alone))
  mixed <- SENTENCES[c(4, 1, 5, 2, 6, 3, 7), ]
  expect_identical(word_logprobs(model, mixed, by = "item")$logprob, both$logprob[c(4, 1, 5, 2, 6, 3, 7)])
  expect_identical(unname(word_logprobs(model, mixed$word, by = factor(mixed$item))), both$logprob[c(4, 1, 5, 2, 6, 3, 7)])
  upset <- transform(SENTENCES, n = c(1:3, 1:4), side = 1)[7:1, ]
  expect_identical(word_logprobs(model, upset, by = c("item", "side"), word_n = "n")$logprob, rev(both$logprob))
  expect_identical(word_logprobs(model, upset, by = list(upset$item), word_n = upset$n)$logprob, rev(both$logprob))
})

test_that("missing words and texts are omitted, and data frames keep their class", {
  model <- a_model()
  words <- c("To", NA, "be,", "", "or")
  expect_identical(unname(word_logprobs(model, factor(words))), {
    there <- word_logprobs(model, c("To", "be,", "or"))
    unname(there[c(1L, NA, 2L, NA, 3L)])
  })
  expect_identical(unname(word_logprobs(model, c(NA, NA))), c(NA_real_, NA_real_))
  expect_identical(unname(word_logprobs(model, character())), numeric())
  some <- word_logprobs(model, data.frame(w = SENTENCES$word, g = c(1, 1, 1, NA, NA, NA, NA)), by = "g", words = "w")
  expect_identical(is.na(some$logprob), c(TRUE, FALSE, FALSE, rep(TRUE, 4L)))
  odd <- setNames(data.frame(c("To", NA, "be,"), factor(c("x", "x", "x"))), c("a word", "\u00e9t\u00e9"))
  found <- word_logprobs(model, odd, words = "a word", by = "\u00e9t\u00e9")
  expect_identical(found[1:2], odd)
  expect_identical(found$logprob[c(1L, 3L)], unname(word_logprobs(model, c("To", "be,"))))
  expect_warning(word_logprobs(model, cbind(SENTENCES, entropy = 1:7), by = "item"), "existing columns of the data frame were replaced: entropy")
  groups <- data.frame(item = c("a", "b"))
  groups$.rows <- list(4:7, 1:3)
  grouped <- structure(SENTENCES, class = c("grouped_df", "data.frame"), groups = groups) # as from dplyr
  expect_identical(word_logprobs(model, grouped)$logprob, word_logprobs(model, SENTENCES, by = "item")$logprob)
  skip_if_not_installed("tibble")
  expect_s3_class(word_logprobs(model, tibble::as_tibble(SENTENCES), by = "item"), "tbl_df")
})

test_that("context, sep, ignore_regex and bos change the results", {
  model <- a_model()
  plain <- word_logprobs(model, c("To", "be,", "or"))
  expect_equal(unname(word_logprobs(model, "or", context = "To be,")), plain[[3L]], tolerance = 1e-6)
  with <- transform(SENTENCES, before = ifelse(item == "a", "Well,", NA))
  expect_identical(which(is.na(word_logprobs(model, with, by = "item", context = "before")$logprob)), 1L)
  expect_equal(word_logprobs(model, c("To", " be,", " or"), sep = "")[[3L]], plain[[3L]], tolerance = 1e-6)
  tokens <- token_logprobs(model, "To be, or")
  comma <- tokens$logprob[tokens$token == ","]
  expect_equal(word_logprobs(model, c("To", "be,", "or"), ignore_regex = "^[[:punct:]]$")[[2L]], plain[[2L]] - comma, tolerance = 1e-6)
  expect_refused(word_logprobs(model, "To", bos = TRUE), "bos = TRUE needs a bos_token_id, but this model has none: leave bos unset")
})

test_that("each target has a context", {
  model <- a_model()
  contexts <- c("To", "To be,", NA)
  targets <- c("be,", "or", "or")
  found <- target_logprobs(model, contexts, targets)
  plain <- word_logprobs(model, c("To", "be,", "or"))
  expect_equal(found, c(plain[[2L]], plain[[3L]], NA), tolerance = 1e-6)
  framed <- target_logprobs(model, data.frame(id = 3:1, context = contexts, target = factor(targets)))
  expect_named(framed, c("id", "context", "target", "tokens", "logprob", "surprisal", "entropy"))
  expect_identical(framed$logprob, found)
  # Without names, a difference has no labels of one side.
  expect_null(names(target_logprobs(model, "To", c("be,", "do")) - target_logprobs(model, "To", c("go,", "me"))))
  expect_named(target_logprobs(model, "To", c(first = "be,", second = "do")), c("first", "second"))
  expect_equal(target_logprobs(model, "To", c("be,", "do")), target_logprobs(model, c("To", "To"), c("be,", "do")))
})

test_that("the matrix contains all log-probabilities", {
  model <- a_model()
  text <- "To be, or not"
  all <- logprob_matrix(model, text)
  scores <- token_logprobs(model, text)
  expect_identical(dim(all), c(nchar(text), as.integer(model$config$vocab_size)))
  expect_identical(rownames(all)[-1L], scores$token)
  expect_true(all(is.na(all[1L, ])))
  expect_equal(all[cbind(scores$position, scores$id + 1L)], scores$logprob, tolerance = 1e-6)
  both <- logprob_matrix(model, c(one = "To be", two = "or"))
  expect_named(both, c("one", "two"))
  expect_equal(both$one, all[1:5, ], tolerance = 1e-6)
  file <- tempfile(fileext = ".npy")
  rows <- logprob_matrix(model, text, file = file)
  expect_identical(rows$token, rownames(all))
  opened <- file(file, "rb")
  on.exit(close(opened))
  readBin(opened, "raw", 128L)
  expect_equal(matrix(readBin(opened, "numeric", 1e6, size = 4L), nrow(all), byrow = TRUE)[-1L, ], unname(all[-1L, ]), tolerance = 1e-6)
})

test_that("an interrupted job is resumed from its file, and a finished job is loaded", {
  model <- a_model()
  words <- rep(c("To", "be,", "or", "not", "to", "be"), 500)
  by <- rep(seq_len(1000), each = 3)
  wanted <- word_logprobs(model, words, by = by)
  file <- tempfile(fileext = ".rds")
  seen <- 0L
  stopped <- tryCatch(
    minhubpy:::in_parts(by, file, list(1), function(rows, news) {
      seen <<- seen + 1L
      if (seen == 3L) stop("stopped here")
      data.frame(row = rows)
    }),
    error = conditionMessage
  )
  expect_identical(stopped, "stopped here")
  found <- minhubpy:::in_parts(by, file, list(1), function(rows, news) {
    seen <<- seen + 1L
    data.frame(row = rows)
  })
  expect_identical(found$row, seq_along(words))
  expect_identical(seen, 4L)
  expect_refused(word_logprobs(model, words, by = by, resume = file), "belongs to another job")
  unlink(file)
  expect_identical(word_logprobs(model, words, by = by, resume = file), wanted)
  expect_identical(word_logprobs(model, words, by = by, resume = file), wanted)
  expect_refused(word_logprobs(model, words, by = by, resume = "x.csv"), 'resume must name a file that ends in ".rds"')
})

test_that("a truncated file is repaired, and files of other jobs are unchanged", {
  needs_python()
  by <- rep(seq_len(2500), each = 2)
  file <- tempfile(fileext = ".rds")
  seen <- 0L
  work <- function(rows, news) {
    seen <<- seen + 1L
    data.frame(row = rows)
  }
  run <- function(...) minhubpy:::in_parts(by, file, list(...), work)
  run(1)
  whole <- file.size(file)
  expect_identical(readRDS(file)$job, list(1)) # the record of the job is first
  bytes <- readBin(file, "raw", whole)
  writeBin(bytes[seq_len(whole - 100)], file)
  seen <- 0L
  expect_identical(run(1)$row, seq_along(by))
  expect_identical(seen, 1L)
  expect_identical(readBin(file, "raw", whole + 1), bytes)
  expect_error(run(2), "belongs to another job")
  writeLines("a diary", file)
  expect_error(run(1), "belongs to another job")
  expect_identical(readLines(file), "a diary")
})

test_that("embeddings, log-probabilities and generated texts are resumed from their files", {
  needs_python()
  folder <- tempfile()
  small <- gpt2(vocab_size = 65, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 64, seed = 1)
  save_pretrained(small, folder, tokenizer = a_tokenizer())
  model <- from_pretrained(folder)
  lines <- rep(c(a = "To be", b = "O", c = NA, d = "My lord"), 100) # several parts
  again <- function(call, ...) {
    file <- tempfile(fileext = ".rds")
    wanted <- call(...)
    expect_equal(call(..., resume = file), wanted, tolerance = 1e-6)
    expect_gt(parts_in(file), 1L)
    keep_parts(file, 1L)
    expect_equal(call(..., resume = file), wanted, tolerance = 1e-6)
    expect_equal(call(..., resume = file), wanted, tolerance = 1e-6)
  }
  again(text_embeddings, model, lines, layer = 1)
  again(text_embeddings, model, lines, layer = 1, pool = "none")
  again(token_logprobs, model, lines)
  again(token_logprobs, model, unname(lines), bits = TRUE)
  again(token_logprobs, model, rep("To be", 300), targets = rep(c("or", ", my"), 150))
  prompts <- lines[1:90]
  again(generate, model, prompts, 3, seed = 1:90)
  again(generate, model, list(1:3, 2L)[rep(1:2, 35)], 3, temperature = 0)
  expect_refused(generate(model, prompts, resume = "a.rds"), "resume requires a seed")
  expect_refused(generate(model, "To", seed = 1, stream = TRUE, resume = "a.rds"), "resume and stream exclude each other")
})

test_that("bits = TRUE adds surprisal and entropy", {
  model <- a_model()
  texts <- c(x = "To be, or not", y = "", z = "My lord")
  plain <- token_logprobs(model, texts)
  bits <- token_logprobs(model, texts, bits = TRUE)
  expect_named(bits, c(names(plain), "surprisal", "entropy"))
  expect_equal(as.data.frame(bits)[names(plain)], as.data.frame(plain), tolerance = 1e-6, ignore_attr = TRUE)
  expect_equal(bits$surprisal, -bits$logprob / log(2))
  all <- logprob_matrix(model, texts[["x"]])[-1L, ]
  expect_equal(bits$entropy[bits$text == "x"], unname(-rowSums(exp(all) * all) / log(2)), tolerance = 1e-5)
  after <- token_logprobs(model, c("To be", "My"), targets = c(", or", " lord"), sep = "", bits = TRUE)
  expect_equal(after$logprob[1:4], plain$logprob[5:8], tolerance = 1e-6)
  expect_equal(after$entropy[1:4], bits$entropy[5:8], tolerance = 1e-6)
  expect_identical(after$position, c(1:4, 1:5))
  spaced <- token_logprobs(model, c("To be", "My"), targets = c(", or", "lord"))
  expect_equal(sum(spaced$logprob[spaced$text == 2L]), target_logprobs(model, "My", "lord")[[1L]], tolerance = 1e-6)
  expect_identical(spaced$token[1:2], c(" ", ","))
  expect_refused(token_logprobs(model, texts, bits = NA), "bits must be TRUE or FALSE")
  expect_refused(token_logprobs(model, c("a", "b"), targets = "c"), "targets must have one value for each of 2 texts, not 1")
})

test_that("the beginning-of-sequence token is before a text, not between a text and its target", {
  model <- a_model()
  folder <- tempfile()
  save_pretrained(model, folder)
  file <- file.path(folder, "tokenizer.json")
  begin <- paste0(
    '"post_processor": {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],',
    ' "single": [{"SpecialToken": {"id": "!", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],',
    ' "special_tokens": {"!": {"id": "!", "ids": [', a_tokenizer()$encode("!")$ids, '], "tokens": ["!"]}}}'
  )
  writeLines(sub('"post_processor": null', begin, readLines(file, warn = FALSE)), file)
  tokenizer <- tokenizer_from_pretrained(folder)
  expect_identical(tokenizer$encode("To")$tokens, c("!", "T", "o"))
  for (bits in c(FALSE, TRUE)) {
    found <- token_logprobs(model, c("To be", "My"), tokenizer, targets = c(", or", " lord"), sep = "", bits = bits)
    expect_equal(found, token_logprobs(model, c("!To be", "!My"), targets = c(", or", " lord"), sep = "", bits = bits))
    expect_identical(found$token, strsplit(", or lord", "")[[1L]])
  }
})

test_that("wrong arguments are errors", {
  model <- a_model()
  expect_refused(word_logprobs(model, 1:3), "x must be text, not an integer of length 3")
  expect_refused(word_logprobs(model, SENTENCES, by = "sentence"), "the data frame has no column sentence: its columns are item, word")
  expect_refused(word_logprobs(model, SENTENCES, words = "w"), "the data frame has no column w: its columns are item, word")
  expect_refused(word_logprobs(model, data.frame(text = "a")), "its columns are text; select one with words = ")
  expect_refused(word_logprobs(model, SENTENCES, by = item), 'by must be quoted: by = "item"')
  expect_error(word_logprobs(model, SENTENCES, by = no_such), "object 'no_such' not found")
  expect_refused(word_logprobs(model, c("a", "b"), by = 1), "by must have one value for each of 2 words, not 1")
  expect_refused(word_logprobs(model, c("a", "b"), by = list()), "by must be a vector or names of columns, not a list of length 0")
  expect_refused(word_logprobs(model, "a", ignore_regex = "["), 'ignore_regex must be a valid regular expression, not "["')
  expect_refused(word_logprobs(model, c("a", "b"), context = c("x", "y")), "different contexts: pass by, or use target_logprobs()")
  expect_refused(word_logprobs(model, c("a", "b"), context = c("x", "y")), "different contexts")
  expect_refused(word_logprobs(model, c("a", "b"), word_n = c(1, NA)), "word_n must not contain NA, as at position 2")
  expect_refused(target_logprobs(model, c("a", "b"), "c"), "targets must have one value for each of 2 contexts, not 1")
  doubled <- "' c' starts with white space, and sep is a space, which would double it"
  expect_refused(target_logprobs(model, "a", " c"), doubled)
  expect_refused(token_logprobs(model, "a", targets = " c"), doubled)
  expect_refused(word_logprobs(model, c("a", "b "), context = "x "), "'x ' ends with white space")
  expect_refused(logprob_matrix(model, "a", file = "a.csv"), 'file must end in ".npy"')
  expect_refused(word_logprobs(model, "a", resume = "no/such/x.rds"), "resume must be in an existing folder: create no/such")
  odd <- data.frame(`a word` = "To", check.names = FALSE)
  expect_refused(text_embeddings(model, odd), "the data frame has no column text: its columns are a word; or pass a column, such as odd$`a word`")
  for (call in list(token_logprobs, perplexity, generate, next_tokens)) {
    expect_error(call(model, odd), "not a <data.frame> of length 1: pass one column, such as x$`a word`", fixed = TRUE)
  }
})

test_that("the progress line contains the remaining time", {
  expect_identical(minhubpy:::progress_line(50, 100, 60), paste0("|", strrep("=", 20), strrep(" ", 20), "|  50%  1:00 left       "))
  expect_match(minhubpy:::progress_line(1, 100, 100, 0), "2:45:00 left")
  expect_no_match(minhubpy:::progress_line(0, 100, 5), "left")
})

test_that("a sentence that is one word is explained, and a wrong name of a column is an error in a single row", {
  model <- a_model()
  old <- options(minhubpy.quiet = FALSE)
  on.exit(options(old))
  advice <- "pass strsplit(x, \" \")[[1]]"
  expect_message(word_logprobs(model, "To be or not"), advice, fixed = TRUE)
  expect_message(word_logprobs(model, data.frame(word = "To be")), advice, fixed = TRUE)
  for (words in list("To", c("To be", "or not"), " To")) expect_silent(word_logprobs(model, words, sep = ""))
  expect_silent(word_logprobs(model, "To be", context = "O"))
  one <- data.frame(word = "To", item = 1)
  expect_refused(word_logprobs(model, one, by = "nope"), "the data frame has no column nope: its columns are word, item")
  expect_identical(word_logprobs(model, one, by = "item"), word_logprobs(model, one))
})

test_that("a word without known characters has no result", {
  model <- a_model()
  words <- c("To", "\U1F600", "be")
  known <- word_logprobs(model, data.frame(word = words[-2L]), lags = 1)
  expect_warning(result <- word_logprobs(model, data.frame(word = words), lags = 1), "left out", class = "minhubpy_warning")
  expect_identical(result$tokens, c(2L, 0L, 3L))
  expect_identical(result$logprob, c(NA, NA, known$logprob[[2L]]))
  expect_identical(result$surprisal_lag1[3L], known$surprisal_lag1[2L])
  expect_warning(targets <- target_logprobs(model, "To be", c("or", "\U1F600")), "left out", class = "minhubpy_warning")
  expect_identical(is.na(unname(targets)), c(FALSE, TRUE))
})
