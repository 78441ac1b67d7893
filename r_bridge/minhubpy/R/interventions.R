#' Compute activations at named points of a model
#'
#' Returns the values of a model at named points of its computation. The model's
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
#' | `layers.3.heads.2` | the output of a head, before the output projection; `layers.3.heads` for all heads |
#' | `layers.3.neurons.17` | an activation of the MLP; `layers.3.neurons` for all |
#' | `final` | the input of the head, after the final norm |
#'
#' The decoder of an encoder-decoder such as T5 also has `layers.3.cross` and
#' `layers.3.cross_heads.2`. The points of its encoder begin with `encoder.`.
#'
#' @inheritParams next_tokens
#' @param model A model, see [from_pretrained()], or the result of [intervene()].
#' @param texts A character vector, or token IDs.
#' @param at The names of points. By default, the embeddings and the output of
#'   each layer.
#' @param pool `"none"` for a row per token, `"last"` for the last token of each
#'   text, `"mean"` for the mean over the tokens of each text.
#' @param targets For points in the decoder of an encoder-decoder: the
#'   decoder's output for each text.
#' @returns An object of class `minhub_activations`: a named list with a matrix
#'   for each point, and the attribute `rows`, a data frame with the `text`,
#'   `position` (from 1) and `token` of each row. [as.data.frame()][tidy.minhub]
#'   returns one row per value, with the columns `point`, `layer`, `head`, `text`,
#'   `position`, `token`, `channel` and `value`.
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' x <- activations(model, "O Romeo", at = c("layers.2.attn", "layers.*.resid"))
#' x
#' dim(x[["layers.2.attn"]])
#' head(as.data.frame(x))
#' \dontshow{minhubpy:::end_example()}
#' @export
activations <- function(model, texts, at = NULL, pool = c("none", "last", "mean"), targets = NULL, tokenizer = NULL) {
  model <- check_model(model)
  result <- ask(
    "activations",
    model = model, texts = texts_or_ids(texts, "texts"), tokenizer = check_tokenizer(tokenizer),
    at = if (is.null(at)) NULL else texts(at), pool = choice(pool, c("none", "last", "mean")),
    targets = optional(targets, texts_or_ids, "targets")
  )
  structure(result$values, rows = result$rows, class = "minhub_activations")
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
print.minhub_activations <- function(x, ...) {
  cat(format(x), sep = "\n")
  invisible(x)
}

# The layer and the head in the name of a point: 0 for the embeddings, NA without a number.
place_of <- function(point) {
  number <- function(pattern) {
    if (grepl(pattern, point)) as.integer(sub(paste0(".*", pattern, ".*"), "\\1", point)) else NA_integer_
  }
  layer <- number("layers[.]([0-9]+)")
  list(layer = if (grepl("embeddings$", point)) 0L else layer, head = number("heads[.]([0-9]+)"))
}

#' Change the values within a model
#'
#' Returns a model that changes the values at named points during its
#' computation. [generate()], [token_logprobs()], [word_logprobs()],
#' [activations()] and the other functions accept it as a model. The original
#' model does not change. Further calls of `intervene()` add interventions.
#'
#' The result shares the weights of `model`. It is computed in PyTorch, without
#' the faster C decoder, and cannot be trained, moved or saved.
#'
#' @inheritParams activations
#' @param at The names of points, see [activations()].
#' @param how What happens to the value x at these points:
#'   * `"zero"`: it becomes 0 (ablation);
#'   * `"mean"`: it becomes the mean of the rows of `value`;
#'   * `"replace"`: it becomes `value` (activation patching);
#'   * `"add"`: `scale` times `value` is added (steering);
#'   * `"project_out"`: its component in the direction of `value` is removed.
#' @param value The result of [activations()] or [steering_direction()], a numeric
#'   vector with a number for each channel, or a matrix with a row for each of
#'   `positions`.
#' @param scale The factor of `"add"`.
#' @param positions The positions to change, from 1. By default, all, or for a
#'   matrix the first ones.
#' @returns A model, see [minhub_model].
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' without <- intervene(model, "layers.2.heads.1", "zero")
#' next_tokens(without, "O Romeo, Rom", n = 2)
#' steered <- intervene(without, "layers.3.resid", "add", rnorm(160), scale = 0.5)
#' generate(steered, "ROMEO:", max_new_tokens = 20, seed = 1)
#' \dontshow{minhubpy:::end_example()}
#' @export
intervene <- function(model, at, how = c("zero", "mean", "replace", "add", "project_out"), value = NULL, scale = 1, positions = NULL) {
  model <- check_model(model)
  at <- texts(at)
  how <- choice(how, c("zero", "mean", "replace", "add", "project_out"))
  if (inherits(value, "minhub_direction")) value <- value$vector
  if (inherits(value, "minhub_activations")) {
    if (how == "replace" && length(unique(attr(value, "rows")$text)) > 1L) {
      fail("value must be the activations of one text for how = \"replace\", not of ", length(unique(attr(value, "rows")$text)))
    }
    value <- structure(unclass(value), rows = NULL)
  } else if (!is.null(value) && !(is.numeric(value) && !is.object(value))) {
    fail("value must be activations, a direction, or numbers, not ", describe(value))
  }
  if (!is.null(positions)) {
    if (!is.numeric(positions)) fail("positions must be whole numbers of 1 or more, not ", describe(positions))
    positions <- vapply(as.list(positions), whole_number, 1L, what = "positions", min = 1)
  }
  self <- attr(model, "self")
  arguments <- list(
    model = model, at = at, how = how, value = value, scale = number(scale), positions = positions
  )
  as_model(new_self("intervene", arguments, paste0(self$title, ", ", how, " at ", toString(at))))
}

#' Compute a direction between two groups of texts
#'
#' Returns the direction from the mean activation of negative texts to the
#' mean of positive texts, for [intervene()].
#'
#' @inheritParams activations
#' @param positive,negative Character vectors, or token IDs.
#' @param at The name of a point, see [activations()].
#' @param method `"mean"`: the difference of the means. `"pca"`: the first
#'   principal component of the differences of pairs, with length 1.
#'   `"logistic"`: the weights of a logistic regression, with length 1; requires
#'   the Python package scikit-learn.
#' @param pool The activation of a text: of its `"last"` token or the `"mean"`.
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

#' @export
print.minhub_direction <- function(x, ...) {
  means <- tapply(x$texts$projection, x$texts$group, mean)
  cat("<direction> ", x$method, " at ", x$at, ", ", length(x$vector), " channels\n", sep = "")
  cat("  mean projections: positive ", format(means[[1L]], digits = 3), ", negative ", format(means[[2L]], digits = 3), "\n", sep = "")
  invisible(x)
}

#' Fit a linear probe
#'
#' Predicts labels from activations by a logistic regression, or numbers by a
#' ridge regression, and measures the predictions by cross-validation. Requires
#' the Python package scikit-learn.
#'
#' Rows of a group are in the same fold. The interval is a bootstrap over groups.
#' The control has the same folds and shuffled labels.
#'
#' @param x A numeric matrix, such as `activations(...)[["layers.3.resid"]]`.
#' @param y A label (factor, character or logical) or a number for each row.
#' @param groups The group of each row. By default, each row is a group.
#' @param folds The number of folds.
#' @param penalty The strength of the L2 penalty.
#' @param bootstrap The number of bootstrap samples.
#' @param seed The seed of folds, shuffled labels and bootstrap.
#' @returns A list of class `minhub_probe` with the `metric` ("accuracy" or "r2"),
#'   the `score`, its `interval` (95 %), the score of the `control`, the `baseline`
#'   of the most frequent class, `rows`, a data frame with the `fold` and the
#'   `prediction` of each row, and the matrix `coef` of the fit to all rows.
#' @references Hewitt & Liang (2019), "Designing and Interpreting Probes with
#'   Control Tasks".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready("probe")
#' x <- matrix(rnorm(400), ncol = 4)
#' linear_probe(x, ifelse(x[, 2] > 0, "high", "low"))
#' \dontshow{minhubpy:::end_example()}
#' @export
linear_probe <- function(x, y, groups = NULL, folds = 5, penalty = 1, bootstrap = 1000, seed = 1) {
  if (!is.matrix(x) || !is.numeric(x)) fail("x must be a numeric matrix, such as activations(...)[[1]], not ", describe(x))
  if (is.logical(y)) y <- as.character(y)
  if (is.factor(y) || is.character(y)) {
    y <- texts(y)
  } else if (is.numeric(y)) {
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
    c(result[c("metric", "score", "interval", "control", "baseline", "classes", "coef")],
      list(rows = data.frame(fold = result$folds, prediction = result$predictions))),
    class = "minhub_probe"
  )
}

#' @export
print.minhub_probe <- function(x, ...) {
  shown <- function(value) formatC(value, digits = 3, format = "f")
  cat("<probe> ", x$metric, " ", shown(x$score), " (95 % interval ", paste(shown(x$interval), collapse = " to "), ")\n", sep = "")
  cat("  shuffled labels ", shown(x$control), if (x$metric == "accuracy") paste0(", most frequent class ", shown(x$baseline)), "\n", sep = "")
  invisible(x)
}

#' Patch activations of a clean text into a corrupted text
#'
#' Replaces one value of a corrupted run at a time by its value in a clean run,
#' and measures the difference between the logits of two answers. Effects show
#' which layers, positions and heads carry the information that differs.
#'
#' @inheritParams activations
#' @param clean,corrupted Texts with the same number of tokens.
#' @param answers The correct and the incorrect token, as strings of one token or
#'   as 0-based token IDs.
#' @param kinds `"resid"`, `"attn"` and `"mlp"` for each layer and position;
#'   `"heads"` for each layer and head at all positions.
#' @param position The position whose logits are compared, from 1. By default, the
#'   last; required for an encoder.
#' @param target For an encoder-decoder: the decoder's previous output.
#' @returns A data frame of class `minhub_patching` with one row per patched run
#'   and the columns `kind`, `layer` (0 for the embeddings), `position`, `head`,
#'   `token`, `value` (the difference of the logits) and `effect` (0: as in the
#'   corrupted run, 1: as in the clean run). `plot()` draws heat maps.
#' @references Meng et al. (2022), "Locating and Editing Factual Associations in
#'   GPT".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' x <- activation_patching(model, "O Romeo, Rom", "O Julia, Jul", c("e", "i"), kinds = "resid")
#' head(x)
#' plot(x)
#' \dontshow{minhubpy:::end_example()}
#' @export
activation_patching <- function(model, clean, corrupted, answers, kinds = c("resid", "attn", "mlp", "heads"), position = NULL, target = NULL, tokenizer = NULL) {
  model <- check_model(model)
  if (length(answers) != 2L) fail("answers must be two tokens, the correct and the incorrect one, not ", describe(answers))
  position <- optional(position, whole_number, what = "position", min = 1)
  result <- ask(
    "patching",
    model = model, clean = single_text(clean, model), corrupted = single_text(corrupted, model),
    answers = if (is.character(answers)) texts(answers) else token_ids(answers), kinds = texts(kinds),
    position = if (is.null(position)) NULL else position - 1L, target = if (is.null(target)) NULL else single_text(target, model),
    tokenizer = check_tokenizer(tokenizer), on_event = show_progress()
  )
  frame <- result$frame
  frame$effect <- (frame$value - result$corrupted) / (result$clean - result$corrupted)
  structure(
    frame, class = c("minhub_patching", "data.frame"), clean = result$clean, corrupted = result$corrupted,
    tokens = result$tokens, corrupted_tokens = result$corrupted_tokens
  )
}

#' @rdname activation_patching
#' @param x The result of `activation_patching()`.
#' @param main The title of each panel.
#' @param ... Graphical parameters for [graphics::par()].
#' @export
plot.minhub_patching <- function(x, main = NULL, ...) {
  check_plotted(x, c("kind", "layer", "position", "head", "token", "effect"), "there is no value to plot")
  kinds <- unique(x$kind)
  names <- c(resid = "Residual stream", attn = "Attention", mlp = "MLP", heads = "Heads, all positions")[kinds]
  shade <- grDevices::colorRampPalette(c(VERMILLION, "white", "#0072B2"), space = "Lab")(201L)
  draw_panels(if (is.null(main)) paste("Activation patching:", names) else rep_len(main, length(kinds)), function(i) {
    draw_effects(x[x$kind == kinds[[i]], ], attr(x, "corrupted_tokens"), shade)
  }, ...)
  invisible(x)
}

draw_effects <- function(x, corrupted, shade) {
  column <- if (x$kind[[1L]] == "heads") x$head else x$position
  columns <- sort(unique(column))
  layers <- sort(unique(x$layer))
  labels <- columns
  if (x$kind[[1L]] != "heads" && !anyNA(x$token)) {
    labels <- shorten(x$token[match(columns, column)], 12L)
    other <- shorten(corrupted[columns], 12L)
    if (!is.null(corrupted) && length(other) == length(labels)) {
      labels <- ifelse(labels == other, labels, paste0(labels, " > ", other))
    }
  }
  rows <- ifelse(layers == 0, "embeddings", layers)
  size <- text_size(as.character(labels), figure_height() * 0.25, figure_width() * 0.8 / length(columns))
  set_margins(
    left = max(graphics::strwidth(rows, units = "inches", cex = 0.8)) + lines_high(1.6),
    bottom = text_width(as.character(labels), size) + lines_high(2.6), right = 0.2
  )
  graphics::plot.window(c(0, length(columns)), c(0, length(layers)), xaxs = "i", yaxs = "i")
  across <- match(column, columns)
  up <- match(x$layer, layers)
  bounded <- pmax(-1, pmin(1, x$effect))
  graphics::rect(across - 1, up - 1, across, up, col = shade[101L + round(100 * bounded)], border = "grey90", lwd = 0.5)
  graphics::text(-graphics::xinch(0.06), seq_along(layers) - 0.5, rows, adj = c(1, 0.5), cex = 0.8, xpd = NA)
  token_text(seq_along(columns) - 0.5, -graphics::yinch(0.08), labels, adj = c(1, 0.5), srt = 90, cex = size)
  graphics::mtext("layer", side = 2L, line = graphics::par("mar")[[2L]] - 1.1, cex = 0.8 * graphics::par("cex"))
  footer("columns: ", if (x$kind[[1L]] == "heads") "heads" else "tokens, clean > corrupted", "; blue: 1, as in the clean run")
}

#' Split a logit into the parts of a model's components
#'
#' Direct logit attribution: the parts that the embeddings and the attention and MLP of
#' each layer add to the logit of a token, with the scale of the final norm held fixed.
#'
#' @inheritParams attention_weights
#' @param token The token whose logit is split: a string of one token, or a
#'   0-based token ID.
#' @param against A token whose logit is subtracted, or `NULL`.
#' @param position The position after which the token is predicted, from 1. By
#'   default, the last.
#' @param heads Whether to split attention into its heads.
#' @param target For an encoder-decoder such as T5: the decoder's output so far. `NULL`:
#'   its beginning. Positions and components are the decoder's.
#' @returns A data frame with one row per component and the columns `component`,
#'   `layer`, `head` and `value`. The values sum to the logit (before a soft cap),
#'   which is the attribute `logit`.
#' @references Elhage et al. (2021), "A Mathematical Framework for Transformer
#'   Circuits".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' logit_attribution(model, "O Romeo, Rom", "e", against = "a")
#' \dontshow{minhubpy:::end_example()}
#' @export
logit_attribution <- function(model, text, token, against = NULL, position = NULL, heads = FALSE, tokenizer = NULL,
                              target = NULL) {
  model <- check_model(model)
  one <- function(x, what) if (is.character(x)) string(x, what) else whole_number(x, what)
  place <- if (is.null(position)) -1L else whole_number(position, "position", min = 1) - 1L
  result <- ask(
    "attribution",
    model = model, text = single_text(text, model), token = one(token, "token"),
    against = optional(against, one, "against"), position = place, heads = flag(heads), tokenizer = check_tokenizer(tokenizer),
    target = if (!is.null(target)) single_text(target, model)
  )
  places <- do.call(rbind, lapply(result$frame$component, function(name) as.data.frame(place_of(name))))
  structure(
    data.frame(component = result$frame$component, places, value = result$frame$value),
    logit = result$logit
  )
}

#' Score attention heads on repeated random tokens
#'
#' Computes how much each head attends from a repeated token to the token after
#' its first occurrence (induction heads), to its first occurrence
#' (duplicate-token heads), and to the preceding token (previous-token heads).
#'
#' @param model A decoder-only transformer, see [from_pretrained()].
#' @param length The number of random tokens, which are repeated once.
#' @param samples The number of sequences.
#' @param seed The seed of the tokens.
#' @returns A data frame with one row per head and the columns `layer`, `head`,
#'   `induction`, `previous_token` and `duplicate_token`: mean attention weights.
#' @references Olsson et al. (2022), "In-context Learning and Induction Heads".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' scores <- head_scores(model, length = 20)
#' head(scores[order(-scores$previous_token), ])
#' \dontshow{minhubpy:::end_example()}
#' @export
head_scores <- function(model, length = 50, samples = 4, seed = 1) {
  ask(
    "head_scores",
    model = check_model(model), length = whole_number(length, min = 2), samples = whole_number(samples, min = 1),
    seed = whole_number(seed)
  )
}

#' Compute the attention rollout
#'
#' Multiplies the attention weights of the layers, averaged over heads and mixed
#' with the identity for the residual connections: how much of each token of the
#' text reaches each token of a layer.
#'
#' @param attention The result of [attention_weights()], of a model with attention
#'   in each layer.
#' @returns An array with the dimensions layer, token and token of the text. Rows
#'   sum to 1.
#' @references Abnar & Zuidema (2020), "Quantifying Attention Flow in
#'   Transformers".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' rollout <- attention_rollout(attention_weights(model, "To be"))
#' round(rollout[6, , ], 2)
#' \dontshow{minhubpy:::end_example()}
#' @export
attention_rollout <- function(attention) {
  if (!inherits(attention, "minhub_attention")) {
    fail("attention must be the result of attention_weights(), not ", describe(attention))
  }
  names <- dimnames(attention)
  if (!identical(as.integer(names[[1L]]), seq_along(names[[1L]]))) {
    fail("attention_rollout() needs attention in each layer, which this model does not have")
  }
  result <- array(0, dim(attention)[-2L], names[-2L])
  before <- diag(length(names[[3L]]))
  for (layer in seq_along(names[[1L]])) {
    heads <- lapply(seq_along(names[[2L]]), function(head) matrix(attention[layer, head, , ], length(names[[3L]])))
    mixed <- (Reduce(`+`, heads) / length(heads) + diag(length(names[[3L]]))) / 2
    before <- (mixed / rowSums(mixed)) %*% before
    result[layer, , ] <- before
  }
  result
}
