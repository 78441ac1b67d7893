#' Change the values within a model
#'
#' Returns a model that changes the values at named points during its
#' computation. [generate()], [token_logprobs()], [word_logprobs()],
#' [activations()] and the other functions accept it as a model. The original
#' model does not change. Further calls of `intervene()` add interventions.
#'
#' The result shares the weights of `model`. It is computed in PyTorch, without
#' the faster C decoder, and cannot be trained, moved or saved.
#'
#' @inheritParams activations
#' @param at The names of points, see [activations()].
#' @param how What happens to the value x at these points:
#'   * `"zero"`: it becomes 0 (ablation);
#'   * `"mean"`: it becomes the mean of the rows of `value`;
#'   * `"replace"`: it becomes `value` (activation patching);
#'   * `"add"`: `scale` times `value` is added (steering);
#'   * `"project_out"`: its component in the direction of `value` is removed.
#' @param value The result of [activations()] or [steering_direction()], a numeric
#'   vector with a number for each channel, or a matrix with a row for each of
#'   `positions`.
#' @param scale The factor of `"add"`.
#' @param positions The positions to change, from 1. By default, all, or for a
#'   matrix the first ones.
#' @returns A model, see [minhub_model].
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' without <- intervene(model, "layers.2.heads.1", "zero")
#' next_tokens(without, "O Romeo, Rom", n = 2)
#' steered <- intervene(without, "layers.3.resid", "add", rnorm(160), scale = 0.5)
#' generate(steered, "ROMEO:", max_new_tokens = 20, seed = 1)
#' \dontshow{minhubpy:::end_example()}
#' @export
intervene <- function(model, at, how = c("zero", "mean", "replace", "add", "project_out"), value = NULL, scale = 1, positions = NULL) {
  model <- check_model(model)
  at <- texts(at)
  how <- choice(how, c("zero", "mean", "replace", "add", "project_out"))
  if (inherits(value, "minhub_direction")) value <- value$vector
  if (inherits(value, "minhub_activations")) {
    if (how == "replace" && length(unique(attr(value, "rows")$text)) > 1L) {
      fail("value must be the activations of one text for how = \"replace\", not of ", length(unique(attr(value, "rows")$text)))
    }
    value <- structure(unclass(value), rows = NULL)
  } else if (!is.null(value) && !is_plain_number(value <- plain(value))) {
    fail("value must be activations, a direction, or numbers, not ", describe(value))
  }
  if (!is.null(positions)) {
    positions <- plain(positions)
    if (!is_plain_number(positions)) fail("positions must be whole numbers of 1 or more, not ", describe(positions))
    positions <- vapply(as.list(positions), whole_number, 1L, what = "positions", min = 1)
  }
  self <- attr(model, "self")
  arguments <- list(
    model = model, at = at, how = how, value = value, scale = number(scale), positions = positions
  )
  as_model(new_self("intervene", arguments, paste0(self$title, ", ", how, " at ", toString(at))))
}

#' Patch activations of a clean text into a corrupted text
#'
#' Replaces one value of a corrupted run at a time by its value in a clean run,
#' and measures the difference between the logits of two answers. Effects show
#' which layers, positions and heads carry the information that differs.
#'
#' @inheritParams activations
#' @param clean,corrupted Texts with the same number of tokens.
#' @param answers The correct and the incorrect token, as strings of one token or
#'   as 0-based token IDs.
#' @param kinds `"resid"`, `"attn"` and `"mlp"` for each layer and position;
#'   `"heads"` for each layer and head at all positions.
#' @param position The position whose logits are compared, from 1. By default, the
#'   last; required for an encoder.
#' @param target For an encoder-decoder: the decoder's previous output.
#' @returns A data frame of class `minhub_patching` with one row per patched run
#'   and the columns `kind`, `layer` (0 for the embeddings), `position`, `head`,
#'   `token`, `value` (the difference of the logits) and `effect` (0: as in the
#'   corrupted run, 1: as in the clean run). `plot()` draws heat maps.
#' @references Meng et al. (2022), "Locating and Editing Factual Associations in
#'   GPT".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' x <- activation_patching(model, "O Romeo, Rom", "O Julia, Jul", c("e", "i"), kinds = "resid")
#' head(x)
#' plot(x)
#' \dontshow{minhubpy:::end_example()}
#' @export
activation_patching <- function(model, clean, corrupted, answers, kinds = c("resid", "attn", "mlp", "heads"), position = NULL, target = NULL, tokenizer = NULL) {
  model <- check_model(model)
  if (length(answers) != 2L) fail("answers must be two tokens, the correct and the incorrect one, not ", describe(answers))
  position <- optional(position, whole_number, what = "position", min = 1)
  result <- ask(
    "patching",
    model = model, clean = single_text(clean, model), corrupted = single_text(corrupted, model),
    answers = if (is.character(answers)) texts(answers) else token_ids(answers), kinds = texts(kinds),
    position = if (is.null(position)) NULL else position - 1L, target = if (is.null(target)) NULL else single_text(target, model),
    tokenizer = check_tokenizer(tokenizer), on_event = show_progress()
  )
  frame <- result$frame
  frame$effect <- (frame$value - result$corrupted) / (result$clean - result$corrupted)
  structure(
    frame, class = c("minhub_patching", "data.frame"), clean = result$clean, corrupted = result$corrupted,
    tokens = result$tokens, corrupted_tokens = result$corrupted_tokens
  )
}

#' @rdname activation_patching
#' @param x The result of `activation_patching()`.
#' @param main Each panel's title.
#' @param ... Graphical parameters for [graphics::par()].
#' @export
plot.minhub_patching <- function(x, main = NULL, ...) {
  check_plotted(x, c("kind", "layer", "position", "head", "token", "effect"), "there is no value to plot")
  kinds <- unique(x$kind)
  names <- c(resid = "Residual stream", attn = "Attention", mlp = "MLP", heads = "Heads, all positions")[kinds]
  shade <- grDevices::colorRampPalette(c(VERMILLION, "white", "#0072B2"), space = "Lab")(201L)
  draw_panels(if (is.null(main)) paste("Activation patching:", names) else rep_len(check_main(main), length(kinds)), function(i) {
    draw_effects(x[x$kind == kinds[[i]], ], attr(x, "corrupted_tokens"), shade)
  }, ...)
  invisible(x)
}

draw_effects <- function(x, corrupted, shade) {
  heads <- x$kind[[1L]] == "heads"
  number <- if (heads) x$head else x$position
  columns <- sort(unique(number))
  layers <- sort(unique(x$layer))
  labels <- columns
  if (!heads && !anyNA(x$token)) {
    shown <- function(tokens) shorten(readable(data.frame(token = tokens, id = NA)), 12L)
    labels <- shown(x$token[match(columns, number)])
    other <- if (length(corrupted) >= max(columns)) shown(corrupted[columns]) else labels
    if (!identical(labels, other)) labels <- paste0(labels, "\n", ifelse(labels == other, "", other))
  }
  cells <- data.frame(
    column = match(number, columns), row = match(x$layer, layers), color = shade[101L + round(100 * pmax(-1, pmin(1, x$effect)))]
  )
  draw_cells(cells, ifelse(layers == 0, "embeddings", layers), as.character(labels), if (heads) "head", "layer", family = if (heads) "" else token_family())
  legend_of_colors(shade, c("-1", "0", "1 effect"))
  footer(if (any(grepl("\n", labels))) "lower: corrupted text; ", "1: as in the clean run", room = 0.5)
}

#' Split a logit into the parts of a model's components
#'
#' Direct logit attribution: the parts that the embeddings and the attention and MLP of
#' each layer add to a token's logit, with the scale of the final norm held fixed.
#'
#' @inheritParams attention_weights
#' @param token The token whose logit is split: a string of one token, or a
#'   0-based token ID.
#' @param against A token whose logit is subtracted, or `NULL`.
#' @param position The position after which the token is predicted, from 1. By
#'   default, the last.
#' @param heads Whether to split attention into its heads.
#' @param target For an encoder-decoder such as T5: the decoder's output so far. `NULL`:
#'   its beginning. Positions and components are the decoder's.
#' @returns A data frame of class `minhub_attribution` with one row per component and
#'   the columns `component`, `layer`, `head` and `value`. The values sum to the logit (before a soft cap),
#'   which is the attribute `logit`. `plot()` draws them as bars.
#' @references Elhage et al. (2021), "A Mathematical Framework for Transformer
#'   Circuits".
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' parts <- logit_attribution(model, "O Romeo, Rom", "e", against = "a")
#' parts
#' plot(parts)
#' \dontshow{minhubpy:::end_example()}
#' @export
logit_attribution <- function(model, text, token, against = NULL, position = NULL, heads = FALSE, tokenizer = NULL,
                              target = NULL) {
  model <- check_model(model)
  one <- function(x, what) if (is.character(x)) string(x, what) else whole_number(x, what)
  place <- if (is.null(position)) -1L else whole_number(position, "position", min = 1) - 1L
  result <- ask(
    "attribution",
    model = model, text = single_text(text, model), token = one(token, "token"),
    against = optional(against, one, "against"), position = place, heads = flag(heads), tokenizer = check_tokenizer(tokenizer),
    target = if (!is.null(target)) single_text(target, model)
  )
  places <- do.call(rbind, lapply(result$frame$component, function(name) as.data.frame(place_of(name))))
  structure(
    data.frame(component = result$frame$component, places, value = result$frame$value),
    logit = result$logit, class = c("minhub_attribution", "data.frame")
  )
}

#' @rdname logit_attribution
#' @param x The result of `logit_attribution()`.
#' @param most The maximum number of bars: the components with the largest
#'   absolute values.
#' @param main The title.
#' @param col The colors of positive and of negative values.
#' @param ... Graphical parameters for [graphics::par()].
#' @export
plot.minhub_attribution <- function(x, most = 24, main = "Contributions to the logit", col = c("#0072B2", "#D55E00"), ...) {
  check_plotted(x, c("component", "value"), "there is no component to plot")
  most <- whole_number(most, min = 1)
  col <- rep_len(check_color(col), 2L)
  draw_panels(main, function(i) draw_contributions(x, most, col), ...)
  invisible(x)
}

draw_contributions <- function(x, most, col) {
  shown <- x[sort(utils::head(order(-abs(x$value)), most)), ]
  n <- nrow(shown)
  size <- text_size(shown$component, figure_width() * 0.4, (figure_height() - lines_high(5.5)) / n)
  set_margins(left = text_width(shown$component, size, "") + 0.25, bottom = lines_high(3.6), right = 0.2)
  graphics::plot.window(range(0, shown$value), c(n + 0.5, 0.5), yaxs = "i")
  ticks <- graphics::axTicks(1L)
  graphics::abline(v = ticks, col = "grey88")
  graphics::axis(1L, ticks, lwd = 0, mgp = c(2, 0.3, 0))
  graphics::rect(0, seq_len(n) - 0.4, shown$value, seq_len(n) + 0.4, col = col[1L + (shown$value < 0)], border = NA)
  graphics::abline(v = 0, col = "grey50")
  graphics::text(graphics::par("usr")[[1L]] - graphics::xinch(0.08), seq_len(n), shown$component, adj = c(1, 0.5), cex = size, xpd = NA)
  left <- nrow(x) - n
  footer(if (left) paste0(grouped(left), " smaller components are not shown; "), "all values sum to ", format(sum(x$value), digits = 3))
}

