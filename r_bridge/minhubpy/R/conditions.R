# Raises an error of this package: class minhubpy_error, the user's call, and a message that says what to do next.
fail <- function(..., class = NULL, call = users_call()) {
  stop(structure(
    class = c(class, "minhubpy_error", "error", "condition"),
    list(message = printable(paste(c(...), collapse = "")), call = call)
  ))
}

# Raises a warning: class minhubpy_warning and the user's call.
warn <- function(text, call = users_call()) {
  warning(structure(class = c("minhubpy_warning", "warning", "condition"), list(message = text, call = call)))
}

# The call by which the user entered this package, which an error shows in place of an inner function.
users_call <- function() {
  for (number in seq_len(sys.nframe())) {
    # Compared by name: a model's namespace may have been unloaded since.
    if (environmentName(topenv(environment(sys.function(number)))) == "minhubpy") return(as_written(sys.call(number)))
  }
  NULL
}

# R calls methods of `$` and `[[` by their own names: `$.minhub_chat`(bot, last) is bot$last again.
as_written <- function(call) {
  name <- if (is.name(call[[1L]])) as.character(call[[1L]]) else ""
  operator <- sub("^([$]|\\[\\[)[.]minhub_.*", "\\1", name)
  if (operator != name) call[[1L]] <- as.name(operator)
  call
}

# A message for a person who waits, on standard error.
note <- function(...) {
  if (!quiet()) message(printable(paste0(...)))
}

# Text with its control characters written out, since a terminal would obey them: names of files and tokens may have
# some. Python has done so with its own messages.
printable <- function(x) {
  x <- enc2utf8(x)
  x[!validUTF8(x)] <- iconv(x[!validUTF8(x)], "UTF-8", "UTF-8", sub = "byte")
  odd <- function(text) grepl("[[:cntrl:]]", gsub("[\n\r\t]", "", text))
  x[odd(x)] <- vapply(strsplit(x[odd(x)], ""), function(chars) {
    chars[odd(chars)] <- encodeString(chars[odd(chars)])
    paste(chars, collapse = "")
  }, "")
  x
}

`%||%` <- function(x, y) if (is.null(x)) y else x

quiet <- function() isTRUE(getOption("minhubpy.quiet"))
