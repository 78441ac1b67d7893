# Raises an error of class minhubpy_error with the user's call. A message states the problem, then the solution.
fail <- function(..., class = NULL, call = users_call()) {
  stop(structure(
    class = c(class, "minhubpy_error", "error", "condition"),
    list(message = printable(paste(c(...), collapse = "")), call = call)
  ))
}

# Raises a warning of class minhubpy_warning with the user's call.
warn <- function(text, call = users_call()) {
  warning(structure(class = c("minhubpy_warning", "warning", "condition"), list(message = text, call = call)))
}

# The user's call of an exported function. Errors show it instead of an internal call.
users_call <- function() {
  for (number in seq_len(sys.nframe())) {
    # Compares names, because an older model's namespace may be unloaded.
    if (environmentName(topenv(environment(sys.function(number)))) == "minhubpy") return(as_written(sys.call(number)))
  }
  NULL
}

# Restores the generic in calls of S3 methods: `$.minhub_chat`(bot, last) is bot$last.
as_written <- function(call) {
  name <- if (is.name(call[[1L]])) as.character(call[[1L]]) else ""
  generic <- sub("^(.+)[.]minhub_[a-z_]+$", "\\1", name)
  if (generic != name) call[[1L]] <- as.name(generic)
  call
}

# A message on standard error, unless the option minhubpy.quiet is set.
note <- function(...) {
  if (!quiet()) message(printable(paste0(...)))
}

# Escapes control characters in file names and tokens, which a terminal would execute. Python escapes its own messages.
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
