# Functions that a model can call during a reply.

#' Describe a function that a model can call
#'
#' @param fun A function. Arguments without a default are required.
#' @param description A description of the function for the model.
#' @param arguments A named list with a JSON type such as `"string"`,
#'   `"integer"`, `"number"` or `"boolean"`, or with a JSON Schema for each
#'   argument. Arguments that are not in the list are strings.
#' @returns An object of class `minhub_tool` for the argument `tools` of
#'   [minhub_chat()].
#' @details
#' Errors of the function are sent to the model, so that it can correct the call.
#' A result that is not text is sent as R prints it.
#' @family functions that generate text
#' @examples
#' minhub_tool(
#'   function(city, days = 1) paste(city, "is sunny"),
#'   "The weather forecast of a city",
#'   list(city = "string", days = "integer")
#' )
#' @export
minhub_tool <- function(fun, description = "", arguments = list()) {
  if (!is.function(fun)) fail("fun must be a function, not ", describe(fun))
  needed <- names(formals(args(fun)))
  if ("..." %in% needed) fail("fun has the argument `...`: use arguments with names only")
  if (!is_plain_list(arguments) || !all(names(arguments) %in% needed) || is.null(names(arguments)) != !length(arguments)) {
    fail("arguments must be a list with the names of the arguments of fun: ", toString(needed))
  }
  types <- lapply(stats::setNames(needed, needed), function(name) {
    type <- arguments[[name]] %||% "string"
    if (is_plain_list(type)) type else list(type = string(type, "arguments"))
  })
  required <- vapply(formals(args(fun)), function(default) is.symbol(default) && !nzchar(as.character(default)), NA)
  structure(
    list(fun = fun, description = string(description), types = types, required = needed[required]),
    class = "minhub_tool"
  )
}

#' @export
format.minhub_tool <- function(x, ...) paste0("<minhub_tool function(", toString(names(x$types)), "): ", x$description, ">")

#' @export
print.minhub_tool <- function(x, ...) {
  cat(format(x), "\n", sep = "")
  invisible(x)
}

TOOLS_EXAMPLE <- "list(weather = function(city) ...)"

check_tools <- function(tools) {
  if (is.null(tools)) return(NULL)
  if (!is_plain_list(tools)) fail("tools must be a list of functions with names, ", TOOLS_EXAMPLE, ", not ", describe(tools))
  names <- names(tools) %||% character(length(tools))
  unnamed <- is.na(names) | !nzchar(names)
  if (any(unnamed)) fail("tools must have names, unlike position ", positions_of(unnamed), ": pass ", TOOLS_EXAMPLE)
  if (anyDuplicated(names)) fail("tools must have different names: ", names[duplicated(names)][[1L]], " is repeated")
  lapply(tools, function(tool) if (inherits(tool, "minhub_tool")) tool else minhub_tool(tool))
}

# The definitions of tools for Python.
tool_definitions <- function(tools) {
  unname(Map(function(name, tool) {
    list(name = name, description = tool$description, parameters = list(
      type = "object", properties = tool$types, required = as.list(tool$required), additionalProperties = FALSE
    ))
  }, names(tools), tools))
}

# The result of a call as text. Errors are results, so that the model can react.
run_tool <- function(tools, call) {
  result <- tryCatch(
    do.call(tools[[call$name]]$fun, as.list(call$arguments)),
    error = function(error) paste("Error:", conditionMessage(error))
  )
  if (is.character(result)) paste(result, collapse = "\n") else paste(utils::capture.output(print(result)), collapse = "\n")
}
