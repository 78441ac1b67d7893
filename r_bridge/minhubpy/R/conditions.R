# Every error of this package: class minhubpy_error, the user's call, and a message that says what to do next.
fail <- function(..., class = NULL, call = users_call()) {
  stop(structure(
    class = c(class, "minhubpy_error", "error", "condition"),
    list(message = printable(paste(c(...), collapse = "")), call = call)
  ))
}

# A warning likewise: class minhubpy_warning.
warn <- function(text, call = users_call()) {
  warning(structure(class = c("minhubpy_warning", "warning", "condition"), list(message = text, call = call)))
}

# The call at which the user entered this package: nobody looks for a mistake in our helpers.
users_call <- function() {
  for (number in seq_len(sys.nframe())) {
    # By its name: a model may be from a namespace that was unloaded since.
    if (environmentName(topenv(environment(sys.function(number)))) == "minhubpy") return(sys.call(number))
  }
  NULL
}

# For a person who waits; never in the way of a result.
note <- function(...) {
  if (!quiet()) message(printable(paste0(...)))
}

# Text of strangers, such as names of files and tokens, as a terminal may show it: it obeys control characters, so
# they are written out. Python has done so with its own messages.
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
