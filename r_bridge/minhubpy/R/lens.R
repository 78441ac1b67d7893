#' Apply the logit lens
#'
#' Applies a model's output layer to the hidden states of each layer (the
#' logit lens), or to their image under trained maps ([tuned_lens()]). The result
#' shows how the prediction of the next token develops from layer to layer.
#'
#' @inheritParams attention_weights
#' @param n The number of most likely tokens for each layer and token.
#' @param lens The result of [tuned_lens()] for this model.
#' @returns A data frame of class `minhub_logit_lens` with `n` rows per layer and
#'   token and the columns
#'   * `layer`: 0 for the embeddings, 1 for the first layer;
#'   * `position`: the position of the token in the text, from 1;
#'   * `token`: the token at this position;
#'   * `rank`: 1 for the most likely next token;
#'   * `predicted` and `id` (0-based): the predicted next token;
#'   * `prob`: its probability.
#'
#'   It has a [plot()][plot.minhub_logit_lens()] method. `summary()` returns a
#'   data frame with one row per `layer`: the mean `prob` of the most likely
#'   token, and the proportions of positions at which it is the prediction of the
#'   last layer (`as_last_layer`) and the next token of the text (`as_text`).
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' lens <- logit_lens(model, "O Romeo, Rom")
#' lens[lens$position == 12 & lens$rank == 1, ]
#' plot(lens)
#' \dontshow{minhubpy:::end_example()}
#' @export
logit_lens <- function(model, text, n = 5, tokenizer = NULL, lens = NULL) {
  model <- check_model(model)
  if (!is.null(lens) && !inherits(lens, "minhub_tuned_lens")) fail("lens must be the result of tuned_lens(), not ", describe(lens))
  result <- ask(
    "logit_lens",
    model = model, text = single_text(text, model), tokenizer = check_tokenizer(tokenizer), n = whole_number(n, min = 1),
    lens = lens
  )
  structure(result$frame, ids = result$ids, class = c("minhub_logit_lens", "data.frame"))
}

#' Train a tuned lens
#'
#' Trains an affine map for each layer, so that [logit_lens()] predicts the model's
#' own predictions from the hidden states of the layer. The logit lens ignores the
#' contribution of later layers, which the maps learn.
#'
#' @inheritParams activations
#' @param model A decoder-only transformer with weights in floating point.
#' @param texts A character vector, or token IDs: texts within the model's context,
#'   with as many tokens as possible.
#' @param steps The number of training steps of each layer, on 256 tokens each.
#' @param rate The learning rate.
#' @param seed The seed of the choice of tokens.
#' @param x The result.
#' @param main The title of the plot.
#' @param col The colors of the tuned lens and of the logit lens.
#' @param ... For plots, graphical parameters. Otherwise not used.
#' @returns An object of class `minhub_tuned_lens` for `logit_lens(lens = )`, with the
#'   data frame `divergence`: the mean Kullback-Leibler divergence of each `layer`
#'   from the model's predictions, in nats, for the `logit_lens` and the `tuned_lens`.
#'   Python stores the maps; after `readRDS()` or a restart of the worker, they are
#'   trained again at the first use.
#' @references Belrose et al. (2023), "Eliciting Latent Predictions from
#'   Transformers with the Tuned Lens".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' lens <- tuned_lens(model, c("To be, or not to be", "O Romeo"), steps = 5)
#' lens
#' logit_lens(model, "O Romeo, Rom", lens = lens)
#' \dontshow{minhubpy:::end_example()}
#' @export
tuned_lens <- function(model, texts, steps = 200, rate = 1e-3, seed = 0, tokenizer = NULL) {
  arguments <- list(
    model = check_model(model), texts = texts_or_ids(texts, "texts"), steps = whole_number(steps, min = 1),
    rate = as.double(number(rate, above = 0)), seed = whole_number(seed), tokenizer = check_tokenizer(tokenizer)
  )
  self <- new_self("tuned_lens", arguments, "the tuned lens")
  structure(list(divergence = self$about$divergence), self = self, class = "minhub_tuned_lens")
}

#' @export
format.minhub_tuned_lens <- function(x, ...) {
  c(
    paste0("<tuned lens> ", nrow(x$divergence), " layers, KL divergence from the model's predictions in nats:"),
    format_rows(x$divergence)
  )
}

#' @export
print.minhub_tuned_lens <- function(x, ...) print_format(x, ...)

#' @rdname tidy.minhub
#' @export
as.data.frame.minhub_tuned_lens <- function(x, ...) x$divergence

#' @rdname tuned_lens
#' @export
plot.minhub_tuned_lens <- function(x, main = "Divergence from the predictions", col = c("#0072B2", "#D55E00"), ...) {
  col <- rep_len(check_color(col), 2L)
  draw_panels(main, function(i) draw_divergence(x$divergence, col), ...)
  invisible(x)
}

draw_divergence <- function(x, col) {
  set_margins(left = lines_high(3.4), bottom = lines_high(3.4), right = 0.2)
  graphics::plot.window(range(x$layer), c(0, 1.04 * max(x$logit_lens, x$tuned_lens)))
  axis_across("nats")
  graphics::axis(1L, x$layer, lwd = 0, mgp = c(2, 0.3, 0))
  graphics::title(xlab = "layer (0: embeddings)", line = 1.7)
  for (i in 1:2) {
    values <- x[[c("tuned_lens", "logit_lens")[[i]]]]
    graphics::lines(x$layer, values, col = col[[i]], lwd = 2)
    graphics::points(x$layer, values, col = col[[i]], pch = 16L)
  }
  legend_above(c("tuned lens", "logit lens"), col, c(1L, 1L), c(2, 2))
}

#' @export
print.minhub_logit_lens <- function(x, ...) {
  shown <- structure(x, class = "data.frame", ids = NULL)
  for (name in intersect(c("token", "predicted"), names(shown))) shown[[name]] <- encodeString(shown[[name]], quote = '"')
  if (nrow(x) <= 20L || !all(c("layer", "position", "token", "rank", "predicted") %in% names(x))) {
    print(shown, ...)
    return(invisible(x))
  }
  top <- shown[shown$rank == min(shown$rank), ]
  layers <- sort(unique(top$layer), decreasing = TRUE)
  positions <- sort(unique(top$position))
  grid <- matrix("", length(layers), length(positions), dimnames = list(
    layer = layers, top$token[match(positions, top$position)]
  ))
  grid[cbind(match(top$layer, layers), match(top$position, positions))] <- top$predicted
  cat("The most likely next token after each token, by layer (0: the embeddings)\n")
  print(grid, quote = FALSE, ...)
  cat(sprintf("A data frame of %d rows: %s\n", nrow(x), paste(names(x), collapse = ", ")))
  invisible(x)
}

#' @rdname plot.minhub_attention
#' @description
#' The method for [logit_lens()] draws one row per layer, with the last layer at
#' the top. A cell contains the most likely next token after the token at the
#' bottom; darker cells are larger probabilities. A frame marks a prediction that
#' is the next token of the text.
#' @param start,most The first token to draw, and the maximum number of tokens.
#' @export
plot.minhub_logit_lens <- function(x, start = 1, most = 14, main = NULL, col = "#0072B2", ...) {
  check_plotted(x, c("layer", "position", "token", "rank", "predicted", "id", "prob"))
  from <- whole_number(start, "start", min = 1)
  ids <- attr(x, "ids")
  count <- max(x$position)
  if (from > count) fail("start must be at most ", count, ", the number of tokens, not ", from)
  col <- check_color(col)
  shown <- x[x$rank == 1 & x$position >= from & x$position < from + whole_number(most, "most", min = 1), ]
  draw_panels(
    if (is.null(main)) "Most likely next token by layer" else main,
    function(i) draw_layers(shown, ids, count, shades(col)), ...
  )
  invisible(x)
}

draw_layers <- function(shown, ids, count, shade) {
  numbers <- sort(unique(shown$layer))
  positions <- sort(unique(shown$position))
  cells <- data.frame(
    column = match(shown$position, positions), row = match(shown$layer, numbers), color = shade[1L + round(100 * shown$prob)]
  )
  first <- shown[match(positions, shown$position), ]
  below <- shorten(readable(data.frame(token = first$token, id = ids[positions])), 14L)
  draw_cells(cells, ifelse(numbers == 0, "embeddings", numbers), below, ylab = "layer", font = 2L)
  labels <- shorten(readable(data.frame(token = shown$predicted, id = shown$id)), 14L)
  size <- text_size(labels, graphics::par("pin")[[1L]] / length(positions) * 0.92, graphics::par("pin")[[2L]] / length(numbers) * 0.9)
  token_text(cells$column - 0.5, cells$row - 0.5, labels, cex = max(0.4, size), col = ifelse(shown$prob > 0.5, "white", "grey15"))
  right <- shown$position < count & shown$id == ids[shown$position + 1L]
  framed <- cells[right & !is.na(right), ]
  graphics::rect(framed$column - 0.97, framed$row - 0.95, framed$column - 0.03, framed$row - 0.05, border = VERMILLION, lwd = 1.6)
  legend_of_colors(shade, c("0", "1 probability"))
  part <- if (length(positions) < count) paste0("; tokens ", positions[[1L]], " to ", max(positions), " of ", count)
  footer(if (nrow(framed)) "framed: next token of the text" else "token of the text", part, room = 0.6)
}
