# Padding, truncation and training of tokenizers (?tokenizer_from_pretrained). The object of R contains the settings, which
# each encoding sends to Python.

enable_padding <- function(tokenizer, direction, pad_id, pad_type_id, pad_token, length, pad_to_multiple_of) {
  settings <- list(
    direction = choice(direction, c("right", "left")), pad_id = optional(pad_id, whole_number, "pad_id"),
    pad_type_id = whole_number(pad_type_id), pad_token = optional(pad_token, string, "pad_token"),
    length = optional(length, whole_number, "length", min = 1),
    pad_to_multiple_of = optional(pad_to_multiple_of, whole_number, "pad_to_multiple_of", min = 1)
  )
  found <- if (is.null(settings$pad_id)) {
    padding_token(tokenizer, settings$pad_token)
  } else {
    list(id = settings$pad_id, token = tokenizer$id_to_token(settings$pad_id))
  }
  if (is.na(found$token)) fail("the vocabulary has no token with the ID ", found$id, ": choose the ID of one of its tokens as pad_id")
  settings$pad_id <- found$id
  settings$pad_token <- settings$pad_token %||% found$token
  set_lengths(tokenizer, "padding", settings)
}

padding_token <- function(tokenizer, token = NULL) ask("padding_token", tokenizer = tokenizer, token = token)

enable_truncation <- function(tokenizer, max_length, stride, strategy, direction) {
  if (whole_number(stride) != 0L) fail("stride must be 0: the tokens beyond max_length are not returned")
  set_lengths(tokenizer, "truncation", list(
    max_length = whole_number(max_length, min = 1), strategy = choice(strategy, c("longest_first", "only_first", "only_second")),
    direction = choice(direction, c("right", "left"))
  ))
}

set_lengths <- function(tokenizer, what, settings) {
  assign(what, settings, attr(tokenizer, "self"))
  invisible(tokenizer)
}

# Matrices with one row per text. NA is a row of padding.
encode_matrix <- function(tokenizer, texts, pairs, add_special_tokens) {
  if (!is.null(pairs) && length(pairs) != length(texts)) {
    fail("pair must have as many texts as input, ", length(texts), ", not ", length(pairs))
  }
  encodings <- encode_texts(tokenizer, texts, add_special_tokens, pairs)
  count <- vapply(encodings, length, 0L)
  wide <- max(count, if (all(is.na(texts)) && length(texts)) padded_length(tokenizer$padding), 0L)
  short <- wide - count
  pad <- if (any(short > 0L)) tokenizer$padding$pad_id %||% padding_token(tokenizer)$id else 0L
  fields <- list(ids = pad, attention_mask = 0L, type_ids = 0L)
  lapply(stats::setNames(names(fields), names(fields)), function(field) {
    rows <- Map(function(encoding, short) c(.subset2(encoding, field), rep.int(fields[[field]], short)), encodings, short)
    matrix(as.integer(unlist(rows)), length(texts), wide, byrow = TRUE)
  })
}

# The number of tokens of a batch without tokens.
padded_length <- function(padding) {
  multiple <- padding$pad_to_multiple_of %||% 1L
  as.integer(ceiling((padding$length %||% 0L) / multiple) * multiple)
}

# A model has at most this number of token IDs.
MOST_TOKENS <- 2^24

train_tokenizer <- function(texts, vocab_size, model, special_tokens) {
  model <- choice(model, c("bpe", "wordpiece"))
  special_tokens <- if (is.null(special_tokens)) if (model == "bpe") "<|endoftext|>" else character() else texts(special_tokens)
  json <- ask(
    "train_tokenizer", texts = argument_texts(texts), vocab_size = whole_number(vocab_size, min = 1, max = MOST_TOKENS), model = model,
    special_tokens = special_tokens
  )
  new_tokenizer("tokenizer_from_json", list(json = json))
}
