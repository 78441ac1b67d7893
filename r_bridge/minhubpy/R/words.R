#' How predictable words are
#'
#' `word_logprobs()` gives the log-probability of each word, given the words
#' before it in its text; `target_logprobs()` that of a word, or of several,
#' after a context of its own. Both are sums over the tokens of the word, to
#' which the space before it belongs. Words are joined and encoded as in the
#' package pangoling, with the same results: `causal_words_pred()` is
#' `word_logprobs()` there, and `causal_targets_pred()` `target_logprobs()`.
#'
#' A text longer than the model's context is read in overlapping windows. What
#' texts or contexts begin with in common is computed once. Models that fill in
#' blanks (masked models, such as BERT) are not in this package.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param x The words: a vector, or a data frame with a column of them. A word
#'   that is `NA` or `""` has no numbers, and the text goes on without it.
#' @param by What tells texts apart, in any order: a value for each word, or the
#'   names of columns of `x`. `NULL`: all words are one text, or, where `x` was
#'   grouped by dplyr, each group is one. Rows where it is `NA` belong to none.
#' @param context Text that stands before the words and is not scored: one
#'   string, one for each word (the same in all of a text), or the name of a
#'   column of `x`.
#' @param words The name of the column of words, if `x` is a data frame.
#' @param word_n Numbers that give the order of the words in each text, if it is
#'   not that of `x`; or the name of a column of them.
#' @param sep Text that joins words, and a context and its target: `""` for
#'   languages without spaces. If it is a space, white space on either side of it
#'   is an error, as the space would be doubled.
#' @param ignore_regex A regular expression. Tokens whose text it finds add
#'   nothing to their word: `"^[[:punct:]]$"` leaves out punctuation that is a
#'   token by itself.
#' @param bos Whether a text begins with the model's token for that, so that its
#'   first word has numbers too. `NULL`: as the tokenizer does it; GPT-2's does
#'   not, Llama's does.
#' @param resume The name of a file (.rds) that keeps what is done of a long job:
#'   stopped by Esc, a crash or anything else, the same call goes on from there.
#'   When all is done, the file gives the same call its result at once. One session
#'   at a time can use a file. It belongs to the weights of the model, whose files
#'   are hashed once (1 GB takes about a second).
#' @param contexts,targets A character vector each, of one length. Or `contexts`
#'   is a data frame with the columns `context` and `target`.
#' @returns For vectors, the log-probabilities (nats) in their order: with the
#'   words as names, or from `target_logprobs()` with the names of `targets`, if
#'   it has names. For a data frame, the same with these columns added, or
#'   replaced, with a warning:
#'   `tokens`, how many the word has; `logprob`, in nats; `surprisal`,
#'   `-log2` of the probability, in bits; and `entropy`, in bits, of what the
#'   model expects in the place of the word's first token. They are `NA` for the
#'   first word of a text, which nothing predicts, unless there is a context.
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
                          ignore_regex = NULL, bos = NULL, tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  job <- list(words = words_of(x, words, "x"))
  n <- length(job$words)
  if (is.null(by) && inherits(x, "grouped_df")) by <- setdiff(names(attr(x, "groups")), ".rows")
  job$by <- groups_of(by, x, n)
  if (!is.null(context)) job$context <- context_of(context, x, n)
  if (!is.null(word_n)) job$word_n <- order_of(word_n, x, n)
  settings <- word_settings(model, sep, ignore_regex, bos, tokenizer)
  texts <- if (is.null(job$by)) rep(1L, n) else job$by
  found <- in_parts(texts, resume, c(model = list(model), job, settings), function(rows, news) {
    part <- lapply(job, `[`, rows)
    do.call(ask, c(list("word_logprobs", model = model), part, settings, list(news = news)))
  })
  with_columns(x, found, job$words)
}

#' @rdname word_logprobs
#' @export
target_logprobs <- function(model, contexts, targets = NULL, sep = " ", ignore_regex = NULL, bos = NULL, tokenizer = NULL,
                            resume = NULL) {
  model <- check_model(model)
  given <- contexts
  if (is.data.frame(contexts)) {
    targets <- if (is.null(targets)) column_of(given, "target") else targets
    contexts <- column_of(given, "context")
  } else {
    given <- targets
  }
  job <- list(contexts = words_of(contexts, NULL, "contexts"), targets = words_of(targets, NULL, "targets"))
  if (length(job$contexts) == 1L) job$contexts <- rep(job$contexts, length(job$targets))
  if (length(job$contexts) != length(job$targets)) {
    fail(length(job$targets), " targets for ", length(job$contexts), " contexts: give one for each")
  }
  settings <- word_settings(model, sep, ignore_regex, bos, tokenizer)
  found <- in_parts(seq_along(job$targets), resume, c(model = list(model), job, settings), function(rows, news) {
    part <- lapply(job, `[`, rows)
    do.call(ask, c(list("target_logprobs", model = model), part, settings, list(news = news)))
  })
  with_columns(given, found, names(targets)) # not the targets: a difference of two vectors would have the first one's
}

#' Every log-probability at every token
#'
#' @inheritParams token_logprobs
#' @param file A .npy file to write the matrix to, if it is large: a row takes
#'   200 kB with GPT-2's vocabulary. It holds 4-byte numbers, row after row;
#'   Python reads it by `numpy.load()`, R by [readBin()] from byte 129 on.
#' @returns For one text, a matrix with a row for each token and a column for
#'   each id of the vocabulary (column 1 is id 0), in nats: what the model gave
#'   each id in the token's place. Nothing predicts the first token, whose row is
#'   `NA`. For several texts, a list of matrices. With `file`, a data frame that
#'   says what the rows of the file are: `text`, `position`, `token`, `id`.
#' @family functions for predictability
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' all <- logprob_matrix(model, "ROMEO:")
#' dim(all)
#' rowSums(exp(all))
#' \dontshow{minhubpy:::end_example()}
#' @export
logprob_matrix <- function(model, texts, file = NULL, tokenizer = NULL) {
  model <- check_model(model)
  labels <- labels_of(texts)
  texts <- texts_or_ids(texts, "texts")
  if (!is.null(file)) {
    file <- path.expand(string(file))
    if (!grepl("\\.npy$", file)) fail('file must end in ".npy", not be ', describe(file))
    file <- file.path(normalizePath(dirname(file), mustWork = FALSE), basename(file)) # Python's folder is another
  }
  found <- ask(
    "logprob_matrix",
    model = model, texts = texts, tokenizer = check_tokenizer(tokenizer), out = file, news = show_progress()
  )
  rows <- found$rows
  if (!is.null(file)) {
    rows$text <- text_of_row(rows$text, labels)
    return(rows)
  }
  matrix <- found$matrix
  rownames(matrix) <- rows$token
  if (length(texts) == 1L) return(matrix)
  parts <- split(seq_len(nrow(rows)), rows$text)
  stats::setNames(lapply(parts, function(part) matrix[part, , drop = FALSE]), labels)
}

# Arguments

# A column of words as UTF-8, which may be NA.
words_of <- function(x, name, what) {
  if (is.data.frame(x)) {
    what <- name
    x <- column_of(x, string(name, "words"))
  }
  if (is.factor(x) || (is.logical(x) && all(is.na(x)))) x <- as.character(x)
  if (!is.character(x)) fail(what, " must be text, not ", describe(x))
  x <- as.vector(x)
  x[!is.na(x)] <- texts(x[!is.na(x)], what)
  x
}

column_of <- function(data, name) {
  if (!name %in% names(data)) {
    fail("there is no column ", name, "; there are ", toString(utils::head(names(data), 8L)))
  }
  data[[name]]
}

# A number for each text, or NULL if there is but one.
groups_of <- function(by, x, n) {
  if (is.null(by)) return(NULL)
  if (is.data.frame(x) && is.character(by) && (length(by) != n || all(by %in% names(x)))) {
    by <- lapply(by, function(name) column_of(x, name))
  }
  columns <- if (is.list(by)) unname(as.list(by)) else list(by)
  if (!length(columns)) fail("by must be a vector, or names of columns, not ", describe(by))
  for (column in columns) {
    if (!is.atomic(column)) fail("by must be a vector, or names of columns, not ", describe(column))
    if (length(column) != n) fail("by has ", length(column), " values for ", n, " words: give one for each")
  }
  missing <- Reduce(`|`, lapply(columns, is.na))
  codes <- lapply(columns, function(column) match(column, unique(column)))
  key <- do.call(paste, codes)
  key[missing] <- NA
  match(key, unique(key[!missing]))
}

context_of <- function(context, x, n) {
  if (is.data.frame(x) && is.character(context) && length(context) == 1L && context %in% names(x)) context <- x[[context]]
  context <- words_of(context, NULL, "context")
  if (length(context) == 1L) context <- rep(context, n)
  if (length(context) != n) fail("context has ", length(context), " strings for ", n, " words: give one, or one for each")
  context
}

order_of <- function(word_n, x, n) {
  if (is.character(word_n) && is.data.frame(x)) word_n <- column_of(x, string(word_n))
  if (!is.numeric(word_n) || length(word_n) != n) {
    fail("word_n must be a number for each of ", n, " words, not ", describe(word_n))
  }
  if (anyNA(word_n)) fail("word_n has NA at ", places(is.na(word_n)), ": give the place of each word in its text")
  as.double(word_n)
}

# What both functions send beside their columns. Regular expressions are R's own, so R looks for tokens.
word_settings <- function(model, sep, ignore_regex, bos, tokenizer) {
  tokenizer <- check_tokenizer(tokenizer)
  call <- users_call()
  ignored <- NULL
  if (!is.null(ignore_regex) && nzchar(string(ignore_regex))) {
    known <- ask("vocabulary", model = model, tokenizer = tokenizer)
    matches <- tryCatch(suppressWarnings(grepl(ignore_regex, known$text)), error = function(e) {
      fail("ignore_regex is not a regular expression of R: ", describe(ignore_regex), call = call)
    })
    ignored <- known$id[matches]
  }
  list(sep = string(sep), ignored = ignored, bos = optional(bos, flag), tokenizer = tokenizer)
}

# Results

COLUMNS <- c("tokens", "logprob", "surprisal", "entropy")

# The result beside the data frame that was given, or the log-probabilities of a vector.
with_columns <- function(x, found, names) {
  if (!is.data.frame(x)) return(stats::setNames(found$logprob, names))
  there <- intersect(COLUMNS, names(x))
  if (length(there)) warn(paste0("the data frame had ", toString(there), " already: replaced"))
  for (name in COLUMNS) x[[name]] <- found[[name]]
  x
}
