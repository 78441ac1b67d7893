# Text embeddings. tests/analysis/test_embeddings.py compares the values with transformers.

# Equal except for rounding: the summation order may depend on a batch's other texts.
expect_same <- function(object, expected, ...) expect_equal(object, expected, tolerance = 1e-5, ...)

test_that("the matrix has one row per text, in order and with names", {
  model <- a_model()
  lines <- c(a = "O Romeo, Romeo!", b = "To be, or not to be", c = "O")
  vectors <- text_embeddings(model, lines)
  expect_identical(dim(vectors), c(3L, as.integer(model$config$n_embd)))
  expect_identical(rownames(vectors), names(lines))
  expect_true(all(is.finite(vectors)))
  expect_null(rownames(text_embeddings(model, unname(lines))))
  expect_same(text_embeddings(model, rev(lines)), vectors[3:1, ])
  for (name in names(lines)) expect_same(text_embeddings(model, lines[name]), vectors[name, , drop = FALSE])
  expect_same(text_embeddings(model, factor(lines)), unname(vectors), ignore_attr = TRUE)
  expect_same(text_embeddings(model, data.frame(text = lines)$text), vectors, ignore_attr = TRUE)
  expect_same(text_embeddings(model, as.list(lines)), vectors)
})

test_that("the rows of missing and empty texts are NA", {
  model <- a_model()
  vectors <- text_embeddings(model, c("To be", NA, ""))
  expect_identical(rowSums(is.na(vectors)), c(0, 1, 1) * ncol(vectors))
  expect_false(any(is.nan(vectors)))
  expect_true(all(is.na(text_embeddings(model, NA))))
  expect_true(all(is.na(text_embeddings(model, factor(NA)))))
  expect_identical(dim(text_embeddings(model, NA_character_)), c(1L, ncol(vectors)))
})

test_that("pooling returns the mean, the last token or all tokens", {
  model <- a_model()
  lines <- c(a = "To be", b = "O", c = NA)
  tokens <- text_embeddings(model, lines, pool = "none")
  expect_named(tokens, names(lines))
  expect_identical(vapply(tokens, nrow, 0L), c(a = 5L, b = 1L, c = 0L))
  expect_identical(rownames(tokens$a), c("T", "o", " ", "b", "e"))
  expect_same(text_embeddings(model, lines)[1:2, ], rbind(a = colMeans(tokens$a), b = tokens$b[1, ]))
  expect_same(text_embeddings(model, lines, pool = "last")[1:2, ], rbind(a = tokens$a[5, ], b = tokens$b[1, ]))
})

test_that("layer numbers count from the embeddings, and negative numbers from the last layer", {
  model <- a_model()
  n <- model$config$n_layer
  all <- lapply(0:n, function(layer) text_embeddings(model, "To be", layer = layer))
  expect_same(text_embeddings(model, "To be"), all[[n + 1]])
  for (layer in 0:n) expect_same(text_embeddings(model, "To be", layer = layer - n - 1), all[[layer + 1]])
  expect_gt(min(dist(do.call(rbind, all))), 0.1)
  expect_identical(text_embeddings(model, "To be", layer = 0)[1, 1], text_embeddings(model, "To be", layer = 0L)[1, 1])
})

test_that("several layers are joined or averaged, also of a data frame's column text and in a job", {
  model <- a_model()
  lines <- c("O Romeo, Romeo!", NA, "To be")
  parts <- lapply(c(1, 3), function(layer) text_embeddings(model, lines, layer = layer))
  joined <- text_embeddings(model, data.frame(n = 1:3, text = lines), layer = c(1, 3))
  expect_same(joined, do.call(cbind, parts))
  mean <- text_embeddings(model, lines, layer = c(1, 3), combine = "mean")
  expect_same(mean, (parts[[1L]] + parts[[2L]]) / 2)
  expect_identical(dim(text_embeddings(model, "To be", layer = c(1, 3), pool = "none")[[1L]]), c(5L, ncol(joined)))
  manifest <- tempfile(fileext = ".json")
  expect_same(text_embeddings(model, lines, layer = c(1, 3), combine = "mean", manifest = manifest), mean)
})

test_that("token IDs are accepted as texts, with or without a tokenizer", {
  model <- a_model()
  ids <- a_tokenizer()$encode("To be")$ids
  expected <- text_embeddings(model, "To be")
  expect_same(text_embeddings(model, ids), expected)
  expect_same(text_embeddings(model, list(x = ids)), `rownames<-`(expected, "x"))
  expect_identical(dim(text_embeddings(a_random_model(), list(1:3, 4:9))), c(2L, 8L))
  expect_null(rownames(text_embeddings(a_random_model(), 1:3, pool = "none")[[1]]))
})

test_that("wrong arguments are errors", {
  model <- a_model()
  n <- model$config$n_layer
  expect_refused(text_embeddings("gpt2", "To be"), "must be a model")
  expect_refused(text_embeddings(model, "To be", layer = n + 1), paste0("layer must be a whole number from 0 (embeddings) to ", n, " (last layer)"))
  expect_refused(text_embeddings(model, "To be", layer = 0.5), "layer must be a whole number")
  expect_refused(text_embeddings(model, "To be", pool = "sum"), 'pool must be one of "mean", "last", "cls", "max", "splade", "none"')
  expect_refused(text_embeddings(model, NULL), "texts is empty")
  expect_refused(text_embeddings(model, TRUE), "texts must be text or token IDs")
  expect_refused(text_embeddings(a_random_model(), "To be"), "has no tokenizer")
  lines <- data.frame(line = "To be")
  expect_refused(text_embeddings(model, lines), "the data frame has no column text: its columns are line; or pass a column, such as lines$line")
  expect_refused(text_embeddings(model, data.frame()), "the data frame has no column text")
  expect_refused(text_embeddings(model, "To be", layer = numeric()), "layer must name at least one layer")
  expect_refused(text_embeddings(model, "To be", layer = c(1, 0.5)), "layer must be a whole number")
  expect_refused(text_embeddings(model, "To be", combine = "sum"), 'combine must be one of "join", "mean"')
})
