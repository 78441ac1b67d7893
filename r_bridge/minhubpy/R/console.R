# print(), format(), str(), summary() and `$` methods of the classes of this package.

print_format <- function(x, ...) {
  cat(format(x, ...), sep = "\n")
  invisible(x)
}

# The lines of a printed data frame.
format_rows <- function(data) utils::capture.output(print(data, digits = 3, row.names = FALSE))

# str() prints the first line of format(), also for an object in a list.
str_format <- function(object) cat(" ", format(object)[[1L]], "\n", sep = "")

# Raises an error for an unknown member, with a similar name or the list of members. `what` names the class of object.
no_member <- function(what, name, fields, methods = character(), advice = NULL) {
  members <- c(fields, methods)
  distances <- if (nchar(name) > 2L) utils::adist(name, members, ignore.case = TRUE)
  similar <- members[which.min(distances)]
  if (length(similar) && min(distances) <= max(1, nchar(name) %/% 3)) {
    advice <- paste0(": did you mean ", similar, "?")
  }
  if (is.null(advice)) advice <- if (length(members)) paste0("; it has ", toString(c(fields, if (length(methods)) paste0(methods, "()"))))
  fail(what, " has no ", name, advice)
}

# Checks the index of `[[`, the name of a field. `what` names the class of object.
member_name <- function(i, what, fields) {
  if (!is.character(i)) fail("the fields of ", what, " must be selected by name: ", toString(fields))
  string(i)
}

# Settings as a call's arguments.
as_call <- function(settings) {
  settings <- Filter(Negate(is.null), settings)
  shown <- vapply(settings, function(value) {
    if (is.function(value)) return("<function>")
    if (is.list(value)) return(paste0("list(", as_call(value), ")"))
    if (is.integer(value)) value <- as.double(value) # 20, not 20L
    paste(deparse(as.vector(value)), collapse = " ")
  }, "")
  paste(names(settings), shown, sep = " = ", collapse = ", ")
}

per_second <- function(tokens, seconds) if (isTRUE(seconds > 0)) paste0(counted(tokens / seconds), " tokens/s")

# Conversations and replies

#' @export
format.minhub_chat <- function(x, ...) {
  n <- length(x)
  paste0("<chat with ", attr(x$model, "self")$title, ", ", n, if (n == 1L) " turn" else " turns", ">")
}

#' @export
str.minhub_chat <- function(object, ...) str_format(object)

#' @export
summary.minhub_chat <- function(object, ...) {
  messages <- as.data.frame(object)
  replies <- messages[messages$role == "assistant", ]
  tokens <- sum(replies$tokens)
  logprob <- sum(replies$logprob)
  exchanges <- attr(object, "self")$exchanges
  structure(
    list(
      chat = format(object), system = object$system, replies = nrow(replies), tokens = tokens,
      seconds = sum(replies$seconds), logprob = logprob, perplexity = if (tokens) exp(-logprob / tokens) else NA_real_,
      ends = table(vapply(exchanges, function(exchange) exchange$reply$end, "")), settings = attr(object, "self")$settings
    ),
    class = "summary.minhub_chat"
  )
}

#' @export
print.summary.minhub_chat <- function(x, ...) {
  ends <- paste(x$ends, names(x$ends), collapse = ", ")
  lines <- list(
    system = x$system,
    replies = if (x$replies) paste0(x$replies, " (end: ", ends, ")"),
    tokens = if (x$tokens) paste(c(counted(x$tokens), per_second(x$tokens, x$seconds)), collapse = ", "),
    perplexity = if (x$tokens) sprintf("%.2f per token", x$perplexity),
    settings = as_call(x$settings)
  )
  cat(x$chat, strwrap_labelled(lines), sep = "\n")
  invisible(x)
}

# A named list of values as two columns of text, wrapped to the width of the console. Empty values are omitted.
strwrap_labelled <- function(values) {
  values <- Filter(length, values)
  labels <- format(names(values))
  room <- max(20L, getOption("width") - nchar(labels[[1L]]) - 4L)
  unlist(Map(function(label, text) {
    wrapped <- strwrap(printable(text), room)
    if (!length(wrapped)) wrapped <- ""
    paste0("  ", c(label, rep(strrep(" ", nchar(label)), length(wrapped) - 1L)), "  ", wrapped)
  }, labels, values), use.names = FALSE)
}

#' @export
`$.minhub_reply` <- function(x, name) {
  if (!name %in% names(x)) no_member("a reply", name, names(x))
  .subset2(x, name)
}

#' @export
str.minhub_reply <- function(object, ...) {
  cat(
    " <reply: ", nrow(object$tokens), " tokens, end ", encodeString(object$end, quote = '"'), "> ",
    encodeString(shorten(object$text, 40L), quote = '"'), "\n", sep = ""
  )
}

#' @export
summary.minhub_reply <- function(object, ...) {
  logprob <- object$tokens$logprob
  data.frame(
    tokens = length(logprob), logprob = sum(logprob), perplexity = if (length(logprob)) exp(-mean(logprob)) else NA_real_,
    seconds = object$seconds, end = object$end
  )
}

# Tokenizers and encodings

#' @export
format.minhub_tokenizer_class <- function(x, ...) {
  '<tokenizer: tokenizer$from_pretrained("gpt2"), tokenizer$from_file("tokenizer.json")>'
}

#' @export
print.minhub_tokenizer_class <- print_format

#' @export
str.minhub_tokenizer_class <- function(object, ...) str_format(object)

#' @export
summary.minhub_tokenizer_class <- function(object, ...) object

#' @export
`$.minhub_tokenizer_class` <- function(x, name) {
  if (!name %in% names(x)) no_member("tokenizer", name, character(), names(x))
  .subset2(x, name)
}

#' @export
print.minhub_tokenizer <- print_format

#' @export
str.minhub_tokenizer <- function(object, ...) str_format(object)

#' @export
summary.minhub_tokenizer <- function(object, ...) {
  vocabulary <- object$get_vocab()
  learned <- object$get_vocab(with_added_tokens = FALSE)
  structure(
    list(tokenizer = format(object), size = nrow(vocabulary), added = vocabulary[!vocabulary$id %in% learned$id, , drop = FALSE]),
    class = "summary.minhub_tokenizer"
  )
}

#' @export
print.summary.minhub_tokenizer <- function(x, ...) {
  added <- utils::head(encodeString(x$added$token, quote = '"'), 20L)
  omitted <- nrow(x$added) - length(added)
  cat(x$tokenizer, strwrap_labelled(list(
    vocabulary = counted(x$size),
    added = if (length(added)) paste(c(added, if (omitted) paste("and", counted(omitted), "more")), collapse = " ")
  )), sep = "\n")
  invisible(x)
}

#' @export
str.minhub_encoding <- function(object, ...) str_format(object)

#' @export
summary.minhub_encoding <- function(object, ...) {
  ids <- object$ids
  distinct <- unique(ids)
  count <- tabulate(match(ids, distinct), length(distinct))
  shown <- data.frame(token = object$tokens[match(distinct, ids)], id = distinct, count = count)
  shown <- shown[order(-count), ]
  row.names(shown) <- NULL
  shown
}

#' @export
as.data.frame.minhub_encoding <- function(x, ...) data.frame(token = x$tokens, id = x$ids)

# Runs

#' @export
`$.minhub_run` <- function(x, name) {
  if (!name %in% names(x)) no_member("a run", name, names(x))
  .subset2(x, name)
}

#' @export
str.minhub_run <- function(object, ...) str_format(object)

#' @export
summary.minhub_run <- function(object, ...) {
  structure(
    list(run = object, losses = summary(object$losses), settings = Filter(length, object$settings)),
    class = "summary.minhub_run"
  )
}

#' @export
print.summary.minhub_run <- function(x, ...) {
  print(x$run)
  cat("\nLosses, in ", attr(x$run, "about")$unit, "\n", sep = "")
  print(x$losses, row.names = FALSE, digits = 4L)
  cat("\nSettings\n", paste0(strwrap(as_call(x$settings), max(20L, getOption("width") - 2L), indent = 2L, exdent = 2L), "\n"), sep = "")
  invisible(x)
}

#' @export
summary.minhub_losses <- function(object, ...) {
  if (!all(c("step", "held_out_loss", "seconds") %in% names(object)) || !nrow(object)) return(NextMethod())
  best <- which.min(object$held_out_loss)
  n <- nrow(object)
  data.frame(
    evaluations = n, steps = object$step[[n]], first = object$held_out_loss[[1L]], best = object$held_out_loss[[best]],
    best_step = object$step[[best]], last = object$held_out_loss[[n]], seconds = object$seconds[[n]]
  )
}

#' @export
summary.minhub_comparison <- function(object, ...) {
  if (!all(c("run", "parameters", "steps", COMPARED, "seconds") %in% names(object))) return(NextMethod())
  shown <- data.frame(
    unclass(object)[c("run", "parameters", "steps")], comparable(object), seconds = object$seconds,
    stringsAsFactors = FALSE
  )
  shown$behind_best <- shown$loss - stats::ave(shown$loss, shown$unit, FUN = min)
  shown
}

# Servers

SERVER_FIELDS <- c("address", "name")
SERVER_METHODS <- c("stop", "chat")

#' @export
`$.minhub_server` <- function(x, name) {
  if (!name %in% c(SERVER_FIELDS, SERVER_METHODS)) no_member("a server", name, SERVER_FIELDS, SERVER_METHODS)
  get(name, x)
}

#' @export
`[[.minhub_server` <- function(x, i) do.call(`$`, list(x, member_name(i, "a server", c(SERVER_FIELDS, SERVER_METHODS))))

#' @export
.DollarNames.minhub_server <- function(x, pattern = "") {
  grep(pattern, c(SERVER_FIELDS, "stop()", "chat("), value = TRUE)
}

#' @export
print.minhub_server <- print_format

#' @export
str.minhub_server <- function(object, ...) str_format(object)

#' @export
summary.minhub_server <- function(object, ...) {
  structure(
    list(name = object$name, address = object$address, running = is_serving(object)),
    class = "summary.minhub_server"
  )
}

#' @export
print.summary.minhub_server <- function(x, ...) {
  cat(strwrap_labelled(list(
    name = x$name, state = if (x$running) "running" else "stopped", page = x$address,
    "OpenAI API" = paste0(x$address, "/v1"), "Ollama API" = x$address
  )), sep = "\n")
  invisible(x)
}

# Weights

#' @export
format.minhub_parameters <- function(x, ...) {
  table <- x()
  paste0("<", nrow(table), " weights of ", attr(attr(x, "model"), "self")$title, ": ", count(sum(table$numel)), " numbers>")
}

#' @export
str.minhub_parameters <- function(object, ...) str_format(object)

#' @export
summary.minhub_parameters <- function(object, ...) weights_by_part(object())

# The number of parameters of each part of a model, such as a layer.
weights_by_part <- function(table) {
  part <- sub("^(transformer\\.)?([^.]*(\\.[0-9]+)?).*", "\\2", table$name)
  parts <- unique(part)
  data.frame(part = parts, parameters = as.vector(tapply(table$numel, factor(part, parts), sum)))
}

#' @export
str.minhub_parameter <- function(object, ...) str_format(object)

#' @export
print.minhub_parameter <- print_format

#' @export
summary.minhub_parameter <- function(object, ...) summary(as.vector(object), ...)

#' @export
format.minhub_part <- function(x, ...) paste0("<", attr(x, "path"), ": ", paste(names(x), collapse = ", "), ">")

#' @export
print.minhub_part <- print_format

#' @export
str.minhub_part <- function(object, ...) str_format(object)

#' @export
summary.minhub_part <- function(object, ...) {
  table <- attr(object, "model")$parameters()
  path <- own_name(attr(object, "path"), table$name)
  shown <- table[startsWith(table$name, paste0(path, ".")), ]
  row.names(shown) <- NULL
  shown
}

#' @export
format.minhub_state_dict <- function(x, ...) {
  paste0(format(names(x)), "  ", vapply(unclass(x), function(value) paste(dim_of(value), collapse = " x "), ""))
}

#' @export
print.minhub_state_dict <- function(x, ...) {
  cat("<state dict of ", length(x), " weights>\n", sep = "")
  if (length(x)) cat(paste0("  ", format(x)), sep = "\n")
  invisible(x)
}

#' @export
str.minhub_state_dict <- function(object, ...) cat(" <state dict of ", length(object), " weights>\n", sep = "")

#' @export
summary.minhub_state_dict <- function(object, ...) {
  sizes <- lapply(unclass(object), dim_of)
  data.frame(
    name = names(object), shape = vapply(sizes, paste, "", collapse = " x ", USE.NAMES = FALSE),
    numel = vapply(sizes, prod, 0, USE.NAMES = FALSE)
  )
}

# Attention, layers and next tokens

#' @export
print.minhub_attention <- print_format

#' @export
summary.minhub_attention <- function(object, ...) {
  weights <- unclass(object)
  size <- dim(weights)
  n <- size[[3L]]
  heads <- expand.grid(
    head = as.integer(dimnames(object)[[2L]]), layer = as.integer(dimnames(object)[[1L]])
  )[c("layer", "head")]
  matrices <- lapply(seq_len(nrow(heads)), function(i) {
    at <- c((i - 1L) %/% size[[2L]] + 1L, (i - 1L) %% size[[2L]] + 1L)
    matrix(weights[at[[1L]], at[[2L]], , ], n)
  })
  bits <- function(p) -sum(ifelse(p > 0, p * log2(p), 0))
  previous <- if (n > 1L) function(w) mean(w[cbind(2:n, 1:(n - 1L))]) else function(w) NA_real_
  data.frame(
    heads, entropy = vapply(matrices, function(w) mean(apply(w, 1L, bits)), 0),
    to_first = vapply(matrices, function(w) mean(w[, 1L]), 0), to_previous = vapply(matrices, previous, 0),
    to_self = vapply(matrices, function(w) mean(diag(w)), 0)
  )
}

#' @export
summary.minhub_logit_lens <- function(object, ...) {
  if (!all(c("layer", "position", "rank", "id", "prob") %in% names(object)) || !any(object$rank == 1)) return(NextMethod())
  first <- object[object$rank == 1, ]
  next_id <- attr(object, "ids")[first$position + 1L]
  last <- first[first$layer == max(first$layer), ]
  as_last <- first$id == last$id[match(first$position, last$position)]
  by_layer <- function(values) as.vector(tapply(values, first$layer, mean, na.rm = TRUE))
  data.frame(
    layer = sort(unique(first$layer)), prob = by_layer(first$prob), as_last_layer = by_layer(as_last),
    as_text = by_layer(first$id == next_id)
  )
}

#' @export
summary.minhub_next_tokens <- function(object, ...) {
  if (!all(c("token", "prob") %in% names(object)) || !nrow(object)) return(NextMethod())
  prompt <- if (is.null(object$prompt)) rep(1L, nrow(object)) else object$prompt
  parts <- split(seq_len(nrow(object)), factor(prompt, unique(prompt)))
  first <- vapply(parts, function(rows) rows[[which.max(object$prob[rows])]], 0L)
  shown <- data.frame(
    prompt = prompt[first], token = object$token[first], prob = object$prob[first], tokens = lengths(parts),
    together = vapply(parts, function(rows) sum(object$prob[rows]), 0)
  )
  row.names(shown) <- NULL
  shown
}

# Machine

#' @export
summary.minhub_devices <- function(object, ...) {
  if (!all(c("device", "works", "dtypes", "picked") %in% names(object))) return(NextMethod())
  as.data.frame(unclass(object)[c("device", "works", "dtypes", "picked")])
}

#' @export
summary.minhub_doctor <- function(object, ...) {
  if (!"fits" %in% names(object)) return(NextMethod())
  structure(object[!object$fits, ], checks = nrow(object), class = c("summary.minhub_doctor", class(object)))
}

#' @export
print.summary.minhub_doctor <- function(x, ...) {
  checks <- attr(x, "checks")
  cat(if (nrow(x)) paste(nrow(x), "of", checks, "checks need attention") else paste("All", checks, "checks pass"), "\n", sep = "")
  if (nrow(x)) cat(format(x), sep = "\n")
  invisible(x)
}
