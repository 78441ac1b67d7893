# Every error of this package: class minhubpy_error, the user's call, and a message that says what to do next.
fail <- function(..., class = NULL, call = users_call()) {
  stop(structure(
    class = c(class, "minhubpy_error", "error", "condition"),
    list(message = paste(c(...), collapse = ""), call = call)
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
  if (!quiet()) message(...)
}

`%||%` <- function(x, y) if (is.null(x)) y else x

quiet <- function() isTRUE(getOption("minhubpy.quiet"))
