#' Plots with ggplot2
#'
#' Methods of `ggplot2::autoplot()`, which need the package ggplot2. They return a
#' plot to which layers, scales and themes can be added; [plot()][plot.minhub] draws
#' without another package.
#'
#' | object | plot |
#' | --- | --- |
#' | [next_tokens()], [masked_tokens()] | probability of each token |
#' | a reply of [minhub_chat()] | probability of each token |
#' | [token_logprobs()] | surprisal of each token, in bits |
#' | a run of [minhub_train()], `run$losses` | losses by step |
#' | [attention_weights()] | mean weights of each layer |
#' | [head_scores()] | scores of each head |
#' | [logit_lens()] | most likely next token by layer |
#' | [tuned_lens()] | divergence by layer |
#' | [activation_patching()] | effect by layer and position |
#' | [logit_attribution()] | contribution of each component |
#' | [minimal_pairs()] | accuracy and interval of each phenomenon |
#' | [label_agreement()] | confusion matrix |
#' | [calibrate_decisions()] | share of right answers by probability |
#' | [corrected_estimate()] | estimate and interval of each term |
#' | [text_projection()] | projection of each text |
#' | [text_topics()] | size and words of each topic |
#'
#' The data frame of a plot `p` is `p$data`. For other plots, use the columns of the
#' results, see [tidy.minhub].
#'
#' @returns A ggplot.
#' @seealso [plot.minhub], [tidy.minhub]
#' @examplesIf minhubpy:::is_ready() && requireNamespace("ggplot2", quietly = TRUE)
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' likely <- next_tokens(model, c("To b", "or no"), n = 5)
#' ggplot2::autoplot(likely) + ggplot2::theme_minimal()
#' \dontshow{minhubpy:::end_example()}
#' @name autoplot.minhub
NULL

# A mapping of aesthetics to columns, by name.
columns_as <- function(...) do.call(ggplot2::aes, lapply(list(...), as.name))

# The tokens of rows, as plots show them.
shown_tokens <- function(x, column = "token") {
  shorten(readable(data.frame(token = as.character(x[[column]]), id = if (is.null(x$id)) NA else x$id)), 20L)
}

# A panel per value of a column.
panels_by <- function(column, ...) ggplot2::facet_wrap(stats::reformulate(column), ...)

# Horizontal bars with labels in the order of the rows. A label may occur in several panels or rows.
horizontal_bars <- function(data, value, label, panel = NULL, x = NULL) {
  keys <- paste0(data[[label]], "\r", seq_len(nrow(data)))
  data$key <- factor(keys, rev(keys))
  ggplot2::ggplot(data, columns_as(x = value, y = "key")) +
    ggplot2::geom_col(fill = BLUE) +
    ggplot2::scale_y_discrete(labels = function(keys) sub("\r.*$", "", keys)) +
    (if (!is.null(panel)) panels_by(panel, scales = "free_y")) +
    ggplot2::labs(x = x %||% value, y = NULL)
}

# A heat map of numbers from 0, or from both sides of 0.
heat_map <- function(data, x, y, fill, panel = NULL, two_sided = FALSE) {
  colors <- if (two_sided) {
    ggplot2::scale_fill_gradient2(low = VERMILLION, high = BLUE)
  } else {
    ggplot2::scale_fill_gradient(low = "white", high = BLUE, limits = c(0, NA))
  }
  ggplot2::ggplot(data, columns_as(x = x, y = y, fill = fill)) + ggplot2::geom_tile() + colors +
    (if (!is.null(panel)) panels_by(panel, scales = "free_x"))
}

# Lines of several columns, with one color per column.
several_lines <- function(data, x, columns, names, y) {
  rows <- lapply(seq_along(columns), function(i) data.frame(x = data[[x]], y = data[[columns[[i]]]], series = names[[i]]))
  long <- do.call(rbind, rows)
  long$series <- factor(long$series, names)
  ggplot2::ggplot(long[!is.na(long$y), ], columns_as(x = "x", y = "y", colour = "series")) +
    ggplot2::geom_line() +
    ggplot2::geom_point() +
    ggplot2::scale_colour_manual(values = c(BLUE, VERMILLION)) +
    ggplot2::labs(x = x, y = y, colour = NULL)
}

# Estimates with their intervals, the first row on top.
intervals <- function(data, label, value, reference) {
  data[[label]] <- factor(data[[label]], rev(unique(data[[label]])))
  ggplot2::ggplot(data, columns_as(x = value, xmin = "lower", xmax = "upper", y = label)) +
    ggplot2::geom_vline(xintercept = reference, linetype = "dashed", colour = "grey50") +
    ggplot2::geom_pointrange(colour = BLUE) +
    ggplot2::labs(y = NULL)
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_next_tokens)
autoplot.minhub_next_tokens <- function(object, ...) {
  check_plotted(object, c("token", "id", "prob"))
  object$shown <- shown_tokens(object)
  panel <- if (!is.null(object$prompt)) "prompt"
  horizontal_bars(as_plain(object), "prob", "shown", panel, "probability")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_masked_tokens)
autoplot.minhub_masked_tokens <- function(object, ...) {
  check_plotted(object, c("mask", "token", "id", "prob"), "there is no token to plot: no text has a mask within the maximum length")
  object$shown <- shown_tokens(object)
  labels <- mask_labels(object)
  object$panel <- factor(labels, unique(labels))
  horizontal_bars(as_plain(object), "prob", "shown", "panel", "probability")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_reply)
autoplot.minhub_reply <- function(object, ...) {
  if (!nrow(object$tokens)) fail("the reply is empty: a plot needs at least one token")
  horizontal_bars(cbind(object$tokens, shown = shown_tokens(object$tokens)), "prob", "shown", x = "probability")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_token_logprobs)
autoplot.minhub_token_logprobs <- function(object, ...) {
  check_plotted(object, c("text", "position", "token", "id", "logprob"))
  data <- as_plain(object)
  data$surprisal <- -data$logprob / log(2)
  several <- length(unique(data$text)) > 1L
  tokens <- if (!several && nrow(data) <= MANY_BARS) ggplot2::scale_x_continuous(breaks = data$position, labels = shown_tokens(data))
  ggplot2::ggplot(data, columns_as(x = "position", y = "surprisal")) +
    ggplot2::geom_col(fill = BLUE) + tokens +
    (if (several) panels_by("text")) +
    ggplot2::labs(x = if (is.null(tokens)) "position", y = "surprisal (bits)")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_losses)
autoplot.minhub_losses <- function(object, ...) {
  check_plotted(object, c("step", "train_loss", "held_out_loss"), "there is no loss to plot: the run has no evaluation yet")
  several_lines(object, "step", c("held_out_loss", "train_loss"), c("held out", "training"), attr(object, "unit") %||% "loss")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_run)
autoplot.minhub_run <- function(object, ...) autoplot.minhub_losses(object$losses)

#' @rawNamespace S3method(ggplot2::autoplot,minhub_attention)
autoplot.minhub_attention <- function(object, ...) {
  weights <- as.data.frame(object)
  means <- stats::aggregate(weight ~ layer + position + attended_position, weights, mean)
  means$layer <- paste("layer", means$layer)
  means$layer <- factor(means$layer, unique(means$layer))
  labels <- shown_tokens(data.frame(token = dimnames(object)[[3L]], id = attr(object, "ids")))
  heat_map(means, "attended_position", "position", "weight", "layer") +
    ggplot2::scale_x_continuous(breaks = seq_along(labels), labels = labels) +
    ggplot2::scale_y_reverse(breaks = seq_along(labels), labels = labels) +
    ggplot2::labs(x = "attended-to token", y = "token")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_head_scores)
autoplot.minhub_head_scores <- function(object, ...) {
  kinds <- c("induction", "previous_token", "duplicate_token")
  check_plotted(object, c("layer", "head", kinds), "there is no head to plot")
  rows <- lapply(kinds, function(kind) data.frame(layer = object$layer, head = object$head, kind = kind, score = object[[kind]]))
  heat_map(do.call(rbind, rows), "head", "layer", "score", "kind")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_logit_lens)
autoplot.minhub_logit_lens <- function(object, ...) {
  check_plotted(object, c("layer", "position", "token", "rank", "predicted", "id", "prob"))
  data <- as_plain(object[object$rank == 1, ])
  data$predicted <- shown_tokens(data, "predicted")
  tokens <- data[!duplicated(data$position), c("position", "token")]
  heat_map(data, "position", "layer", "prob") +
    ggplot2::geom_text(columns_as(label = "predicted"), size = 3) +
    ggplot2::scale_x_continuous(breaks = tokens$position, labels = shown_tokens(tokens)) +
    ggplot2::labs(x = "token", y = "layer (0: embeddings)", fill = "probability")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_tuned_lens)
autoplot.minhub_tuned_lens <- function(object, ...) {
  several_lines(object$divergence, "layer", c("tuned_lens", "logit_lens"), c("tuned lens", "logit lens"), "divergence (nats)")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_patching)
autoplot.minhub_patching <- function(object, ...) {
  check_plotted(object, c("kind", "layer", "position", "head", "token", "effect"), "there is no value to plot")
  data <- as_plain(object)
  data$number <- ifelse(data$kind == "heads", data$head, data$position)
  heat_map(data, "number", "layer", "effect", "kind", two_sided = TRUE) + ggplot2::labs(x = "position, or head")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_attribution)
autoplot.minhub_attribution <- function(object, ...) {
  check_plotted(object, c("component", "value"), "there is no component to plot")
  horizontal_bars(as_plain(object), "value", "component", x = "contribution to the logit")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_pairs)
autoplot.minhub_pairs <- function(object, ...) intervals(object$accuracy, "phenomenon", "accuracy", 0.5)

#' @rawNamespace S3method(ggplot2::autoplot,minhub_agreement)
autoplot.minhub_agreement <- function(object, ...) {
  counts <- object$confusion
  if (is.null(counts)) fail("a confusion matrix requires exactly two raters: call label_agreement() with two of them")
  labels <- rownames(counts)
  data <- data.frame(
    first = factor(labels[row(counts)], rev(labels)), second = factor(colnames(counts)[col(counts)], colnames(counts)),
    units = as.vector(counts)
  )
  heat_map(data, "second", "first", "units") + ggplot2::geom_text(columns_as(label = "units")) +
    ggplot2::labs(x = "second rater", y = "first rater")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_calibration)
autoplot.minhub_calibration <- function(object, ...) {
  data <- object$curve
  data$when <- factor(data$when, c("after", "before"))
  ggplot2::ggplot(data, columns_as(x = "prob", y = "correct", colour = "when")) +
    ggplot2::geom_abline(linetype = "dashed", colour = "grey50") +
    ggplot2::geom_line() +
    ggplot2::geom_point(columns_as(size = "n")) +
    ggplot2::scale_colour_manual(values = c(after = BLUE, before = VERMILLION)) +
    (if (length(unique(data$type)) > 1L) panels_by("type")) +
    ggplot2::labs(x = "probability of the answer", y = "share of right answers", colour = "calibration", size = "answers")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_estimate)
autoplot.minhub_estimate <- function(object, ...) intervals(object$estimates, "term", "estimate", 0)

#' @rawNamespace S3method(ggplot2::autoplot,minhub_projection)
autoplot.minhub_projection <- function(object, ...) {
  data <- as_plain(object[!is.na(object$projection), ])
  check_plotted(data, c("text", "projection"), "there is no projection to plot")
  data <- data[order(-data$projection), ]
  data$text <- as.character(data$text)
  horizontal_bars(data, "projection", "text")
}

#' @rawNamespace S3method(ggplot2::autoplot,minhub_topics)
autoplot.minhub_topics <- function(object, ...) {
  data <- object$topics
  data$label <- paste0(data$topic, ifelse(is.na(data$words), "", paste0(": ", gsub("(([^,]*,){3}[^,]*),.*", "\\1, ...", data$words))))
  horizontal_bars(data, "size", "label", x = "texts")
}

# A data frame without the class of a result.
as_plain <- function(x) structure(x, class = "data.frame")
