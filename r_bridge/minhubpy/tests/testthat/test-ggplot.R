# autoplot() methods, which are registered when ggplot2 is loaded. Other tests check the values of the results.

needs_ggplot <- function() skip_if(!requireNamespace("ggplot2", quietly = TRUE), "ggplot2 is not installed")

# A plot, built: the data frame of its first layer, with the positions and colors that are drawn.
built <- function(x) {
  plot <- ggplot2::autoplot(x)
  expect_s3_class(plot, "ggplot")
  ggplot2::ggplot_build(plot)$data[[1L]]
}

test_that("every class with a plot() method has an autoplot() method, except models and comparisons", {
  lines <- readLines(system.file("NAMESPACE", package = "minhubpy"))
  autoplots <- sub("^S3method\\(ggplot2::autoplot,minhub_(.*)\\)$", "\\1", grep("ggplot2::autoplot", lines, value = TRUE))
  plots <- sub("^S3method\\(plot,minhub_(.*)\\)$", "\\1", grep("^S3method\\(plot,", lines, value = TRUE))
  expect_setequal(setdiff(plots, autoplots), c("activations", "comparison", "model"))
  expect_identical(setdiff(autoplots, plots), character())
})

test_that("probabilities are bars in the order of the rows", {
  needs_ggplot()
  model <- a_model()
  likely <- next_tokens(model, "To b", n = 4)
  bars <- built(likely)
  expect_equal(bars$xmax[order(-as.numeric(bars$y))], likely$prob)
  several <- built(next_tokens(model, c("To b", "or no"), n = 4))
  expect_identical(as.vector(table(several$PANEL)), c(4L, 4L))
  masked <- masked_tokens(a_masked_model(), "the [MASK] is [MASK]", n = 3)
  expect_identical(as.vector(table(built(masked)$PANEL)), c(3L, 3L))
  reply <- minhub_chat(model, max_new_tokens = 5)$say("To be", seed = 1)
  expect_equal(nrow(built(reply)), nrow(reply$tokens))
})

test_that("scores, attention and lenses have a mark per value", {
  needs_ggplot()
  model <- a_model()
  logprobs <- token_logprobs(model, "To be")
  expect_equal(built(logprobs)$y, -logprobs$logprob / log(2))
  expect_length(unique(built(token_logprobs(model, c("To be", "or not")))$PANEL), 2L)
  attention <- attention_weights(model, "To be")
  tiles <- built(attention)
  expect_identical(nrow(tiles), as.integer(dim(attention)[[1L]] * dim(attention)[[3L]]^2))
  lens <- logit_lens(model, "To be", n = 2)
  expect_identical(nrow(built(lens)), sum(lens$rank == 1))
  expect_identical(nrow(built(head_scores(model, 4, 1))), as.integer(3 * model$config$n_layer * model$config$n_head))
  tuned <- tuned_lens(model, "To be", steps = 1)
  expect_setequal(built(tuned)$y, unlist(tuned$divergence[c("logit_lens", "tuned_lens")]))
  patched <- activation_patching(model, "To", "Do", c("e", "i"), kinds = "resid")
  expect_identical(nrow(built(patched)), nrow(patched))
  parts <- logit_attribution(model, "To", "o")
  expect_identical(nrow(built(parts)), nrow(parts))
})

test_that("losses, estimates and labels have lines, intervals and counts", {
  needs_ggplot()
  needs_python()
  losses <- structure(
    data.frame(step = 0:2, tokens = 0:2, seconds = 0:2, train_loss = c(NA, 1, 2), held_out_loss = c(3, 2, 1)),
    class = c("minhub_losses", "data.frame"), unit = "nats"
  )
  expect_setequal(built(losses)$y, c(3, 2, 1, 1, 2))
  agreement <- label_agreement(c("a", "b", "a", "b"), c("a", "b", "b", "b"), bootstrap = 0)
  expect_equal(sum(ggplot2::autoplot(agreement)$data$units), 4)
  expect_identical(nrow(built(agreement)), 4L)
  expect_error(
    ggplot2::autoplot(label_agreement(1:2, 2:1, 1:2, bootstrap = 0)), "requires exactly two raters", class = "minhubpy_error"
  )
  pairs <- minimal_pairs(a_model(), data.frame(sentence_good = "a", sentence_bad = "b"))
  expect_equal(ggplot2::autoplot(pairs)$data$accuracy, pairs$accuracy$accuracy)
  expect_s3_class(ggplot2::ggplot_build(ggplot2::autoplot(pairs))$plot, "ggplot")
  estimate <- structure(
    list(estimates = data.frame(term = c("b", "a"), estimate = 1:2, lower = 0:1, upper = 2:3)), class = "minhub_estimate"
  )
  expect_equal(ggplot2::autoplot(estimate)$data$estimate, 1:2)
  curve <- data.frame(type = "noul", when = rep(c("before", "after"), each = 2), prob = c(0.1, 0.9, 0.2, 0.8), correct = c(0, 1, 0.5, 1), n = 2)
  calibration <- structure(list(curve = curve), class = "minhub_calibration")
  expect_identical(ggplot2::autoplot(calibration)$data$correct, curve$correct)
})

test_that("projections and topics are bars", {
  needs_ggplot()
  x <- rbind(cold = c(1, 0, 0.2), warm = c(0.6, 0.7, 0.1), hot = c(0, 1, 0.3))
  projected <- text_projection(x, from = x["cold", ], to = x["hot", ])
  bars <- built(projected)
  expect_equal(sort(bars$xmin + bars$xmax), sort(projected$projection))
  set.seed(1)
  topics <- text_topics(rbind(c(1, 0.1), c(0.9, 0), c(0, 1)), c("a red apple", "a green apple", "the old king"), topics = 2)
  expect_equal(sort(built(topics)$x), sort(topics$topics$size))
})
