# Word embeddings. tests/analysis/test_word_embeddings.py compares the values with transformers.

test_that("words have the mean of their tokens' hidden states", {
  model <- a_sentence_model()
  texts <- c(a = "good night", b = NA, c = "the  king")
  found <- word_embeddings(model, texts)
  expect_identical(found$word, c("good", "night", "the", "king"))
  expect_identical(as.character(found$text), c("a", "a", "c", "c"))
  states <- text_embeddings(model, texts, pool = "none")
  expect_named(found, c("text", "word", paste0("dim", seq_len(ncol(states$a)))))
  expect_equal(unname(as.matrix(found[1:2, -(1:2)])), unname(states$a[2:3, ]), tolerance = 1e-5)
  layers <- lapply(c(1, -1), function(layer) as.matrix(word_embeddings(model, texts, layer = layer)[-(1:2)]))
  joined <- as.matrix(word_embeddings(model, texts, layer = c(1, -1))[-(1:2)])
  expect_equal(unname(joined), unname(do.call(cbind, layers)), tolerance = 1e-5)
  mean <- as.matrix(word_embeddings(model, texts, layer = c(1, -1), combine = "mean")[-(1:2)])
  expect_equal(mean, (layers[[1]] + layers[[2]]) / 2, tolerance = 1e-5)
  many <- rep(unname(texts), 100)
  file <- tempfile(fileext = ".rds")
  resumed <- word_embeddings(model, many, resume = file)
  expect_equal(resumed, word_embeddings(model, many), tolerance = 1e-5)
  expect_identical(resumed$text[c(1, 4, 400)], c(1L, 3L, 300L))
})

test_that("decoders have word embeddings, too", {
  model <- a_model()
  found <- word_embeddings(model, data.frame(text = "To be, or"))
  expect_identical(found$word, c("To", "be,", "or"))
  states <- text_embeddings(model, "To be, or", pool = "none")[[1]]
  expect_equal(unlist(found[2, -(1:2)], use.names = FALSE), unname(colMeans(states[3:6, ])), tolerance = 1e-5)
  expect_identical(nrow(word_embeddings(model, NA_character_)), 0L)
  expect_refused(word_embeddings(model, "a", layer = 99), "layer must be a whole number from 0")
  expect_refused(word_embeddings(model, "a", layer = numeric()), "layer must name at least one layer")
  expect_refused(word_embeddings(model, "a", combine = "sum"), 'combine must be one of "join", "mean"')
})
