#' Classify texts
#'
#' Computes each label's probability for each text, with a model that has a
#' classification head.
#'
#' With `labels`, a model trained on natural language inference (NLI) classifies
#' texts without further training: a label's probability follows from the
#' entailment of `hypothesis` with the label, given the text (zero-shot
#' classification).
#'
#' @inheritParams generate
#' @inheritParams word_logprobs
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()].
#' @param model A model with a sequence classification head, see
#'   [from_pretrained()].
#' @param texts A character vector or a factor, or a data frame with a column
#'   `text`. The result of a text that is `NA` is `NA`.
#' @param labels Labels for zero-shot classification. `NULL`: the labels of the
#'   model.
#' @param hypothesis A sentence with `{}` in place of the label.
#' @param multi_label With `labels`: whether each label has its own probability,
#'   so that several labels may apply to a text.
#' @returns A data frame with one row per text and the columns
#'   * `label`: the most likely label, a factor with all labels as levels;
#'   * `prob`: its probability;
#'   * `prob_LABEL` for each label: its probability. A text's probabilities
#'     sum to 1, except with `multi_label`, for a single label, and for models with
#'     the `problem_type` `"multi_label_classification"`.
#'
#'   For a regression model, the only column is `value`, the predicted value (with
#'   several outputs, `value_LABEL`).
#'
#'   If `texts` is a data frame, the columns are added to it (existing columns are
#'   replaced with a warning). Otherwise, the names of `texts` are the row names.
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready(model = "FacebookAI/roberta-large-mnli")
#' model <- from_pretrained("FacebookAI/roberta-large-mnli")
#' classify_texts(model, "Who are you voting for in 2020?", labels = c("politics", "science"))
#' \dontshow{minhubpy:::end_example()}
#' @export
classify_texts <- function(model, texts, labels = NULL, hypothesis = "This example is {}.", multi_label = FALSE,
                           tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  input <- texts
  if (is.data.frame(texts)) texts <- column_of(texts, "text")
  texts <- check_words(texts, NULL, "texts")
  if (!is.null(labels)) {
    labels <- texts(labels)
    if (!length(labels)) fail("labels is empty: pass at least one label, or NULL for the labels of the model")
    if (anyDuplicated(labels)) fail("labels must not be repeated: ", labels[duplicated(labels)][[1L]])
  }
  settings <- list(
    labels = labels, hypothesis = string(hypothesis), multi_label = flag(multi_label),
    tokenizer = check_tokenizer(tokenizer)
  )
  with_labels(input, ask_labels("classify", model, texts, settings, resume))
}

# Calls a method that returns a data frame with the column `label`, and the labels, which become its levels.
ask_labels <- function(method, model, texts, settings, file, record = NULL, join = join_rows) {
  join_frames <- function(results, rows) {
    list(frame = join(lapply(results, `[[`, "frame"), rows), labels = results[[1L]]$labels)
  }
  result <- ask_in_parts(method, model, list(texts = texts), settings, file, record = record, join = join_frames)
  if ("label" %in% names(result$frame)) result$frame$label <- factor(result$frame$label, result$labels)
  result$frame
}

# Adds labels to the data frame of the texts, or names their rows.
with_labels <- function(input, result) {
  if (is.data.frame(input)) return(add_columns(input, result))
  if (!is.null(names(input))) rownames(result) <- make.unique(ifelse(is.na(names(input)), "", names(input)))
  result
}

#' Label tokens, words and entities
#'
#' Finds the names of persons, places and others in texts, or labels each token,
#' with a model for token classification such as named entity recognition.
#'
#' A text longer than the maximum length of the model is divided into overlapping
#' windows. A token has the label of the window that contains more of its context.
#'
#' @inheritParams generate
#' @inheritParams word_logprobs
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()].
#' @param model A text encoder with a token classification head, see
#'   [from_pretrained()].
#' @param texts A character vector or a factor, or a data frame with a column
#'   `text`. A text that is `NA` has no rows.
#' @param aggregation How to join tokens. `"simple"` joins adjacent tokens of one
#'   label, without its prefix `B-` or `I-`, unless a label begins with `B-`.
#'   `"first"`, `"average"` and `"max"` do the same with words: a word has
#'   the label of its first token, the most likely label of its mean
#'   probabilities, or the label with the largest probability. `"none"` returns
#'   each token.
#' @param ignore Labels to leave out. `"O"` is the label of tokens outside of all
#'   entities.
#' @param stride The number of tokens that two windows of a long text share. `NULL`:
#'   half of a window's tokens.
#' @returns A data frame with one row per entity, in the order of the texts, and
#'   the columns
#'   * `text`: the number of the text, or a factor of the names of `texts`;
#'   * `word`, `start` and `end`: the characters, and their positions in the text,
#'     as in `substr(text, start, end)`;
#'   * `label`: a factor;
#'   * `prob`: the mean probability of the label of its tokens or words.
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready(model = "dslim/bert-base-NER")
#' model <- from_pretrained("dslim/bert-base-NER")
#' classify_tokens(model, "Hamlet lives in Denmark.")
#' \dontshow{minhubpy:::end_example()}
#' @export
classify_tokens <- function(model, texts, aggregation = c("simple", "first", "average", "max", "none"), ignore = "O",
                            stride = NULL, tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  aggregation <- choice(aggregation, c("simple", "first", "average", "max", "none"))
  if (is.data.frame(texts)) texts <- column_of(texts, "text")
  labels <- names(texts)
  texts <- check_words(texts, NULL, "texts")
  settings <- list(
    aggregation = aggregation, ignore = if (length(ignore)) texts(ignore),
    stride = if (!is.null(stride)) whole_number(stride), tokenizer = check_tokenizer(tokenizer)
  )
  result <- ask_labels("classify_tokens", model, texts, settings, resume, join = join_tokens)
  result$text <- text_of_row(result$text, labels)
  result
}

#' Find answers to questions in texts
#'
#' Finds the part of each text that answers a question, with a model for question
#' answering.
#'
#' A long text is divided into overlapping windows. Equal answers in several places
#' of a text count as one, with the sum of their probabilities.
#'
#' @inheritParams generate
#' @param model A text encoder with a question answering head, see
#'   [from_pretrained()].
#' @param question A string, or a character vector with one question per text.
#' @param texts A character vector or a factor, or a data frame with a column
#'   `text`. A text that is `NA` or empty has one row, without an answer.
#' @param n The maximum number of answers in each text.
#' @param no_answer Whether an empty string can be an answer, for models that were
#'   trained with questions without an answer.
#' @param max_answer The maximum number of tokens of an answer.
#' @param stride The number of tokens that two windows of a long text share. `NULL`:
#'   128, or half of a window if that is less.
#' @returns A data frame with one row per answer, in the order of the texts, and
#'   the columns
#'   * `text`: the number of the text, or a factor of the names of `texts`;
#'   * `rank`: from 1 for the most likely answer;
#'   * `answer`, `start` and `end`: the characters, and their positions in the
#'     text, as in `substr(text, start, end)`;
#'   * `score`: the probability of the answer.
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready(model = "deepset/roberta-base-squad2")
#' model <- from_pretrained("deepset/roberta-base-squad2")
#' answer_questions(model, "Where does Hamlet live?", "Hamlet lives in Denmark.")
#' \dontshow{minhubpy:::end_example()}
#' @export
answer_questions <- function(model, question, texts, n = 1, no_answer = FALSE, max_answer = 15, stride = NULL,
                             tokenizer = NULL) {
  model <- check_model(model)
  if (is.data.frame(texts)) texts <- column_of(texts, "text")
  labels <- names(texts)
  texts <- check_words(texts, NULL, "texts")
  question <- check_words(question, NULL, "question")
  if (!length(question) %in% c(1L, length(texts))) {
    fail("question must be one string, or one per text: ", length(question), " questions for ", length(texts), " texts")
  }
  result <- ask(
    "answer_questions",
    model = model, question = rep_len(question, length(texts)), texts = texts, n = whole_number(n, min = 1),
    no_answer = flag(no_answer), max_answer = whole_number(max_answer, min = 1),
    stride = if (!is.null(stride)) whole_number(stride), tokenizer = check_tokenizer(tokenizer),
    on_event = show_progress()
  )
  result$text <- text_of_row(result$text, labels)
  result
}

#' Sort texts by relevance
#'
#' Sorts texts by their relevance to a query, with a cross-encoder. A
#' cross-encoder processes the query and a text together, so it is more accurate
#' and slower than [text_similarity()] of embeddings. It usually reorders the best
#' results of [text_search()].
#'
#' @inheritParams generate
#' @param model A model with a sequence classification head of one label, such as
#'   `"cross-encoder/ms-marco-MiniLM-L6-v2"`, or Qwen3-Reranker, see
#'   [from_pretrained()].
#' @param query A string.
#' @param texts A character vector or a factor, or a data frame with a column
#'   `text`. Texts that are `NA` come last, without a score.
#' @param n The number of texts to return. `NULL`: all.
#' @param raw_scores Whether to return the scores before the sigmoid.
#' @param instruction The task of the retrieval, for Qwen3-Reranker. `NULL`: web
#'   search. A decoder with a classification head uses Qwen3-Reranker's prompt only
#'   if an instruction is given.
#' @returns A data frame, the most relevant text first, with the columns
#'   * `text`: the number of the text, or a factor of the names of `texts`;
#'   * `rank`: from 1;
#'   * `score`: the relevance, from 0 to 1 unless `raw_scores`.
#'
#'   If `texts` is a data frame, its rows in this order, with the columns `rank`
#'   and `score`.
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready(model = "cross-encoder/ms-marco-MiniLM-L6-v2")
#' model <- from_pretrained("cross-encoder/ms-marco-MiniLM-L6-v2")
#' rerank(model, "Who wrote Hamlet?", c("Shakespeare wrote plays.", "Berlin is a city."))
#' \dontshow{minhubpy:::end_example()}
#' @export
rerank <- function(model, query, texts, n = NULL, raw_scores = FALSE, instruction = NULL, tokenizer = NULL) {
  model <- check_model(model)
  input <- texts
  if (is.data.frame(texts)) texts <- column_of(texts, "text")
  texts <- check_words(texts, NULL, "texts")
  n <- optional(n, whole_number, "n", min = 1)
  present <- which(!is.na(texts))
  result <- ask(
    "rerank",
    model = model, query = string(query), texts = texts[present], raw_scores = flag(raw_scores),
    instruction = optional(instruction, string, "instruction"), tokenizer = check_tokenizer(tokenizer), on_event = show_progress()
  )
  missing <- which(is.na(texts))
  rows <- c(present[result$text], missing)
  columns <- list(rank = seq_along(rows), score = c(result$score, rep(NA_real_, length(missing))))
  if (is.data.frame(input)) {
    result <- add_columns(input[rows, , drop = FALSE], columns)
  } else {
    result <- data.frame(text = text_of_row(rows, names(input)), columns)
  }
  if (is.null(n)) result else result[seq_len(min(n, nrow(result))), , drop = FALSE]
}
