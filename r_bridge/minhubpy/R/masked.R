#' Predict masked tokens
#'
#' Returns the most likely tokens at each mask of a text and their probabilities,
#' with a masked language model such as BERT.
#'
#' Several masks of a text are predicted independently. The result corresponds to
#' `masked_tokens_pred_tbl()` of the package pangoling.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param model A text encoder with a masked-LM head, see [from_pretrained()].
#' @param texts A character vector or a factor. Each text has at least one mask:
#'   `"[MASK]"` is replaced by the mask token of the tokenizer. A text that is
#'   `NA` has no rows. A mask beyond the maximum length of the model has no rows,
#'   with a warning.
#' @param n The number of tokens for each mask.
#' @param targets Tokens to report instead of the most likely tokens. Each is an
#'   entry of the vocabulary; for the tokenizers of GPT-2 and RoBERTa, a target
#'   within a text begins with a space.
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()].
#' @returns A data frame of class `minhub_masked_tokens` with `n` rows per mask,
#'   sorted by probability, and the columns
#'   * `text`, for several texts: the number of the text, or a factor of the names
#'     of `texts`;
#'   * `mask`: the number of the mask in its text;
#'   * `token` and `id` (0-based);
#'   * `prob` and `logprob` (natural log).
#'
#'   Its [plot()][plot.minhub()] method draws the probabilities, with one panel per
#'   mask. Its `summary()` has one row per mask: the most likely token and its
#'   probability, and the number of tokens and the sum of their probabilities.
#' @family functions for predictability
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready(model = "google-bert/bert-base-uncased")
#' model <- from_pretrained("google-bert/bert-base-uncased")
#' masked_tokens(model, "The apple doesn't fall far from the [MASK].", n = 5)
#' masked_tokens(model, "The apple doesn't fall far from the [MASK].", targets = c("tree", "table"))
#' \dontshow{minhubpy:::end_example()}
#' @export
masked_tokens <- function(model, texts, n = 10, targets = NULL, tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  labels <- names(texts)
  texts <- check_words(texts, NULL, "texts")
  masks <- pmax(count_of("[MASK]", texts), count_of("<mask>", texts))
  unmasked <- masks == 0L & !is.na(texts)
  if (any(unmasked)) fail("texts must have a mask, unlike position ", positions_of(unmasked), ": write [MASK] in place of a word")
  if (!is.null(targets)) {
    targets <- texts(targets)
    if (!length(targets)) fail("targets is empty: pass at least one token, or NULL")
  }
  settings <- list(tokenizer = check_tokenizer(tokenizer), n = whole_number(n, min = 1), targets = targets)
  result <- ask_in_parts("masked_tokens", model, list(texts = texts), settings, resume, join = join_tokens)
  found <- tabulate(result$text[!duplicated(result[c("text", "mask")])], length(texts))
  warn_truncated(found < masks, "a mask")
  if (length(texts) == 1L) result$text <- NULL else result$text <- text_of_row(result$text, labels)
  structure(result, class = c("minhub_masked_tokens", "data.frame"))
}

# The number of times that each text contains a string; 0 for NA.
count_of <- function(what, texts) {
  starts <- gregexpr(what, texts, fixed = TRUE)
  vapply(starts, function(x) sum(!is.na(x) & x > 0L), 0L)
}

# Warns about texts without a result.
warn_truncated <- function(where, what) {
  if (any(where)) warn(paste0("no result for ", what, " beyond the model's maximum length, in text ", positions_of(where), ": shorten the text"))
}

#' @export
print.minhub_masked_tokens <- print.minhub_next_tokens

#' @export
summary.minhub_masked_tokens <- function(object, ...) {
  if (!all(c("mask", "token", "prob") %in% names(object)) || !nrow(object)) return(NextMethod())
  masks <- mask_labels(object)
  parts <- split(seq_len(nrow(object)), factor(masks, unique(masks)))
  first <- vapply(parts, function(rows) rows[[which.max(object$prob[rows])]], 0L)
  shown <- data.frame(
    mask = object$mask[first], token = object$token[first], prob = object$prob[first], tokens = lengths(parts, use.names = FALSE),
    together = vapply(parts, function(rows) sum(object$prob[rows]), 0, USE.NAMES = FALSE)
  )
  if (is.null(object$text)) shown else cbind(text = object$text[first], shown)
}

# A label for each row's mask.
mask_labels <- function(x) {
  mask <- paste("mask", x$mask)
  if (is.null(x$text)) mask else paste0(if (is.factor(x$text)) x$text else paste("text", x$text), ", ", mask)
}

#' Compute log-probabilities with a masked language model
#'
#' `masked_logprobs()` computes the log-probability of a target word or phrase
#' between the text before it and the text after it. `pseudo_logprobs()` masks
#' each token of a text and computes its log-probability, given all other tokens.
#' The sum over a text is its pseudo-log-likelihood (PLL).
#'
#' `masked_logprobs()` corresponds to `masked_targets_pred()` of the package
#' pangoling, and the results are equal: the text is the context, a space, the
#' masks, a space, and the text after the target. All tokens of a target are
#' masked at once, and its log-probability is the sum over its tokens.
#'
#' @inheritParams masked_tokens
#' @inheritParams word_logprobs
#' @param contexts The text before each target: a character vector, or one string
#'   for all targets. `NA` is no text. Or a data frame with the columns `context`
#'   and `target`, and optionally `after`.
#' @param targets A character vector.
#' @param after The text after each target: a character vector, or one string for
#'   all targets.
#' @param texts A character vector or a factor. `NA` and `""` have no tokens. A
#'   text beyond the maximum length of the model has no rows, with a warning.
#' @param method `"within_word_l2r"` masks each token together with the later
#'   tokens of its word, which would reveal it (Kauf and Ivanova, 2023);
#'   `"original"` masks one token at a time (Salazar et al., 2020).
#' @returns `masked_logprobs()` returns, for vectors, a numeric vector of
#'   log-probabilities (natural log) with the names of `targets`. For a data
#'   frame, it returns the data frame with the columns `tokens` (the number of
#'   tokens of the target), `logprob`, and `surprisal` (`-log2` of the
#'   probability, in bits). The result of a target that is `NA` or `""` is `NA`,
#'   and so is a target beyond the maximum length of the model, with a warning.
#'
#'   `pseudo_logprobs()` returns a data frame of class `minhub_token_logprobs` with
#'   one row per token (without special tokens) and the columns `text`,
#'   `position`, `token`, `id` and `logprob`, see [token_logprobs()]. Its
#'   [plot()][plot.minhub()] method draws the tokens. In its `summary()`, `nats` is
#'   the negative PLL and `perplexity` each text's pseudo-perplexity.
#' @references
#' Salazar, J., Liang, D., Nguyen, T. Q. and Kirchhoff, K. (2020). Masked language
#' model scoring. *Proceedings of ACL*.
#'
#' Kauf, C. and Ivanova, A. (2023). A better way to do masked language model
#' scoring. *Proceedings of ACL*.
#' @family functions for predictability
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready(model = "google-bert/bert-base-uncased")
#' model <- from_pretrained("google-bert/bert-base-uncased")
#' masked_logprobs(model, "The", c("apple", "pear"), after = "doesn't fall far from the tree.")
#'
#' scores <- pseudo_logprobs(model, c("The keys are on the table.", "The keys is on the table."))
#' summary(scores)
#' \dontshow{minhubpy:::end_example()}
#' @export
masked_logprobs <- function(model, contexts, targets = NULL, after = "", tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  input <- contexts
  if (is.data.frame(contexts)) {
    targets <- if (is.null(targets)) column_of(input, "target") else targets
    if ("after" %in% names(input) && identical(after, "")) after <- input[["after"]]
    contexts <- column_of(input, "context")
  } else {
    input <- targets
  }
  job <- list(
    contexts = check_words(contexts, NULL, "contexts"), targets = check_words(targets, NULL, "targets"),
    after = check_words(after, NULL, "after")
  )
  n <- length(job$targets)
  for (name in c("contexts", "after")) {
    if (length(job[[name]]) == 1L) job[[name]] <- rep(job[[name]], n)
    if (length(job[[name]]) != n) fail(name, " must be one string or one for each of ", n, " targets, not ", length(job[[name]]))
  }
  settings <- list(tokenizer = check_tokenizer(tokenizer))
  result <- ask_in_parts("masked_logprobs", model, job, settings, resume)
  warn_truncated(result$tokens > 0L & is.na(result$logprob), "a target")
  if (is.data.frame(input)) add_columns(input, result) else stats::setNames(result$logprob, names(targets))
}

#' @rdname masked_logprobs
#' @export
pseudo_logprobs <- function(model, texts, method = c("within_word_l2r", "original"), tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  method <- choice(method, c("within_word_l2r", "original"))
  labels <- names(texts)
  texts <- check_words(texts, NULL, "texts")
  settings <- list(masking = method, tokenizer = check_tokenizer(tokenizer))
  result <- ask_in_parts("pseudo_logprobs", model, list(texts = texts), settings, resume, join = join_tokens)
  warn_truncated(!is.na(texts) & grepl("[^[:space:]]", texts) & !seq_along(texts) %in% result$text, "a text")
  result <- data.frame(text = result$text, position = sequence(tabulate(result$text)[unique(result$text)]), result[c("token", "id", "logprob")])
  result$text <- text_of_row(result$text, labels)
  structure(result, class = c("minhub_token_logprobs", "data.frame"))
}
