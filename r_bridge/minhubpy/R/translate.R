#' Translate and summarize texts
#'
#' `translate_texts()` translates texts with an encoder-decoder such as Marian, NLLB,
#' M2M100, mBART or T5. `summarize_texts()` summarizes them with BART, Pegasus or T5.
#'
#' The result is the best sequence of a beam search, see [generate()]. Arguments that
#' are `NULL` have the values of the model, which are in its files
#' generation_config.json and config.json (`task_specific_params`).
#'
#' A text with more tokens than the model has positions is divided at the ends of
#' sentences by `translate_texts()`, translated in parts and joined, with a warning. It is
#' an error in `summarize_texts()`, and so is an empty text in both.
#'
#' @inheritParams generate
#' @param model An encoder-decoder, see [from_pretrained()].
#' @param texts A character vector or a factor, or a data frame with a column `text`.
#'   The result of a text that is `NA` is `NA`.
#' @param source,target The languages of the texts and of the translations: an English
#'   name, or a code such as `"de"`, `"deu"` or `"deu_Latn"`. A model of one pair of
#'   languages, such as `"Helsinki-NLP/opus-mt-en-de"`, does not need them.
#' @param beams The number of beams; 1 is greedy decoding. Without a value of the model,
#'   4.
#' @param max_new_tokens,min_new_tokens The maximum and the minimum number of tokens of a
#'   result. Without a value of the model, 256 and 0.
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()].
#' @returns A character vector with the names of `texts`.
#' @family functions that generate text
#' @examplesIf minhubpy:::is_ready(model = "Helsinki-NLP/opus-mt-en-de")
#' model <- from_pretrained("Helsinki-NLP/opus-mt-en-de")
#' translate_texts(model, c(a = "The cat sat on the mat.", b = NA))
#' \dontshow{minhubpy:::end_example()}
#' @export
translate_texts <- function(model, texts, source = NULL, target = NULL, beams = NULL, max_new_tokens = NULL,
                            length_penalty = NULL, early_stopping = NULL, no_repeat_ngram_size = NULL, tokenizer = NULL,
                            resume = NULL) {
  languages <- list(source = optional(source, string, "source"), target = optional(target, string, "target"))
  ask_texts("translate", model, texts, languages, environment(), tokenizer, resume)
}

#' @rdname translate_texts
#' @export
summarize_texts <- function(model, texts, beams = NULL, max_new_tokens = NULL, min_new_tokens = NULL, length_penalty = NULL,
                            early_stopping = NULL, no_repeat_ngram_size = NULL, tokenizer = NULL, resume = NULL) {
  ask_texts("summarize", model, texts, list(), environment(), tokenizer, resume)
}

# The text that a method of Python returns for each text. x: contains the settings of the search; NULL: the model's.
ask_texts <- function(method, model, texts, arguments, x, tokenizer, resume) {
  model <- check_model(model)
  if (is.data.frame(texts)) texts <- column_of(texts, "text")
  labels <- names(texts)
  texts <- check_words(texts, NULL, "texts")
  early <- x$early_stopping
  settings <- list(
    beams = optional(x$beams, whole_number, what = "beams", min = 1, max = 64),
    max_new_tokens = optional(x$max_new_tokens, whole_number, what = "max_new_tokens", min = 1),
    min_new_tokens = optional(x$min_new_tokens, whole_number, what = "min_new_tokens"),
    length_penalty = optional(x$length_penalty, function(value) as.double(number(value, "length_penalty", min = -10, max = 10))),
    early_stopping = if (identical(early, "never")) early else optional(early, flag, "early_stopping"),
    no_repeat_ngram_size = optional(x$no_repeat_ngram_size, whole_number, what = "no_repeat_ngram_size", max = 1000)
  )
  settings <- settings[!vapply(settings, is.null, TRUE)]
  arguments <- c(arguments, list(settings = if (length(settings)) settings, tokenizer = check_tokenizer(tokenizer)))
  columns <- list(texts = texts, numbers = seq_along(texts))
  join <- function(results, rows) list(frame = join_rows(lapply(results, `[[`, "frame"), rows))
  result <- ask_in_parts(method, model, columns, arguments, resume, join = join)
  stats::setNames(result$frame$text, labels)
}
