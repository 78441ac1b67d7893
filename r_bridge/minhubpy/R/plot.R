#' Plots of next tokens and of surprise
#'
#' The probabilities of the likeliest next tokens as bars; the surprise
#' (-log2 of the probability, in bits) of each token along a text.
#'
#' @param x What [next_tokens()] or [score()] returned.
#' @param text Which text to show, of several that were scored.
#' @param most The most tokens to show.
#' @param ... Passed on to [graphics::barplot()].
#' @returns `x`, invisibly.
#' @name plot.minhub
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' plot(next_tokens(model, "ROMEO"))
#' plot(score(model, "To be, or not to be"))
NULL

#' @rdname plot.minhub
#' @export
plot.minhub_next_tokens <- function(x, ...) {
  x
}
