# Further measures of words. tests/analysis/test_measures.py verifies the values.

test_that("measures are columns, for groups and for targets", {
  model <- a_model()
  words <- data.frame(item = c("a", "a", "a", "b", "b"), word = c("To", "be,", "or", "My", "lord"))
  found <- word_logprobs(model, words, by = "item", context = "Well,", renyi = c(0.5, 2), premise = "So", lags = 1)
  expect_named(found, c(
    "item", "word", "tokens", "logprob", "surprisal", "entropy", "renyi_0.5", "renyi_2", "pmi", "surprisal_lag1", "entropy_lag1"
  ))
  expect_true(all(found$renyi_0.5 > found$entropy & found$entropy > found$renyi_2))
  expect_identical(found$surprisal_lag1, c(NA, found$surprisal[1:2], NA, found$surprisal[[4L]]))
  alone <- target_logprobs(model, "So", words$word)
  expect_equal(found$pmi, (found$logprob - unname(alone)) / log(2))
  targets <- target_logprobs(model, data.frame(context = "Well,", target = c("To", NA)), renyi = Inf, premise = "So")
  expect_named(targets, c("context", "target", "tokens", "logprob", "surprisal", "entropy", "renyi_inf", "pmi"))
  expect_same(targets$pmi, c(found$pmi[[1L]], NA))
})

test_that("wrong measures are errors", {
  model <- a_model()
  expect_refused(word_logprobs(model, c("To", "be"), correct = "pimentel"), "this tokenizer does not: leave correct unset")
  expect_refused(word_logprobs(model, "To", correct = "levy"), 'correct must be one of "pimentel", "oh", not "levy"')
  expect_refused(word_logprobs(model, "To", renyi = -1), "renyi must be orders of 0 or more, such as 0.5, not -1")
  expect_refused(word_logprobs(model, c("To", "be"), premise = ""), "set bos = TRUE, or a premise")
})

test_that("minimal pairs of data frames and files have accuracies", {
  model <- a_model()
  pairs <- data.frame(
    UID = c("a", "a", "b", "b"), sentence_good = c("My lord speaks.", "The king is dead.", "I am", NA),
    sentence_bad = c("My lord speak.", "dead is king The.", "I am", "I are")
  )
  found <- minimal_pairs(model, pairs)
  expect_s3_class(found, "minhub_pairs")
  good <- vapply(pairs$sentence_good[1:3], function(text) sum(token_logprobs(model, text)$logprob, na.rm = TRUE), 1)
  expect_equal(found$pairs$logprob_good, c(unname(good), NA), tolerance = 1e-5)
  expect_identical(found$pairs$correct[3:4], c(FALSE, NA))
  expect_identical(found$accuracy$phenomenon, c("a", "b", "all"))
  expect_identical(found$accuracy$n, c(2L, 1L, 3L))
  expect_identical(as.data.frame(found), found$accuracy)
  expect_output(print(found), "Minimal pairs: 4 pairs")
  file <- tempfile(fileext = ".jsonl")
  lines <- sprintf('{"UID": "%s", "sentence_good": "%s", "sentence_bad": "%s"}', pairs$UID, pairs$sentence_good, pairs$sentence_bad)
  writeLines(lines[1:3], file)
  resume <- tempfile(fileext = ".rds")
  expect_same(minimal_pairs(model, file, resume = resume)$pairs, found$pairs[1:3, ])
  expect_same(minimal_pairs(model, file, resume = resume)$pairs, found$pairs[1:3, ])
  picture <- tempfile(fileext = ".png")
  grDevices::png(picture)
  plot(found)
  grDevices::dev.off()
  expect_gt(file.size(picture), 1000)
})

test_that("suites of SyntaxGym compare regions", {
  region <- function(n, text) sprintf('{"region_number": %d, "content": "%s"}', n, text)
  condition <- function(name, verb) {
    sprintf('{"condition_name": "%s", "regions": [%s, %s]}', name, region(1L, "The king"), region(2L, verb))
  }
  file <- tempfile(fileext = ".json")
  writeLines(sprintf(
    '{"meta": {"name": "verb", "metric": "sum"}, "predictions": [{"type": "formula", "formula": "(2;%%good%%) < (2;%%bad%%)"}],
      "items": [{"item_number": 1, "conditions": [%s, %s]}]}', condition("good", "is"), condition("bad", "xyzzy")
  ), file)
  found <- minimal_pairs(a_model(), file)
  expect_identical(found$pairs$correct, TRUE)
  expect_identical(found$accuracy$phenomenon, "verb")
  expect_refused(minimal_pairs(a_model(), file, resume = "x.rds"), "resume is not supported for suites")
})
