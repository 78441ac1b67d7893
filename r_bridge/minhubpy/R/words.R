#' Compute each word's log-probability
#'
#' `word_logprobs()` computes the log-probability of each word of a text, given
#' the preceding words. `target_logprobs()` computes the log-probability of a
#' target word or phrase after a context.
#'
#' A word's log-probability is the sum over its tokens; the space before a
#' word is part of the word. Words are joined and encoded as in the package
#' pangoling, and the results are equal: `word_logprobs()` corresponds to
#' `causal_words_pred()`, and `target_logprobs()` to `causal_targets_pred()`.
#' For masked language models, such as BERT, see [masked_logprobs()].
#'
#' Texts longer than the model's context are processed in overlapping windows. The
#' common beginning of texts or contexts is computed only once.
#'
#' @section Correction at word boundaries:
#' Tokenizers such as GPT-2's mark the beginning of a word, so that the product of
#' the token probabilities leaves open where a word ends. With B(t), the probability
#' that the token at position t begins a word, and with the word's first token f and
#' last token l, the corrected log-probability is
#' `sum(log p(token)) - log B(f) + log B(l + 1)`. For `"pimentel"`, B includes the
#' model's end tokens, and B(f) of a text's first word is the probability of
#' the tokens without mark. For `"oh"`, B does not include the end tokens, and the
#' first word of a text has no B(f). Tokenizers without marks are an error.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param x The words: a vector, such as `strsplit("To be or not", " ")[[1]]`, or
#'   a data frame with a column of words. A word
#'   that is `NA` or `""` has missing results and is omitted from its text.
#' @param by The grouping of words into texts: a vector with one value per word,
#'   or the names of columns of `x`. The rows may be in any order. `NULL`: all
#'   words form one text, or, for a data frame grouped by dplyr, each group forms
#'   one text. Rows with `NA` do not belong to a text.
#' @param context Text before the words, which is not scored: a string, a vector
#'   with one value per word (equal within a text), or the name of a column of
#'   `x`.
#' @param words The name of the column of words, if `x` is a data frame.
#' @param word_n The order of the words in each text: a numeric vector, or the
#'   name of a column. By default, the order of `x`.
#' @param sep The string between words, and between a context and its target. Use
#'   `""` for languages without spaces. If `sep` is a space, white space next to it
#'   is an error.
#' @param ignore_regex A regular expression. Tokens that match it do not
#'   contribute to their word. For example, `"^[[:punct:]]$"` excludes punctuation
#'   that is a separate token.
#' @param bos Whether to insert the beginning-of-sequence token before a text, so
#'   that its first word has a log-probability. `NULL`: as the tokenizer does,
#'   which is `FALSE` for GPT-2 and `TRUE` for Llama.
#' @param correct The correction at word boundaries, for tokenizers that mark the
#'   beginning of words, such as GPT-2's and Llama's: `"pimentel"` (Pimentel &
#'   Meister 2024) or `"oh"` (Oh & Schuler 2024). See below.
#' @param renyi Orders of Rényi entropies, such as `0.5` or `c(0.5, 2)`.
#' @param premise Text before each word instead of its context, for the pointwise
#'   mutual information (PMI) of word and context. `""` requires `bos = TRUE`.
#' @param lags The number of previous words whose surprisal and entropy are added
#'   (spillover).
#' @param resume The path of an .rds file that stores the results of a long job.
#'   After an interrupt or a crash, repeat the same call to resume the job. After
#'   the end of the job, the same call returns its stored result. Only one session
#'   at a time can use a file. A file belongs to the weights of the model, whose
#'   files are hashed once (about one second per GB).
#' @param manifest The path of a .json file that describes the job, for
#'   [minhub_replay()]. The files `NAME-input.jsonl` and `NAME-output.jsonl` in its
#'   folder contain the input and the results.
#' @param contexts,targets Character vectors of equal length. Or `contexts` is a
#'   data frame with the columns `context` and `target`.
#' @returns For vectors, a numeric vector of log-probabilities (natural log), in
#'   the order of the input. Its names are the words or, for `target_logprobs()`,
#'   the names of `targets`.
#'
#'   For a data frame, the data frame with these columns (existing columns are
#'   replaced with a warning):
#'   * `tokens`: the number of tokens of the word;
#'   * `logprob`: the natural logarithm of the word's probability;
#'   * `surprisal`: `-log2` of the word's probability, in bits;
#'   * `entropy`: the entropy in bits of the distribution that the model predicts
#'     at the word's first token;
#'   * `renyi_ORDER`: the Rényi entropy in bits of the same distribution;
#'   * `pmi`: the log-probability after the context minus that after `premise`, in
#'     bits;
#'   * `surprisal_lag1`, `entropy_lag1`, `surprisal_lag2` and so on: the values of
#'     the previous words of the text; `NA` before the first one. Missing words are
#'     skipped.
#'
#'   A text's first word has no prediction and is `NA`, unless there is a
#'   `context` or a beginning-of-sequence token.
#' @family functions for predictability
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' word_logprobs(model, c("To", "be,", "or", "not", "to", "be"))
#'
#' sentences <- data.frame(
#'   item = c(1, 1, 1, 2, 2, 2),
#'   word = c("My", "good", "lord", "My", "good", "xylophone")
#' )
#' word_logprobs(model, sentences, by = "item")
#'
#' target_logprobs(model, contexts = "My good", targets = c("lord", "friend"))
#' \dontshow{minhubpy:::end_example()}
#' @export
word_logprobs <- function(model, x, by = NULL, context = NULL, words = "word", word_n = NULL, sep = " ",
                          ignore_regex = NULL, bos = NULL, correct = NULL, renyi = NULL, premise = NULL, lags = 0,
                          tokenizer = NULL, resume = NULL, manifest = NULL) {
  model <- check_model(model)
  job <- list(words = check_words(x, string(words), "x"))
  n <- length(job$words)
  column <- substitute(by)
  by <- tryCatch(by, error = function(error) {
    if (is.name(column) && as.character(column) %in% names(x)) fail("by must be quoted: by = \"", as.character(column), "\"")
    stop(error)
  })
  if (is.null(by) && inherits(x, "grouped_df")) by <- setdiff(names(attr(x, "groups")), ".rows")
  job$by <- groups_of(by, x, n)
  if (!is.null(context)) job$context <- context_of(context, x, n)
  if (!is.null(word_n)) job$word_n <- order_of(word_n, x, n)
  settings <- word_settings(model, sep, ignore_regex, bos, tokenizer, correct, renyi, premise)
  settings$lags <- whole_number(lags)
  texts <- if (is.null(job$by)) rep(1L, n) else job$by
  if (!is.null(manifest)) return(with_columns(x, word_job(model, job, texts, settings, manifest, resume), job$words))
  result <- ask_in_parts("word_logprobs", model, job, settings, resume, texts, size = ROWS_OF_PART)
  note_sentence(job$words, result$logprob)
  with_columns(x, result, job$words)
}

# The results of a job with a manifest. A text's rows are adjacent in its input.
word_job <- function(model, job, texts, settings, manifest, resume) {
  if (!is.null(job$context)) fail("manifest does not support context: make it the first words of each text")
  if (!is.null(settings$ignored)) fail("manifest does not support ignore_regex: use minhub words --ignore-regex")
  order <- if (is.null(job$word_n)) order(texts) else order(texts, job$word_n)
  given <- c(settings[c("sep", "bos", "correct", "renyi", "premise", "lags")], ignore_regex = "")
  data <- list(text = texts[order], word = job$words[order])
  columns <- run_job(model, manifest, "words_by", data, given, "word", "text", settings$tokenizer, resume)
  columns$tokens <- as.integer(ifelse(is.na(columns$tokens), 0L, columns$tokens))
  result <- as.data.frame(columns, optional = TRUE)[order(order), , drop = FALSE]
  rownames(result) <- NULL
  result
}

#' @rdname word_logprobs
#' @export
target_logprobs <- function(model, contexts, targets = NULL, sep = " ", ignore_regex = NULL, bos = NULL, correct = NULL,
                            renyi = NULL, premise = NULL, tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  input <- contexts
  if (is.data.frame(contexts)) {
    targets <- if (is.null(targets)) column_of(input, "target") else targets
    contexts <- column_of(input, "context")
  } else {
    input <- targets
  }
  job <- list(contexts = check_words(contexts, NULL, "contexts"), targets = check_words(targets, NULL, "targets"))
  if (length(job$contexts) == 1L) job$contexts <- rep(job$contexts, length(job$targets))
  if (length(job$contexts) != length(job$targets)) {
    fail("targets must have one value for each of ", length(job$contexts), " contexts, not ", length(job$targets))
  }
  settings <- word_settings(model, sep, ignore_regex, bos, tokenizer, correct, renyi, premise)
  result <- ask_in_parts("target_logprobs", model, job, settings, resume, size = ROWS_OF_PART)
  with_columns(input, result, names(targets)) # with the targets as names, a difference would have the names of one side
}

#' Compute the log-probability of each vocabulary entry
#'
#' Computes the log-probability of each token of the vocabulary at each position
#' of a text.
#'
#' @inheritParams token_logprobs
#' @param file A .npy file for a large matrix: one row takes 200 kB with the
#'   vocabulary of GPT-2. The file contains float32 numbers in row-major order. In
#'   Python, read it with `numpy.load()`; in R, with [readBin()] from byte 129 on.
#' @returns For one text, a numeric matrix of natural logarithms with one row per
#'   token and one column per token ID (column 1 is ID 0). The matrix of a text
#'   that is `NA` has no rows. A row contains the
#'   prediction for the position of its token. The row of the first token is `NA`,
#'   because the model does not predict it. For several texts, a list of matrices.
#'   With `file`, a data frame that describes the rows of the file: `text`,
#'   `position`, `token` and `id`.
#' @family functions for predictability
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' logprobs <- logprob_matrix(model, "ROMEO:")
#' dim(logprobs)
#' rowSums(exp(logprobs))
#' \dontshow{minhubpy:::end_example()}
#' @export
logprob_matrix <- function(model, texts, file = NULL, tokenizer = NULL) {
  model <- check_model(model)
  labels <- labels_of(texts)
  texts <- texts_or_ids(texts, "texts", missing = TRUE)
  kept <- present(texts)
  if (!is.null(file)) {
    file <- path.expand(string(file))
    if (!grepl("\\.npy$", file)) fail('file must end in ".npy", unlike ', describe(file))
    file <- file.path(normalizePath(dirname(file), mustWork = FALSE), basename(file)) # Python may have another folder
  }
  result <- ask(
    "logprob_matrix",
    model = model, texts = texts[kept], tokenizer = check_tokenizer(tokenizer), out = file, on_event = show_progress()
  )
  rows <- result$rows
  rows$text <- kept[rows$text]
  if (!is.null(file)) {
    rows$text <- text_of_row(rows$text, labels)
    return(rows)
  }
  matrix <- result$matrix
  rownames(matrix) <- rows$token
  if (length(texts) == 1L) return(matrix)
  parts <- split(seq_len(nrow(rows)), factor(rows$text, seq_along(texts)))
  stats::setNames(lapply(unname(parts), function(part) matrix[part, , drop = FALSE]), labels)
}

# Explains the result NA of a sentence that is passed as one word.
note_sentence <- function(words, logprob) {
  if (length(words) == 1L && is.na(logprob) && grepl("[^[:space:]][[:space:]]+[^[:space:]]", words)) {
    note("The first word of a text has no prediction, and x is one word. For the words of a sentence, pass strsplit(x, \" \")[[1]].")
  }
}

# Arguments

# Checks words, which may be NA, and converts them to UTF-8.
check_words <- function(x, name, what) {
  force(name)
  if (is.data.frame(x) && !is.null(name)) {
    what <- name
    x <- column_of(x, name, if (name == "word") "; select one with words = ")
  }
  texts(x, what, missing = TRUE)
}

column_of <- function(data, name, advice = NULL) {
  if (!name %in% names(data)) {
    fail("the data frame has no column ", name, ": its columns are ", toString(utils::head(names(data), 8L)), advice)
  }
  data[[name]]
}

# The number of each word's text, or NULL for a single text.
groups_of <- function(by, x, n) {
  if (is.null(by)) return(NULL)
  # With a single row, a string is a column's name: a group would have no effect.
  if (is.data.frame(x) && is.character(by) && (length(by) != n || n == 1L || all(by %in% names(x)))) {
    by <- lapply(by, function(name) column_of(x, name))
  }
  columns <- lapply(if (is.list(by) && !inherits(by, "POSIXlt")) unname(as.list(by)) else list(by), plain, what = "by")
  if (!length(columns)) fail("by must be a vector or names of columns, not ", describe(by))
  for (column in columns) {
    if (!is.atomic(column)) fail("by must be a vector or names of columns, not ", describe(column))
    if (length(column) != n) fail("by must have one value for each of ", n, " words, not ", length(column))
  }
  missing <- Reduce(`|`, lapply(columns, is.na))
  codes <- lapply(columns, function(column) match(column, unique(column)))
  key <- do.call(paste, codes)
  key[missing] <- NA
  match(key, unique(key[!missing]))
}

context_of <- function(context, x, n) {
  if (is.data.frame(x) && is.character(context) && length(context) == 1L && context %in% names(x)) context <- x[[context]]
  context <- check_words(context, NULL, "context")
  if (length(context) == 1L) context <- rep(context, n)
  if (length(context) != n) fail("context must be one string or one for each of ", n, " words, not ", length(context))
  context
}

order_of <- function(word_n, x, n) {
  if (is.character(word_n) && is.data.frame(x)) word_n <- column_of(x, string(word_n))
  word_n <- plain(word_n)
  if (!is_plain_number(word_n) || length(word_n) != n) {
    fail("word_n must be a number for each of ", n, " words, not ", describe(word_n))
  }
  if (anyNA(word_n)) fail("word_n must not contain NA, as at position ", positions_of(is.na(word_n)), ": pass the position of each word")
  as.double(word_n)
}

# Settings of both functions. R matches the tokens, because the regular expression has R's syntax.
word_settings <- function(model, sep, ignore_regex, bos, tokenizer, correct, renyi, premise) {
  tokenizer <- check_tokenizer(tokenizer)
  call <- users_call()
  ignored <- NULL
  if (!is.null(ignore_regex) && nzchar(string(ignore_regex))) {
    vocabulary <- ask("vocabulary", model = model, tokenizer = tokenizer)
    matches <- tryCatch(suppressWarnings(grepl(ignore_regex, vocabulary$text)), error = function(e) {
      fail("ignore_regex must be a valid regular expression, not ", describe(ignore_regex), call = call)
    })
    ignored <- vocabulary$id[matches]
  }
  renyi <- plain(renyi)
  if (!is.null(renyi) && (!is_plain_number(renyi) || !length(renyi) || anyNA(renyi) || any(renyi < 0))) {
    fail("renyi must be orders of 0 or more, such as 0.5, not ", describe(renyi), call = call)
  }
  list(
    sep = string(sep), ignored = ignored, bos = optional(bos, flag), tokenizer = tokenizer,
    correct = optional(correct, choice, c("pimentel", "oh"), "correct"), renyi = if (!is.null(renyi)) as.double(renyi),
    premise = optional(premise, string, "premise")
  )
}

# Results

# Adds the result to a data frame. For a vector, returns the log-probabilities.
with_columns <- function(x, result, names) {
  if (is.data.frame(x)) add_columns(x, result) else stats::setNames(result$logprob, names)
}

add_columns <- function(x, columns) {
  existing <- intersect(names(columns), names(x))
  if (length(existing)) warn(paste0("existing columns of the data frame were replaced: ", toString(existing)))
  for (name in names(columns)) x[[name]] <- columns[[name]]
  x
}
