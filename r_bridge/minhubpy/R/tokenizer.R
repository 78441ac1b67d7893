#' Load a tokenizer
#'
#' `tokenizer_from_pretrained()` loads the tokenizer of a repository, a local
#' folder, a GGUF file or a built-in model, without the weights.
#' `tokenizer$from_pretrained()` is equivalent, and `tokenizer$from_file()` loads
#' a tokenizer.json. Both are compatible with the package tok.
#' `tokenizer$train()` creates a tokenizer from texts.
#'
#' @section Methods:
#' * `tok$encode(sequence, pair = NULL, add_special_tokens = TRUE)` returns an
#'   encoding with `$ids` (0-based integers), `$tokens`, `$attention_mask` and
#'   `$type_ids` (1 for the tokens of the second text of a pair). `pair` is the
#'   second text, for models that read two texts, such as BERT.
#' * `tok$encode_batch(input, add_special_tokens = TRUE)` returns a list of
#'   encodings.
#' * `tok$encode_matrix(input, pair = NULL, add_special_tokens = TRUE)` returns a
#'   list of the integer matrices `ids`, `attention_mask` (1 for tokens, 0 for
#'   padding) and `type_ids`, with one row per text. Without `enable_padding()`,
#'   shorter texts are padded at the right. A text that is `NA` is padding only.
#' * `tok$decode(ids, skip_special_tokens = TRUE)` returns a string.
#' * `tok$decode_batch(sequences, skip_special_tokens = TRUE)` returns a
#'   character vector.
#' * `tok$get_vocab_size(with_added_tokens = TRUE)` returns an integer.
#' * `tok$get_vocab(with_added_tokens = TRUE)` returns a data frame with the
#'   columns `token` and `id`.
#' * `tok$token_to_id(tokens)` and `tok$id_to_token(ids)` convert vectors.
#' * `tok$apply_chat_template(messages, add_generation_prompt = TRUE, tokenize =
#'   FALSE)` renders messages with the chat template. `messages` is one
#'   conversation: a data frame with the columns `role` and `content`, or a list of
#'   messages such as `list(role = "user", content = "Hello")`. Or a character
#'   vector, whose elements are user messages of separate conversations. Returns
#'   the text of each conversation. With `tokenize = TRUE`, it returns a vector of
#'   0-based token IDs, or a list of them for several conversations.
#' * `tok$save(path, pretty = TRUE)` writes a tokenizer.json.
#'
#' @section Padding and truncation:
#' Both change the encodings of this object only; other functions encode complete
#' texts. The object is changed, and returned invisibly.
#' * `tok$enable_padding(direction = "right", pad_id = NULL, pad_type_id = 0L,
#'   pad_token = NULL, length = NULL, pad_to_multiple_of = NULL)` pads the texts of
#'   a batch to the length of the longest one, or to `length` tokens. `pad_token` is
#'   by default the tokenizer's, and `pad_id` the ID of `pad_token`.
#' * `tok$enable_truncation(max_length, strategy = "longest_first", direction =
#'   "right")` truncates a text to `max_length` tokens, including special tokens.
#'   The strategies for pairs are `"longest_first"`, `"only_first"` and
#'   `"only_second"`.
#' * `tok$no_padding()` and `tok$no_truncation()` disable them. `tok$padding` and
#'   `tok$truncation` are lists of the settings, or `NULL`.
#'
#' @section Training:
#' `tokenizer$train(texts, vocab_size = 5000, model = "bpe", special_tokens = NULL)`
#' learns a vocabulary from texts: byte-level BPE like GPT-2's (by default with the
#' special token `"<|endoftext|>"`), or with `model = "wordpiece"` WordPiece like
#' BERT's, whose special tokens are added to `special_tokens`. `tok$save()` writes
#' it to a file, and the folder of a file tokenizer.json is a `tokenizer` for
#' [minhub_train()].
#'
#' @inheritParams from_pretrained
#' @returns An object of class `minhub_tokenizer`. An encoding, of class
#'   `minhub_encoding`, has an `as.data.frame()` method with the columns `token`
#'   and `id`. Its `summary()` counts each token.
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' tok <- tokenizer_from_pretrained("minhub/shakespeare-gpt2")
#' ids <- tok$encode("ROMEO:")$ids
#' tok$decode(ids)
#' \dontshow{minhubpy:::end_example()}
#' @export
tokenizer_from_pretrained <- function(identifier, revision = "main", token = NULL, local_files_only = FALSE) {
  new_tokenizer("tokenizer_from_pretrained", list(
    identifier = path_or_name(identifier), revision = string(revision),
    token = optional(token, string, what = "token"), local_files_only = flag(local_files_only)
  ))
}

#' @rdname tokenizer_from_pretrained
#' @format NULL
#' @usage NULL
#' @export
tokenizer <- structure(
  list(
    from_pretrained = function(identifier, revision = "main", auth_token = NULL) {
      tokenizer_from_pretrained(identifier, revision, token = auth_token)
    },
    from_file = function(path) {
      new_tokenizer("tokenizer_from_file", list(path = absolute(file_path(path))))
    },
    train = function(texts, vocab_size = 5000, model = c("bpe", "wordpiece"), special_tokens = NULL) {
      train_tokenizer(texts, vocab_size, model, special_tokens)
    }
  ),
  class = "minhub_tokenizer_class"
)

new_tokenizer <- function(method, arguments) {
  self <- new_self(method, arguments, arguments$identifier %||% arguments$path %||% "texts")
  tokenizer <- structure(list(), class = "minhub_tokenizer", self = self)
  self$size <- ask("vocab_size", tokenizer = tokenizer, with_added_tokens = TRUE)
  tokenizer
}

TOKENIZER_METHODS <- c(
  "encode", "encode_batch", "decode", "decode_batch", "get_vocab_size", "get_vocab", "token_to_id", "id_to_token",
  "apply_chat_template", "save", "encode_matrix", "enable_padding", "no_padding", "enable_truncation", "no_truncation"
)
TOKENIZER_FIELDS <- c("padding", "truncation")

#' @export
`$.minhub_tokenizer` <- function(x, name) {
  switch(name,
    encode = function(sequence, pair = NULL, is_pretokenized = FALSE, add_special_tokens = TRUE) {
      check_plain(is_pretokenized)
      encode_texts(x, string(sequence), add_special_tokens, optional(pair, string, what = "pair"))[[1L]]
    },
    encode_batch = function(input, is_pretokenized = FALSE, add_special_tokens = TRUE) {
      check_plain(is_pretokenized)
      encode_texts(x, texts(input, missing = TRUE), add_special_tokens)
    },
    encode_matrix = function(input, pair = NULL, add_special_tokens = TRUE) {
      encode_matrix(x, texts(input, missing = TRUE), optional(pair, texts, "pair"), add_special_tokens)
    },
    enable_padding = function(direction = c("right", "left"), pad_id = NULL, pad_type_id = 0L, pad_token = NULL, length = NULL,
                              pad_to_multiple_of = NULL) {
      enable_padding(x, direction, pad_id, pad_type_id, pad_token, length, pad_to_multiple_of)
    },
    no_padding = function() set_lengths(x, "padding", NULL),
    padding = attr(x, "self")$padding,
    enable_truncation = function(max_length, stride = 0L, strategy = c("longest_first", "only_first", "only_second"),
                                 direction = c("right", "left")) {
      enable_truncation(x, max_length, stride, strategy, direction)
    },
    no_truncation = function() set_lengths(x, "truncation", NULL),
    truncation = attr(x, "self")$truncation,
    decode = function(ids, skip_special_tokens = TRUE) {
      decode_ids(x, list(if (length(ids)) plain_ids(ids) else integer()), skip_special_tokens)
    },
    decode_batch = function(sequences, skip_special_tokens = TRUE) {
      rows <- if (is.matrix(sequences)) asplit_rows(sequences) else if (is.object(sequences) || is.function(sequences)) list(sequences) else as.list(sequences)
      plain <- vapply(rows, function(ids) is.integer(ids) && !is.object(ids), NA)
      rows[!plain] <- lapply(rows[!plain], function(ids) if (length(ids)) plain_ids(ids, "sequences") else integer())
      decode_ids(x, rows, skip_special_tokens)
    },
    get_vocab_size = function(with_added_tokens = TRUE) {
      ask("vocab_size", tokenizer = x, with_added_tokens = flag(with_added_tokens))
    },
    get_vocab = function(with_added_tokens = TRUE) {
      ask("vocab", tokenizer = x, with_added_tokens = flag(with_added_tokens))
    },
    token_to_id = function(tokens) {
      if (length(tokens)) ask("token_to_id", tokenizer = x, tokens = texts(tokens)) else integer()
    },
    id_to_token = function(ids) if (length(ids)) ask("id_to_token", tokenizer = x, ids = plain_ids(ids)) else character(),
    apply_chat_template = function(messages, add_generation_prompt = TRUE, tokenize = FALSE) {
      render_messages(x, messages, flag(add_generation_prompt), flag(tokenize))
    },
    save = function(path, pretty = TRUE) {
      ask("save_tokenizer", tokenizer = x, path = absolute(file_path(path)), pretty = flag(pretty))
      invisible(path)
    },
    no_member("a tokenizer", name, TOKENIZER_FIELDS, TOKENIZER_METHODS)
  )
}

#' @export
`[[.minhub_tokenizer` <- function(x, i) do.call(`$`, list(x, string(i)))

check_plain <- function(is_pretokenized) {
  if (!identical(is_pretokenized, FALSE)) fail("is_pretokenized = TRUE is not supported: pass text")
}

# The text or token IDs of conversations: NA or, with `tokenize`, no IDs for a missing message.
render_messages <- function(tokenizer, messages, add_generation_prompt, tokenize) {
  conversations <- conversations_of(messages)
  kept <- which(!vapply(conversations, is.null, NA))
  results <- ask(
    "apply_chat_template", tokenizer = tokenizer, conversations = conversations[kept],
    add_generation_prompt = add_generation_prompt, tokenize = tokenize
  )
  if (!tokenize) return(replace(rep(NA_character_, length(conversations)), kept, results))
  rows <- replace(rep(list(integer()), length(conversations)), kept, results)
  if (length(rows) == 1L) rows[[1L]] else rows
}

# Conversations as lists of messages; NULL for a missing message.
conversations_of <- function(messages) {
  if (is.data.frame(messages)) {
    missing <- setdiff(c("role", "content"), names(messages))
    if (length(missing) || !nrow(messages)) fail("messages must have at least one row and the columns role and content")
    message <- function(role, content) list(role = role, content = content)
    return(list(unname(Map(message, texts(messages$role, "messages$role"), texts(messages$content, "messages$content")))))
  }
  is_message <- function(x) is_plain_list(x) && length(x) > 0L && !is.null(names(x))
  if (is_message(messages)) fail("messages must be a list of messages: put a single message into a list, list(list(role = \"user\", ...))")
  if (is_plain_list(messages) && length(messages) && all(vapply(messages, is_message, NA))) {
    return(list(lapply(unname(messages), function(message) Map(function(field, name) string(field, name), message, names(message)))))
  }
  if (!length(messages)) fail("messages is empty: pass at least one message")
  lapply(texts(messages, missing = TRUE), function(text) if (!is.na(text)) list(list(role = "user", content = text)))
}

plain_ids <- function(ids, what = "ids") {
  if (inherits(ids, "torch_tensor")) ids <- as.integer(ids)
  ids <- token_ids(ids, what)
  if (is.list(ids)) fail(what, " must be a vector of token IDs: use tok$decode_batch() for a list")
  as.vector(ids)
}

# `pairs`: NULL, or the second text of each pair.
encode_texts <- function(tokenizer, texts, add_special_tokens, pairs = NULL) {
  kept <- present(texts)
  self <- attr(tokenizer, "self")
  result <- ask(
    "encode_batch", tokenizer = tokenizer, texts = texts[kept], add_special_tokens = flag(add_special_tokens),
    pairs = pairs[kept], padding = self$padding, truncation = self$truncation
  )
  row <- structure(rep.int(kept, result$lengths), levels = as.character(seq_along(texts)), class = "factor")
  parts <- function(values) unname(split(values, row))
  Map(
    new_encoding, parts(result$ids), parts(result$type_ids), parts(result$attention_mask), MoreArgs = list(tokenizer = tokenizer)
  )
}

decode_ids <- function(tokenizer, rows, skip_special_tokens) {
  if (!length(rows)) return(character())
  # One long vector is faster than many short vectors.
  ids <- list(ids = c(integer(), unlist(rows, use.names = FALSE)), lengths = lengths(rows, use.names = FALSE))
  ask("decode_batch", tokenizer = tokenizer, ids = ids, skip_special_tokens = flag(skip_special_tokens))
}

new_encoding <- function(ids, type_ids, attention_mask, tokenizer) {
  structure(list(ids = ids, type_ids = type_ids, attention_mask = attention_mask), class = "minhub_encoding", tokenizer = tokenizer)
}

ENCODING_FIELDS <- c("ids", "tokens", "attention_mask", "type_ids")

#' @export
`$.minhub_encoding` <- function(x, name) {
  ids <- .subset2(x, "ids")
  switch(name,
    ids = ids,
    attention_mask = .subset2(x, "attention_mask"),
    type_ids = .subset2(x, "type_ids"),
    tokens = if (length(ids)) attr(x, "tokenizer")$id_to_token(ids) else character(),
    no_member("an encoding", name, ENCODING_FIELDS)
  )
}

#' @export
`[[.minhub_encoding` <- function(x, i) {
  do.call(`$`, list(x, member_name(i, "an encoding", ENCODING_FIELDS)))
}

#' @export
.DollarNames.minhub_encoding <- function(x, pattern = "") grep(pattern, ENCODING_FIELDS, value = TRUE)

#' @export
length.minhub_encoding <- function(x) length(.subset2(x, "ids"))

#' @export
as.integer.minhub_encoding <- function(x, ...) .subset2(x, "ids")

#' @export
format.minhub_encoding <- function(x, ...) paste0("<encoding of ", length(x), " tokens>")

#' @export
print.minhub_encoding <- function(x, ...) {
  cat(format(x), "\n", sep = "")
  if (length(x)) print(utils::head(x$ids, 20L))
  if (length(x) > 20L) cat("...\n")
  invisible(x)
}

#' @export
format.minhub_tokenizer <- function(x, ...) {
  self <- attr(x, "self")
  paste0("<tokenizer of ", self$title, ": ", format(self$size, big.mark = ","), " tokens>")
}

#' @export
`$<-.minhub_tokenizer` <- function(x, name, value) {
  fail("the fields of a tokenizer are read-only, as is ", name, ": use tok$enable_padding() or tok$enable_truncation()")
}

#' @export
.DollarNames.minhub_tokenizer <- function(x, pattern = "") {
  grep(pattern, c(TOKENIZER_FIELDS, paste0(TOKENIZER_METHODS, "(")), value = TRUE)
}
