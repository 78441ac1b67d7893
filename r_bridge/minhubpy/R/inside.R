#' Compute attention weights
#'
#' Returns the attention weights of each head of each layer of a transformer. In
#' a decoder, a token attends to itself and to the preceding tokens. The weights
#' of a token sum to 1, except in GPT-OSS, whose attention sinks reduce the sum.
#'
#' Layers without attention, such as the linear layers of Qwen 3.5, are omitted.
#' For an encoder-decoder such as T5, the function returns the weights of the
#' encoder, in which a token attends to all tokens.
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

#' Apply the logit lens
#'
#' Applies the output layer of a model to the hidden states of each layer (the
#' logit lens). The result shows how the prediction of the next token develops
#' from layer to layer.
#'
#' @inheritParams attention_weights
#' @param n The number of most likely tokens for each layer and token.
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
logit_lens <- function(model, text, n = 5, tokenizer = NULL) {
  model <- check_model(model)
  result <- ask(
    "logit_lens",
    model = model, text = single_text(text, model), tokenizer = check_tokenizer(tokenizer), n = whole_number(n, min = 1)
  )
  structure(result$frame, ids = result$ids, class = c("minhub_logit_lens", "data.frame"))
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

#' Plot attention weights and the logit lens
#'
#' The method for [attention_weights()] draws one panel per head of each layer,
#' with `layer` only the heads of that layer, and with `layer` and `head` one
#' head with its tokens. Rows are queries and columns are keys, from the first
#' token on; darker cells are larger weights. If the panels of all heads would be
#' too small for the device, the plot shows the mean over the heads of each layer.
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
  legend_of_shares(shade, "weight")
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
  legend_of_shares(shade, "weight")
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
  legend_of_shares(shade, "weight")
  footer(AXES, room = 0.6)
}

panel_name <- function(x, y, name, adj = c(0.5, 0.5), cex = 0.75) graphics::text(x, y, name, adj = adj, cex = cex, xpd = NA)

# A square of weights with the first token at the top. `left` and `top` are its corner.
draw_weights <- function(weights, left, top, wide, shade, high = wide) {
  colours <- matrix(shade[1L + round(100 * pmin(weights, 1))], nrow(weights))
  graphics::rasterImage(grDevices::as.raster(colours), left, top + high, left + wide, top, interpolate = FALSE)
  graphics::rect(left, top + high, left + wide, top, border = "grey80", lwd = 0.7)
}

# The color scale from 0 to 1, at the lower left.
legend_of_shares <- function(shade, what) {
  area <- graphics::par("usr")
  wide <- min(graphics::par("pin")[[1L]] * 0.2, lines_high(10)) / length(shade)
  left <- area[[1L]] + graphics::xinch(wide) * (seq_along(shade) - 1)
  down <- graphics::par("mai")[[1L]]
  top <- area[[3L]] - graphics::yinch(down - lines_high(1.9))
  bottom <- area[[3L]] - graphics::yinch(down - lines_high(1.4))
  graphics::rect(left, bottom, left + graphics::xinch(wide), top, col = shade, border = NA, xpd = NA)
  graphics::text(
    c(left[[1L]], left[[length(left)]]), area[[3L]] - graphics::yinch(down - lines_high(0.8)), c("0", paste("1", what)),
    adj = c(0.2, 0.5), cex = 0.7, xpd = NA
  )
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
  names <- ifelse(numbers == 0, "embeddings", numbers)
  beside <- max(graphics::strwidth(c(names, "layer"), units = "inches")) + 0.2
  set_margins(left = beside, bottom = lines_high(4.6), right = 0.2)
  wide <- (figure_width() - beside - 0.2) / length(positions)
  graphics::plot.window(c(0, length(positions)), c(0, length(numbers)), xaxs = "i", yaxs = "i")
  across <- match(shown$position, positions)
  up <- match(shown$layer, numbers)
  graphics::rect(across - 1, up - 1, across, up, col = shade[1L + round(100 * shown$prob)], border = "white", lwd = 0.7)
  labels <- shorten(readable(data.frame(token = shown$predicted, id = shown$id)), 14L)
  size <- text_size(labels, wide * 0.92, graphics::par("pin")[[2L]] / length(numbers) * 0.9)
  token_text(across - 0.5, up - 0.5, labels, cex = max(0.4, size), col = ifelse(shown$prob > 0.5, "white", "grey15"))
  right <- shown$position < count & shown$id == ids[shown$position + 1L]
  right[is.na(right)] <- FALSE
  graphics::rect(
    across[right] - 0.97, up[right] - 0.95, across[right] - 0.03, up[right] - 0.05,
    border = VERMILLION, lwd = 1.6
  )
  graphics::text(-graphics::xinch(0.08), seq_along(numbers) - 0.5, names, adj = c(1, 0.5), xpd = NA)
  first <- shown[match(positions, shown$position), ]
  under <- shorten(readable(data.frame(token = first$token, id = ids[positions])), 14L)
  token_text(
    seq_along(positions) - 0.5, -graphics::yinch(lines_high(0.7)), under,
    cex = max(0.4, text_size(under, wide * 0.92, lines_high(1))), font = 2L
  )
  legend_of_shares(shade, "probability")
  part <- if (length(positions) < count) paste0("; tokens ", positions[[1L]], " to ", max(positions), " of ", count)
  footer(if (any(right)) "framed: next token of the text" else "token of the text", part, room = 0.6)
}
