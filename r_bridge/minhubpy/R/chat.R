# Conversations. R holds what was said; Python makes the replies, and remembers what the model has read of it.

#' Talk with a model
#'
#' `minhub_chat()` begins a conversation; `bot$say()` gives the model a text and
#' shows its reply in the console while it is made. Esc or Ctrl-C stops a reply
#' and keeps its beginning. The prompt is written as the model's own chat
#' template has it; a model without one continues a plain dialogue.
#'
#' @section Methods:
#' * `bot$say(text, ...)`: the reply; arguments of `minhub_chat()` from
#'   `max_new_tokens` on change a setting for this one.
#' * `bot$regenerate(...)`: another reply in place of the last one.
#' * `bot$undo()`: takes back the last text and its reply.
#' * `bot$last`: the last reply. `bot$system`: the system prompt.
#' * `bot[1:3]`: a conversation of its own that begins with the first three
#'   texts and replies. `length(bot)` says how many there are.
#' * `as.data.frame(bot)`: a row for each message, with `turn`, `role`,
#'   `text`, and of replies the number of `tokens`, their `logprob` (the sum, in
#'   nats) and `seconds`.
#' * `summary(bot)`: the numbers of replies and tokens, how they ended, their
#'   perplexity, and the settings. `summary(reply)`: the same of one reply.
#' * `plot(reply)`: how likely each token was, and what else it might have been.
#'
#' Conversations survive `saveRDS()`, as models do.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param system What the model is told before the conversation.
#' @param max_new_tokens The most tokens of a reply.
#' @param temperature,top_k,top_p,repetition_penalty As in [generate()].
#'   `"auto"` takes the value of the model's `generation_config.json`; for a
#'   model without sampling settings, `temperature` is 0.7 and `top_p` 0.95.
#' @param seed A whole number for each reply. If not given, R's random numbers
#'   give one, so `set.seed()` before makes a conversation repeatable.
#' @param stop Strings that end a reply; they are not part of it.
#' @param stream `TRUE`: show replies while they are made; the default at an
#'   interactive console. Or a function that is called with each piece.
#' @param schema A JSON Schema that replies must follow: a list, such as
#'   `list(type = "object", properties = list(age = list(type = "integer")),
#'   required = "age")`, or JSON text. Replies may omit properties that are not
#'   in `required`. `reply$data` is then the reply as an R value. It needs the
#'   extra `minhub_py[json]`, see [minhub_install()], and a `max_new_tokens` that
#'   leaves room for all of it.
#' @param top How many of the likeliest tokens to keep in each place, for
#'   `plot()`.
#' @returns A chat. `bot$say()` returns a reply, invisibly where it was shown:
#'   a list with `text`, `tokens` (a data frame with `token`, `id`, `prob` and
#'   `logprob`), `top` (likewise, of the likeliest at each `position`), `end`
#'   (`"stop"`, `"length"` or `"interrupted"`), `seconds`, the numbers of prompt
#'   tokens that were `read` and that were `kept` from before, and with a
#'   `schema` the `data`: JSON's objects as lists with names, its arrays as
#'   vectors where they hold numbers, strings or truth values alone, otherwise
#'   as lists; `NULL` where the reply was cut short.
#' @family functions that write text
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
                        top = 5, tokenizer = NULL) {
  model <- check_model(model)
  tokenizer <- check_tokenizer(tokenizer)
  self <- new.env(parent = emptyenv())
  self$model <- model
  self$tokenizer <- tokenizer
  self$system <- optional(system, string, what = "system")
  self$exchanges <- list()
  settings <- list(
    max_new_tokens = max_new_tokens, temperature = temperature, top_k = top_k, top_p = top_p,
    repetition_penalty = repetition_penalty, seed = seed, stop = stop, schema = schema, stream = stream, top = top
  )
  chat_settings(settings, list(temperature = 1, repetition_penalty = 1)) # errors first, without a model
  about <- ask("chat_template", model = model, tokenizer = tokenizer, news = show_progress())
  self$defaults <- about$sampling
  self$settings <- chat_settings(settings, self$defaults)
  if (!is.null(about$note)) note("This model has ", about$note)
  as_chat(self)
}

as_chat <- function(self) structure(list(), class = "minhub_chat", self = self)

CHAT_SETTINGS <- c(
  "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed", "stop", "schema", "stream", "top"
)

# Checked settings, as they are sent except for `seed` and `stream`. "auto" takes the value in `defaults`.
chat_settings <- function(x, defaults) {
  for (name in c("temperature", "top_k", "top_p", "repetition_penalty")) {
    if (identical(x[[name]], "auto")) x[name] <- list(defaults[[name]])
  }
  if (!is.function(x$stream)) flag(x$stream, "stream")
  if (!is.null(x$seed)) seeds(x$seed, 1L, 1)
  c(list(
    max_new_tokens = whole(x$max_new_tokens, "max_new_tokens", least = 1),
    temperature = as.double(number(x$temperature, "temperature", least = 0, most = 1e6)),
    top_k = optional(x$top_k, whole, what = "top_k", least = 1),
    top_p = optional(x$top_p, function(p) as.double(number(p, "top_p", above = 0, most = 1))),
    repetition_penalty = as.double(number(x$repetition_penalty, "repetition_penalty", above = 0, most = 1e6)),
    stop = stop_strings(x$stop),
    schema = check_schema(x$schema),
    top = whole(x$top, "top", most = 100),
    seed = x$seed, stream = x$stream
  ))
}

check_schema <- function(schema) {
  if (is.null(schema)) return(NULL)
  is_object <- is_plain_list(schema) && is.null(names(schema)) == !length(schema)
  if (!is_object && !is.character(schema)) fail("schema must be a list with names, or JSON text, not ", describe(schema))
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
      exchange <- take_back(self, "there is no reply yet to make again: say something first")
      changes <- list(...)
      if (!"seed" %in% names(changes)) changes["seed"] <- list(NULL) # the chat's own would make the same reply
      tryCatch(say(self, exchange$text, changes), error = function(error) {
        self$exchanges <- c(self$exchanges, list(exchange)) # as it was before
        stop(error)
      })
    },
    undo = function() invisible(take_back(self, "there is nothing to take back")$text),
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

take_back <- function(self, otherwise) {
  n <- length(self$exchanges)
  if (!n) fail(otherwise)
  exchange <- self$exchanges[[n]]
  self$exchanges <- self$exchanges[-n]
  exchange
}

say <- function(self, text, changes) {
  if (!nzchar(trimws(text))) fail("the text is empty: say something")
  if (length(changes) && (is.null(names(changes)) || !all(names(changes) %in% CHAT_SETTINGS))) {
    fail("a reply has the settings ", toString(CHAT_SETTINGS))
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
  ended <- list(end = "interrupted", seconds = NA_real_, read = NA_integer_, kept = NA_integer_, dropped = 0L)
  begun <- proc.time()[["elapsed"]]
  asked <- FALSE
  done <- FALSE
  hear <- function(part) {
    asked <<- TRUE
    parts[[length(parts) + 1L]] <<- part
    if (is.function(stream)) {
      if (nzchar(part$piece)) stream(part$piece)
    } else if (stream) {
      shown <<- TRUE
      cat(printable(part$piece))
      utils::flush.console()
    }
  }
  # Also where Esc stops the reply: its beginning stays.
  on.exit({
    if (shown && !done) cat("\n")
    if (!done && asked) {
      ended$seconds <- proc.time()[["elapsed"]] - begun
      keep_exchange(self, text, parts, ended)
    }
  })
  sent <- settings[setdiff(names(settings), c("stream", "seed"))]
  made <- do.call(ask, c(
    list("reply", model = self$model, tokenizer = self$tokenizer, system = self$system, said = as.list(said(self)),
         text = text, seed = seed),
    sent, list(news = hear)
  ))
  done <- TRUE
  reply <- keep_exchange(self, text, parts, made)
  if (shown) cat("\n") # before the note, which has a line of its own
  if (isTRUE(stream)) remark(reply, made)
  if (shown || is.function(stream)) invisible(reply) else reply
}

said <- function(self) unlist(lapply(self$exchanges, function(each) c(each$text, each$reply$text)))

# What a reader should know of a reply.
remark <- function(reply, made) {
  if (!nzchar(reply$text)) note("The reply is empty: $regenerate() makes another.")
  if (reply$end == "length") {
    note("The reply was cut after ", nrow(reply$tokens), " tokens: max_new_tokens allows more.")
  }
  if (made$dropped > 0L) {
    note("The first ", made$dropped, " messages no longer fit: the model sees ", made$context, " tokens at a time.")
  }
}

keep_exchange <- function(self, text, parts, made) {
  bind <- function(frames) do.call(rbind, c(list(no_tokens()), lapply(frames, as_tokens)))
  top <- do.call(rbind, c(
    list(cbind(position = integer(), no_tokens())),
    lapply(parts, function(part) cbind(position = part$top$position, as_tokens(part$top)))
  ))
  reply <- structure(
    list(
      text = made$text %||% paste(vapply(parts, `[[`, "", "piece"), collapse = ""),
      tokens = bind(parts), top = top, end = made$end, seconds = made$seconds, read = made$read, kept = made$kept,
      data = made$data
    ),
    class = "minhub_reply"
  )
  self$exchanges <- c(self$exchanges, list(list(text = text, reply = reply)))
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
  if (!is.null(self$system)) said_by("system", self$system)
  for (each in self$exchanges) {
    said_by("you", each$text)
    said_by("model", paste0(each$reply$text, switch(each$reply$end, length = " [cut]", interrupted = " [stopped]", "")))
  }
  invisible(x)
}

said_by <- function(who, text) {
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
  if (!is.numeric(i) && !is.logical(i)) fail("the turns of a conversation have numbers: choose some of them, not ", describe(i))
  chosen <- seq_along(self$exchanges)[i]
  if (anyNA(chosen)) fail("the conversation has ", length(x), " turns: choose some of them")
  other <- list2env(as.list(self, all.names = TRUE), parent = emptyenv())
  other$exchanges <- self$exchanges[chosen]
  as_chat(other)
}

#' @export
as.data.frame.minhub_chat <- function(x, ...) {
  self <- attr(x, "self")
  rows <- lapply(seq_along(self$exchanges), function(turn) {
    each <- self$exchanges[[turn]]
    data.frame(
      turn = turn, role = c("user", "assistant"), text = c(each$text, each$reply$text),
      tokens = c(NA, nrow(each$reply$tokens)), logprob = c(NA, sum(each$reply$tokens$logprob)),
      seconds = c(NA, each$reply$seconds)
    )
  })
  none <- data.frame(
    turn = integer(), role = character(), text = character(), tokens = integer(), logprob = double(),
    seconds = double()
  )
  system <- if (!is.null(self$system)) {
    data.frame(
      turn = 0L, role = "system", text = self$system, tokens = NA_integer_, logprob = NA_real_, seconds = NA_real_
    )
  }
  do.call(rbind, c(list(none, system), rows))
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

# A row for each token: its bar, its probability, and the most likely alternatives.
#' @rdname plot.minhub
#' @export
plot.minhub_reply <- function(x, most = 30, main = NULL, col = "#0072B2", ...) {
  most <- whole(most, least = 1)
  col <- check_color(col)
  if (!nrow(x$tokens)) fail("there is no token to plot: the reply is empty")
  draw_panels(main %||% "Probability of each token, and of alternatives", function(i) {
    draw_reply(utils::head(x$tokens, most), x$top, nrow(x$tokens), col)
  }, ...)
  invisible(x)
}

draw_reply <- function(shown, top, of, col) {
  n <- nrow(shown)
  labels <- shorten(readable(shown), 16L)
  values <- percent(shown$prob)
  size <- text_size(labels, figure_width() * 0.3, (figure_height() - lines_high(4.5)) / max(n, 4L))
  set_margins(left = text_width(labels, size) + 0.25, bottom = lines_high(2), right = 0.2)
  # Inches: bars have two fifths of the width at least, then come their values and as many other tokens as fit.
  width <- graphics::par("pin")[[1L]]
  after <- text_width(values, size, "") + 0.16
  room <- 0.6 * width - after
  for (count in 3:1) {
    others <- vapply(seq_len(n), function(i) runners_up(top[top$position == i & top$id != shown$id[[i]], ], count), "")
    if (text_width(others, 0.85 * size) <= room) break
  }
  small <- min(0.85 * size, size * max(room, 0.1) / max(text_width(others, size), 0.01))
  bar <- width - after - text_width(others, small)
  graphics::plot.window(c(0, width / bar), c(max(n, 4L) + 0.5, 0.5), xaxs = "i", yaxs = "i")
  graphics::rect(0, seq_len(n) - 0.4, 1, seq_len(n) + 0.4, col = "grey95", border = NA)
  graphics::rect(0, seq_len(n) - 0.4, shown$prob, seq_len(n) + 0.4, col = col, border = NA)
  token_text(-graphics::xinch(0.08), seq_len(n), labels, adj = c(1, 0.5), cex = size)
  graphics::text(1 + graphics::xinch(0.06), seq_len(n), values, adj = c(0, 0.5), cex = size, xpd = NA)
  token_text(1 + graphics::xinch(after), seq_len(n), others, adj = c(0, 0.5), cex = small, col = "grey40")
  if (n < of) footer("the first ", grouped(n), " of ", grouped(of), " tokens")
}

# The most likely of the other tokens, at most `count`.
runners_up <- function(others, count) {
  others <- utils::head(others, count)
  if (!nrow(others)) return("")
  paste(shorten(readable(others), 12L), percent(others$prob), collapse = "   ")
}
