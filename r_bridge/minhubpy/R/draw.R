# Shared functions of the plots: panels, margins, heat maps, intervals, and the display of tokens.

# Base graphics in inches. Margins are set after plot.new(), because the width of text is not available before.

# Returns the previous par().
begin_plot <- function(...) {
  old <- set_parameters(1L, ...)
  begin_panel()
  old
}

# Divides the page into panels, unless the user has divided it.
set_parameters <- function(panels, ...) {
  of_page <- graphics::par("mfrow", "cex")
  old <- graphics::par(mar = graphics::par("mar"), ...)
  old <- rev(old) # cex is the unit of mar, so that it must be restored first
  if (panels == 1L || any(of_page$mfrow != 1L)) return(old)
  graphics::par(mfrow = grDevices::n2mfrow(panels)) # this sets cex
  graphics::par(cex = list(...)$cex %||% graphics::par("cex"))
  c(of_page, old)
}

begin_panel <- function() {
  graphics::par(mar = c(0, 0, 0, 0)) # plot.new() fails if the margins exceed the figure
  graphics::plot.new()
}

# Draws one panel per title. draw(i) draws panel i.
draw_panels <- function(titles, draw, ...) {
  titles <- check_main(titles)
  panels <- min(length(titles), MANY_PANELS)
  if (panels < length(titles)) note("Showing the first ", panels, " of ", length(titles), " panels: select rows to plot others")
  old <- set_parameters(panels, ...)
  on.exit(graphics::par(old))
  for (i in seq_len(panels)) {
    begin_panel()
    draw(i)
    title_above(titles[[i]])
  }
}

# Reduces the size of a title that is too wide.
title_above <- function(text) {
  usual <- graphics::par("cex.main")
  wide <- graphics::strwidth(text, units = "inches", cex = usual, font = graphics::par("font.main"))
  room <- figure_width() - graphics::par("mai")[[2L]] - 0.05
  graphics::title(text, line = 0.8, adj = 0, cex.main = usual * max(0.05, min(1, room / max(wide, 0.01))))
}

# `which`: the column with the text or prompt of each row, or NULL.
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

# The maximum width of labels, in inches.
text_width <- function(labels, size, family = token_family()) {
  max(graphics::strwidth(labels, units = "inches", cex = size, family = family))
}

# The largest size, at most 1, at which all labels fit a box.
text_size <- function(labels, width, height) {
  max(0.1, min(1, width / text_width(labels, 1), height / lines_high(1)))
}

token_text <- function(x, y, labels, ...) graphics::text(x, y, labels, family = token_family(), xpd = NA, ...)

# A font with a fixed width. postscript() supports declared fonts only.
token_family <- function() if (names(grDevices::dev.cur()) == "postscript") "" else "mono"

# A line at the lower right. `room`: the maximum share of the figure's width.
footer <- function(..., line = graphics::par("mar")[[1L]] - 1.2, room = 1) {
  text <- paste0(...)
  size <- 0.8 * min(1, (room * figure_width() - 0.1) / text_width(text, 0.8, ""))
  graphics::mtext(text, side = 1L, line = line, adj = 1, cex = max(0.05, size) * graphics::par("cex"), col = "grey40")
}

# The vertical axis, with horizontal grid lines.
axis_across <- function(ylab) {
  ticks <- pretty(graphics::par("usr")[3:4], 5L)
  graphics::abline(h = ticks, col = "grey88")
  graphics::axis(2L, ticks, las = 1L, lwd = 0, mgp = c(2, 0.3, 0))
  graphics::title(ylab = ylab, line = 2.1)
}

# Labels below a plot

# The size of labels of one or two lines in columns of this width, in inches: horizontal if they fit, otherwise vertical.
fit_below <- function(labels, wide) {
  lines <- if (any(grepl("\n", labels, fixed = TRUE))) 2L else 1L
  size <- text_size(labels, wide * 0.9, lines_high(1))
  horizontal <- size >= 0.6
  if (!horizontal) size <- text_size(labels, figure_height() * 0.4, wide / lines)
  list(size = size, horizontal = horizontal, height = if (horizontal) lines_high(lines) else text_width(labels, size))
}

labels_below <- function(x, labels, fit, family = token_family(), ...) {
  graphics::text(
    x, graphics::par("usr")[[3L]] - graphics::yinch(0.06), labels,
    adj = if (fit$horizontal) c(0.5, 1) else c(1, 0.5), srt = if (fit$horizontal) 0 else 90, cex = fit$size,
    family = family, xpd = NA, ...
  )
}

# Heat maps

shades <- function(col) {
  grDevices::colorRampPalette(c("white", if (is.null(col)) VERMILLION else col), space = "Lab")(101L)
}

# cells: a data frame with the `column`, the `row` (from the bottom) and the `color` of each cell. rows, columns: labels.
draw_cells <- function(cells, rows, columns, xlab = NULL, ylab = NULL, ...) {
  beside <- text_width(rows, 1, "") + 0.2 + if (is.null(ylab)) 0 else lines_high(1.1)
  fit <- fit_below(columns, (figure_width() - beside - 0.2) / length(columns))
  set_margins(left = beside, bottom = fit$height + lines_high(if (is.null(xlab)) 3 else 4.2), right = 0.2)
  graphics::plot.window(c(0, length(columns)), c(0, length(rows)), xaxs = "i", yaxs = "i")
  graphics::rect(cells$column - 1, cells$row - 1, cells$column, cells$row, col = cells$color, border = "white", lwd = 0.7)
  graphics::rect(0, 0, length(columns), length(rows), border = "grey80", lwd = 0.7, xpd = NA)
  size <- min(1, graphics::par("pin")[[2L]] / length(rows) / lines_high(1))
  graphics::text(-graphics::xinch(0.08), seq_along(rows) - 0.5, rows, adj = c(1, 0.5), cex = size, xpd = NA)
  labels_below(seq_along(columns) - 0.5, columns, fit, ...)
  size <- 0.9 * graphics::par("cex")
  if (!is.null(xlab)) graphics::mtext(xlab, side = 1L, line = fit$height / lines_high(1) + 0.4, cex = size)
  if (!is.null(ylab)) graphics::mtext(ylab, side = 2L, line = graphics::par("mar")[[2L]] - 1.1, cex = size)
}

# A color scale at the left, `up` lines above the lower edge. share, most: its maximum width, as a share of the plot's
# width and in lines.
legend_of_colors <- function(shade, labels, up = 1.9, share = 0.2, most = 10) {
  area <- graphics::par("usr")
  wide <- min(graphics::par("pin")[[1L]] * share, lines_high(most)) / length(shade)
  left <- area[[1L]] + graphics::xinch(wide) * (seq_along(shade) - 1)
  height <- function(lines) area[[3L]] - graphics::yinch(graphics::par("mai")[[1L]] - lines_high(lines))
  graphics::rect(left, height(up - 0.5), left + graphics::xinch(wide), height(up), col = shade, border = NA, xpd = NA)
  ticks <- left[round(seq(1, length(shade), length.out = length(labels)))]
  graphics::text(ticks, height(up - 1.1), labels, adj = c(0.4, 0.5), cex = 0.7, xpd = NA)
}

# Estimates with intervals

# series: data frames with the columns estimate, lower and upper, and one row per label. col: for each series a color, or
# one color per row. reference: a dashed line's position.
draw_intervals <- function(labels, series, col, limits, reference) {
  n <- length(labels)
  set_margins(left = text_width(labels, 1, "") + 0.25, bottom = lines_high(3.6), right = 0.3)
  graphics::plot.window(limits, c(n + 0.5, 0.5), yaxs = "i")
  ticks <- pretty(limits)
  ticks <- ticks[ticks >= graphics::par("usr")[[1L]] & ticks <= graphics::par("usr")[[2L]]]
  graphics::abline(v = ticks, col = "grey88")
  graphics::abline(v = reference, col = "grey50", lty = 2L)
  graphics::axis(1L, ticks, lwd = 0, mgp = c(2, 0.3, 0))
  for (i in seq_along(series)) {
    y <- seq_len(n) + (i - (length(series) + 1) / 2) * 0.25
    graphics::segments(series[[i]]$lower, y, series[[i]]$upper, y, col = col[[i]], lwd = 2.5)
    graphics::points(series[[i]]$estimate, y, pch = 16L, cex = 1.2, col = col[[i]])
  }
  graphics::text(graphics::par("usr")[[1L]] - graphics::xinch(0.08), seq_len(n), labels, adj = c(1, 0.5), xpd = NA)
}

# Draws the legend next to the title, where it hides no curve.
legend_above <- function(labels, col, lty, lwd) {
  usr <- graphics::par("usr")
  col <- rep_len(col, length(labels))
  y <- usr[[4L]] + graphics::yinch(lines_high(1.15))
  right <- usr[[2L]]
  for (i in rev(seq_along(labels))) {
    left <- right - graphics::strwidth(labels[[i]], cex = 0.8)
    graphics::text(right, y, labels[[i]], adj = c(1, 0.5), cex = 0.8, xpd = NA)
    ends <- left - graphics::xinch(lines_high(c(1.8, 0.3)))
    graphics::segments(ends[[1L]], y, ends[[2L]], y, col = col[[i]], lty = lty[[i]], lwd = lwd[[i]], xpd = NA)
    right <- ends[[1L]] - graphics::xinch(lines_high(0.9))
  }
}

# Display of tokens

# A token outside its text, with visible white space.
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

# A token in its text. Escapes invisible characters except spaces.
written <- function(tokens) {
  shown <- encodeString(tokens$token)
  shapeless <- grepl("[\\p{Cf}\\p{Co}\\p{Zl}\\p{Zp}]|(?! )\\p{Zs}", shown, perl = TRUE)
  shown[shapeless] <- iconv(shown[shapeless], "UTF-8", "ASCII", sub = "Unicode")
  # These devices support one encoding and warn about other characters.
  western <- names(grDevices::dev.cur()) %in% c("pdf", "postscript", "xfig")
  if (western) shown <- iconv(shown, "UTF-8", "latin1", sub = "Unicode")
  ifelse(is.na(tokens$token), paste0("#", tokens$id), shown)
}

percent <- function(p) {
  ifelse(p < 0.001, "<0.1%", ifelse(p > 0.999, ">99.9%", sprintf("%.1f%%", 100 * p)))
}

grouped <- function(n) format(n, big.mark = ",")
