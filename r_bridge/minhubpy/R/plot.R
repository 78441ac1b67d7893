#' Plots of next tokens and of surprise
#'
#' Draws what [next_tokens()] returns as bars, the likeliest token on top, with a
#' panel for each prompt or text.
#'
#' Draws what [token_logprobs()] returns as the surprise of each token, which is
#' -log2 of its probability: 0 bits for what was certain, 1 for one of two
#' equally likely tokens, 10 for one in a thousand.
#'
#' * `type = "bars"`: a bar for each token, with the token beneath it;
#' * `type = "text"`: the text itself, the darker the more surprising. Words
#'   are kept whole and line ends are shown. What does not fit the device is
#'   left out, which a note below says. `col` is the darkest colour;
#' * `type = "line"`: a point for each token, the running mean, and the words
#'   of the most surprising tokens.
#'
#' `"auto"` takes the first of the three that stays readable: bars for up to
#' 60 tokens, the text for up to 2,000.
#'
#' Draws a reply of a [minhub_chat()] as a bar for each token, how likely it was, and
#' beside it the likeliest tokens that were not taken.
#'
#' In bars and points, a space is shown as a raised dot, a line end as `\n`,
#' and a token without text as its id, such as `#7`.
#'
#' @param x What [next_tokens()] or [token_logprobs()] returned, or some rows of it; or a
#'   reply.
#' @param text Which texts to show, by their numbers or names in the column
#'   `text`; all, if not given. Each has a panel, up to 12.
#' @param type `"auto"`, `"bars"`, `"text"` or `"line"`.
#' @param most The most tokens to show, from the first on.
#' @param main The title, or one for each panel.
#' @param col The colour of the bars, of the running mean, or of the most
#'   surprising tokens in a text.
#' @param ... Graphical parameters for [graphics::par()], such as `cex` or
#'   `bg`. They hold for this plot only.
#' @returns `x`, invisibly.
#' @name plot.minhub
#' @family plots
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' plot(next_tokens(model, "O Romeo, Rom"))
#'
#' surprise <- token_logprobs(model, "To be, or not to be, that is the question")
#' plot(surprise)
#' plot(surprise, type = "text")
#' plot(token_logprobs(model, c(verse = "To be, or not to be", noise = "xq zzk vv qj xk")))
#' \dontshow{minhubpy:::end_example()}
NULL

MANY_BARS <- 60L
MUCH_TEXT <- 2000L
TOP_BITS <- 10 # one in a thousand: the darkest colour
BLUE <- "#0072B2" # of Okabe and Ito's palette, which everybody can tell apart, as is the next
VERMILLION <- "#D55E00"
MANY_PANELS <- 12L

#' @rdname plot.minhub
#' @export
plot.minhub_next_tokens <- function(x, most = 30, main = NULL, col = "#0072B2", ...) {
  check_plotted(x, c("token", "id", "prob"))
  most <- whole(most, least = 1)
  col <- check_color(col)
  prompts <- if (is.null(x$prompt)) list(x) else split(x, factor(x$prompt, unique(x$prompt)))
  titles <- panel_titles(main, "Likeliest next tokens", "prompt", x$prompt)
  draw_panels(titles, function(i) draw_next_tokens(utils::head(prompts[[i]], most), col), ...)
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
  footer("all other tokens together: ", percent(max(0, 1 - sum(shown$prob))))
}

#' @rdname plot.minhub
#' @export
plot.minhub_token_logprobs <- function(x, text = NULL, type = c("auto", "bars", "text", "line"), most = NULL, main = NULL,
                              col = NULL, ...) {
  check_plotted(x, c("text", "position", "token", "id", "logprob"))
  type <- choice(type, c("auto", "bars", "text", "line"))
  most <- optional(most, whole, what = "most", least = 1)
  col <- optional(col, check_color)
  titles <- panel_titles(main, "Surprise of each token", "text", x$text)
  if (!is.null(text)) {
    chosen <- texts_in(x, text)
    titles <- titles[match(chosen, unique(x$text))]
    x <- `attr<-`(x[x$text %in% chosen, ], "texts", attr(x, "texts"))
  }
  scored <- split(x, factor(x$text, unique(x$text)))
  # The number or the name of a text.
  number <- match(names(scored), if (is.factor(x$text)) levels(x$text) else seq_len(max(x$text)))
  shown <- lapply(scored, function(all) {
    some <- all[seq_len(min(nrow(all), most)), ]
    some$bits <- -some$logprob / log(2)
    some
  })
  top <- max(1, unlist(lapply(shown, `[[`, "bits"))) # the same for all panels, which are compared
  draw_panels(titles, function(i) {
    all <- scored[[i]]
    shown <- shown[[i]]
    attr(shown, "opening") <- opening(attr(x, "texts")[number[[i]]], all$token)
    draw <- switch(plot_type(type, nrow(shown)), bars = draw_bars, text = draw_text, line = draw_line)
    draw(shown, of = nrow(all), top = top, col = col)
  }, ...)
  invisible(x)
}

# The wanted texts, by number or by name.
texts_in <- function(x, text) {
  known <- unique(x$text)
  if (!length(text) || !(is.numeric(text) || is.character(text))) {
    fail("text must be numbers or names of texts, not ", describe(text))
  }
  places <- match(text, if (is.numeric(text)) as.integer(known) else as.character(known))
  if (anyNA(places)) {
    fail("no token of text ", text[is.na(places)][[1L]], " was scored; there are some of ", toString(utils::head(known, 5L)))
  }
  known[places]
}

# The text before the first token that has a score.
opening <- function(text, tokens) {
  rest <- paste(tokens, collapse = "")
  if (length(text) && endsWith(text, rest)) substr(text, 1L, nchar(text) - nchar(rest)) else "..."
}

plot_type <- function(type, n) {
  if (type != "auto") type else if (n <= MANY_BARS) "bars" else if (n <= MUCH_TEXT) "text" else "line"
}

draw_bars <- function(shown, of, top, col) {
  n <- nrow(shown)
  labels <- shorten(readable(shown), 16L)
  wide <- (figure_width() - lines_high(3.4) - 0.2) / n
  size <- text_size(labels, wide * 0.9, lines_high(1))
  upright <- size >= 0.6
  if (!upright) size <- text_size(labels, figure_height() * 0.4, wide)
  below <- if (upright) lines_high(1) else text_width(labels, size)
  set_margins(left = lines_high(3.4), bottom = below + lines_high(2.2), right = 0.2)

  graphics::plot.window(c(0.5, max(n, 8L) + 0.5), c(0, 1.04 * top), xaxs = "i", yaxs = "i")
  axis_of_bits()
  graphics::rect(seq_len(n) - 0.4, 0, seq_len(n) + 0.4, shown$bits, col = if (is.null(col)) BLUE else col, border = NA)
  graphics::abline(h = mean(shown$bits), col = VERMILLION, lty = 2L, lwd = 1.5)
  token_text(
    seq_len(n), -graphics::yinch(0.06), labels,
    adj = if (upright) c(0.5, 1) else c(1, 0.5), srt = if (upright) 0 else 90, cex = size
  )
  footer("dashed: ", average(shown, of))
}

# Positions as in the column, so that they can be looked up there.
draw_line <- function(shown, of, top, col) {
  n <- nrow(shown)
  set_margins(left = lines_high(3.4), bottom = lines_high(4.2), right = 0.2)
  graphics::plot.window(range(shown$position), c(0, 1.06 * top))
  axis_of_bits()
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

# The words with the most surprising tokens, as many as there is room for.
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

# Whether a word begins with each token.
opens_word <- function(tokens) {
  n <- length(tokens)
  c(TRUE, grepl("^[ \t]", tokens[-1L]) | grepl("[[:space:]]$|^$", tokens[-n]))
}

axis_of_bits <- function() {
  ticks <- pretty(graphics::par("usr")[3:4], 5L)
  graphics::abline(h = ticks, col = "grey88")
  graphics::axis(2L, ticks, las = 1L, lwd = 0, mgp = c(2, 0.3, 0))
  graphics::title(ylab = "bits", line = 2.1)
}

# Draws the text in the largest size at which all of it fits. The opening has no score and no colour. Colours have one
# scale, so that `top` is not needed.
draw_text <- function(shown, of, top, col) {
  set_margins(left = 0.2, bottom = lines_high(4.2), right = 0.2)
  area <- graphics::par("pin")
  all <- data.frame(token = c(attr(shown, "opening"), shown$token), id = c(NA, shown$id), bits = c(0, shown$bits))
  for (size in seq(1.6, 0.4, by = -0.1)) {
    columns <- max(1L, floor(area[[1L]] / text_width("M", size)))
    rows <- max(1L, floor(area[[2L]] / (size * lines_high(1.1))))
    some <- utils::head(all, columns * rows)
    words <- shorten(written(some), columns)
    place <- flow(nchar(words, "width"), opens_word(some$token), lines_ended(some$token), columns)
    if (nrow(some) == nrow(all) && max(place$row) <= rows) break
  }
  seen <- place$row <= rows
  place <- place[seen, ]
  some <- some[seen, ]
  shade <- shades(col)
  graphics::plot.window(c(0, columns), c(max(place$row, rows / 1.5), 0), xaxs = "i", yaxs = "i")
  graphics::rect(
    place$column, place$row - 1, place$column + place$wide, place$row,
    col = shade[1L + round(100 * pmin(some$bits / TOP_BITS, 1))], border = "white", lwd = 0.5
  )
  token_text(place$column, place$row - 0.5, words[seen], adj = c(0, 0.5), cex = size)
  legend_of_bits(shade)
  if (nrow(some) > 1L) footer(average(some[-1L, ], of))
}

# Line and column of each token, by widths. `opens`: a word begins with it; `ends`: it has a line end.
flow <- function(wide, opens, ends, columns) {
  word <- cumsum(opens)
  needs <- ifelse(opens, tapply(wide, word, sum)[word], wide) # a word longer than a line is broken
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

shades <- function(col) {
  grDevices::colorRampPalette(c("white", if (is.null(col)) VERMILLION else col), space = "Lab")(101L)
}

legend_of_bits <- function(shade) {
  wide <- min(graphics::par("pin")[[1L]], lines_high(18)) / length(shade)
  left <- graphics::xinch(wide) * (seq_along(shade) - 1)
  top <- graphics::par("usr")[[3L]] - graphics::yinch(lines_high(0.7))
  bottom <- top - graphics::yinch(lines_high(0.6))
  graphics::rect(left, bottom, left + graphics::xinch(wide), top, col = shade, border = NA, xpd = NA)
  ticks <- seq(0, TOP_BITS, by = 2)
  graphics::text(
    left[1L + ticks * 10], top - graphics::yinch(lines_high(1.2)), c(ticks[-length(ticks)], paste0(TOP_BITS, "+ bits")),
    cex = 0.7, xpd = NA
  )
}

# How tokens are shown

# A token by itself, with visible signs for white space.
readable <- function(tokens) {
  shown <- written(tokens)
  shown <- gsub(" ", "\u00b7", shown)
  shown[shown == ""] <- "\"\""
  shown
}

shorten <- function(labels, most) {
  long <- nchar(labels, "width") > most
  labels[long] <- paste0(strtrim(labels[long], max(1L, most - 3L)), "...")
  labels
}

# A token within its text: spaces stay, other invisible characters are written out.
written <- function(tokens) {
  shown <- encodeString(tokens$token)
  shapeless <- grepl("[\\p{Cf}\\p{Co}\\p{Zl}\\p{Zp}]|(?! )\\p{Zs}", shown, perl = TRUE)
  shown[shapeless] <- iconv(shown[shapeless], "UTF-8", "ASCII", sub = "Unicode")
  # These devices have one encoding at a time, and warn of other characters.
  western <- names(grDevices::dev.cur()) %in% c("pdf", "postscript", "xfig")
  if (western) shown <- iconv(shown, "UTF-8", "latin1", sub = "Unicode")
  ifelse(is.na(tokens$token), paste0("#", tokens$id), shown)
}

percent <- function(p) {
  ifelse(p < 0.001, "<0.1%", ifelse(p > 0.999, ">99.9%", sprintf("%.1f%%", 100 * p)))
}

average <- function(shown, of) {
  bits <- mean(shown$bits)
  paste0(
    "mean ", format(round(bits, 2L), nsmall = 2L), " bits, perplexity ", grouped(signif(2^bits, 3L)),
    if (nrow(shown) < of) paste0(" (the first ", grouped(nrow(shown)), " of ", grouped(of), " tokens)")
  )
}

grouped <- function(n) format(n, big.mark = ",")

check_plotted <- function(x, columns, empty = "there is no token to plot: a text of fewer than two has no score") {
  lacking <- setdiff(columns, names(x))
  if (length(lacking)) fail("to be plotted it needs the column ", lacking[[1L]], ": keep the columns, drop rows")
  if (!nrow(x)) fail(empty)
  plotted <- columns[[length(columns)]]
  if (!is.numeric(x[[plotted]]) || !all(is.finite(x[[plotted]]))) fail("the column ", plotted, " must be finite numbers")
}

# Base graphics, in inches. Margins are set after plot.new(), since widths of text are known only then.

# Returns the old par().
begin_plot <- function(...) {
  before <- set_parameters(1L, ...)
  begin_panel()
  before
}

# Begins a plot of some panels, which share one page unless the user has divided it.
set_parameters <- function(panels, ...) {
  of_page <- graphics::par("mfrow", "cex")
  before <- graphics::par(mar = graphics::par("mar"), ...)
  before <- rev(before) # cex before mar, whose unit it is
  if (panels == 1L || any(of_page$mfrow != 1L)) return(before)
  graphics::par(mfrow = grDevices::n2mfrow(panels)) # this sets cex
  graphics::par(cex = list(...)$cex %||% graphics::par("cex"))
  c(of_page, before)
}

begin_panel <- function() {
  graphics::par(mar = c(0, 0, 0, 0)) # fits figures of any size
  graphics::plot.new()
}

# Draws a panel for each title: draw(i) draws the i-th within its margins.
draw_panels <- function(titles, draw, ...) {
  titles <- check_main(titles)
  panels <- min(length(titles), MANY_PANELS)
  if (panels < length(titles)) note("Showing the first ", panels, " of ", length(titles), ": plot some of them to see others")
  before <- set_parameters(panels, ...)
  on.exit(graphics::par(before))
  for (i in seq_len(panels)) {
    begin_panel()
    draw(i)
    title_above(titles[[i]])
  }
}

# A title in the largest size, at most the usual one, at which it fits.
title_above <- function(text) {
  usual <- graphics::par("cex.main")
  wide <- graphics::strwidth(text, units = "inches", cex = usual, font = graphics::par("font.main"))
  room <- figure_width() - graphics::par("mai")[[2L]] - 0.05
  graphics::title(text, line = 0.8, adj = 0, cex.main = usual * max(0.05, min(1, room / max(wide, 0.01))))
}

# `which`: the column with the text or prompt of each row, if there is one.
panel_titles <- function(main, default, what, which) {
  known <- unique(which)
  if (!is.null(main)) return(rep_len(check_main(main), max(1L, length(known))))
  if (length(known) < 2L) return(default)
  paste0(default, ", ", if (is.factor(known)) known else paste(what, known))
}

set_margins <- function(left, bottom, right) {
  mai <- c(bottom, left, lines_high(2.5), right)
  most <- 0.6 * c(figure_height(), figure_width())
  graphics::par(mai = mai * pmin(1, rep_len(most / (mai[1:2] + mai[3:4]), 4L)))
}

figure_width <- function() graphics::par("fin")[[1L]]
figure_height <- function() graphics::par("fin")[[2L]]
lines_high <- function(n) n * graphics::par("cin")[[2L]] * graphics::par("cex")

# The width of the widest label, in inches.
text_width <- function(labels, size, family = token_family()) {
  max(graphics::strwidth(labels, units = "inches", cex = size, family = family))
}

# The largest size, at most 1, at which each label fits a box.
text_size <- function(labels, width, height) {
  max(0.1, min(1, width / text_width(labels, 1), height / lines_high(1)))
}

token_text <- function(x, y, labels, ...) graphics::text(x, y, labels, family = token_family(), xpd = NA, ...)

# A font of fixed width; postscript() has only the fonts that were declared to it.
token_family <- function() if (names(grDevices::dev.cur()) == "postscript") "" else "mono"

# A line at the lower right. room: share of the figure's width that it may have.
footer <- function(..., line = graphics::par("mar")[[1L]] - 1.2, room = 1) {
  text <- paste0(...)
  size <- 0.8 * min(1, (room * figure_width() - 0.1) / text_width(text, 0.8, ""))
  graphics::mtext(text, side = 1L, line = line, adj = 1, cex = max(0.05, size) * graphics::par("cex"), col = "grey40")
}
