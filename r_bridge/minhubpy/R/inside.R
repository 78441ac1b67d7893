#' What the heads of a model attend to
#'
#' Each head of each layer of a transformer gives every token of a text weights
#' for the tokens up to it, by which it takes something of them. They sum to 1,
#' but in GPT-OSS to less. Layers without attention, as Qwen 3.5 has them, are
#' left out. An encoder-decoder such as T5 gives those of its encoder, where a
#' token sees all others.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param text A text, or its 0-based ids; not longer than the model's context.
#' @returns An array `[layer, head, token, attended to]`, with the tokens as
#'   names. It has a [plot][plot.minhub_attention()] method. Its `summary()` is a
#'   data frame with a row for each `layer` and `head`: the mean `entropy` of a
#'   token's weights, in bits, and the mean weights `to_first` (the first token),
#'   `to_previous` (the token before) and `to_self`.
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
  found <- ask(
    "attention_weights",
    model = model, text = one_text(text, model), tokenizer = check_tokenizer(tokenizer)
  )
  tokens <- ifelse(is.na(found$tokens), paste0("#", found$ids), found$tokens)
  names <- list(layer = found$layers, head = seq_len(dim(found$weights)[[2L]]), token = tokens, attended_to = tokens)
  structure(found$weights, dimnames = names, ids = found$ids, class = "minhub_attention")
}

# The one text of a call, as text or as ids.
one_text <- function(text, model) {
  given <- texts_or_ids(text, "text")
  if (length(given) != 1L) fail("text must be one text, not ", describe(text), ": call it for each")
  if (!is.character(given)) check_length(length(given[[1L]]), model$context)
  given
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
    "  x[layer, head, token, attended to] are the weights; plot(x) shows them"
  )
}

#' What each layer would predict next
#'
#' The last layer of a model makes its prediction of the next token. This shows
#' what the layers before would predict if they were the last, which is known as
#' the logit lens: how a prediction takes shape from layer to layer.
#'
#' @inheritParams attention_weights
#' @param n How many of the likeliest tokens.
#' @returns A data frame with `n` rows for each layer and token, and the columns
#'   `layer` (0 is the embeddings), `position` (of the token in its text, from
#'   1), `token`, `rank` (1 is the likeliest), `predicted` (the text of the token
#'   that would come next), `id` (of the same) and `prob`. It has a
#'   [plot][plot.minhub_logit_lens()] method. Its `summary()` is a data frame with
#'   a row for each `layer`: the mean `prob` of the likeliest token, and how often
#'   that token is the last layer's (`as_last_layer`) and the text's next token
#'   (`as_text`).
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' found <- logit_lens(model, "O Romeo, Rom")
#' found[found$position == 12 & found$rank == 1, ]
#' plot(found)
#' \dontshow{minhubpy:::end_example()}
#' @export
logit_lens <- function(model, text, n = 5, tokenizer = NULL) {
  model <- check_model(model)
  found <- ask(
    "logit_lens",
    model = model, text = one_text(text, model), tokenizer = check_tokenizer(tokenizer), n = whole(n, least = 1)
  )
  structure(found$frame, ids = found$ids, class = c("minhub_logit_lens", "data.frame"))
}

#' @export
print.minhub_logit_lens <- function(x, ...) {
  shown <- structure(x, class = "data.frame", ids = NULL)
  for (name in intersect(c("token", "predicted"), names(shown))) shown[[name]] <- encodeString(shown[[name]], quote = '"')
  if (nrow(x) <= 20L || !all(c("layer", "position", "token", "rank", "predicted") %in% names(x))) {
    print(shown, ...)
    return(invisible(x))
  }
  likeliest <- shown[shown$rank == min(shown$rank), ]
  layers <- sort(unique(likeliest$layer), decreasing = TRUE)
  positions <- sort(unique(likeliest$position))
  grid <- matrix("", length(layers), length(positions), dimnames = list(
    layer = layers, likeliest$token[match(positions, likeliest$position)]
  ))
  grid[cbind(match(likeliest$layer, layers), match(likeliest$position, positions))] <- likeliest$predicted
  cat("The likeliest next token after each token, by layer (0: the embeddings)\n")
  print(grid, quote = FALSE, ...)
  cat(sprintf("A data frame of %d rows: %s\n", nrow(x), paste(names(x), collapse = ", ")))
  invisible(x)
}

#' Plots of attention and of what layers predict
#'
#' Draws what [attention_weights()] returns: a panel for each head of each layer,
#' from the first token (top) to the last; or, with `layer`, the heads of that
#' layer; or, with `head` too, one of them, with its tokens at both sides. The
#' darker, the more a token (row) attends to another (column). If the panels of
#' all heads would be too small for the device, the mean of each layer's heads is
#' shown.
#'
#' @param x What [attention_weights()] returned.
#' @param layer,head Which layer and head to show, by number; all, if not given.
#' @param main The title.
#' @param col The darkest colour.
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
  known <- dimnames(x)
  rows <- one_of(layer, known[[1L]], "layer")
  columns <- one_of(head, known[[2L]], "head")
  what <- paste0("Attention", if (!is.null(layer)) paste(", layer", layer), if (!is.null(head)) paste(", head", head))
  names <- data.frame(token = known[[3L]], id = attr(x, "ids"))
  shade <- shades(check_color(col))
  weights <- function(row, column) matrix(x[row, column, , ], nrow = dim(x)[[3L]])
  every <- length(rows) > 1L && length(columns) > 1L
  if (every && min(figure_width() / length(columns), figure_height() / length(rows)) >= SMALLEST_PANEL) {
    draw <- function(i) draw_heads(x, shade)
  } else if (every) {
    what <- paste0(what, ", mean of the ", length(columns), " heads of each layer")
    means <- lapply(rows, function(row) Reduce(`+`, lapply(columns, weights, row = row)) / length(columns))
    draw <- function(i) draw_grid(means, paste("layer", known[[1L]]), names, shade, "; layer = and head = select")
  } else if (length(rows) * length(columns) > 1L) {
    titles <- if (length(rows) > 1L) paste("layer", known[[1L]]) else paste("head", known[[2L]])
    all <- Map(weights, rows, columns)
    draw <- function(i) draw_grid(all, titles, names, shade)
  } else {
    draw <- function(i) draw_head(weights(rows, columns), names, shade)
  }
  draw_panels(if (is.null(main)) what else main, draw, ...)
  invisible(x)
}

SMALLEST_PANEL <- 0.5 # inches; of the heads of all layers
AXES <- "rows: queries; columns: keys (attended to)"

# The places of what was chosen, by number; all of them for NULL.
one_of <- function(chosen, known, what) {
  if (is.null(chosen)) return(seq_along(known))
  place <- match(number(chosen, what), as.integer(known))
  if (is.na(place)) fail("there is no ", what, " ", chosen, ": give one of ", toString(utils::head(known, 40L)))
  place
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

# A grid of panels with their names; tokens are at its left and lower edge if they fit.
draw_grid <- function(all, titles, names, shade, hint = "") {
  labels <- shorten(readable(names), 10L)
  above <- lines_high(1.1) # a panel's name
  area <- c(figure_width() - 0.4, figure_height() - lines_high(6))
  columns <- seq_along(all)
  sizes <- pmin(area[[1L]] / columns, area[[2L]] / ceiling(length(all) / columns) - above)
  wide <- columns[[which.max(sizes)]]
  tall <- ceiling(length(all) / wide)
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
  for (i in seq_along(all)) {
    left <- (i - 1L) %% wide
    top <- (i - 1L) %/% wide + 1 - high
    draw_weights(all[[i]], left, top, side / unit[[1L]], shade, high = high)
    panel_name(left, top - 0.5 * above / unit[[2L]], titles[[i]], adj = c(0, 0.5), cex = name_size)
    if (!labelled) next
    at <- (seq_len(nrow(names)) - 0.5) / nrow(names)
    if (left == 0) token_text(left - graphics::xinch(0.05), top + high * at, labels, adj = c(1, 0.5), cex = size)
    if (i + wide > length(all)) {
      y <- rep(top + high + 0.05 / unit[[2L]], nrow(names))
      token_text(left + side / unit[[1L]] * at, y, labels, adj = c(1, 0.5), srt = 90, cex = size)
    }
  }
  legend_of_shares(shade, "weight")
  footer(AXES, hint, room = 0.6)
}

# A small panel for each head of each layer.
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

# A square of weights, from the first token on top; `left` and `top` are its corner.
draw_weights <- function(weights, left, top, wide, shade, high = wide) {
  colours <- matrix(shade[1L + round(100 * pmin(weights, 1))], nrow(weights))
  graphics::rasterImage(grDevices::as.raster(colours), left, top + high, left + wide, top, interpolate = FALSE)
  graphics::rect(left, top + high, left + wide, top, border = "grey80", lwd = 0.7)
}

# The scale of shades from 0 to 1, at the lower left.
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
#' Draws what [logit_lens()] returns: a row for each layer, the last on top, and in
#' each cell the token that it thinks likeliest after the token below; the
#' darker, the likelier. A frame means that this token does come next.
#' @param start,most Which tokens to show: from the `start`-th on, at most so
#'   many.
#' @export
plot.minhub_logit_lens <- function(x, start = 1, most = 14, main = NULL, col = "#0072B2", ...) {
  check_plotted(x, c("layer", "position", "token", "rank", "predicted", "id", "prob"))
  from <- whole(start, "start", least = 1)
  ids <- attr(x, "ids")
  count <- max(x$position)
  if (from > count) fail("start is ", from, ", but the text has ", count, " tokens")
  col <- check_color(col)
  shown <- x[x$rank == 1 & x$position >= from & x$position < from + whole(most, "most", least = 1), ]
  draw_panels(
    if (is.null(main)) "What each layer would predict next" else main,
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
  footer(if (any(right)) "framed: the actual next token" else "token of the text", part, room = 0.6)
}
