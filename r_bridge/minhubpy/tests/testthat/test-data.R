# The data set reading_times and its analysis.

test_that("reading_times matches its help page", {
  expect_identical(dim(reading_times), c(6696L, 5L))
  expect_named(reading_times, c("subject", "item", "position", "word", "rt"))
  expect_identical(c(nlevels(reading_times$subject), nlevels(reading_times$item)), c(24L, 32L))
  expect_false(anyNA(reading_times))
  expect_true(all(table(reading_times$subject) == 279L))
})

test_that("an analysis recovers the rule of the simulation", {
  text <- unique(reading_times[c("item", "position", "word")])
  text <- word_logprobs(a_model(), text, by = "item")
  text$length <- nchar(text$word)
  text$previous <- c(NA, utils::head(text$surprisal, -1L))
  times <- merge(reading_times, text[text$position > 2L, ])
  fit <- summary(stats::lm(log(rt) ~ surprisal + previous + length + subject + item, times))$coefficients
  rule <- c(surprisal = 0.012, previous = 0.006, length = 0.015)
  expect_true(all(abs(fit[names(rule), 1L] - rule) < 3 * fit[names(rule), 2L]))
  expect_true(all(fit[names(rule), 4L] < 1e-4)) # each effect is significant
})

test_that("the package can be cited", {
  expect_identical(format(citation("minhubpy")$title), "minhubpy: Language Models of the Hugging Face Hub")
})
