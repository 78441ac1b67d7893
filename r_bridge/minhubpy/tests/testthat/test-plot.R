# Plots of synthetic values, verified in the PDF file.

likely <- function(token, prob) {
  structure(
    data.frame(token = token, id = seq_along(token) - 1L, prob = prob, logprob = log(prob)),
    class = c("minhub_next_tokens", "data.frame")
  )
}

scored <- function(token, bits, text = 1L) {
  position <- ave(seq_along(token), rep_len(text, length(token)), FUN = seq_along) + 1L
  structure(
    data.frame(text = text, position = position, token = token, id = seq_along(token), logprob = -bits * log(2)),
    class = c("minhub_token_logprobs", "data.frame")
  )
}

measured <- function(held_out, train = held_out + 0.1, every = 10L) {
  step <- (seq_along(held_out) - 1L) * every
  structure(
    data.frame(
      step = step, tokens = step * 100, train_loss = replace(train, 1L, NA), held_out_loss = held_out, learning_rate = 0.1,
      gradient_norm = 1, tokens_per_second = 1e4, seconds = step / 7
    ),
    class = c("minhub_losses", "data.frame"), unit = "nats per token", has_perplexity = TRUE
  )
}

compared <- function(...) {
  losses <- list(...)
  best <- vapply(losses, function(rows) min(rows$held_out_loss), 0)
  structure(
    data.frame(run = names(losses), loss = best, unit = "nats per token", nats_per_character = best / 2),
    class = c("minhub_comparison", "data.frame"), losses = losses
  )
}

odd <- c(" the", "\n", "\"", "\u00a0x", "\ufffd", "\u65e5\u672c", "\U1F600", "", NA, "\t", strrep("-", 80), "\\", "\u200b")

# The call of the error is the method.
refused <- function(object, message) expect_error(object, message, fixed = TRUE, class = "minhubpy_error")

# x, y, width and height of a color's boxes.
boxes <- function(lines, colour) {
  operator <- paste(c(sprintf("%.3f", grDevices::col2rgb(colour) / 255), "scn"), collapse = " ")
  colours <- grepl(" scn$", lines)
  mine <- c("", lines[colours])[cumsum(colours) + 1L] == operator
  found <- grep("^[-0-9. ]+ re$", lines[mine], value = TRUE)
  matrix(abs(as.numeric(unlist(strsplit(sub(" re$", "", found), " ")))), ncol = 4L, byrow = TRUE)
}

test_that("bars of next tokens show their probabilities, in order and with values", {
  lines <- drawn(plot(likely(c(" the", "\n", "a"), c(0.5, 0.25, 0.0005))))
  expect_identical(
    strings(lines),
    c("\u00b7the", "\\n", "a", "50.0%", "25.0%", "<0.1%", "all other tokens: 25.0%", "Most likely next tokens")
  )
  bars <- boxes(lines, "#0072B2")
  expect_equal(bars[, 3L] / bars[1L, 3L], c(1, 0.5, 0.001), tolerance = 1e-2)
  expect_true(all(diff(bars[, 2L]) < 0)) # the most likely token is at the top
})

test_that("one bar per token shows its surprisal", {
  lines <- drawn(plot(scored(c("o", " ", "b", "e"), c(1, 2, 4, 0))))
  shown <- strings(lines)
  expect_identical(shown[seq(to = length(shown) - 2L, length.out = 4L)], c("o", "\u00b7", "b", "e"))
  expect_identical(utils::tail(shown, 2L), c("dashed: mean 1.75 bits, perplexity 3.36", "Surprisal of each token"))
  expect_equal(boxes(lines, "#0072B2")[, 4L], c(1, 2, 4, 0) * boxes(lines, "#0072B2")[1L, 4L], tolerance = 1e-2)
})

test_that("the text plot contains all tokens from the opening on", {
  text <- scored(c("be", " or", "\n", "not"), c(0, 5, 10, 40))
  words <- function(x) utils::head(strings(drawn(plot(x, type = "text"))), 5L)
  expect_identical(words(text), c("...", "be", " or", "\\n", "not"))
  attr(text, "texts") <- "To be or\nnot"
  text$token[[1L]] <- " be"
  expect_identical(words(text), c("To", " be", " or", "\\n", "not"))
  darkest <- boxes(drawn(plot(text, type = "text", col = "#000000")), "#000000")
  expect_gte(nrow(darkest), 2L) # 10 bits and more
})

test_that("tokens of a text do not overlap, and words are not broken", {
  tokens <- c("To", " be", ",", " or", " not", "\n", "su", "per", "mar", "ket", "\n\n", " x", "y")
  place <- minhubpy:::flow(nchar(tokens), minhubpy:::opens_word(tokens), minhubpy:::lines_ended(tokens), 8L)
  expect_identical(place$row, c(1L, 1L, 1L, 2L, 2L, 2L, 3L, 3L, 3L, 4L, 4L, 6L, 6L))
  expect_identical(place$column, c(0L, 2L, 5L, 0L, 3L, 7L, 0L, 2L, 5L, 0L, 3L, 0L, 2L))
})

test_that("the default type depends on the length", {
  kind <- function(n, ...) {
    shown <- strings(drawn(plot(scored(rep("a", n), rep(1, n)), ...)))
    if ("position" %in% shown) "line" else if ("bits" %in% shown) "bars" else "text"
  }
  expect_identical(vapply(c(1L, 60L, 61L, 2000L, 2001L), kind, ""), c("bars", "bars", "text", "text", "line"))
  expect_identical(kind(100L, most = 20), "bars")
  expect_identical(kind(1L, type = "line"), "line")
  expect_identical(kind(3000L, type = "text"), "text")
})

test_that("each text has a panel with the same scale, and texts can be selected", {
  titles <- function(lines) grep("^Surprisal|^Mine|^Yours", strings(lines), value = TRUE)
  both <- scored(c("a", "b", "c"), c(1, 2, 8), text = c(1L, 1L, 4L))
  lines <- drawn(plot(both))
  expect_identical(titles(lines), paste0("Surprisal of each token, text ", c(1, 4)))
  bars <- boxes(lines, "#0072B2")
  expect_equal(bars[, 4L] / bars[1L, 4L], c(1, 2, 8), tolerance = 1e-2)
  last <- utils::tail(strings(drawn(plot(both, text = 4))), 2L)
  expect_identical(last, c("dashed: mean 8.00 bits, perplexity 256", "Surprisal of each token, text 4"))
  expect_identical(titles(drawn(plot(both, main = c("Mine", "Yours")))), c("Mine", "Yours"))
  refused(plot(both, text = 2), "text 2 has no scored token: select from 1, 4")
  refused(plot(both, text = NA), "text must be numbers or names of texts, not NA")

  named <- both
  named$text <- factor(both$text, c(1L, 2L, 4L), c("verse", "none", "prose"))
  attr(named, "texts") <- c("xab", "", "To c")
  expect_identical(titles(drawn(plot(named))), paste0("Surprisal of each token, ", c("verse", "prose")))
  for (one in list("prose", 3)) {
    lines <- drawn(plot(named, text = one, type = "text"))
    expect_identical(titles(lines), "Surprisal of each token, prose")
    expect_identical(strings(lines)[1:2], c("To ", "c"))
  }
  refused(plot(named, text = "none"), "text none has no scored token: select from verse, prose")

  prompts <- likely(c("a", "b", "c"), c(0.5, 0.3, 0.1))
  prompts$prompt <- c(1L, 1L, 2L)
  shown <- strings(drawn(plot(prompts)))
  expect_identical(grep("^Most likely", shown, value = TRUE), paste0("Most likely next tokens, prompt ", 1:2))
})

test_that("panels share a page and restore the graphical parameters", {
  grDevices::pdf(NULL)
  on.exit(grDevices::dev.off())
  graphics::par(cex = 0.9)
  graphics::par(mar = graphics::par("mar")) # the unit of margins
  before <- graphics::par(no.readonly = TRUE)
  kept <- setdiff(names(before), c("fig", "fin", "mfg", "pin", "plt", "usr", "xaxp", "yaxp"))
  many <- scored(rep("a", 40L), rep(1, 40L), text = rep(1:20, 2L))
  old <- options(minhubpy.quiet = FALSE)
  on.exit(options(old), add = TRUE)
  expect_message(plot(many), "Showing the first 12 of 20")
  expect_identical(graphics::par(no.readonly = TRUE)[kept], before[kept])
  # A page that the user has divided is unchanged.
  graphics::par(mfrow = c(2L, 2L))
  plot(scored(c("a", "b"), 1:2, text = 1:2))
  expect_identical(graphics::par("mfrow"), c(2L, 2L))
  expect_identical(graphics::par("mfg")[1:2], c(1L, 2L))
})

test_that("the footer states omitted tokens", {
  long <- scored(rep("word ", 1500L), rep(1, 1500L))
  footer <- grep("perplexity", strings(drawn(plot(long), width = 3, height = 2)), value = TRUE)
  expect_match(footer, "\\(the first [0-9]+ of 1,500 tokens\\)$")
  expect_match(strings(drawn(plot(long, most = 10))), "(the first 10 of 1,500 tokens)", fixed = TRUE, all = FALSE)
})

test_that("invisible tokens are escaped", {
  skip_if_not(l10n_info()[["UTF-8"]], "this locale has few characters")
  frame <- data.frame(token = odd, id = seq_along(odd))
  expect_identical(
    minhubpy:::readable(frame)[-11L],
    c("\u00b7the", "\\n", "\"", "<U+00A0>x", "\ufffd", "\u65e5\u672c", "\U1F600", "\"\"", "#9", "\\t", "\\\\", "<U+200B>")
  )
  expect_identical(minhubpy:::shorten(strrep("-", 80), 10L), "-------...")
})

# A color's lines: x and y of their points.
curves <- function(lines, colour) {
  operator <- paste(c(sprintf("%.3f", grDevices::col2rgb(colour) / 255), "SCN"), collapse = " ")
  colours <- grepl(" SCN$", lines)
  mine <- lines[c("", lines[colours])[cumsum(colours) + 1L] == operator]
  points <- grepl("^[-0-9.]+ [-0-9.]+ [ml]$", mine)
  numbers <- strsplit(sub(" [ml]$", "", mine[points]), " ")
  path <- cumsum(grepl("m$", mine[points]))
  unname(split(as.data.frame(matrix(as.numeric(unlist(numbers)), ncol = 2L, byrow = TRUE)), path))
}

test_that("losses are lines, with the best loss labeled on the free side", {
  losses <- measured(c(4, 3, 2, 1.5, 1.75), c(4, 3.5, 2.5, 1.6, 1.4))
  lines <- drawn(plot(losses))
  shown <- strings(lines)
  expect_true(all(c("Losses", "step", "nats per token", "held out", "training", "1.500") %in% shown))
  expect_identical(utils::tail(shown, 1L), "lowest: 1.500 nats per token, perplexity 4.48, after step 30")
  both <- Filter(function(points) nrow(points) > 2L, curves(lines, "#0072B2"))
  expect_length(both, 2L)
  expect_identical(vapply(both, nrow, 0L), c(4L, 5L)) # the first evaluation has no training loss
  held_out <- both[[2L]]
  # A training loss is the mean between two evaluations.
  expect_equal(both[[1L]]$V1, held_out$V1[-1L] - diff(held_out$V1) / 2, tolerance = 1e-3)
  expect_equal(diff(held_out$V1), rep(diff(held_out$V1)[[1L]], 4L), tolerance = 1e-2)
  expect_equal(diff(held_out$V2) / diff(held_out$V2)[[1L]], c(1, 1, 0.5, -0.25), tolerance = 1e-2)
  number_at <- function(lines) as.numeric(strsplit(grep("(1.500) Tj", lines, fixed = TRUE, value = TRUE), " ")[[1L]][[9L]])
  expect_lt(number_at(lines), held_out$V2[[4L]])
  below <- drawn(plot(measured(losses$held_out_loss, losses$held_out_loss - 0.1)))
  expect_gt(number_at(below), curves(below, "#0072B2")[[2L]]$V2[[4L]])
  expect_match(strings(drawn(plot(losses, against = "seconds"))), "^seconds$", all = FALSE)
  expect_match(strings(drawn(plot(losses, against = "tokens", main = "Mine"))), "^4,000$", all = FALSE)
  refused(plot(losses, against = "time"), 'against must be one of "step", "tokens", "seconds", not "time"')
  nothing <- losses[0L, ]
  refused(plot(nothing), "there is no loss to plot: the run has no evaluation yet")
  lacking <- losses[c("step", "train_loss")]
  refused(plot(lacking), "plot() requires the column held_out_loss")
})

test_that("losses have their own unit, also those of selected rows", {
  losses <- structure(measured(c(4, 3, 2)), unit = "mean squared error", has_perplexity = FALSE)
  for (x in list(losses, losses[1:3, ], subset(losses, step >= 0))) {
    shown <- strings(drawn(plot(x)))
    expect_true("mean squared error" %in% shown)
    expect_identical(utils::tail(shown, 1L), "lowest: 2.000 mean squared error, after step 20")
  }
  attr(losses, "unit") <- NULL
  shown <- strings(drawn(plot(losses)))
  expect_identical(utils::tail(shown, 1L), "lowest: 2.000, after step 20")
})

test_that("the first losses of a long run do not determine the scale", {
  long <- measured(c(9, seq(3, 1, length.out = 29)))
  marks <- strings(drawn(plot(long)))
  expect_false("8" %in% marks)
  expect_true("2.5" %in% marks)
  expect_true("8" %in% strings(drawn(plot(long[1:9, ]))))
})

test_that("each run has a line and a color, in nats per character", {
  runs <- compared(one = measured(c(4, 2, 1)), two = measured(c(4, 3, 2), every = 20L))
  runs$nats_per_character <- c(0.5, 2) # a token of the first run has two characters
  lines <- drawn(plot(runs))
  shown <- strings(lines)
  expect_true(all(c("nats per character", "one  0.500", "two  2.000") %in% shown))
  path <- function(colour) Filter(function(points) nrow(points) == 3L, curves(lines, colour))[[1L]]
  one <- path("#0072B2")
  two <- path("#D55E00")
  expect_equal(one$V2[[1L]], two$V2[[3L]], tolerance = 1e-2)
  expect_equal(diff(two$V2), rep(diff(one$V2)[[1L]], 2L), tolerance = 1e-2)
  expect_equal(diff(two$V1), 2 * diff(one$V1), tolerance = 1e-2)
  for (some in list(runs[2L, ], subset(runs, run == "two", c("run", "loss", "unit", "nats_per_character")))) {
    shown <- strings(drawn(plot(some)))
    expect_true("two  2.000" %in% shown)
    expect_false("one  0.500" %in% shown)
  }
  examples <- runs
  examples$unit <- c("nats per label", "mean squared error")
  examples$nats_per_character <- NA_real_
  refused(plot(examples), "the losses of these runs have different units (nats per label, mean squared error): plot rows of one unit")
  shown <- strings(drawn(plot(examples[2L, ])))
  expect_true(all(c("mean squared error", "two  2.000") %in% shown))
  lost <- runs
  attr(lost, "losses") <- NULL
  refused(plot(lost), "the data frame has lost the losses of its runs: plot the result of minhub_compare()")
})

test_that("runs with equal losses are visible by dashes, symbols and rings", {
  same <- measured(seq(3, 1, length.out = 25))
  lines <- drawn(plot(compared(one = same, two = same)))
  dashes <- grep("^\\[.*\\] 0 d$", lines, value = TRUE)
  expect_gte(length(unique(dashes)), 2L)
  # Symbols of a color: circles are curves, and squares are lines.
  section <- cumsum(grepl(" (scn|SCN)$", lines))
  signs <- function(colour, path) {
    begins <- grep(paste(c(sprintf("%.3f", grDevices::col2rgb(colour) / 255), "scn"), collapse = " "), lines, fixed = TRUE)
    sum(grepl(path, lines[section %in% section[begins]]))
  }
  expect_gt(signs("#0072B2", " c$"), 5L)
  expect_gt(signs("#D55E00", "h f$"), 5L)
})

attention_of <- function(layers, heads, tokens) {
  n <- length(tokens)
  weights <- array(0, c(layers, heads, n, n), list(layer = seq_len(layers), head = seq_len(heads), token = tokens, attended_to = tokens))
  for (layer in seq_len(layers)) for (head in seq_len(heads)) weights[layer, head, , ] <- diag(n)
  structure(weights, ids = seq_len(n), class = "minhub_attention")
}

test_that("panels of a layer or a head have titles, tokens and axis labels", {
  tokens <- c("The", " cat", " sat")
  x <- attention_of(30L, 9L, tokens)
  layer <- strings(drawn(plot(x, layer = 3)))
  expect_true(all(paste("head", 1:9) %in% layer))
  expect_gte(sum(layer == "The"), 4L)
  expect_true("rows: queries; columns: keys (attended to)" %in% layer)
  head <- strings(drawn(plot(x, head = 3), width = 9, height = 9))
  expect_true(all(paste("layer", 1:30) %in% head))
  one <- strings(drawn(plot(x, layer = 3, head = 3)))
  expect_identical(sum(one == "The"), 2L)
})

test_that("too many heads for the device are shown as the mean of each layer", {
  x <- attention_of(30L, 9L, c("a", "b"))
  x[1L, , , ] <- 0
  x[1L, 1L, 2L, 1L] <- 0.9 # a mean of 0.1
  shown <- drawn(plot(x))
  expect_true(all(c("Attention, mean of the 9 heads of each layer", paste("layer", 1:30)) %in% strings(shown)))
  few <- strings(drawn(plot(attention_of(4L, 4L, c("a", "b")))))
  expect_true(all(c("Attention", "head 1", "layer 1", "4") %in% few))
})

test_that("the plot of a reply fits devices of any width", {
  token <- c("Good", " unquestionably", "\n", "extraordinarily")
  reply <- structure(list(
    tokens = data.frame(token = token, id = 1:4, prob = c(0.9, 0.5, 0.1, 1)),
    top = data.frame(position = rep(1:4, each = 3L), token = " incomprehensible", id = 11:22, prob = 0.01)
  ), class = "minhub_reply")
  for (width in c(3, 5, 7, 14)) {
    lines <- drawn(plot(reply), width = width)
    text <- grep(" Tf .* Tm \\(", lines, value = TRUE)
    fields <- strsplit(text, " ")
    mono <- vapply(fields, `[[`, "", 1L) == fields[[1L]][[1L]] # the first text is a token
    ends <- vapply(fields, function(f) as.numeric(f[[8L]]) + 0.6 * as.numeric(f[[4L]]) * nchar(sub(".*Tm \\((.*)\\) Tj", "\\1", paste(f, collapse = " "))), 0)
    expect_lte(max(ends[mono]), 72 * width)
    alternatives <- grep("incompre", strings(lines), value = TRUE)
    expect_length(alternatives, 4L)
    expect_identical(lengths(regmatches(alternatives, gregexpr("1.0%", alternatives, fixed = TRUE)))[[1L]] == 3L, width > 10)
  }
})

test_that("all plots work on any device and size without warnings, and restore the parameters", {
  likely_odd <- likely(odd, 2^-seq_along(odd))
  scored_odd <- scored(odd, seq_along(odd))
  many <- scored(rep(c("lo", "ng "), 1500L), rep(1:3, 1000L))
  devices <- list(
    function(path) grDevices::pdf(path),
    function(path) grDevices::pdf(path, width = 0.4, height = 0.3),
    function(path) grDevices::postscript(path),
    function(path) grDevices::svg(path),
    function(path) grDevices::png(path, 60, 60),
    function(path) grDevices::png(path, 3000, 200)
  )
  for (open in devices) {
    path <- tempfile()
    open(path)
    before <- graphics::par(no.readonly = TRUE)
    kept <- setdiff(names(before), c("fig", "fin", "mfg", "pin", "plt", "usr", "xaxp", "yaxp"))
    expect_silent({
      plot(likely_odd)
      plot(likely_odd[1L, ])
      for (type in c("bars", "text", "line")) plot(scored_odd, type = type)
      plot(scored_odd[1L, ], type = "line")
      plot(measured(seq(3, 1, length.out = 50)))
      plot(measured(3))
      plot(measured(c(2, 2)), against = "seconds", cex = 0.7)
      plot(compared(one = measured(4:1), odd = measured(7)))
      for (layer in list(NULL, 2)) for (head in list(NULL, 1)) plot(attention_of(30L, 3L, odd[1:6]), layer = layer, head = head)
      plot(many)
      plot(many, type = "text", cex = 0.7, bg = "grey95")
    })
    expect_identical(graphics::par(no.readonly = TRUE)[kept], before[kept])
    grDevices::dev.off()
    expect_gt(file.size(path), 200)
    unlink(path)
  }
})

test_that("plot() returns its input and respects a divided page", {
  grDevices::pdf(NULL)
  on.exit(grDevices::dev.off())
  graphics::par(mfrow = c(2L, 2L))
  likely_one <- likely("a", 1)
  expect_identical(withVisible(plot(likely_one)), list(value = likely_one, visible = FALSE))
  expect_identical(graphics::par("mfg")[1:2], c(1L, 1L))
  scored_one <- scored("a", 1)
  expect_identical(withVisible(plot(scored_one)), list(value = scored_one, visible = FALSE))
  expect_identical(graphics::par("mfg")[1:2], c(1L, 2L))
})

test_that("invalid data are an error before anything is drawn", {
  grDevices::pdf(NULL)
  on.exit(grDevices::dev.off())
  some <- scored(c("a", "b"), 1:2)
  three <- likely(c("a", "b", "c"), c(0.5, 0.3, 0.1))
  lacking <- some[c("token", "logprob")]
  nothing <- some[0L, ]
  unknown <- within(some, logprob[1L] <- NA)
  class(unknown) <- class(some)
  refused(plot(lacking), "plot() requires the column text")
  refused(plot(nothing), "there is no token to plot")
  refused(plot(unknown), "the column logprob must contain finite numbers")
  refused(plot(some, type = "pie"), 'type must be one of "auto"')
  refused(plot(some, type = c("bars", "line")), "type must be one of")
  refused(plot(some, most = 0), "most must be at least 1")
  refused(plot(some, text = "a"), "text a has no scored token")
  refused(plot(three, most = NA), "most must be one number")
  refused(plot(three, most = 1.5), "most must be a whole number")
  graphics::par(ask = FALSE)
  expect_error(graphics::abline(h = 1), "plot.new has not been called yet")
})
