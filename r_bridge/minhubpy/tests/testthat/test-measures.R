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
  expect_equal(targets$pmi, c(found$pmi[[1L]], NA))
})

test_that("wrong measures are errors", {
  model <- a_model()
  expect_refused(word_logprobs(model, c("To", "be"), correct = "pimentel"), "this tokenizer has no such tokens: leave correct unset")
  expect_refused(word_logprobs(model, "To", correct = "levy"), 'correct must be one of "pimentel", "oh", not "levy"')
  expect_refused(word_logprobs(model, "To", renyi = -1), "renyi must be orders of 0 or more, such as 0.5, not -1")
  expect_refused(word_logprobs(model, c("To", "be"), premise = ""), "set bos = TRUE, or a premise")
})
