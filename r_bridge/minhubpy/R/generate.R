#' Generate text
#'
#' Continues one or more prompts. An encoder-decoder such as T5 generates an
#' answer to each prompt instead. Esc or Ctrl-C interrupts the generation; the
#' session and the model remain usable. Characters that the vocabulary does not
#' contain are omitted with a warning.
#'
#' With `chat = TRUE`, each prompt is a message to a chat model, and the new text
#' is the reply: `generate(model, prompts, chat = TRUE)` answers all prompts in one
#' batch. For a conversation, see [minhub_chat()].
#'
#' @param x A model, see [from_pretrained()], or a run of [minhub_train()].
#' @param prompts A character vector. Or 0-based token IDs: a vector, a matrix
#'   with one row per prompt, or a list of vectors, which may differ in length.
#'   The new text of a prompt that is `NA` is `NA`.
#' @param max_new_tokens The maximum number of new tokens for each prompt; by
#'   default 64, and 512 for a reply (`chat = TRUE`).
#' @param temperature Divides the logits. Values below 1 favor likely tokens,
#'   values above 1 increase variety, and 0 selects the most likely token (greedy
#'   decoding).
#' @param top_k Sample from the `top_k` most likely tokens. `NULL`: no limit.
#' @param top_p Sample from the smallest set of most likely tokens whose
#'   probabilities sum to at least `top_p`. `NULL`: no limit.
#' @param repetition_penalty Values above 1 reduce the probability of tokens that
#'   the sequence already contains.
#' @param min_p Exclude tokens that are less likely than `min_p` times the most
#'   likely token. `NULL`: no limit.
#' @param presence_penalty,frequency_penalty Numbers from -2 to 2 that are
#'   subtracted from the logits of tokens that the new text already contains: once,
#'   and for each occurrence.
#' @param logit_bias Numbers from -100 to 100 that are added to logits, named by
#'   0-based token IDs: `c("42" = -100)`.
#' @param seed An integer for all prompts, or one per prompt. By default, seeds
#'   are drawn from R's random numbers, so `set.seed()` makes the text
#'   reproducible. A prompt's text does not depend on the other prompts:
#'   equal prompts with equal seeds have equal texts. For three different texts,
#'   use `generate(model, rep("ROMEO:", 3), seed = 1:3)`.
#' @param eos_id The end-of-sequence token IDs. `"auto"` uses the model's token
#'   IDs, and `NULL` none.
#' @param stop Stop strings. A text ends before the first of them.
#' @param tokenizer A tokenizer, see [tokenizer_from_pretrained()]. By default,
#'   the model's tokenizer.
#' @param stream Whether to print the text while it is generated (for one prompt
#'   of text). Or a function that is called with each new piece of text. `"auto"`
#'   prints the text if the call is a complete expression at an interactive
#'   console, and does not if its value is assigned or passed to another function.
#' @param speculate The maximum number of draft tokens per decoding step for
#'   speculative decoding by prompt lookup. The output is unchanged; repetitive
#'   text is generated faster. No effect on an LSTM or on a GPU.
#' @param draft A smaller model with the same tokenizer, which proposes the draft
#'   tokens instead, at most `speculate` or 8 per step. Or `"mtp"`, the model's
#'   head for multi-token prediction, if it was loaded with `mtp = TRUE` (see
#'   [from_pretrained()]): at most `speculate` or 3 per step. The output is
#'   unchanged; it is generated faster if the model accepts most of them. A
#'   message states their numbers.
#' @param beams The number of beams of a beam search, from 1 (greedy decoding) to
#'   64, instead of sampling: `temperature`, `top_k`, `top_p` and `min_p` have no
#'   effect and must not be set. The result is the sequence with the highest score.
#'   Its text is not streamed. `NULL`: no beam search.
#' @param length_penalty,early_stopping,no_repeat_ngram_size Settings of beam
#'   search. A score is the sum of the log-probabilities divided by the number of
#'   tokens to the power of `length_penalty`, so that values above 0 favor longer
#'   texts. The search ends after `beams` sequences are complete: at once with
#'   `TRUE`; with `FALSE`, if the best incomplete one has a lower score now; with
#'   `"never"`, if no longer sequence can have a higher one. n-grams of
#'   `no_repeat_ngram_size` tokens occur at most once; 0 has no effect.
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()]. Requires a
#'   `seed` or `temperature = 0`.
#' @param chat Whether each prompt is a user message. The model's chat template
#'   renders it as a prompt, and the text is the reply without its reasoning. It
#'   ends at the template's end tokens, and at the end of the model's context.
#'   `temperature`, `top_k`, `top_p`, `repetition_penalty` and `min_p` have the
#'   defaults of [minhub_chat()]. A model without a chat template continues a plain
#'   dialogue. Not available with `beams`.
#' @param system The system prompt of `chat`, or `NULL`.
#' @param ... Arguments of the methods.
#'
#' @details
#' `generate()` is an S3 generic. Its methods are also methods of
#' `generics::generate()`, so the call works the same way if a package that
#' exports that generic, such as infer, is attached after this package.
#'
#' @returns For text, a character vector with the new text of each prompt and the
#'   names of `prompts`, invisibly if the text was printed. For token IDs, a list
#'   of integer vectors with the new token IDs.
#' @family functions that generate text
#' @seealso [from_pretrained()], [tokenizer_from_pretrained()]
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' generate(model, "ROMEO:", max_new_tokens = 40, seed = 1, stream = FALSE)
#' generate(model, c(a = "To be", b = "O "), max_new_tokens = 10, temperature = 0)
#' generate(model, c("Good morrow!", NA), chat = TRUE, max_new_tokens = 10, seed = 1)
#' \dontshow{minhubpy:::end_example()}
#' @export
generate <- function(x, ...) UseMethod("generate")

#' @rdname generate
#' @export
#' @rawNamespace S3method(generics::generate,minhub_model)
generate.minhub_model <- function(x, prompts, max_new_tokens = 64, temperature = 1, top_k = NULL, top_p = NULL,
                                  repetition_penalty = 1, seed = NULL, eos_id = "auto", stop = NULL, tokenizer = NULL,
                                  stream = "auto", speculate = 0, resume = NULL, min_p = NULL, presence_penalty = 0,
                                  frequency_penalty = 0, logit_bias = NULL, draft = NULL, ..., beams = NULL, length_penalty = 1,
                                  early_stopping = FALSE, no_repeat_ngram_size = 0, chat = FALSE, system = NULL) {
  no_more_arguments(...)
  model <- check_model(x)
  unset <- c(
    max_new_tokens = missing(max_new_tokens), temperature = missing(temperature), top_k = missing(top_k), top_p = missing(top_p),
    repetition_penalty = missing(repetition_penalty), min_p = missing(min_p)
  )
  hint <- missing(chat)
  check_chat(model, flag(chat), system, beams)
  search <- search_settings(beams, length_penalty, early_stopping, no_repeat_ngram_size)
  if (!is.null(beams)) {
    if (!identical(stream, "auto") && !isFALSE(stream)) fail("stream is not supported with beams, because a beam search has no text before its end: remove stream")
    stream <- FALSE
  }
  if (missing(prompts)) fail("prompts is missing: pass text, such as generate(model, \"ROMEO:\")")
  labels <- labels_of(prompts)
  prompts <- texts_or_ids(prompts, missing = TRUE)
  if (chat && !is.character(prompts)) fail("chat requires text: pass the user messages as a character vector")
  if (chat) {
    defaults <- chat_defaults(model, check_tokenizer(tokenizer))
    for (name in names(unset)[unset]) assign(name, defaults[[name]])
  }
  temperature <- number(temperature)
  kept <- present(prompts)
  one_text <- is.character(prompts) && length(prompts) == 1L && length(kept) == 1L
  if (is.function(stream) && !one_text) fail("stream must not be a function for several prompts or token IDs: pass one prompt of text")
  if (!is.null(resume)) {
    if (is.null(seed) && temperature > 0 && is.null(beams)) fail("resume requires a seed, such as seed = 1, so that the same call generates the same texts")
    if (!identical(stream, "auto") && !isFALSE(stream)) fail("resume and stream exclude each other: pass one of them")
    stream <- FALSE
  }
  # The caller is the generic.
  if (identical(stream, "auto")) stream <- interactive() && one_text && was_typed(sys.call(-1L), sys.nframe() - 1L)
  streaming <- (is.function(stream) || flag(stream)) && one_text
  # Prints the prompt before the first new text. An encoder-decoder and a reply do not continue it.
  echo <- once(function() if (!chat && !isTRUE(model$config$is_encoder_decoder)) cat(printable(prompts)))
  show <- if (is.function(stream)) stream else function(piece) {
    echo()
    cat(printable(piece))
    utils::flush.console()
  }
  settings <- c(sampling_settings(environment()), list(
    max_new_tokens = whole_number(max_new_tokens), eos_id = end_ids(eos_id), tokenizer = check_tokenizer(tokenizer),
    stop = stop_strings(stop), stream = streaming, speculate = whole_number(speculate), search = search
  ))
  if (chat) settings <- c(settings, list(chat = TRUE, system = system)) # resumed jobs of earlier versions have neither
  if (hint && is.character(prompts)) hint_at_chat(model, tokenizer)
  mtp <- identical(draft, "mtp")
  draft <- if (!mtp) optional(draft, check_model, what = "draft")
  if (streaming && !is.function(stream)) on.exit(if (has_run(echo)) cat("\n"))
  seeds <- seeds(seed, length(prompts), temperature)[kept]
  n <- length(prompts)
  prompts <- prompts[kept]
  job <- c(list(call = "generate", model = model, prompts = prompts, seeds = seeds), settings)
  result <- in_parts(seq_along(prompts), resume, job, function(rows, on_event) {
    part <- list("generate", model = model, prompts = prompts[rows], seeds = seeds[rows], draft = draft, mtp = mtp)
    do.call(ask, c(part, settings, list(on_event = if (streaming) show else on_event)))
  }, size = PROMPTS_OF_PART, join = join_texts)
  if (streaming && !is.function(stream)) echo()
  if (!is.null(result$drafts)) note(result$drafts[[2L]], " of ", result$drafts[[1L]], " draft tokens were accepted")
  if (is.character(prompts)) {
    text <- stats::setNames(replace(rep(NA_character_, n), kept, result$texts), labels)
    if (streaming) invisible(text) else text
  } else {
    stats::setNames(result$ids, labels)
  }
}

#' @rdname generate
#' @export
#' @rawNamespace S3method(generics::generate,minhub_run)
generate.minhub_run <- generate.minhub_model

#' @export
generate.default <- function(x, ...) check_model(x)

check_chat <- function(model, chat, system, beams) {
  optional(system, string, what = "system")
  if (!chat && !is.null(system)) fail("system requires chat = TRUE: add it, or remove system")
  if (chat && !is.null(beams)) fail("chat and beams exclude each other: remove one of them")
  if (chat && isTRUE(model$config$is_encoder_decoder)) {
    fail("chat requires a decoder-only model, and this model is an encoder-decoder: remove chat = TRUE")
  }
}

# The default settings of a reply, by their names in generate(). Notes a missing chat template, as minhub_chat() does.
chat_defaults <- function(model, tokenizer) {
  about <- ask("chat_template", model = model, tokenizer = tokenizer, on_event = show_progress())
  if (!is.null(about$note)) note("This model has ", about$note)
  c(list(max_new_tokens = 512), about$sampling)
}

# Notes once per session that a model has a chat template. A call with another tokenizer has no note.
hint_at_chat <- function(model, tokenizer) {
  if (!is.null(tokenizer) || quiet() || session$chat_hint) return(invisible())
  self <- attr(model, "self")
  if (is.null(self$has_chat_template)) self$has_chat_template <- ask("has_chat_template", model = model)
  if (!self$has_chat_template) return(invisible())
  session$chat_hint <- TRUE
  note("This model has a chat template: generate() continues the text. Set chat = TRUE for replies to messages, or chat = FALSE.")
}

# Rejects unknown arguments, which the `...` of the generic accepts.
no_more_arguments <- function(...) {
  if (!...length()) return(invisible())
  name <- names(list(...))[[1L]] %||% ""
  if (nzchar(name)) {
    known <- setdiff(names(formals(generate.minhub_model)), c("x", "..."))
    # A short name is similar to every other short name.
    similar <- known[(nchar(name) > 2L & startsWith(known, substr(name, 1L, 3L))) | utils::adist(name, known) <= min(2, nchar(name) %/% 3)]
    advice <- if (length(similar)) c("did you mean ", similar[[1L]], "?") else "see ?generate for the arguments"
    fail("unknown argument ", name, ": ", advice)
  }
  fail("too many arguments: pass settings by name, such as max_new_tokens = 40")
}

join_texts <- function(result, rows) {
  parts <- function(name) lapply(result, `[[`, name)
  list(texts = unlist(parts("texts")), ids = do.call(c, parts("ids")), drafts = Reduce(`+`, parts("drafts")))
}

# A function that runs its code only once. has_run() returns whether it has run.
once <- function(code) {
  run <- FALSE
  function() {
    if (!run) code()
    run <<- TRUE
  }
}

has_run <- function(once) environment(once)$run

# Whether a call is a complete expression at the console. A function cannot detect whether its value is assigned, so
# that this searches R's command history. Without a history, every call at top level (depth 1) is a complete expression.
was_typed <- function(call, depth, lines = typed_lines()) {
  if (depth != 1L) return(FALSE)
  attr(call, "srcref") <- NULL
  code <- as_one_line(call)
  complete <- TRUE
  # The number of lines of the last expression is unknown: parse the last line, the last two lines, and so on.
  for (first in rev(seq_along(lines))) {
    typed <- tryCatch(parse(text = lines[first:length(lines)], keep.source = FALSE), error = function(e) NULL)
    with_call <- Filter(function(expression) grepl(code, as_one_line(expression), fixed = TRUE), as.list(typed))
    if (length(with_call)) complete <- is_statement(call, with_call[[length(with_call)]])
  }
  complete
}

as_one_line <- function(code) gsub("[[:space:]]", "", paste(deparse(code), collapse = ""))

# Whether the call is the expression, or a statement in a loop, a condition or braces.
is_statement <- function(call, expression) {
  if (identical(expression, call)) return(TRUE)
  around <- c("{", "(", "for", "while", "repeat", "if")
  if (!is.call(expression) || !deparse(expression[[1L]])[[1L]] %in% around) return(FALSE)
  any(vapply(as.list(expression)[-1L], is_statement, NA, call = call))
}

typed_lines <- function() {
  file <- tempfile("history-")
  on.exit(unlink(file))
  lines <- tryCatch(
    {
      suppressWarnings(utils::savehistory(file))
      readLines(file, warn = FALSE)
    },
    error = function(e) character()
  )
  utils::tail(lines, 20L)
}

seeds <- function(seed, n, temperature) {
  if (is.null(seed)) return(if (temperature > 0) draw_seeds(n) else numeric(n)) # greedy decoding draws no random numbers
  seed <- plain(seed)
  if (!is_plain_number(seed) || !length(seed) %in% c(1L, n) || anyNA(seed) || any(seed != floor(seed) | abs(seed) > 2^53)) {
    fail("seed must be a whole number, or one for each prompt, not ", describe(seed))
  }
  rep_len(as.double(seed), n)
}

end_ids <- function(eos_id) {
  if (identical(eos_id, "auto")) return(NULL)
  if (is.null(eos_id)) return(integer())
  most <- .Machine$integer.max
  eos_id <- plain(eos_id)
  if (!is_plain_number(eos_id) || anyNA(eos_id) || any(eos_id != floor(eos_id) | eos_id < 0 | eos_id > most)) {
    fail('eos_id must be "auto", NULL or token IDs, not ', describe(eos_id))
  }
  as.integer(eos_id)
}

stop_strings <- function(stop) {
  if (is.null(stop)) return(NULL)
  stop <- texts(stop, "stop")
  if (!all(nzchar(stop))) fail("stop must not contain an empty string")
  stop
}

check_tokenizer <- function(tokenizer) {
  if (!is.null(tokenizer) && !inherits(tokenizer, "minhub_tokenizer")) {
    fail("tokenizer must be a tokenizer, as tokenizer_from_pretrained() returns, not ", describe(tokenizer))
  }
  tokenizer
}

#' Predict the next token
#'
#' Returns the most likely next tokens after a prompt and their probabilities.
#'
#' @inheritParams generate
#' @param model A model, see [from_pretrained()], or a run of [minhub_train()].
#' @param prompt A character vector, or 0-based token IDs as in [generate()]. A
#'   prompt that is `NA` has no rows.
#' @param n The number of tokens for each prompt.
#' @returns A data frame of class `minhub_next_tokens` with `n` rows per prompt,
#'   sorted by probability, and the columns
#'   * `prompt`, for several prompts: the number of the prompt, or a factor of the
#'     names of `prompt`;
#'   * `token` and `id` (0-based);
#'   * `prob` and `logprob` (natural log).
#'
#'   It has a [plot()][plot.minhub()] method. `summary()` returns one row per
#'   prompt with the most likely token and `together`, the sum of the
#'   probabilities of all `n` tokens.
#' @family functions for predictability
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' likely <- next_tokens(model, "ROMEO", n = 5)
#' likely
#' plot(likely)
#' next_tokens(model, c(a = "To b", b = "or no"), n = 2)
#' \dontshow{minhubpy:::end_example()}
#' @export
next_tokens <- function(model, prompt, n = 10, tokenizer = NULL) {
  model <- check_model(model)
  labels <- labels_of(prompt)
  prompts <- texts_or_ids(prompt, "prompt", missing = TRUE)
  kept <- present(prompts)
  result <- ask(
    "next_tokens",
    model = model, prompts = prompts[kept], tokenizer = check_tokenizer(tokenizer), n = whole_number(n, min = 1)
  )
  if (length(prompts) == 1L) result$prompt <- NULL else result$prompt <- text_of_row(kept[result$prompt], labels)
  structure(result, class = c("minhub_next_tokens", "data.frame"))
}

#' Compute each token's log-probability
#'
#' `token_logprobs()` computes the log-probability of each token of a text, given
#' the preceding tokens. With `targets`, it computes the log-probability of each
#' token of a target, given its text. `perplexity()` computes
#' `exp(-mean(logprob))` for each text.
#'
#' Texts longer than the model's context are processed in overlapping windows.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param texts A character vector, or token IDs as in [generate()]. `NA` and
#'   `""` have no tokens.
#' @param targets Targets to score, one for each of `texts` and of the same type.
#'   An encoder-decoder such as T5 requires them, because it predicts an answer
#'   to a text and not the text. With other models, a target continues its text
#'   after `sep`.
#' @param sep The string between a text and its target. Use `""` for languages
#'   without spaces. If `sep` is a space, white space next to it is an error. It
#'   has no effect on token IDs and encoder-decoders.
#' @param bits Whether to add the columns `surprisal` and `entropy`, both in bits.
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()].
#' @returns `token_logprobs()` returns a data frame of class
#'   `minhub_token_logprobs` with one row per token (without the first token of a
#'   text) and the columns
#'   * `text`: the number of the text, or a factor of the names of `texts`;
#'   * `position`: the position of the token in its text, from 1;
#'   * `token` and `id` (0-based);
#'   * `logprob`: the natural logarithm of the token's probability;
#'   * `surprisal`, with `bits = TRUE`: `-log2` of the token's probability;
#'   * `entropy`, with `bits = TRUE`: the entropy in bits of the distribution that
#'     the model predicts at the token's position.
#'
#'   It has [plot()][plot.minhub()] and `summary()` methods.
#'
#'   `perplexity()` returns a numeric vector with one value per text and the names
#'   of `texts`. The perplexity of a text with fewer than two tokens is `NA`.
#' @family functions for predictability
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' logprobs <- token_logprobs(model, "To be, or not to be")
#' head(logprobs)
#' summary(logprobs)
#' plot(logprobs)
#' perplexity(model, c(verse = "To be, or not to be", noise = "xq zzk vv"))
#' \dontshow{minhubpy:::end_example()}
#' @export
token_logprobs <- function(model, texts, tokenizer = NULL, targets = NULL, sep = " ", bits = FALSE, resume = NULL) {
  model <- check_model(model)
  labels <- labels_of(texts)
  texts <- texts_or_ids(texts, "texts", missing = TRUE)
  kept <- present(texts)
  if (!is.null(targets)) {
    targets <- texts_or_ids(targets, "targets", missing = TRUE)
    if (length(targets) != length(texts)) fail("targets must have one value for each of ", length(texts), " texts, not ", length(targets))
    kept <- present(texts, targets)
  }
  settings <- list(tokenizer = check_tokenizer(tokenizer), bits = flag(bits), sep = string(sep, "sep"))
  result <- ask_in_parts("score", model, list(texts = texts[kept], targets = targets[kept]), settings, resume, join = join_tokens)
  result$text <- text_of_row(kept[result$text], labels)
  # The attribute contains each text's first token, which has no row, for plot().
  structure(result, class = c("minhub_token_logprobs", "data.frame"), texts = if (is.character(texts) && is.null(targets)) texts)
}

# Joins the data frames of the parts. Their column `text` counts from the first text of the part.
join_tokens <- function(result, rows) {
  do.call(rbind, Map(function(part, rows) {
    part$text <- rows[part$text]
    part
  }, result, rows))
}

#' @rdname token_logprobs
#' @export
perplexity <- function(model, texts, tokenizer = NULL) {
  model <- check_model(model)
  labels <- labels_of(texts)
  texts <- texts_or_ids(texts, "texts", missing = TRUE)
  kept <- present(texts)
  values <- ask(
    "perplexity",
    model = model, texts = texts[kept], tokenizer = check_tokenizer(tokenizer), on_event = show_progress()
  )
  stats::setNames(replace(rep(NA_real_, length(texts)), kept, values), labels)
}

#' @export
summary.minhub_token_logprobs <- function(object, ...) {
  if (!all(c("text", "logprob") %in% names(object))) return(NextMethod())
  parts <- split(object$logprob, object$text, drop = TRUE)
  data.frame(
    text = object$text[match(names(parts), object$text)],
    tokens = lengths(parts, use.names = FALSE),
    nats = vapply(parts, function(x) -sum(x), 0, USE.NAMES = FALSE),
    perplexity = vapply(parts, function(x) exp(-mean(x)), 0, USE.NAMES = FALSE)
  )
}

#' @export
print.minhub_next_tokens <- function(x, ...) {
  shown <- structure(x, class = "data.frame")
  if (is.character(shown$token)) shown$token <- encodeString(shown$token, quote = '"') # shows spaces
  print(shown, ...)
  invisible(x)
}

#' @export
print.minhub_token_logprobs <- print.minhub_next_tokens

# Checks the sampling settings in a list or an environment.
sampling_settings <- function(x) {
  checked <- function(name, ...) optional(x[[name]], function(value) as.double(number(value, name, ...)))
  required <- function(name, ...) as.double(number(x[[name]], name, ...))
  list(
    temperature = required("temperature", min = 0, max = 1e6), top_k = optional(x$top_k, whole_number, what = "top_k", min = 1),
    top_p = checked("top_p", above = 0, max = 1), min_p = checked("min_p", min = 0, max = 1),
    repetition_penalty = required("repetition_penalty", above = 0, max = 1e6),
    presence_penalty = required("presence_penalty", min = -2, max = 2),
    frequency_penalty = required("frequency_penalty", min = -2, max = 2), logit_bias = check_bias(x$logit_bias)
  )
}

# The settings of a beam search that are not the defaults.
search_settings <- function(beams, length_penalty, early_stopping, no_repeat_ngram_size) {
  if (!identical(early_stopping, "never")) early_stopping <- flag(early_stopping)
  settings <- list(
    beams = optional(beams, whole_number, what = "beams", min = 1, max = 64),
    length_penalty = as.double(number(length_penalty, min = -10, max = 10)), early_stopping = early_stopping,
    no_repeat_ngram_size = whole_number(no_repeat_ngram_size, max = 1000)
  )
  settings[!vapply(settings, is.null, TRUE)]
}

# The columns `id` and `bias` of a named vector, or NULL. Checked settings remain unchanged.
check_bias <- function(x) {
  if (is.null(x) || identical(names(x), c("id", "bias"))) return(x)
  ids <- names(x)
  x <- plain(x, "logit_bias")
  if (!is_plain_number(x) || anyNA(x) || is.null(ids) || !all(grepl("^[0-9]{1,9}$", ids))) {
    fail("logit_bias must be numbers named by token IDs, such as c(\"42\" = -100), not ", describe(x))
  }
  if (any(abs(x) > 100)) fail("logit_bias must be between -100 and 100, not ", format(x[abs(x) > 100][[1L]]))
  list(id = as.integer(ids), bias = as.double(x))
}
