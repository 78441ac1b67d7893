# Losses of training runs: printing, comparison and plots. plot.R contains the helpers.

#' Compare training runs
#'
#' Compares runs of [minhub_train()], sorted by their loss. Runs with different
#' units of the loss, such as classifiers and language models, are not comparable:
#' the rows of each unit are together.
#'
#' @param ... Runs, or folders of runs. Argument names are the names of the runs;
#'   the default is the name of the variable or of the folder.
#' @returns A data frame of class `minhub_comparison` with one row per run and the
#'   columns `run`, `family` (the architecture), `parameters`, `tokenizer`,
#'   `vocab_size`, `steps`, `best_step`, `loss` (the lowest loss on held-out data),
#'   its `unit`, `nats_per_character` (for text: the loss that is comparable between
#'   tokenizers), `tokens_per_second`, `seconds` and `folder`, and with runs on
#'   labels their `accuracy`, `f1_macro` or `r_squared`. It has a
#'   [plot()][plot.minhub_losses] method.
#' @family functions for training
#' @examplesIf minhubpy:::is_ready()
#' text <- rep("To be, or not to be, that is the question.", 50)
#' train <- function(width) {
#'   minhub_train(
#'     text,
#'     steps = 20, width = width, layers = 1, context = 16, batch = 4, evaluate_every = 5, seed = 1
#'   )
#' }
#' both <- minhub_compare(narrow = train(8), wide = train(32))
#' both
#' plot(both)
#' \dontshow{minhubpy:::end_example()}
#' @export
minhub_compare <- function(...) {
  arguments <- list(...)
  expressions <- as.list(substitute(list(...)))[-1L]
  labels <- if (is.null(names(arguments))) character(length(arguments)) else names(arguments)
  is_variable <- vapply(arguments, inherits, NA, "minhub_run") & vapply(expressions, is.name, NA) & !nzchar(labels)
  names(arguments) <- replace(labels, is_variable, vapply(expressions[is_variable], as.character, ""))
  runs <- do.call(c, lapply(arguments, function(x) {
    if (inherits(x, "minhub_run")) return(list(x))
    if (is.character(x) || is_plain_list(x)) return(as.list(x))
    fail("a run must be the result of minhub_train() or its folder, not ", describe(x))
  }))
  if (!length(runs)) fail("minhub_compare() requires at least one run: pass runs or their folders")
  results <- lapply(unname(runs), function(run) ask("read_run", out = run_folder(run)))
  folders <- vapply(results, function(about) about$folder, "")
  labels <- if (is.null(names(runs))) character(length(runs)) else names(runs)
  labels[!nzchar(labels)] <- basename(folders)[!nzchar(labels)]
  columns <- c(
    "family", "parameters", "tokenizer", "vocab_size", "steps", "best_step", COMPARED, "tokens_per_second", "seconds",
    "folder"
  )
  values <- lapply(stats::setNames(columns, columns), function(name) {
    unlist(lapply(results, function(about) about[[name]] %||% NA_real_))
  })
  measures <- unique(unlist(lapply(results, function(about) names(about$measures))))
  values[measures] <- lapply(measures, function(name) vapply(results, function(about) about$measures[[name]] %||% NA_real_, 0))
  table <- data.frame(run = make.unique(labels), values, stringsAsFactors = FALSE)
  losses <- stats::setNames(lapply(results, `[[`, "losses"), table$run)
  by <- comparable(table)
  structure(
    table[order(match(by$unit, by$unit), by$loss), ],
    class = c("minhub_comparison", "data.frame"), row.names = seq_len(nrow(table)), losses = losses
  )
}

COMPARED <- c("loss", "unit", "nats_per_character")

# The losses and units for comparisons: only runs with the same unit are comparable.
comparable <- function(x) {
  is_text <- !is.na(x$nats_per_character)
  data.frame(
    loss = ifelse(is_text, x$nats_per_character, x$loss), unit = ifelse(is_text, "nats per character", x$unit),
    stringsAsFactors = FALSE
  )
}

# Keeps the losses, so that plot() works for a subset of the rows.
#' @export
`[.minhub_comparison` <- function(x, ...) {
  subset <- NextMethod()
  if (is.data.frame(subset)) attr(subset, "losses") <- attr(x, "losses")
  subset
}

# Keeps the unit.
#' @export
`[.minhub_losses` <- function(x, ...) {
  subset <- NextMethod()
  if (is.data.frame(subset)) {
    for (name in c("unit", "has_perplexity")) attr(subset, name) <- attr(x, name)
  }
  subset
}

#' @export
print.minhub_losses <- function(x, ..., digits = 4L) {
  print(structure(x, class = "data.frame"), digits = digits, ...)
  invisible(x)
}

#' @export
print.minhub_comparison <- function(x, ..., digits = 4L) {
  shown <- structure(x, class = "data.frame", losses = NULL)
  print(shown[names(shown) != "folder"], digits = digits, ...)
  invisible(x)
}

#' Plot training losses
#'
#' Draws a run's losses: the loss on held-out data as a solid line, with a
#' point at the best model, and the loss on training data as a dotted line. A
#' training loss is the mean since the last evaluation, so it is drawn between
#' the two evaluations. For the result of [minhub_compare()], the plot has one
#' line per run; for text, in nats per character.
#'
#' The first tenth of a long run may exceed the upper limit of the plot, so that
#' the remaining losses are readable.
#'
#' @param x A run, its losses, or the result of [minhub_compare()].
#' @param against The unit of the horizontal axis: `"step"`, `"tokens"` or
#'   `"seconds"`.
#' @param main The title.
#' @param col The color, or for a comparison one color per run.
#' @param ... Graphical parameters for [graphics::par()], such as `cex` or `bg`.
#'   They apply to this plot only.
#' @returns `x`, invisibly.
#' @family plots
#' @examplesIf minhubpy:::is_ready()
#' text <- rep("To be, or not to be, that is the question.", 50)
#' run <- minhub_train(
#'   text,
#'   steps = 30, width = 16, layers = 1, context = 16, batch = 4, evaluate_every = 5, seed = 1
#' )
#' plot(run)
#' plot(run$losses, against = "seconds")
#' \dontshow{minhubpy:::end_example()}
#' @export
plot.minhub_losses <- function(x, against = c("step", "tokens", "seconds"), main = "Losses", col = "#0072B2", ...) {
  against <- choice(against, c("step", "tokens", "seconds"))
  check_plotted(x, c(against, "train_loss", "held_out_loss"), "there is no loss to plot: the run has no evaluation yet")
  main <- optional(main, check_main)
  col <- check_color(col)
  old <- begin_plot(...)
  on.exit(graphics::par(old))

  unit <- attr(x, "unit") %||% "loss"
  draw_losses(list(x), against, unit)
  draw_curves(x, against, col)
  best <- which.min(x$held_out_loss)
  name_best(x[[against]][[best]], x$held_out_loss[[best]], above = isTRUE(x$train_loss[[best]] < x$held_out_loss[[best]]))
  graphics::title(main, line = 0.8, adj = 0)
  legend_above(c("held out", "training"), col, c(1L, 3L), c(2, 1.2))
  footer(
    "lowest: ", sprintf("%.3f", x$held_out_loss[[best]]), if (unit != "loss") paste0(" ", unit),
    if (isTRUE(attr(x, "has_perplexity"))) {
      paste(", perplexity", format(signif(exp(x$held_out_loss[[best]]), 3L), big.mark = ","))
    },
    if (against == "step") paste0(", after step ", counted(x$step[[best]]))
  )
  invisible(x)
}

#' @rdname plot.minhub_losses
#' @export
plot.minhub_run <- function(x, ...) {
  plot(x$losses, ...)
  invisible(x)
}

#' @rdname plot.minhub_losses
#' @export
plot.minhub_comparison <- function(x, against = c("step", "tokens", "seconds"), main = "Losses on held-out data",
                                   col = NULL, ...) {
  against <- choice(against, c("step", "tokens", "seconds"))
  check_plotted(x, c("run", rev(COMPARED)), "there is no run to plot: select at least one row")
  losses <- attr(x, "losses")[x$run]
  if (is.null(losses) || !all(lengths(losses))) fail("the data frame has lost the losses of its runs: plot the result of minhub_compare() or some of its rows")
  by <- comparable(x)
  if (length(unique(by$unit)) > 1L) {
    fail("the losses of these runs have different units (", toString(unique(by$unit)), "): plot rows of one unit")
  }
  scaled <- Map(function(rows, scale) {
    rows[c("train_loss", "held_out_loss")] <- rows[c("train_loss", "held_out_loss")] * scale
    rows
  }, losses, ifelse(x$loss == 0, 1, by$loss / x$loss))
  main <- optional(main, check_main)
  colours <- rep_len(optional(col, check_color) %||% MANY, nrow(x))
  # Different dashes, symbols and symbol positions keep equal curves visible.
  dashes <- rep_len(c("solid", "44", "1343", "73", "2262"), nrow(x))
  signs <- if (nrow(x) > 1L) rep_len(c(16L, 15L, 17L, 18L), nrow(x)) else NA
  old <- begin_plot(...)
  on.exit(graphics::par(old))

  draw_losses(scaled, against, by$unit[[1L]])
  for (i in seq_along(scaled)) {
    rows <- scaled[[i]]
    graphics::lines(rows[[against]], rows$held_out_loss, col = colours[[i]], lwd = 2, lty = dashes[[i]])
    interval <- max(1L, nrow(rows) %/% 12L)
    marked <- seq_len(nrow(rows)) %% (interval * nrow(x)) == ((i - 1L) * interval + 1L) %% (interval * nrow(x))
    graphics::points(rows[[against]][marked], rows$held_out_loss[marked], col = colours[[i]], pch = signs[[min(i, length(signs))]])
    best <- which.min(rows$held_out_loss)
    size <- min(3, 1.2 + 0.5 * (nrow(x) - i)) # rings at the same point are concentric
    graphics::points(rows[[against]][[best]], rows$held_out_loss[[best]], col = colours[[i]], lwd = 2, cex = size)
  }
  graphics::legend("topright", paste0(x$run, sprintf("  %.3f", by$loss)), col = colours, lty = dashes,
    pch = signs, lwd = 2, bty = "n", cex = 0.8 * graphics::par("cex"), seg.len = 1.5, xpd = NA
  )
  title_above(main)
  footer("rings: the best model of each run")
  invisible(x)
}

MANY <- c("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666") # Okabe and Ito's

# The vertical axis omits the first losses of a long run.
draw_losses <- function(runs, against, unit) {
  set_margins(left = lines_high(3.8), bottom = lines_high(4.2), right = 0.2)
  high <- max(vapply(runs, function(x) max(x$held_out_loss[seq_len(nrow(x)) > nrow(x) %/% 10L], min(x$held_out_loss)), 0))
  low <- min(unlist(lapply(runs, function(x) c(x$held_out_loss, x$train_loss))), na.rm = TRUE)
  room <- max(high - low, 0.05)
  across <- unlist(lapply(runs, `[[`, against))
  graphics::plot.window(range(across), c(low - 0.12 * room, high + 0.06 * room), yaxs = "i")
  ticks <- pretty(graphics::par("usr")[3:4], 5L)
  graphics::abline(h = ticks, col = "grey88")
  graphics::axis(2L, ticks, las = 1L, lwd = 0, mgp = c(2, 0.3, 0))
  graphics::title(ylab = unit, line = 2.5)
  ticks <- pretty(across, 5L)
  if (against != "seconds") ticks <- ticks[ticks == floor(ticks)]
  marks <- format(ticks, big.mark = ",", scientific = FALSE, trim = TRUE)
  graphics::axis(1L, ticks, marks, lwd = 0, lwd.ticks = 1, mgp = c(2, 0.5, 0))
  graphics::title(xlab = against, line = 1.7)
}

# The midpoints between evaluations. The interval before the first row is assumed to equal the interval after it.
middles <- function(x) {
  gaps <- diff(x)
  x - c(if (length(gaps)) gaps[[1L]] else 0, gaps) / 2
}

draw_curves <- function(x, against, col) {
  graphics::lines(middles(x[[against]]), x$train_loss, col = col, lwd = 1.2, lty = 3L)
  graphics::lines(x[[against]], x$held_out_loss, col = col, lwd = 2)
  best <- which.min(x$held_out_loss)
  graphics::points(x[[against]][[best]], x$held_out_loss[[best]], col = col, pch = 16L, cex = 1.2)
}

# Draws the label of the best loss within the plot, on the side of the point that the other curve leaves free.
name_best <- function(x, y, above) {
  usr <- graphics::par("usr")
  aside <- (x - usr[[1L]]) / (usr[[2L]] - usr[[1L]])
  away <- graphics::yinch(lines_high(0.5))
  graphics::text(x, if (above) y + away else y - away, sprintf("%.3f", y), adj = c(aside, if (above) 0 else 1), cex = 0.8)
}
