#' Generate text
#'
#' Continues one or more prompts, or, with an encoder-decoder such as T5,
#' answers them. Esc or Ctrl-C stops it; the session and
#' the model stay as they are. Characters for which the tokenizer has no token,
#' as one of characters may, are left out, with a warning.
#'
#' @param x A model, see [from_pretrained()], or a run of [minhub_train()].
#' @param prompts Text: a character vector. Or 0-based ids: a vector, a matrix
#'   with a row for each prompt, or a list of vectors of any lengths.
#' @param max_new_tokens The most tokens to add to each.
#' @param temperature Divides the logits: below 1 is more sober, above 1 more
#'   adventurous, 0 takes the likeliest token each time (greedy).
#' @param top_k Sample from the `top_k` likeliest tokens.
#' @param top_p Sample from the fewest likeliest tokens whose probabilities
#'   reach `top_p`.
#' @param repetition_penalty Above 1: tokens that stand in the text already
#'   become less likely.
#' @param seed A whole number for all prompts, or one for each. If not given,
#'   R's random numbers give each prompt one, so `set.seed()` before makes
#'   the texts repeatable. A prompt of many gets the text that it gets alone, so
#'   one number for all gives equal texts to equal prompts: for three texts from
#'   one prompt, `generate(model, rep("ROMEO:", 3), seed = 1:3)`.
#' @param eos_id The ids that end a text: `"auto"` are the model's own, `NULL`
#'   none.
#' @param stop Strings that end a text; they are not part of it.
#' @param tokenizer The tokenizer, if not the model's own.
#' @param stream `TRUE`: show the text while it is made (one prompt of text),
#'   `FALSE`: do not. Or a function that is called with each new piece of text.
#'   `"auto"` shows it where the call itself is what was typed at an interactive
#'   console; not where its value is assigned or goes to another function.
#' @param speculate The most tokens to guess at a time from what the text
#'   repeats. The text stays the same; where it repeats itself it comes faster.
#'   An LSTM makes no guesses, nor does a model on a graphics card.
#' @param resume The name of a file (.rds) that keeps what is done of a long job:
#'   see [word_logprobs()]. The job needs a `seed`, or `temperature = 0`.
#' @param ... Arguments of the method.
#'
#' @details
#' `generate()` is an S3 generic. Its methods are also methods of
#' `generics::generate()`, so the call is the same if a package that exports
#' that generic, such as infer, is attached after this one.
#'
#' @returns For text, the new text of each prompt: a character vector, with
#'   the names of `prompts`; invisible if it was shown already. For ids, a
#'   list of the new ids of each prompt.
#' @family functions that write text
#' @seealso [from_pretrained()], [tokenizer_from_pretrained()]
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' generate(model, "ROMEO:", max_new_tokens = 40, seed = 1, stream = FALSE)
#' generate(model, c(a = "To be", b = "O "), max_new_tokens = 10, temperature = 0)
#' \dontshow{minhubpy:::end_example()}
#' @export
generate <- function(x, ...) UseMethod("generate")

#' @rdname generate
#' @export
#' @rawNamespace S3method(generics::generate,minhub_model)
generate.minhub_model <- function(x, prompts, max_new_tokens = 64, temperature = 1, top_k = NULL, top_p = NULL,
                                  repetition_penalty = 1, seed = NULL, eos_id = "auto", stop = NULL, tokenizer = NULL,
                                  stream = "auto", speculate = 0, resume = NULL, ...) {
  no_more_arguments(...)
  model <- check_model(x)
  labels <- labels_of(prompts)
  prompts <- texts_or_ids(prompts)
  one_text <- is.character(prompts) && length(prompts) == 1L
  if (is.function(stream) && !one_text) fail("stream can be a function for one prompt of text only")
  if (!is.null(resume)) {
    if (is.null(seed) && temperature > 0) fail("resume needs a seed, by which the same call gives the same texts: give seed = 1")
    if (!identical(stream, "auto") && !isFALSE(stream)) fail("resume is for many prompts, and stream for one: give one of them")
    stream <- FALSE
  }
  if (identical(stream, "auto")) stream <- interactive() && one_text && was_typed(sys.call(-1L), sys.nframe() - 1L) # of the generic
  streaming <- (is.function(stream) || flag(stream)) && one_text
  answers <- isTRUE(model$config$is_encoder_decoder) # rather than to go on from the prompt
  echo <- once(function() if (!answers) cat(printable(prompts))) # only when the first text is there
  show <- if (is.function(stream)) stream else function(piece) {
    echo()
    cat(printable(piece))
    utils::flush.console()
  }
  settings <- list(
    max_new_tokens = whole(max_new_tokens), temperature = as.double(number(temperature, least = 0, most = 1e6)),
    top_k = optional(top_k, whole, what = "top_k", least = 1),
    top_p = optional(top_p, function(x) as.double(number(x, "top_p", above = 0, most = 1))),
    repetition_penalty = as.double(number(repetition_penalty, above = 0, most = 1e6)),
    eos_id = end_ids(eos_id), tokenizer = check_tokenizer(tokenizer),
    stop = stop_strings(stop), stream = streaming, speculate = whole(speculate)
  )
  if (streaming && !is.function(stream)) on.exit(if (is_done(echo)) cat("\n")) # also if the text is interrupted
  seeds <- seeds(seed, length(prompts), temperature)
  job <- c(list(call = "generate", model = model, prompts = prompts, seeds = seeds), settings)
  made <- in_parts(seq_along(prompts), resume, job, function(rows, news) {
    part <- list("generate", model = model, prompts = prompts[rows], seeds = seeds[rows])
    do.call(ask, c(part, settings, list(news = if (streaming) show else news)))
  }, size = PROMPTS_OF_PART, join = join_made)
  if (streaming && !is.function(stream)) echo()
  if (is.character(prompts)) {
    text <- stats::setNames(made$texts, labels)
    if (streaming) invisible(text) else text
  } else {
    stats::setNames(made$ids, labels)
  }
}

#' @rdname generate
#' @export
#' @rawNamespace S3method(generics::generate,minhub_run)
generate.minhub_run <- generate.minhub_model

#' @export
generate.default <- function(x, ...) check_model(x)

# Refuses arguments that only the generic's `...` accepts.
no_more_arguments <- function(...) {
  if (!...length()) return(invisible())
  name <- names(list(...))[[1L]] %||% ""
  if (nzchar(name)) fail("unknown argument ", name, ": ?generate lists the arguments")
  fail("too many arguments: give the settings by name, such as max_new_tokens = 40")
}

PROMPTS_OF_PART <- 64L # of a long job, see in_parts()

join_made <- function(found, rows) {
  list(texts = unlist(lapply(found, `[[`, "texts")), ids = do.call(c, lapply(found, `[[`, "ids")))
}

# A function that runs its code at its first call only; is_done() tells whether it has.
once <- function(code) {
  done <- FALSE
  function() {
    if (!done) code()
    done <<- TRUE
  }
}

is_done <- function(once) environment(once)$done

# Whether a call at top level (depth 1) is all that was typed at the console. A function cannot see whether its value is
# assigned, but R's history of typed lines shows it. Without a history the answer is yes.
was_typed <- function(call, depth, lines = typed_lines()) {
  if (depth != 1L) return(FALSE)
  attr(call, "srcref") <- NULL
  wanted <- as_one_line(call)
  alone <- TRUE
  # The last lines may be one expression: try more and more of them. Lines before it do no harm.
  for (first in rev(seq_along(lines))) {
    typed <- tryCatch(parse(text = lines[first:length(lines)], keep.source = FALSE), error = function(e) NULL)
    with_call <- Filter(function(each) grepl(wanted, as_one_line(each), fixed = TRUE), as.list(typed))
    if (length(with_call)) alone <- stands_alone(call, with_call[[length(with_call)]])
  }
  alone
}

as_one_line <- function(code) gsub("[[:space:]]", "", paste(deparse(code), collapse = ""))

# Whether the call is the whole expression, or a statement of a loop, a condition or braces.
stands_alone <- function(call, expression) {
  if (identical(expression, call)) return(TRUE)
  around <- c("{", "(", "for", "while", "repeat", "if")
  if (!is.call(expression) || !deparse(expression[[1L]])[[1L]] %in% around) return(FALSE)
  any(vapply(as.list(expression)[-1L], stands_alone, NA, call = call))
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
  if (is.null(seed)) return(if (temperature > 0) draw_seeds(n) else numeric(n)) # greedy text needs no random numbers
  if (!is.numeric(seed) || !length(seed) %in% c(1L, n) || anyNA(seed) || any(seed != floor(seed) | abs(seed) > 2^53)) {
    fail("seed must be one whole number, or one for each prompt, not ", describe(seed))
  }
  rep_len(as.double(seed), n)
}

end_ids <- function(eos_id) {
  if (identical(eos_id, "auto")) return(NULL)
  if (is.null(eos_id)) return(integer())
  most <- .Machine$integer.max
  if (!is.numeric(eos_id) || anyNA(eos_id) || any(eos_id != floor(eos_id) | eos_id < 0 | eos_id > most)) {
    fail('eos_id must be "auto", NULL or token ids, not ', describe(eos_id))
  }
  as.integer(eos_id)
}

stop_strings <- function(stop) {
  if (is.null(stop)) return(NULL)
  stop <- texts(stop, "stop")
  if (!all(nzchar(stop))) fail("a stop string cannot be empty")
  stop
}

check_tokenizer <- function(tokenizer) {
  if (!is.null(tokenizer) && !inherits(tokenizer, "minhub_tokenizer")) {
    fail("tokenizer must be what tokenizer_from_pretrained() returns, not ", describe(tokenizer))
  }
  tokenizer
}

#' Find the likeliest next tokens
#'
#' @inheritParams generate
#' @param model A model, see [from_pretrained()], or a run of [minhub_train()].
#' @param prompt Text: one, or a character vector of several. Or 0-based ids, as
#'   for [generate()].
#' @param n How many tokens for each.
#' @returns A data frame with the columns `token`, `id`, `prob` and `logprob`
#'   (nats), likeliest first. Several prompts give their rows one after the
#'   other, and a first column `prompt` says which: a number from 1, or a factor
#'   of the names of `prompt`. It has a `plot()` method, and its `summary()` has
#'   a row for each prompt: the likeliest token, and the probability of all `n`
#'   `together`.
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
  prompts <- texts_or_ids(prompt, "prompt")
  found <- ask(
    "next_tokens",
    model = model, prompts = prompts, tokenizer = check_tokenizer(tokenizer), n = whole(n, least = 1)
  )
  if (length(prompts) == 1L) found$prompt <- NULL else found$prompt <- text_of_row(found$prompt, labels)
  structure(found, class = c("minhub_next_tokens", "data.frame"))
}

#' Score texts
#'
#' `token_logprobs()` gives the log-probability of every token after a text's first,
#' given those before it; with `targets`, that of every token of the targets,
#' each given its text before it. `perplexity()` is `exp(-mean(logprob))` of each text.
#' A text longer than the model's context is read in overlapping windows.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param texts A character vector; or ids, as for [generate()]. A text that is
#'   `NA` has no tokens, as `""` has none.
#' @param targets A text for each of `texts`, of the same kind, to score in
#'   their place. An encoder-decoder such as T5 needs them, as it predicts the
#'   answer to a text and not the text. With other models a target continues its
#'   text, after `sep`.
#' @param sep Text between a text and its target, which are both strings without
#'   white space there: `""` for languages without spaces. It has no effect on
#'   ids and encoder-decoders.
#' @param bits `TRUE`: two more columns, in bits: `surprisal`, which is `-log2` of
#'   the token's probability, and `entropy`, of what the model expects in its place.
#' @param resume The name of a file (.rds) that keeps what is done of a long job:
#'   see [word_logprobs()].
#' @returns `token_logprobs()`: a data frame with a row for each token after the first
#'   of its text, or for each of its target, and the columns `text` (which one: a number from 1, or a
#'   factor of the names of `texts`), `position` (of the token in its text, from
#'   1), `token`, `id` (0-based) and `logprob` (nats). It has `plot()` and
#'   `summary()` methods. `perplexity()`: a number for each text, `NA` for a text
#'   of fewer than two tokens, with the names of `texts`.
#' @family functions for predictability
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' surprise <- token_logprobs(model, "To be, or not to be")
#' head(surprise)
#' summary(surprise)
#' plot(surprise)
#' perplexity(model, c(verse = "To be, or not to be", noise = "xq zzk vv"))
#' \dontshow{minhubpy:::end_example()}
#' @export
token_logprobs <- function(model, texts, tokenizer = NULL, targets = NULL, sep = " ", bits = FALSE, resume = NULL) {
  model <- check_model(model)
  labels <- labels_of(texts)
  texts <- texts_or_ids(na_as_empty(texts), "texts")
  if (!is.null(targets)) {
    targets <- texts_or_ids(targets, "targets")
    if (length(targets) != length(texts)) fail(length(targets), " targets for ", length(texts), " texts: give one for each")
  }
  settings <- list(tokenizer = check_tokenizer(tokenizer), bits = flag(bits), sep = string(sep, "sep"))
  job <- c(list(call = "score", model = model, texts = texts, targets = targets), settings)
  found <- in_parts(seq_along(texts), resume, job, function(rows, news) {
    part <- list("score", model = model, texts = texts[rows], targets = targets[rows])
    do.call(ask, c(part, settings, list(news = news)))
  }, size = TEXTS_OF_PART, join = join_tokens)
  found$text <- text_of_row(found$text, labels)
  # For the plot, which shows a whole text: the rows lack its first token.
  structure(found, class = c("minhub_token_logprobs", "data.frame"), texts = if (is.character(texts) && is.null(targets)) texts)
}

# Data frames whose column `text` counts the texts of a part.
join_tokens <- function(found, rows) {
  do.call(rbind, Map(function(part, rows) {
    part$text <- rows[part$text]
    part
  }, found, rows))
}

#' @rdname token_logprobs
#' @export
perplexity <- function(model, texts, tokenizer = NULL) {
  model <- check_model(model)
  values <- ask(
    "perplexity",
    model = model, texts = texts_or_ids(na_as_empty(texts), "texts"), tokenizer = check_tokenizer(tokenizer), news = show_progress()
  )
  stats::setNames(values, labels_of(texts))
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

# Tokens in quotes, so that spaces can be seen.
#' @export
print.minhub_next_tokens <- function(x, ...) {
  shown <- structure(x, class = "data.frame")
  if (is.character(shown$token)) shown$token <- encodeString(shown$token, quote = '"')
  print(shown, ...)
  invisible(x)
}

#' @export
print.minhub_token_logprobs <- print.minhub_next_tokens

# A line of progress with the time left, in an interactive console only, for calls that take longer than a moment.
show_progress <- function() {
  if (quiet() || !interactive()) return(NULL)
  began <- NULL
  shown <- NULL
  function(news) {
    if (news$total == 0) { # Python waits, and may name what for
      if (nzchar(news$what)) note(news$what)
      return(invisible())
    }
    now <- proc.time()[["elapsed"]]
    if (!identical(news$what, shown) && news$done < news$total) {
      if (nzchar(news$what)) message("Downloading ", news$what, " (", megabytes(news$total), ")")
      began <<- list(time = now, done = news$done)
      shown <<- news$what
    }
    if (!is.null(began)) {
      cat("\r", progress_line(news$done, news$total, now - began$time, began$done), sep = "")
      utils::flush.console()
      if (news$done >= news$total) {
        cat("\n")
        began <<- NULL
        shown <<- NULL
      }
    }
  }
}

# A bar, and the time left by what was done in some seconds, `before` of it earlier.
progress_line <- function(done, total, seconds, before = 0) {
  bar <- strrep("=", floor(40 * done / total))
  left <- if (seconds >= 1 && done > before) round(seconds * (total - done) / (done - before))
  sprintf("|%-40s| %3.0f%%  %-16s", bar, floor(100 * done / total), if (is.null(left)) "" else paste(clock(left), "left"))
}

# Seconds as 0:07 or 2:05:00.
clock <- function(seconds) {
  parts <- c(seconds %/% 3600, seconds %/% 60 %% 60, seconds %% 60)
  if (parts[[1L]] > 0) sprintf("%d:%02d:%02d", parts[[1L]], parts[[2L]], parts[[3L]]) else sprintf("%d:%02d", parts[[2L]], parts[[3L]])
}

megabytes <- function(bytes) {
  if (bytes >= 1e9) sprintf("%.1f GB", bytes / 1e9) else if (bytes >= 1e6) sprintf("%.0f MB", bytes / 1e6) else sprintf("%.0f kB", bytes / 1e3)
}
