#' Compute attention weights
#'
#' Returns the attention weights of each head of each layer of a transformer. In
#' a decoder, a token attends to itself and to the preceding tokens. The weights
#' of a token sum to 1, except in GPT-OSS, whose attention sinks reduce the sum.
#'
#' Layers without attention, such as the linear layers of Qwen 3.5, are omitted.
#' For an encoder-decoder such as T5, the function returns the weights of the
#' encoder. Its tokens attend to all tokens.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param text A string, or its 0-based token IDs, not longer than the model's
#'   context.
#' @returns An array of class `minhub_attention` with the dimensions layer, head,
#'   token and attended-to token, and the tokens as dimension names. It has
#'   [plot()][plot.minhub_attention()] and [as.data.frame()][tidy.minhub]
#'   methods. `summary()` returns a data frame with one row per `layer` and
#'   `head`: the mean `entropy` of the weights, in bits, and the mean weights
#'   `to_first` (the first token), `to_previous` (the preceding token) and
#'   `to_self`.
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' attention <- attention_weights(model, "To be, or not to be")
#' attention
#' dim(attention)
#' plot(attention)
#' plot(attention, layer = 4, head = 4)
#' \dontshow{minhubpy:::end_example()}
#' @export
attention_weights <- function(model, text, tokenizer = NULL) {
  model <- check_model(model)
  result <- ask(
    "attention_weights",
    model = model, text = single_text(text, model), tokenizer = check_tokenizer(tokenizer)
  )
  tokens <- ifelse(is.na(result$tokens), paste0("#", result$ids), result$tokens)
  names <- list(layer = result$layers, head = seq_len(dim(result$weights)[[2L]]), token = tokens, attended_to = tokens)
  structure(result$weights, dimnames = names, ids = result$ids, class = "minhub_attention")
}

# Checks a single text, as a string or as token IDs.
single_text <- function(text, model) {
  texts <- texts_or_ids(text, "text")
  if (length(texts) != 1L) fail("text must be one text, not ", describe(text), ": call the function for each text")
  if (!is.character(texts)) check_length(length(texts[[1L]]), model$context)
  texts
}

#' @export
format.minhub_attention <- function(x, ...) {
  size <- dim(x)
  names <- dimnames(x)
  tokens <- encodeString(shorten(names[[3L]], 20L), quote = '"')
  shown <- utils::head(tokens, 12L)
  c(
    paste0("<attention> ", size[[1L]], " layers, ", size[[2L]], " heads, ", grouped(size[[3L]]), " tokens"),
    paste0("  ", paste(shown, collapse = " "), if (length(tokens) > length(shown)) " ..."),
    "  x[layer, head, token, attended-to token]; plot(x) draws the weights"
  )
}

#' Plot attention weights and the logit lens
#'
#' The method for [attention_weights()] draws one panel per head of each layer,
#' with `layer` only the heads of that layer, and with `layer` and `head` one
#' head with its tokens. Rows are queries and columns are keys, from the first
#' token on; darker cells are larger weights. If the panels of all heads would be
#' too small for the device, the plot shows the mean over each layer's heads.
#'
#' @param x The result of [attention_weights()] or [logit_lens()].
#' @param layer,head The numbers of the layer and the head. By default, all.
#' @param main The title.
#' @param col The darkest color.
#' @param ... Graphical parameters for [graphics::par()], such as `cex` or `bg`.
#' @returns `x`, invisibly.
#' @family plots
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' attention <- attention_weights(model, "To be, or not to be")
#' plot(attention, layer = 1)
#' \dontshow{minhubpy:::end_example()}
#' @export
plot.minhub_attention <- function(x, layer = NULL, head = NULL, main = NULL, col = "#0072B2", ...) {
  labels <- dimnames(x)
  rows <- index_of(layer, labels[[1L]], "layer")
  columns <- index_of(head, labels[[2L]], "head")
  what <- paste0("Attention", if (!is.null(layer)) paste(", layer", layer), if (!is.null(head)) paste(", head", head))
  names <- data.frame(token = labels[[3L]], id = attr(x, "ids"))
  shade <- shades(check_color(col))
  weights <- function(row, column) matrix(x[row, column, , ], nrow = dim(x)[[3L]])
  all_heads <- length(rows) > 1L && length(columns) > 1L
  if (all_heads && min(figure_width() / length(columns), figure_height() / length(rows)) >= SMALLEST_PANEL) {
    draw <- function(i) draw_heads(x, shade)
  } else if (all_heads) {
    what <- paste0(what, ", mean of the ", length(columns), " heads of each layer")
    means <- lapply(rows, function(row) Reduce(`+`, lapply(columns, weights, row = row)) / length(columns))
    draw <- function(i) draw_grid(means, paste("layer", labels[[1L]]), names, shade, "; layer = and head = select")
  } else if (length(rows) * length(columns) > 1L) {
    titles <- if (length(rows) > 1L) paste("layer", labels[[1L]]) else paste("head", labels[[2L]])
    matrices <- Map(weights, rows, columns)
    draw <- function(i) draw_grid(matrices, titles, names, shade)
  } else {
    draw <- function(i) draw_head(weights(rows, columns), names, shade)
  }
  draw_panels(if (is.null(main)) what else main, draw, ...)
  invisible(x)
}

SMALLEST_PANEL <- 0.5 # inches
AXES <- "rows: queries; columns: keys (attended to)"

# The index of a layer or head by its number; all indices for NULL.
index_of <- function(value, numbers, what) {
  if (is.null(value)) return(seq_along(numbers))
  index <- match(number(value, what), as.integer(numbers))
  if (is.na(index)) fail(what, " must be one of ", toString(utils::head(numbers, 40L)), ", not ", value)
  index
}

draw_head <- function(weights, names, shade) {
  n <- nrow(weights)
  labels <- shorten(readable(names), 14L)
  room <- min(figure_width(), figure_height()) - lines_high(4)
  size <- text_size(labels, room * 0.3, room * 0.7 / n)
  beside <- text_width(labels, size) + 0.15
  set_margins(left = beside + 0.1, bottom = beside + lines_high(2.4), right = 0.2)
  graphics::plot.window(c(0, n), c(n, 0), xaxs = "i", yaxs = "i", asp = 1)
  draw_weights(weights, 0, 0, n, shade)
  token_text(-graphics::xinch(0.08), seq_len(n) - 0.5, labels, adj = c(1, 0.5), cex = size)
  token_text(seq_len(n) - 0.5, n + abs(graphics::yinch(0.08)), labels, adj = c(1, 0.5), srt = 90, cex = size)
  legend_of_colors(shade, c("0", "1 weight"))
  footer(AXES, room = 0.6)
}

# A grid of named panels. Tokens are at the left and lower edges, if they fit.
draw_grid <- function(matrices, titles, names, shade, hint = "") {
  labels <- shorten(readable(names), 10L)
  above <- lines_high(1.1) # a panel's name
  area <- c(figure_width() - 0.4, figure_height() - lines_high(6))
  columns <- seq_along(matrices)
  sizes <- pmin(area[[1L]] / columns, area[[2L]] / ceiling(length(matrices) / columns) - above)
  wide <- columns[[which.max(sizes)]]
  tall <- ceiling(length(matrices) / wide)
  size <- text_size(labels, figure_width() * 0.12, max(sizes) * 0.85 / nrow(names))
  labelled <- size >= 0.35
  beside <- if (labelled) text_width(labels, size) + 0.15 else lines_high(0.5)
  set_margins(left = beside, bottom = lines_high(2.6) + if (labelled) beside else 0, right = 0.2)
  unit <- graphics::par("pin") / c(wide, tall)
  side <- max(0.05, min(unit[[1L]] * 0.94, unit[[2L]] - above)) # squares
  unit[[2L]] <- min(unit[[2L]], side + 1.5 * above) # rows as close as columns
  graphics::plot.window(c(0, wide), c(graphics::par("pin")[[2L]] / unit[[2L]], 0), xaxs = "i", yaxs = "i")
  high <- side / unit[[2L]]
  name_size <- min(0.75, unit[[1L]] * 0.95 / text_width(titles, 1, ""))
  for (i in seq_along(matrices)) {
    left <- (i - 1L) %% wide
    top <- (i - 1L) %/% wide + 1 - high
    draw_weights(matrices[[i]], left, top, side / unit[[1L]], shade, high = high)
    panel_name(left, top - 0.5 * above / unit[[2L]], titles[[i]], adj = c(0, 0.5), cex = name_size)
    if (!labelled) next
    at <- (seq_len(nrow(names)) - 0.5) / nrow(names)
    if (left == 0) token_text(left - graphics::xinch(0.05), top + high * at, labels, adj = c(1, 0.5), cex = size)
    if (i + wide > length(matrices)) {
      y <- rep(top + high + 0.05 / unit[[2L]], nrow(names))
      token_text(left + side / unit[[1L]] * at, y, labels, adj = c(1, 0.5), srt = 90, cex = size)
    }
  }
  legend_of_colors(shade, c("0", "1 weight"))
  footer(AXES, hint, room = 0.6)
}

# One small panel per head of each layer.
draw_heads <- function(x, shade) {
  tall <- dim(x)[[1L]]
  wide <- dim(x)[[2L]]
  set_margins(left = lines_high(3.6), bottom = lines_high(2.4), right = 0.2)
  graphics::plot.window(c(0, wide), c(tall, -0.25), xaxs = "i", yaxs = "i")
  for (row in seq_len(tall)) {
    for (column in seq_len(wide)) {
      weights <- matrix(x[row, column, , ], nrow = dim(x)[[3L]])
      draw_weights(weights, column - 0.96, row - 0.94, 0.92, shade, high = 0.9)
    }
  }
  panel_name(seq_len(wide) - 0.5, -0.1, paste0(rep(c("head ", ""), c(1L, wide - 1L)), dimnames(x)[[2L]]))
  panel_name(-graphics::xinch(0.06), seq_len(tall) - 0.5, paste0(rep(c("layer ", ""), c(1L, tall - 1L)), dimnames(x)[[1L]]), adj = c(1, 0.5))
  legend_of_colors(shade, c("0", "1 weight"))
  footer(AXES, room = 0.6)
}

panel_name <- function(x, y, name, adj = c(0.5, 0.5), cex = 0.75) graphics::text(x, y, name, adj = adj, cex = cex, xpd = NA)

# A square of weights with the first token at the top. `left` and `top` are its corner.
draw_weights <- function(weights, left, top, wide, shade, high = wide) {
  colours <- matrix(shade[1L + round(100 * pmin(weights, 1))], nrow(weights))
  graphics::rasterImage(grDevices::as.raster(colours), left, top + high, left + wide, top, interpolate = FALSE)
  graphics::rect(left, top + high, left + wide, top, border = "grey80", lwd = 0.7)
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
#' @returns A data frame of class `minhub_head_scores` with one row per head and the
#'   columns `layer`, `head`, `induction`, `previous_token` and `duplicate_token`:
#'   mean attention weights. `plot()` draws heat maps.
#' @references Olsson et al. (2022), "In-context Learning and Induction Heads".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' scores <- head_scores(model, length = 20)
#' head(scores[order(-scores$previous_token), ])
#' plot(scores)
#' \dontshow{minhubpy:::end_example()}
#' @export
head_scores <- function(model, length = 50, samples = 4, seed = 0) {
  result <- ask(
    "head_scores",
    model = check_model(model), length = whole_number(length, min = 2), samples = whole_number(samples, min = 1),
    seed = whole_number(seed)
  )
  structure(result, class = c("minhub_head_scores", "data.frame"))
}

#' @rdname head_scores
#' @param x The result of `head_scores()`.
#' @param main Each panel's title.
#' @param col The darkest color.
#' @param ... Graphical parameters for [graphics::par()].
#' @export
plot.minhub_head_scores <- function(x, main = NULL, col = "#0072B2", ...) {
  kinds <- c(induction = "Induction scores", previous_token = "Previous-token scores", duplicate_token = "Duplicate-token scores")
  check_plotted(x, c("layer", "head", names(kinds)), "there is no head to plot")
  shade <- shades(check_color(col))
  layers <- sort(unique(x$layer))
  heads <- sort(unique(x$head))
  top <- max(x[names(kinds)], 1e-30)
  draw_panels(if (is.null(main)) kinds else rep_len(check_main(main), 3L), function(i) {
    color <- shade[1L + round(100 * x[[names(kinds)[[i]]]] / top)]
    draw_cells(data.frame(column = match(x$head, heads), row = match(x$layer, layers), color), layers, heads, "head", "layer", family = "")
    legend_of_colors(shade, c("0", paste(signif(top, 2L), "weight")))
  }, ...)
  invisible(x)
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
    fail("attention_rollout() requires attention in every layer, which this model does not have: use the weights of its attention layers")
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
