#' Plot next tokens, surprisals and replies
#'
#' The methods for [next_tokens()] and [masked_tokens()] draw the probability of
#' each token as a bar, with one panel per prompt or mask.
#'
#' The method for [token_logprobs()] draws each token's surprisal, which is
#' `-log2` of its probability, in bits. A token with a probability of 1 has a
#' surprisal of 0 bits, 1/2 of 1 bit, and 1/1000 of 10 bits. It has one panel per
#' text and three types:
#' * `"bars"`: one bar per token, with the token below it.
#' * `"text"`: the text itself, with a darker background for a larger surprisal.
#'   Words are not broken across lines, and line ends are visible. Text that does
#'   not fit the device is omitted, as the footer then states.
#' * `"line"`: one point per token, the running mean, and the words with the
#'   largest surprisals.
#'
#' `"auto"` draws bars for up to 60 tokens, text for up to 2,000, and a line for
#' longer texts.
#'
#' The method for replies of [minhub_chat()] draws each token's probability
#' as a bar, with the most likely alternatives.
#'
#' Bars and points show a space as a raised dot, a line end as `\n`, and a token
#' without text as its token ID, such as `#7`.
#'
#' @param x The result of [next_tokens()], [masked_tokens()] or
#'   [token_logprobs()], or some of its rows, or a reply.
#' @param text The texts to draw, by number or by name. By default, all. The plot
#'   has at most 12 panels.
#' @param type `"auto"`, `"bars"`, `"text"` or `"line"`.
#' @param most The maximum number of tokens.
#' @param main The title, or one title per panel.
#' @param col The color of the bars, of the running mean, or of the largest
#'   surprisals in a text.
#' @param ... Graphical parameters for [graphics::par()], such as `cex` or `bg`.
#'   They apply to this plot only.
#' @returns `x`, invisibly.
#' @name plot.minhub
#' @family plots
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' plot(next_tokens(model, "O Romeo, Rom"))
#'
#' logprobs <- token_logprobs(model, "To be, or not to be, that is the question")
#' plot(logprobs)
#' plot(logprobs, type = "text")
#' plot(token_logprobs(model, c(verse = "To be, or not to be", noise = "xq zzk vv qj xk")))
#' \dontshow{minhubpy:::end_example()}
NULL

MANY_BARS <- 60L
MUCH_TEXT <- 2000L
TOP_BITS <- 10 # the darkest color is a probability of 1/1000
BLUE <- "#0072B2" # Okabe and Ito's colorblind-safe palette
VERMILLION <- "#D55E00"
MANY_PANELS <- 12L

#' @rdname plot.minhub
#' @export
plot.minhub_next_tokens <- function(x, most = 30, main = NULL, col = "#0072B2", ...) {
  check_plotted(x, c("token", "id", "prob"))
  most <- whole_number(most, min = 1)
  col <- check_color(col)
  prompts <- if (is.null(x$prompt)) list(x) else split(x, factor(x$prompt, unique(x$prompt)))
  titles <- panel_titles(main, "Most likely next tokens", "prompt", x$prompt)
  draw_panels(titles, function(i) draw_next_tokens(utils::head(prompts[[i]], most), col), ...)
  invisible(x)
}

#' @rdname plot.minhub
#' @export
plot.minhub_masked_tokens <- function(x, most = 30, main = NULL, col = "#0072B2", ...) {
  check_plotted(x, c("mask", "token", "id", "prob"), "there is no token to plot: no text has a mask within the maximum length")
  most <- whole_number(most, min = 1)
  col <- check_color(col)
  labels <- mask_labels(x)
  masks <- factor(labels, unique(labels))
  parts <- split(x, masks)
  titles <- panel_titles(main, "Most likely tokens", "mask", masks)
  draw_panels(titles, function(i) draw_next_tokens(utils::head(parts[[i]], most), col), ...)
  invisible(x)
}

draw_next_tokens <- function(shown, col) {
  n <- nrow(shown)
  labels <- shorten(readable(shown), 30L)
  values <- percent(shown$prob)
  size <- text_size(labels, figure_width() * 0.5, (figure_height() - lines_high(4.5)) / n)
  set_margins(left = text_width(labels, size) + 0.25, bottom = lines_high(2), right = 0.2)
  for_bars <- max(0.3, 1 - (text_width(values, size, "") + 0.2) / graphics::par("pin")[[1L]])
  graphics::plot.window(c(0, max(shown$prob) / for_bars), c(max(n, 4L) + 0.5, 0.5), xaxs = "i", yaxs = "i")
  graphics::rect(0, seq_len(n) - 0.4, shown$prob, seq_len(n) + 0.4, col = col, border = NA)
  token_text(-graphics::xinch(0.08), seq_len(n), labels, adj = c(1, 0.5), cex = size)
  graphics::text(shown$prob + graphics::xinch(0.06), seq_len(n), values, adj = c(0, 0.5), cex = size, xpd = NA)
  footer("all other tokens: ", percent(max(0, 1 - sum(shown$prob))))
}

#' @rdname plot.minhub
#' @export
plot.minhub_reply <- function(x, most = 30, main = NULL, col = "#0072B2", ...) {
  most <- whole_number(most, min = 1)
  col <- check_color(col)
  if (!nrow(x$tokens)) fail("the reply is empty: a plot needs at least one token")
  draw_panels(main %||% "Probability of each token, and of alternatives", function(i) {
    draw_reply(utils::head(x$tokens, most), x$top, nrow(x$tokens), col)
  }, ...)
  invisible(x)
}

# One row per token: a bar, the probability, and the most likely alternatives.
draw_reply <- function(shown, top, of, col) {
  n <- nrow(shown)
  labels <- shorten(readable(shown), 16L)
  values <- percent(shown$prob)
  size <- text_size(labels, figure_width() * 0.3, (figure_height() - lines_high(4.5)) / max(n, 4L))
  set_margins(left = text_width(labels, size) + 0.25, bottom = lines_high(2), right = 0.2)
  # Widths in inches: at least two fifths for the bars, then the values, then as many alternatives as fit.
  width <- graphics::par("pin")[[1L]]
  after <- text_width(values, size, "") + 0.16
  room <- 0.6 * width - after
  for (count in 3:1) {
    alternatives <- vapply(seq_len(n), function(i) format_alternatives(top[top$position == i & top$id != shown$id[[i]], ], count), "")
    if (text_width(alternatives, 0.85 * size) <= room) break
  }
  small <- min(0.85 * size, size * max(room, 0.1) / max(text_width(alternatives, size), 0.01))
  bar <- width - after - text_width(alternatives, small)
  graphics::plot.window(c(0, width / bar), c(max(n, 4L) + 0.5, 0.5), xaxs = "i", yaxs = "i")
  graphics::rect(0, seq_len(n) - 0.4, 1, seq_len(n) + 0.4, col = "grey95", border = NA)
  graphics::rect(0, seq_len(n) - 0.4, shown$prob, seq_len(n) + 0.4, col = col, border = NA)
  token_text(-graphics::xinch(0.08), seq_len(n), labels, adj = c(1, 0.5), cex = size)
  graphics::text(1 + graphics::xinch(0.06), seq_len(n), values, adj = c(0, 0.5), cex = size, xpd = NA)
  token_text(1 + graphics::xinch(after), seq_len(n), alternatives, adj = c(0, 0.5), cex = small, col = "grey40")
  if (n < of) footer("the first ", grouped(n), " of ", grouped(of), " tokens")
}

format_alternatives <- function(tokens, count) {
  tokens <- utils::head(tokens, count)
  if (!nrow(tokens)) return("")
  paste(shorten(readable(tokens), 12L), percent(tokens$prob), collapse = "   ")
}

#' @rdname plot.minhub
#' @export
plot.minhub_token_logprobs <- function(x, text = NULL, type = c("auto", "bars", "text", "line"), most = NULL, main = NULL,
                              col = NULL, ...) {
  check_plotted(x, c("text", "position", "token", "id", "logprob"))
  type <- choice(type, c("auto", "bars", "text", "line"))
  most <- optional(most, whole_number, what = "most", min = 1)
  col <- optional(col, check_color)
  titles <- panel_titles(main, "Surprisal of each token", "text", x$text)
  if (!is.null(text)) {
    selected <- texts_in(x, text)
    titles <- titles[match(selected, unique(x$text))]
    x <- `attr<-`(x[x$text %in% selected, ], "texts", attr(x, "texts"))
  }
  scored <- split(x, factor(x$text, unique(x$text)))
  number <- match(names(scored), if (is.factor(x$text)) levels(x$text) else seq_len(max(x$text)))
  shown <- lapply(scored, function(rows) {
    rows <- rows[seq_len(min(nrow(rows), most)), ]
    rows$bits <- -rows$logprob / log(2)
    rows
  })
  top <- max(1, unlist(lapply(shown, `[[`, "bits"))) # all panels have the same scale
  draw_panels(titles, function(i) {
    all <- scored[[i]]
    shown <- shown[[i]]
    attr(shown, "opening") <- opening(attr(x, "texts")[number[[i]]], all$token)
    draw <- switch(plot_type(type, nrow(shown)), bars = draw_bars, text = draw_text, line = draw_line)
    draw(shown, of = nrow(all), top = top, col = col)
  }, ...)
  invisible(x)
}

# Selects texts by number or by name.
texts_in <- function(x, text) {
  known <- unique(x$text)
  text <- as_text(text)
  if (!length(text) || !(is_plain_number(text) || is.character(text))) {
    fail("text must be numbers or names of texts, not ", describe(text))
  }
  places <- match(text, if (is.numeric(text)) as.integer(known) else as.character(known))
  if (anyNA(places)) {
    fail("text ", text[is.na(places)][[1L]], " has no scored token: select from ", toString(utils::head(known, 5L)))
  }
  known[places]
}

# The text before the first scored token.
opening <- function(text, tokens) {
  scored <- paste(tokens, collapse = "")
  if (length(text) && endsWith(text, scored)) substr(text, 1L, nchar(text) - nchar(scored)) else "..."
}

plot_type <- function(type, n) {
  if (type != "auto") type else if (n <= MANY_BARS) "bars" else if (n <= MUCH_TEXT) "text" else "line"
}

draw_bars <- function(shown, of, top, col) {
  n <- nrow(shown)
  labels <- shorten(readable(shown), 16L)
  wide <- (figure_width() - lines_high(3.4) - 0.2) / n
  fit <- fit_below(labels, wide)
  set_margins(left = lines_high(3.4), bottom = fit$height + lines_high(2.2), right = 0.2)

  graphics::plot.window(c(0.5, max(n, 8L) + 0.5), c(0, 1.04 * top), xaxs = "i", yaxs = "i")
  axis_across("bits")
  graphics::rect(seq_len(n) - 0.4, 0, seq_len(n) + 0.4, shown$bits, col = if (is.null(col)) BLUE else col, border = NA)
  graphics::abline(h = mean(shown$bits), col = VERMILLION, lty = 2L, lwd = 1.5)
  labels_below(seq_len(n), labels, fit)
  footer("dashed: ", average(shown, of))
}

draw_line <- function(shown, of, top, col) {
  n <- nrow(shown)
  set_margins(left = lines_high(3.4), bottom = lines_high(4.2), right = 0.2)
  graphics::plot.window(range(shown$position), c(0, 1.06 * top))
  axis_across("bits")
  graphics::axis(1L, lwd = 0, lwd.ticks = 1, mgp = c(2, 0.5, 0))
  graphics::title(xlab = "position", line = 1.7)
  graphics::points(shown$position, shown$bits, pch = 16L, cex = max(0.15, min(0.8, 20 / sqrt(n))), col = "grey70")
  window <- min(n, max(5L, n %/% 40L))
  graphics::lines(
    shown$position, stats::filter(shown$bits, rep(1 / window, window)),
    col = if (is.null(col)) VERMILLION else col, lwd = 2
  )
  name_peaks(shown)
  footer("line: running mean of ", window, "; ", average(shown, of))
}

# Labels the words with the largest surprisals, without overlaps.
name_peaks <- function(shown) {
  word <- cumsum(opens_word(shown$token))
  apart <- graphics::xinch(text_width("M", 0.7) * 14)
  free <- rep(TRUE, nrow(shown))
  for (most in seq_len(8L)) {
    if (!any(free)) break
    peak <- which(free)[[which.max(shown$bits[free])]]
    name <- paste(written(shown[word == word[[peak]], ]), collapse = "")
    name <- shorten(trimws(sub("(\\\\n)+$", "", name)), 12L)
    token_text(shown$position[[peak]], shown$bits[[peak]], name, pos = 3L, offset = 0.2, cex = 0.7)
    free <- free & abs(shown$position - shown$position[[peak]]) > apart
  }
}

# Whether each token starts a word.
opens_word <- function(tokens) {
  n <- length(tokens)
  c(TRUE, grepl("^[ \t]", tokens[-1L]) | grepl("[[:space:]]$|^$", tokens[-n]))
}

# Draws the text in the largest size that fits. The opening has no score and no color. `top` has no effect, because the
# color scale is fixed.
draw_text <- function(shown, of, top, col) {
  set_margins(left = 0.2, bottom = lines_high(4.2), right = 0.2)
  area <- graphics::par("pin")
  all <- data.frame(token = c(attr(shown, "opening"), shown$token), id = c(NA, shown$id), bits = c(0, shown$bits))
  for (size in seq(1.6, 0.4, by = -0.1)) {
    columns <- max(1L, floor(area[[1L]] / text_width("M", size)))
    rows <- max(1L, floor(area[[2L]] / (size * lines_high(1.1))))
    drawn <- utils::head(all, columns * rows)
    words <- shorten(written(drawn), columns)
    position <- flow(nchar(words, "width"), opens_word(drawn$token), lines_ended(drawn$token), columns)
    if (nrow(drawn) == nrow(all) && max(position$row) <= rows) break
  }
  visible <- position$row <= rows
  position <- position[visible, ]
  drawn <- drawn[visible, ]
  shade <- shades(col)
  graphics::plot.window(c(0, columns), c(max(position$row, rows / 1.5), 0), xaxs = "i", yaxs = "i")
  graphics::rect(
    position$column, position$row - 1, position$column + position$wide, position$row,
    col = shade[1L + round(100 * pmin(drawn$bits / TOP_BITS, 1))], border = "white", lwd = 0.5
  )
  token_text(position$column, position$row - 0.5, words[visible], adj = c(0, 0.5), cex = size)
  ticks <- seq(0, TOP_BITS, by = 2)
  legend_of_colors(shade, c(ticks[-length(ticks)], paste0(TOP_BITS, "+ bits")), up = 3.5, share = 1, most = 18)
  if (nrow(drawn) > 1L) footer(average(drawn[-1L, ], of))
}

# Breaks tokens into lines. Returns the row and the column of each token. `opens`: whether a token starts a word;
# `ends`: the number of line ends in a token.
flow <- function(wide, opens, ends, columns) {
  word <- cumsum(opens)
  needs <- ifelse(opens, tapply(wide, word, sum)[word], wide) # breaks words that are longer than a line
  row <- column <- integer(length(wide))
  at <- 0L
  line <- 1L
  for (i in seq_along(wide)) {
    if (at > 0L && at + needs[[i]] > columns) {
      line <- line + 1L
      at <- 0L
    }
    row[[i]] <- line
    column[[i]] <- at
    at <- if (ends[[i]]) 0L else at + wide[[i]]
    line <- line + ends[[i]]
  }
  data.frame(row, column, wide)
}

lines_ended <- function(tokens) {
  ifelse(is.na(tokens), 0L, nchar(gsub("[^\n]", "", tokens)))
}

average <- function(shown, of) {
  bits <- mean(shown$bits)
  paste0(
    "mean ", format(round(bits, 2L), nsmall = 2L), " bits, perplexity ", grouped(signif(2^bits, 3L)),
    if (nrow(shown) < of) paste0(" (the first ", grouped(nrow(shown)), " of ", grouped(of), " tokens)")
  )
}

check_plotted <- function(x, columns, empty = "there is no token to plot: a text with fewer than two tokens has no score") {
  missing <- setdiff(columns, names(x))
  if (length(missing)) fail("plot() requires the column ", missing[[1L]], ": select rows, not columns")
  if (!nrow(x)) fail(empty)
  plotted <- columns[[length(columns)]]
  if (!is.numeric(x[[plotted]]) || !all(is.finite(x[[plotted]]))) fail("the column ", plotted, " must contain finite numbers")
}
