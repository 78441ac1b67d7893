#' Compute activations at named points of a model
#'
#' Returns a model's values at named points of its computation. The model's
#' own computation is recorded, and the model does not change.
#'
#' Layers and heads count from 1, as in [attention_weights()] and [logit_lens()].
#' A `*` matches any number, as in `"layers.*.resid"`.
#'
#' | point | value |
#' | --- | --- |
#' | `embeddings` | the input of layer 1 |
#' | `layers.3.attn` | the output of the attention of layer 3, as added to the residual stream |
#' | `layers.3.mlp` | the output of the MLP, as added to the residual stream |
#' | `layers.3.resid` | the output of layer 3, the input of layer 4; in an LSTM, its hidden state |
#' | `layers.3.heads.2` | a head's output, before the output projection; `layers.3.heads` for all heads |
#' | `layers.3.neurons.17` | an activation of the MLP; `layers.3.neurons` for all |
#' | `final` | the input of the head, after the final norm |
#'
#' The decoder of an encoder-decoder such as T5 also has `layers.3.cross` and
#' `layers.3.cross_heads.2`. The points of its encoder begin with `encoder.`.
#'
#' @inheritParams next_tokens
#' @param model A model, see [from_pretrained()], or the result of [intervene()].
#' @param texts A character vector, or token IDs. A text that is `NA` has no rows,
#'   or with `pool` a row of `NA`.
#' @param at The names of points. By default, the embeddings and the output of
#'   each layer.
#' @param pool `"none"` for a row per token, `"last"` for the last token of each
#'   text, `"mean"` for the mean over each text's tokens.
#' @param targets For points in an encoder-decoder's decoder: the
#'   decoder's output for each text.
#' @returns An object of class `minhub_activations`: a named list with a matrix
#'   for each point, and the attribute `rows`, a data frame with the `text`,
#'   `position` (from 1) and `token` of each row. [as.data.frame()][tidy.minhub]
#'   returns one row per value, with the columns `point`, `layer`, `head`, `text`,
#'   `position`, `token`, `channel` and `value`.
#'   `plot()` draws their norms, by point and token, as a heat map.
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' x <- activations(model, "O Romeo", at = c("layers.2.attn", "layers.*.resid"))
#' x
#' dim(x[["layers.2.attn"]])
#' head(as.data.frame(x))
#' plot(x)
#' \dontshow{minhubpy:::end_example()}
#' @export
activations <- function(model, texts, at = NULL, pool = c("none", "last", "mean"), targets = NULL, tokenizer = NULL) {
  model <- check_model(model)
  at <- if (!is.null(at)) texts(at)
  pool <- choice(pool, c("none", "last", "mean"))
  texts <- texts_or_ids(texts, "texts", missing = TRUE)
  targets <- optional(targets, texts_or_ids, "targets", missing = TRUE)
  if (!is.null(targets) && length(targets) != length(texts)) {
    fail("targets must have one value for each of ", length(texts), " texts, not ", length(targets))
  }
  kept <- if (is.null(targets)) present(texts) else present(texts, targets)
  # Without texts, one token determines the points and the number of channels, and has no rows.
  of <- function(x) if (!is.null(x)) if (length(kept)) x[kept] else list(0L)
  result <- ask(
    "activations",
    model = model, texts = of(texts), tokenizer = check_tokenizer(tokenizer), at = at, pool = pool, targets = of(targets)
  )
  rows <- result$rows
  rows$text <- kept[rows$text]
  chosen <- if (pool == "none") which(!is.na(rows$text)) else match(seq_along(texts), rows$text)
  rows <- rows[chosen, ]
  if (pool != "none") rows$text <- seq_along(texts)
  rownames(rows) <- NULL
  structure(lapply(result$values, function(values) values[chosen, , drop = FALSE]), rows = rows, class = "minhub_activations")
}

#' @export
format.minhub_activations <- function(x, ...) {
  sizes <- vapply(unclass(x), function(values) paste(dim(values), collapse = " x "), "")
  c(
    paste0("<activations> ", length(x), if (length(x) == 1L) " point, " else " points, ", nrow(attr(x, "rows")), " rows"),
    paste0("  ", format(names(x)), "  ", sizes),
    "  x[[point]] is a matrix; attr(x, \"rows\") describes its rows"
  )
}

#' @export
print.minhub_activations <- function(x, ...) print_format(x, ...)

#' @rdname activations
#' @param x The result of `activations()`.
#' @param main Each panel's title.
#' @param col The darkest color.
#' @param ... Graphical parameters for [graphics::par()].
#' @export
plot.minhub_activations <- function(x, main = NULL, col = "#0072B2", ...) {
  rows <- attr(x, "rows")
  norms <- vapply(unclass(x), function(values) sqrt(rowSums(values^2)), numeric(nrow(rows)))
  norms <- matrix(norms, nrow(rows), dimnames = list(NULL, names(x)))
  by_text <- !anyDuplicated(rows$text)
  panels <- if (by_text) list(seq_along(rows$text)) else split(seq_along(rows$text), rows$text)
  shade <- shades(check_color(col))
  titles <- panel_titles(main, "Norm of the activations", "text", if (!by_text) rows$text)
  draw_panels(titles, function(i) {
    shown <- panels[[i]]
    labels <- if (by_text) rows$text else shorten(readable(data.frame(token = rows$token, id = NA)[shown, ]), 12L)
    draw_norms(norms[shown, , drop = FALSE], as.character(labels), if (by_text) "text", shade)
  }, ...)
  invisible(x)
}

# A few tokens, often the first, have norms far above the others: the darkest color is the 95 % quantile.
draw_norms <- function(norms, labels, xlab, shade) {
  top <- stats::quantile(norms, 0.95, names = FALSE)
  color <- shade[1L + round(100 * pmin(as.vector(norms) / max(top, 1e-30), 1))]
  draw_cells(data.frame(column = as.vector(row(norms)), row = as.vector(col(norms)), color = color), colnames(norms), labels, xlab)
  legend_of_colors(shade, c("0", paste(signif(top, 2L), "or more")))
}

# The layer and the head in a point's name: 0 for the embeddings, NA without a number.
place_of <- function(point) {
  number <- function(pattern) {
    if (grepl(pattern, point)) as.integer(sub(paste0(".*", pattern, ".*"), "\\1", point)) else NA_integer_
  }
  layer <- number("layers[.]([0-9]+)")
  list(layer = if (grepl("embeddings$", point)) 0L else layer, head = number("heads[.]([0-9]+)"))
}

#' Compute a direction between two groups of texts
#'
#' Returns the direction from the mean activation of negative texts to the
#' mean of positive texts, for [intervene()].
#'
#' @inheritParams activations
#' @param positive,negative Character vectors, or token IDs.
#' @param at A point's name, see [activations()].
#' @param method `"mean"`: the difference of the means. `"pca"`: the first
#'   principal component of the differences of pairs, with length 1.
#'   `"logistic"`: a logistic regression's weights, with length 1; requires
#'   the Python package scikit-learn.
#' @param pool A text's activation: of its `"last"` token or the `"mean"`.
#' @returns A list of class `minhub_direction` with the numeric `vector`, and
#'   `texts`, a data frame with the `group` and the `projection` of each text onto
#'   the vector with length 1.
#' @references Rimsky et al. (2024), "Steering Llama 2 via Contrastive Activation
#'   Addition".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' love <- steering_direction(
#'   model, c("I love", "sweet love"), c("I hate", "vile hate"), at = "layers.3.resid"
#' )
#' love
#' intervene(model, "layers.3.resid", "add", love, scale = 2)
#' \dontshow{minhubpy:::end_example()}
#' @export
steering_direction <- function(model, positive, negative, at, method = c("mean", "pca", "logistic"), pool = c("last", "mean"), tokenizer = NULL) {
  model <- check_model(model)
  at <- string(at)
  method <- choice(method, c("mean", "pca", "logistic"))
  result <- ask(
    "direction",
    model = model, positive = texts_or_ids(positive, "positive"), negative = texts_or_ids(negative, "negative"),
    tokenizer = check_tokenizer(tokenizer), at = at, kind = method, pool = choice(pool, c("last", "mean"))
  )
  groups <- factor(rep(c("positive", "negative"), lengths(result$projections)), c("positive", "negative"))
  structure(
    list(vector = result$vector, at = at, method = method, texts = data.frame(group = groups, projection = unlist(result$projections))),
    class = "minhub_direction"
  )
}

#' @rdname tidy.minhub
#' @export
as.data.frame.minhub_direction <- function(x, ...) x$texts

#' @export
format.minhub_direction <- function(x, ...) {
  means <- format(tapply(x$texts$projection, x$texts$group, mean), digits = 3)
  c(
    paste0("<direction> ", x$method, " at ", x$at, ", ", length(x$vector), " channels"),
    paste0("  mean projections: positive ", means[[1L]], ", negative ", means[[2L]])
  )
}

#' @export
print.minhub_direction <- function(x, ...) print_format(x, ...)

#' Fit a linear probe
#'
#' Predicts labels from activations by a logistic regression, or numbers by a
#' ridge regression, and measures the predictions by cross-validation. Requires
#' the extra `probe` of minhub_py, see [minhub_install()].
#'
#' Rows of a group are in the same fold. The interval is a bootstrap over groups.
#' The control has the same folds and shuffled labels.
#'
#' `predict()` applies the fit to all rows to new rows: to texts that have no label,
#' with `text_embeddings()` of the same model.
#'
#' @param x A numeric matrix, such as `activations(...)[["layers.3.resid"]]` or the
#'   result of [text_embeddings()].
#' @param y A label (factor, character or logical) or a number for each row.
#' @param groups Each row's group. By default, each row is a group.
#' @param folds The number of folds.
#' @param penalty The strength of the L2 penalty.
#' @param bootstrap The number of bootstrap samples.
#' @param seed The seed of folds, shuffled labels and bootstrap.
#' @returns A list of class `minhub_probe` with the `metric` ("accuracy" or "r2"),
#'   the `score`, its `interval` (95 %), the score of the `control`, the `baseline`
#'   of the most frequent class, `rows`, a data frame with the `fold` and the
#'   `prediction` of each row, and the matrix `coef` and the `intercept` of the fit to
#'   all rows.
#'
#'   `predict()` returns a vector with a number or label for each row, or with `type =
#'   "prob"` a matrix with the probability of each class. A row with `NA` has the
#'   prediction `NA`.
#' @references Hewitt & Liang (2019), "Designing and Interpreting Probes with
#'   Control Tasks".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready("probe")
#' x <- matrix(rnorm(400), ncol = 4)
#' probe <- linear_probe(x, ifelse(x[, 2] > 0, "high", "low"))
#' probe
#' predict(probe, matrix(rnorm(8), ncol = 4))
#' \dontshow{minhubpy:::end_example()}
#' @export
linear_probe <- function(x, y, groups = NULL, folds = 5, penalty = 1, bootstrap = 1000, seed = 0) {
  x <- plain(x)
  y <- plain(y)
  groups <- plain(groups)
  if (!is.matrix(x) || !is_plain_number(x)) fail("x must be a numeric matrix, such as activations(...)[[1]], not ", describe(x))
  if (is.logical(y)) y <- as.character(y)
  if (is.factor(y) || is.character(y)) {
    y <- texts(y)
  } else if (is_plain_number(y)) {
    if (anyNA(y)) fail("y must not contain NA, as at position ", positions_of(is.na(y)), ": drop these rows")
    y <- as.double(y)
  } else {
    fail("y must be labels or numbers, not ", describe(y))
  }
  if (!is.null(groups) && !is.atomic(groups) || is.raw(groups)) fail("groups must have one label per row, not ", describe(groups))
  result <- ask(
    "probe",
    x = unname(x), y = unname(y), groups = if (is.null(groups)) NULL else as.integer(factor(groups)), folds = whole_number(folds, min = 2),
    penalty = number(penalty, above = 0), bootstrap = whole_number(bootstrap, min = 1), seed = whole_number(seed)
  )
  structure(
    c(result[c("metric", "score", "interval", "control", "baseline", "classes", "coef", "intercept")],
      list(rows = data.frame(fold = result$folds, prediction = result$predictions))),
    class = "minhub_probe"
  )
}

#' @rdname linear_probe
#' @param object The result of `linear_probe()`.
#' @param newdata A matrix with the columns of `x`, or a vector for one row.
#' @param type `"response"`: a label or number for each row. `"prob"`: the
#'   probabilities of the classes.
#' @param ... Not used.
#' @importFrom stats predict
#' @export
predict.minhub_probe <- function(object, newdata, type = c("response", "prob"), ...) {
  type <- choice(type, c("response", "prob"))
  x <- embedding_matrix(newdata, "newdata")
  if (ncol(x) != ncol(object$coef)) fail("newdata must have ", ncol(object$coef), " columns, as x, not ", ncol(x))
  scores <- unname(tcrossprod(x, object$coef)) + rep(object$intercept, each = nrow(x))
  classes <- object$classes
  if (!length(classes)) {
    if (type == "prob") fail("type = \"prob\" requires a probe of labels, not of numbers")
    return(stats::setNames(scores[, 1L], rownames(x)))
  }
  if (length(classes) == 2L) scores <- cbind(0, scores)
  prob <- exp(scores - apply(scores, 1L, max))
  prob <- prob / rowSums(prob)
  dimnames(prob) <- list(rownames(x), classes)
  if (type == "prob") return(prob)
  best <- rep(NA_integer_, nrow(x))
  known <- !is.na(rowSums(prob))
  best[known] <- max.col(prob[known, , drop = FALSE], "first")
  stats::setNames(classes[best], rownames(x))
}

#' @rdname tidy.minhub
#' @export
as.data.frame.minhub_probe <- function(x, ...) x$rows

#' @export
format.minhub_probe <- function(x, ...) {
  shown <- function(value) formatC(value, digits = 3, format = "f")
  c(
    paste0("<probe> ", x$metric, " ", shown(x$score), " (95 % interval ", paste(shown(x$interval), collapse = " to "), ")"),
    paste0("  shuffled labels ", shown(x$control), if (x$metric == "accuracy") paste0(", most frequent class ", shown(x$baseline)))
  )
}

#' @export
print.minhub_probe <- function(x, ...) print_format(x, ...)

