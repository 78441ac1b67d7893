#' Measure the accuracy on minimal pairs
#'
#' Computes how often a model prefers the acceptable sentence of a minimal pair, or
#' fulfills a test suite's predictions.
#'
#' A pair is correct if the log-probability of the complete first sentence is
#' larger, as in BLiMP (Warstadt et al. 2020); a tie is not correct. For the suites
#' of SyntaxGym (Gauthier et al. 2020), formulas compare the surprisals, in bits, of
#' the regions of an item's conditions.
#'
#' @inheritParams generate
#' @inheritParams word_logprobs
#' @param pairs A data frame with the columns `sentence_good` and `sentence_bad`, the
#'   path of a file of BLiMP (.jsonl) or of a suite of SyntaxGym (.json), or of a
#'   folder with such files.
#' @param by The name of the column or key of the phenomenon. `NULL`: `UID`,
#'   `phenomenon`, `linguistics_term` or `field`, otherwise the file.
#' @param bos Whether sentences begin after the beginning-of-sequence token. `NULL`:
#'   if the model has one. Otherwise, the first token is not scored.
#' @param resume For pairs: the path of an .rds file, see [word_logprobs()].
#' @param x The result.
#' @param main The title of the plot.
#' @param col The colors of the phenomena and of all pairs.
#' @param ... For plots, graphical parameters. Otherwise not used.
#' @returns An object of class `minhub_pairs`, a list with `accuracy` (a data frame
#'   with the columns phenomenon, n, accuracy, lower and upper, which are the limits
#'   of Wilson's 95 % interval; the last row contains all pairs) and `pairs` (a data
#'   frame with one row per pair and the columns phenomenon, sentence_good,
#'   sentence_bad, logprob_good, logprob_bad, difference and correct; for suites,
#'   one row per item and prediction with phenomenon, item, formula and correct).
#' @family functions for predictability
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' minimal_pairs(model, data.frame(
#'   sentence_good = c("My lord speaks.", "The king is dead."),
#'   sentence_bad = c("My lord speak.", "The king are dead.")
#' ))
#' \dontshow{minhubpy:::end_example()}
#' @export
minimal_pairs <- function(model, pairs, by = NULL, bos = NULL, tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  by <- optional(by, string, "by")
  bos <- optional(bos, flag, "bos")
  tokenizer <- check_tokenizer(tokenizer)
  if (is.data.frame(pairs)) {
    name <- if (is.null(by)) intersect(c("UID", "phenomenon", "linguistics_term", "field"), names(pairs))[1L] else by
    phenomenon <- if (is.na(name)) rep("all", nrow(pairs)) else as.character(plain(column_of(pairs, name)))
    good <- check_words(pairs, "sentence_good", "pairs")
    bad <- check_words(pairs, "sentence_bad", "pairs")
  } else {
    path <- normalizePath(string(pairs), mustWork = FALSE)
    read <- ask("read_pairs", path = path, by = by)$pairs
    if (is.null(read)) {
      if (!is.null(resume)) fail("resume is not supported for suites, which take seconds: remove it")
      result <- ask("suite_results", model = model, path = path, bos = bos, tokenizer = tokenizer, on_event = show_progress())
      return(pairs_of(result))
    }
    phenomenon <- read$phenomenon
    good <- read$sentence_good
    bad <- read$sentence_bad
  }
  settings <- list(bos = bos, tokenizer = tokenizer)
  result <- ask_in_parts("pair_logprobs", model, list(good = good, bad = bad), settings, resume, size = ROWS_OF_PART)
  pairs_of(data.frame(
    phenomenon = phenomenon, sentence_good = good, sentence_bad = bad, result, correct = result$difference > 0,
    stringsAsFactors = FALSE
  ))
}

pairs_of <- function(rows) {
  accuracy <- ask("pair_accuracies", phenomenon = rows$phenomenon, correct = rows$correct)
  structure(list(accuracy = accuracy, pairs = rows), class = "minhub_pairs")
}

#' @rdname minimal_pairs
#' @export
print.minhub_pairs <- function(x, ...) print_format(x, ...)

#' @export
format.minhub_pairs <- function(x, ...) {
  unit <- if (is.null(x$pairs$item)) " pairs" else " items and predictions"
  c(paste0("Minimal pairs: ", nrow(x$pairs), unit), format_rows(x$accuracy))
}

#' @rdname minimal_pairs
#' @export
as.data.frame.minhub_pairs <- function(x, ...) x$accuracy

#' @rdname minimal_pairs
#' @export
plot.minhub_pairs <- function(x, main = "Accuracy on minimal pairs", col = c("#0072B2", "#D55E00"), ...) {
  col <- rep_len(check_color(col), 2L)
  draw_panels(main, function(i) draw_accuracy(x$accuracy, col), ...)
  invisible(x)
}

draw_accuracy <- function(accuracy, col) {
  n <- nrow(accuracy)
  rows <- accuracy[if (n > 1L) c(order(-accuracy$accuracy[-n]), n) else 1L, ]
  names(rows)[names(rows) == "accuracy"] <- "estimate"
  labels <- paste0(shorten(rows$phenomenon, 40L), " (", grouped(rows$n), ")")
  draw_intervals(labels, list(rows), list(c(rep(col[[1L]], n - 1L), col[[if (n > 1L) 2L else 1L]])), c(0, 1), reference = 0.5)
  footer("95 % intervals; dashed: chance")
}
