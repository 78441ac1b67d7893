# Conversations. R stores the messages. Python generates the replies and stores the KV cache.

#' Chat with a model
#'
#' `minhub_chat()` starts a conversation. `bot$say()` sends a message and prints
#' the reply while the model generates it. Esc or Ctrl-C interrupts a reply and
#' keeps the text generated so far. The prompt follows the model's chat template.
#' A model without a chat template continues a plain dialogue.
#'
#' @section Methods:
#' * `bot$say(text, ...)` sends a message and returns the reply. `...` are
#'   arguments of `minhub_chat()`, from `max_new_tokens` on, that override the
#'   settings of the chat for this reply.
#' * `bot$regenerate(...)` replaces the last reply by a new one.
#' * `bot$undo()` removes the last message and its reply.
#' * `bot$last` is the last reply, and `bot$system` the system prompt.
#' * `bot[1:3]` is a new conversation that starts with the first three messages
#'   and replies. `length(bot)` is the number of turns.
#' * `as.data.frame(bot)` returns one row per message, with the columns `turn`,
#'   `role` and `text`, and for replies the number of `tokens`, the sum of their
#'   `logprob` (natural log) and the `seconds`.
#' * `summary(bot)` returns the number of replies and tokens, how the replies
#'   ended, their perplexity and the settings. `summary(reply)` returns the same
#'   for one reply.
#' * `plot(reply)` draws the probability of each token and of its alternatives.
#'
#' `saveRDS()` saves a conversation, as it does a model.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param system The system prompt, or `NULL`.
#' @param max_new_tokens The maximum number of tokens of a reply.
#' @param temperature,top_k,top_p,repetition_penalty,min_p Sampling settings, as in
#'   [generate()]. `"auto"` uses the value of the model's
#'   `generation_config.json`. For a model without sampling settings,
#'   `temperature` is 0.7 and `top_p` is 0.95.
#' @param seed An integer for each reply. By default, seeds are drawn from R's
#'   random numbers, so `set.seed()` makes a conversation reproducible.
#' @param stop Stop strings. A reply ends before the first of them.
#' @param stream Whether to print replies while they are generated; the default
#'   is `TRUE` in an interactive session. Or a function that is called with each
#'   piece of text.
#' @param schema A JSON Schema for the replies: a named list, such as
#'   `list(type = "object", properties = list(age = list(type = "integer")),
#'   required = "age")`, or JSON text. Replies may omit properties that are not
#'   in `required`. They have no other properties than those in `properties`,
#'   unless the schema has `additionalProperties = TRUE`. `reply$data` contains
#'   the reply as an R value. Requires the extra `json` of minhub_py, see
#'   [minhub_install()]. Choose a `max_new_tokens` that is large enough for the
#'   complete JSON text.
#' @param top The number of most likely tokens to store at each position, for
#'   `plot()`.
#' @param tools Functions that the model can call during a reply: a named list of
#'   functions, or of [minhub_tool()], which adds descriptions and types.
#' @param tool_choice `"auto"`, `"none"`, `"required"` (the reply begins with a
#'   call) or the name of a tool (the reply is one call of it).
#' @returns An object of class `minhub_chat`. `bot$say()` returns an object of
#'   class `minhub_reply`, invisibly if it was printed. It is a list with
#'   * `text`: the reply;
#'   * `tokens`: a data frame with the columns `token`, `id` (0-based), `prob`
#'     and `logprob` (natural log);
#'   * `top`: a data frame of the most likely tokens at each `position`, with the
#'     same columns;
#'   * `end`: `"stop"`, `"length"` or `"interrupted"`;
#'   * `seconds`: the duration;
#'   * `read` and `kept`: the number of prompt tokens that were computed, and the
#'     number that were in the cache;
#'   * `reasoning`: the text of the reasoning before the reply, if any;
#'   * `data`, with a `schema`: the reply as an R value. JSON objects are named
#'     lists. Arrays are vectors if all elements are numbers, strings or
#'     booleans, and lists otherwise. `NULL` for an incomplete reply.
#' @family functions that generate text
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' bot <- minhub_chat(model, max_new_tokens = 40)
#' set.seed(1)
#' reply <- bot$say("Good morrow!")
#' bot
#' as.data.frame(bot)
#' plot(reply)
#' \dontshow{if (!minhubpy:::is_hosted()) minhub_stop()}
#' @export
minhub_chat <- function(model, system = NULL, max_new_tokens = 512, temperature = "auto", top_k = "auto", top_p = "auto",
                        repetition_penalty = "auto", seed = NULL, stop = NULL, schema = NULL, stream = interactive(),
                        top = 5, tokenizer = NULL, min_p = "auto", presence_penalty = 0, frequency_penalty = 0,
                        logit_bias = NULL, tools = NULL, tool_choice = "auto") {
  model <- check_model(model)
  tokenizer <- check_tokenizer(tokenizer)
  self <- new.env(parent = emptyenv())
  self$model <- model
  self$tokenizer <- tokenizer
  self$system <- optional(system, string, what = "system")
  self$exchanges <- list()
  self$tools <- check_tools(tools)
  settings <- list(
    max_new_tokens = max_new_tokens, temperature = temperature, top_k = top_k, top_p = top_p,
    repetition_penalty = repetition_penalty, seed = seed, stop = stop, schema = schema, stream = stream, top = top,
    min_p = min_p, presence_penalty = presence_penalty, frequency_penalty = frequency_penalty, logit_bias = logit_bias,
    tool_choice = tool_choice
  )
  chat_settings(settings, list(temperature = 1, repetition_penalty = 1)) # raises errors before Python is needed
  about <- ask("chat_template", model = model, tokenizer = tokenizer, on_event = show_progress())
  self$defaults <- about$sampling
  self$settings <- chat_settings(settings, self$defaults)
  if (!is.null(about$note)) note("This model has ", about$note)
  as_chat(self)
}

as_chat <- function(self) structure(list(), class = "minhub_chat", self = self)

CHAT_SETTINGS <- c(
  "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed", "stop", "schema", "stream", "top", "min_p",
  "presence_penalty", "frequency_penalty", "logit_bias", "tool_choice"
)

# Checks a chat's settings. "auto" selects the value in `defaults`. `seed` and `stream` are not sent to Python.
chat_settings <- function(x, defaults) {
  for (name in c("temperature", "top_k", "top_p", "repetition_penalty", "min_p")) {
    if (identical(x[[name]], "auto")) x[name] <- list(defaults[[name]])
  }
  if (!is.function(x$stream)) flag(x$stream, "stream")
  if (!is.null(x$seed)) seeds(x$seed, 1L, 1)
  c(list(max_new_tokens = whole_number(x$max_new_tokens, "max_new_tokens", min = 1)), sampling_settings(x), list(
    stop = stop_strings(x$stop), schema = check_schema(x$schema), top = whole_number(x$top, "top", max = 100),
    tool_choice = string(x$tool_choice, "tool_choice"), seed = x$seed, stream = x$stream
  ))
}

MAX_ROUNDS <- 10L # of calls in one reply

check_schema <- function(schema) {
  if (is.null(schema)) return(NULL)
  is_object <- is_plain_list(schema) && is.null(names(schema)) == !length(schema)
  if (!is_object && !is.character(schema)) fail("schema must be a named list or JSON text, not ", describe(schema))
  if (!is_object) schema <- string(schema)
  require_extra("json")
  schema
}

#' @export
`$.minhub_chat` <- function(x, name) {
  self <- attr(x, "self")
  switch(name,
    say = function(text, ...) say(self, string(text), list(...)),
    regenerate = function(...) {
      exchange <- remove_exchange(self, "the chat has no reply to regenerate: send a message with $say() first")
      changes <- list(...)
      if (!"seed" %in% names(changes)) changes["seed"] <- list(NULL) # the seed of the chat would repeat the reply
      tryCatch(say(self, exchange$text, changes), error = function(error) {
        self$exchanges <- c(self$exchanges, list(exchange)) # restores the previous reply
        stop(error)
      })
    },
    undo = function() invisible(remove_exchange(self, "the chat has no message to remove")$text),
    last = if (length(self$exchanges)) self$exchanges[[length(self$exchanges)]]$reply,
    system = self$system,
    model = self$model,
    no_member("a chat", name, CHAT_FIELDS, CHAT_METHODS)
  )
}

CHAT_FIELDS <- c("last", "system", "model")
CHAT_METHODS <- c("say", "regenerate", "undo")

#' @export
`[[.minhub_chat` <- function(x, i) do.call(`$`, list(x, member_name(i, "a chat", c(CHAT_FIELDS, CHAT_METHODS))))

#' @export
.DollarNames.minhub_chat <- function(x, pattern = "") {
  grep(pattern, c("say(", "regenerate(", "undo()", CHAT_FIELDS), value = TRUE)
}

remove_exchange <- function(self, problem) {
  n <- length(self$exchanges)
  if (!n) fail(problem)
  exchange <- self$exchanges[[n]]
  self$exchanges <- self$exchanges[-n]
  exchange
}

say <- function(self, text, changes) {
  if (!nzchar(trimws(text))) fail("text is empty: pass a message")
  if (length(changes) && (is.null(names(changes)) || !all(names(changes) %in% CHAT_SETTINGS))) {
    fail("a reply accepts only the settings ", toString(CHAT_SETTINGS), ", by name")
  }
  settings <- self$settings
  if (length(changes)) {
    settings[names(changes)] <- changes
    settings <- chat_settings(settings, self$defaults)
  }
  stream <- settings$stream
  seed <- seeds(settings$seed, 1L, settings$temperature)
  shown <- FALSE
  parts <- list()
  interrupted <- list(end = "interrupted", seconds = NA_real_, read = NA_integer_, kept = NA_integer_, dropped = 0L)
  start <- proc.time()[["elapsed"]]
  started <- FALSE
  finished <- FALSE
  on_piece <- function(part) {
    started <<- TRUE
    parts[[length(parts) + 1L]] <<- part
    if (is.function(stream)) {
      if (nzchar(part$piece)) stream(part$piece)
    } else if (stream) {
      shown <<- TRUE
      cat(printable(part$piece))
      utils::flush.console()
    }
  }
  # An interrupted reply keeps the text generated so far.
  on.exit({
    if (shown && !finished) cat("\n")
    if (!finished && started) {
      interrupted$seconds <- proc.time()[["elapsed"]] - start
      add_exchange(self, text, parts, interrupted)
    }
  })
  messages <- as.list(unlist(lapply(self$exchanges, function(exchange) c(exchange$text, exchange$reply$text))))
  steps <- lapply(self$exchanges, function(exchange) exchange$steps %||% "[]")
  called <- results <- NULL
  for (round in seq_len(MAX_ROUNDS)) {
    result <- do.call(ask, c(
      list("reply", model = self$model, tokenizer = self$tokenizer, system = self$system, said = messages, text = text, seed = seed),
      settings[setdiff(names(settings), c("stream", "seed"))],
      list(tools = tool_definitions(self$tools), steps = steps, called = called, results = results, on_event = on_piece)
    ))
    if (!length(result$calls) || round == MAX_ROUNDS) break
    results <- lapply(result$calls, function(call) run_tool(self$tools, call))
    called <- result$called
    parts <- list() # of the reply after the calls
  }
  finished <- TRUE
  reply <- add_exchange(self, text, parts, result)
  if (shown) cat("\n")
  if (isTRUE(stream)) note_limits(reply, result)
  if (shown || is.function(stream)) invisible(reply) else reply
}

# Notes on an empty or truncated reply, and on messages that the context no longer holds.
note_limits <- function(reply, result) {
  if (!nzchar(reply$text)) note("The reply is empty: $regenerate() generates a new one.")
  if (reply$end == "length") {
    note("The reply was truncated after ", nrow(reply$tokens), " tokens: increase max_new_tokens.")
  }
  if (result$dropped > 0L) {
    note("The first ", result$dropped, " messages were dropped: the model's context is ", result$context, " tokens.")
  }
}

add_exchange <- function(self, text, parts, result) {
  bind <- function(frames) do.call(rbind, c(list(no_tokens()), lapply(frames, as_tokens)))
  top <- do.call(rbind, c(
    list(cbind(position = integer(), no_tokens())),
    lapply(parts, function(part) cbind(position = part$top$position, as_tokens(part$top)))
  ))
  reply <- structure(
    list(
      text = result$text %||% paste(vapply(parts, `[[`, "", "piece"), collapse = ""),
      tokens = bind(parts), top = top, end = result$end, seconds = result$seconds, read = result$read, kept = result$kept,
      data = result$data, reasoning = result$reasoning
    ),
    class = "minhub_reply"
  )
  self$exchanges <- c(self$exchanges, list(list(text = text, reply = reply, steps = result$steps)))
  reply
}

no_tokens <- function() data.frame(token = character(), id = integer(), prob = double(), logprob = double())

as_tokens <- function(part) {
  data.frame(
    token = as.character(part$token), id = as.integer(part$id), prob = exp(as.double(part$logprob)),
    logprob = as.double(part$logprob)
  )
}

#' @export
print.minhub_chat <- function(x, ...) {
  self <- attr(x, "self")
  cat(format(x), "\n", sep = "")
  if (!is.null(self$system)) print_message("system", self$system)
  for (exchange in self$exchanges) {
    reply <- exchange$reply
    print_message("you", exchange$text)
    print_message("model", paste0(reply$text, switch(reply$end, length = " [truncated]", interrupted = " [interrupted]", "")))
  }
  invisible(x)
}

print_message <- function(who, text) {
  lines <- strsplit(printable(text), "\n", fixed = TRUE)[[1L]]
  lines <- unlist(lapply(lines, function(line) if (nzchar(line)) strwrap(line, getOption("width") - 8L) else ""))
  names <- c(formatC(who, width = 6L), rep(strrep(" ", 6L), max(0L, length(lines) - 1L)))
  cat("\n", paste0(names, "  ", lines, "\n"), sep = "")
}

#' @export
length.minhub_chat <- function(x) length(attr(x, "self")$exchanges)

#' @export
`[.minhub_chat` <- function(x, i) {
  self <- attr(x, "self")
  i <- plain(i, "turns")
  if (!is_plain_number(i) && !is.logical(i)) fail("turns must be selected by number, not by ", describe(i))
  turns <- seq_along(self$exchanges)[i]
  if (anyNA(turns)) fail("turns must be between 1 and ", length(x), ", the number of turns in the chat")
  copy <- list2env(as.list(self, all.names = TRUE), parent = emptyenv())
  copy$exchanges <- self$exchanges[turns]
  as_chat(copy)
}

#' @export
as.data.frame.minhub_chat <- function(x, ...) {
  self <- attr(x, "self")
  rows <- lapply(seq_along(self$exchanges), function(turn) {
    exchange <- self$exchanges[[turn]]
    reply <- exchange$reply
    data.frame(
      turn = turn, role = c("user", "assistant"), text = c(exchange$text, reply$text),
      tokens = c(NA, nrow(reply$tokens)), logprob = c(NA, sum(reply$tokens$logprob)), seconds = c(NA, reply$seconds)
    )
  })
  empty <- data.frame(
    turn = integer(), role = character(), text = character(), tokens = integer(), logprob = double(),
    seconds = double()
  )
  system <- if (!is.null(self$system)) {
    data.frame(
      turn = 0L, role = "system", text = self$system, tokens = NA_integer_, logprob = NA_real_, seconds = NA_real_
    )
  }
  do.call(rbind, c(list(empty, system), rows))
}

#' @export
print.minhub_reply <- function(x, ...) {
  cat(printable(x$text), "\n", sep = "")
  invisible(x)
}

#' @export
as.character.minhub_reply <- function(x, ...) x$text

#' @export
format.minhub_reply <- as.character.minhub_reply
