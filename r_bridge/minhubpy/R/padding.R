# Padding, truncation and training of tokenizers (?tokenizer_from_pretrained). The object of R contains the settings, which
# each encoding sends to Python.

enable_padding <- function(tokenizer, direction, pad_id, pad_type_id, pad_token, length, pad_to_multiple_of) {
  pad_token <- optional(pad_token, string, "pad_token")
  pad_id <- optional(pad_id, whole_number, "pad_id")
  if (is.null(pad_id)) {
    found <- padding_token(tokenizer, pad_token)
    pad_id <- found$id
    pad_token <- found$token
  }
  set_lengths(tokenizer, "padding", list(
    direction = choice(direction, c("right", "left")), pad_id = pad_id, pad_type_id = whole_number(pad_type_id),
    pad_token = pad_token %||% tokenizer$id_to_token(pad_id), length = optional(length, whole_number, "length", min = 1),
    pad_to_multiple_of = optional(pad_to_multiple_of, whole_number, "pad_to_multiple_of", min = 1)
  ))
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
  wide <- max(0L, count)
  short <- wide - count
  pad <- if (any(short > 0L)) tokenizer$padding$pad_id %||% padding_token(tokenizer)$id else 0L
  fields <- list(ids = pad, attention_mask = 0L, type_ids = 0L)
  lapply(stats::setNames(names(fields), names(fields)), function(field) {
    rows <- Map(function(encoding, short) c(.subset2(encoding, field), rep.int(fields[[field]], short)), encodings, short)
    matrix(as.integer(unlist(rows)), length(texts), wide, byrow = TRUE)
  })
}

train_tokenizer <- function(texts, vocab_size, model, special_tokens) {
  model <- choice(model, c("bpe", "wordpiece"))
  special_tokens <- if (is.null(special_tokens)) if (model == "bpe") "<|endoftext|>" else character() else texts(special_tokens)
  json <- ask(
    "train_tokenizer", texts = argument_texts(texts), vocab_size = whole_number(vocab_size, min = 1), model = model,
    special_tokens = special_tokens
  )
  new_tokenizer("tokenizer_from_json", list(json = json))
}
