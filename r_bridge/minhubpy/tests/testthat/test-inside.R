# Attention weights and the logit lens. tests/analysis/test_hidden_states.py compares the values with transformers.

attention <- function() the("attention", attention_weights(a_model(), "To be, or not"))
predictions <- function() the("predictions", logit_lens(a_model(), "To be, or not", n = 3))

test_that("attention weights are an array with tokens as names and rows that sum to 1", {
  x <- attention()
  config <- a_model()$config
  expect_s3_class(x, "minhub_attention")
  expect_identical(dim(x), as.integer(c(config$n_layer, config$n_head, 13, 13)))
  expect_identical(dimnames(x)$token, strsplit("To be, or not", "")[[1]])
  expect_equal(apply(x, 1:3, sum), array(1, dim(x)[1:3]), ignore_attr = TRUE, tolerance = 1e-6)
  expect_true(all(x[1, 1, , ][upper.tri(diag(13))] == 0))
  expect_true(is.matrix(x[1, 2, , ]))
  shown <- capture.output(print(x))
  expect_match(shown[1], paste0("<attention> ", config$n_layer, " layers, ", config$n_head, " heads, 13 tokens"), fixed = TRUE)
  expect_match(shown[2], '"T" "o" " " "b"', fixed = TRUE)
  expect_lt(max(nchar(shown)), 80)
})

# A layer's prediction after the first token.
first_prediction <- function(x, layer) x$predicted[x$layer == layer & x$position == 1 & x$rank == 1]

test_that("the last layer of the logit lens predicts the same tokens as the model", {
  x <- predictions()
  config <- a_model()$config
  expect_s3_class(x, c("minhub_logit_lens", "data.frame"), exact = TRUE)
  expect_named(x, c("layer", "position", "token", "rank", "predicted", "id", "prob"))
  expect_identical(nrow(x), as.integer((config$n_layer + 1) * 13 * 3))
  last <- x[x$layer == config$n_layer & x$position == 13, ]
  wanted <- next_tokens(a_model(), "To be, or not", n = 3)
  expect_identical(last$predicted, wanted$token)
  expect_equal(last$prob, wanted$prob, tolerance = 1e-4)
  expect_identical(unique(x$token[x$position == 4]), "b")
  expect_match(capture.output(print(head(x, 2)))[2], '"T"', fixed = TRUE)
  shown <- capture.output(print(x))
  expect_lt(length(shown), 40)
  expect_match(shown[3], '"T" "o" " "', fixed = TRUE)
  expect_match(shown[4], paste(config$n_layer, encodeString(first_prediction(x, config$n_layer), quote = '"')), fixed = TRUE)
  expect_match(shown[length(shown)], paste(nrow(x), "rows"), fixed = TRUE)
})

lines <- c("To be, or not to be, that is the question", "O Romeo, Romeo, wherefore art thou Romeo?")
trained <- function() the("lens", tuned_lens(a_model(), lines, steps = 20))

test_that("a tuned lens is closer to the model's predictions than the logit lens", {
  lens <- trained()
  expect_identical(lens$divergence$layer, seq_len(a_model()$config$n_layer) - 1L)
  expect_true(all(lens$divergence$tuned_lens < lens$divergence$logit_lens))
  tuned <- logit_lens(a_model(), "To be, or not", n = 3, lens = lens)
  last <- function(x) x[x$layer == a_model()$config$n_layer, "prob"]
  expect_identical(last(tuned), last(predictions()))
  expect_gt(summary(tuned)$as_last_layer[3], summary(predictions())$as_last_layer[3])
  expect_match(format(lens)[1:2], "6 layers|layer logit_lens tuned_lens")
  expect_identical(as.data.frame(lens), lens$divergence)
  again <- unserialize(serialize(lens, NULL))
  expect_identical(logit_lens(a_model(), "To be, or not", n = 3, lens = again), tuned)
  expect_refused(logit_lens(a_model(), "To", lens = 1), "lens must be the result of tuned_lens(), not 1")
  expect_refused(logit_lens(a_random_model(), 1:3, lens = lens), "lens belongs to a model with 160 channels, not 8", class = "ValueError")
})

test_that("heat maps have a column per token and a row per layer or point", {
  shown <- strings(drawn(plot(activations(a_model(), c("To", "be"), at = c("embeddings", "layers.2.attn")))))
  expect_true(all(c("Norm of the activations, text 2", "layers.2.attn", "T", "o", "b", "e") %in% shown))
  pooled <- strings(drawn(plot(activations(a_model(), c("To", "be"), pool = "mean"))))
  expect_true(all(c("1", "2", "text") %in% pooled))
  expect_true(all(c("Induction scores", "head", "layer", "6") %in% strings(drawn(plot(head_scores(a_model(), 6, 1))))))
  expect_true(all(c("tuned lens", "logit lens", "nats") %in% strings(drawn(plot(trained())))))
  parts <- logit_attribution(a_model(), "O Romeo, Rom", "e")
  shown <- strings(drawn(plot(parts, most = 2)))
  expect_true(all(parts$component[order(-abs(parts$value))[1:2]] %in% shown))
  expect_match(shown[grepl("sum to", shown)], paste0("12 smaller components are not shown; all values sum to ", format(sum(parts$value), digits = 3)))
})

test_that("plots of any part work at any size", {
  path <- tempfile(fileext = ".png")
  on.exit(unlink(path))
  x <- attention()
  y <- predictions()
  draw <- function(code, width = 700, height = 500) {
    grDevices::png(path, width, height)
    tryCatch(force(code), finally = grDevices::dev.off())
    expect_gt(file.size(path), 2000)
  }
  draw(expect_identical(plot(x), x))
  draw(plot(x, layer = 1))
  draw(plot(x, head = 2))
  draw(plot(x, layer = 2, head = 1, main = "One head", col = "black"))
  draw(expect_identical(plot(y), y))
  draw(plot(y, start = 3, most = 2))
  for (size in c(120, 2000)) {
    draw(plot(x), size, size)
    draw(plot(x, layer = 1, head = 1), size, size)
    draw(plot(y), size, size)
  }
  draw(plot(attention_weights(a_random_model(), 1:9), layer = 1, head = 1))
  draw(plot(logit_lens(a_random_model(), 1:9)))
})

test_that("the footer mentions frames only if there are frames", {
  y <- predictions()
  ids <- attr(y, "ids")
  expect_true(any(y$rank == 1 & y$position < 13 & y$id == ids[pmin(y$position + 1L, 13L)]))
  framed <- function(y) any(grepl("framed", strings(drawn(plot(y)))))
  expect_true(framed(y))
  y$id <- -1L
  expect_false(framed(y))
})

test_that("wrong arguments are errors", {
  model <- a_model()
  expect_refused(attention_weights(model, c("a", "b")), "text must be one text")
  expect_refused(attention_weights(model, ""), "the text has no tokens")
  expect_refused(attention_weights(model, NA_character_), "text must not contain NA")
  expect_refused(attention_weights(model, strrep("a", 5000)), "context length is 256: shorten")
  expect_refused(logit_lens(model, "a", n = 0), "n must be at least 1")
  lstm <- the("lstm", lstm_from_pretrained(BUILT_IN[[3L]]))
  expect_refused(attention_weights(lstm, "To be"), "has no attention")
  expect_s3_class(logit_lens(lstm, "To be"), "minhub_logit_lens")
  expect_error(plot(attention(), layer = 99), "layer must be one of .*, not 99", class = "minhubpy_error")
  expect_error(plot(predictions(), start = 99), "start must be at most 13, the number of tokens", class = "minhubpy_error")
})
