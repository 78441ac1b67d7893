# A model's weights. What model$parameters is: a function that describes all weights, and like a list of them.

new_parameters <- function(model) {
  structure(function() {
    table <- ask("parameters", model = model)
    numel <- vapply(table$shape, prod, 0)
    data.frame(
      name = table$name, shape = vapply(table$shape, paste, "", collapse = " x "), numel = numel, dtype = table$dtype
    )
  }, class = "minhub_parameters", model = model)
}

#' @export
as.list.minhub_parameters <- function(x, ...) {
  model <- attr(x, "model")
  table <- ask("parameters", model = model)
  weights <- Map(function(name, shape, dtype) new_parameter(model, name, shape, dtype), table$name, table$shape, table$dtype)
  stats::setNames(weights, table$name)
}

# For purrr.
#' @exportS3Method vctrs::vec_proxy
vec_proxy.minhub_parameters <- function(x, ...) as.list(x)

#' @export
names.minhub_parameters <- function(x) x()$name

#' @export
length.minhub_parameters <- function(x) nrow(x())

#' @export
`[[.minhub_parameters` <- function(x, i) as.list(x)[[i]]

#' @export
`$.minhub_parameters` <- function(x, name) as.list(x)[[name]]

#' @export
print.minhub_parameters <- function(x, ...) print(x())

new_parameter <- function(model, name, shape, dtype) {
  n <- prod(shape)
  structure(list(
    name = name, shape = shape, dtype = dtype, requires_grad = TRUE,
    device = model$device, numel = function() if (n > .Machine$integer.max) n else as.integer(n),
    size = function(dim = NULL) if (is.null(dim)) shape else shape[[dim]], model = model
  ), class = "minhub_parameter")
}

#' @export
as.array.minhub_parameter <- function(x, ...) ask("parameter", model = x$model, name = x$name)

#' @export
dim.minhub_parameter <- function(x) x$shape

#' @export
format.minhub_parameter <- function(x, ...) {
  paste0("<", x$name, ": ", paste(x$shape, collapse = " x "), ", ", x$dtype, ">")
}

#' @export
print.minhub_parameter <- function(x, ...) {
  cat(format(x), "\n", sep = "")
  invisible(x)
}

# model$transformer$h: a part of the model, by its path.
child <- function(model, path) {
  table <- ask("parameters", model = model)
  row <- match(own_name(path, table$name), table$name)
  if (!is.na(row)) return(one_weight(model, table$name[[row]], table$shape[[row]], table$dtype[[row]]))
  if (!length(below(path, table$name))) return(NULL)
  structure(list(), class = "minhub_part", model = model, path = path)
}

# A tensor for code that has R torch attached, as code written for the package minhub has.
one_weight <- function(model, name, shape, dtype) {
  if (tensors_are_wanted()) weight_tensor(model, name, dtype) else new_parameter(model, name, shape, dtype)
}

tensors_are_wanted <- function() "package:torch" %in% search() && torch_works()

# Our name of a weight or part: the Hub and the package minhub put transformer. before many, and have an lm_head.weight
# also where it is wte.weight.
own_name <- function(path, names) {
  path <- sub("^transformer(\\.|$)", "", path)
  if ("lm_head.weight" %in% names) path else sub("^lm_head", "wte", path)
}

# What of the names comes after a path.
below <- function(path, names) {
  path <- own_name(path, names)
  prefix <- if (nzchar(path)) paste0(path, ".") else ""
  substring(names[startsWith(names, prefix)], nchar(prefix) + 1L)
}

child_names <- function(model, path) unique(sub("\\..*", "", below(path, ask("parameters", model = model)$name)))

#' @export
`$.minhub_part` <- function(x, name) child(attr(x, "model"), paste0(attr(x, "path"), ".", name))

#' @export
`[[.minhub_part` <- function(x, i) {
  if (is.numeric(i)) i <- names(x)[[i]] # h[[1]] is the first block, whose name is 0
  child(attr(x, "model"), paste0(attr(x, "path"), ".", i))
}

#' @export
length.minhub_part <- function(x) length(names(x))

#' @export
names.minhub_part <- function(x) child_names(attr(x, "model"), attr(x, "path"))

#' @export
print.minhub_part <- function(x, ...) {
  cat("<", attr(x, "path"), ": ", paste(names(x), collapse = ", "), ">\n", sep = "")
  invisible(x)
}

#' @export
.DollarNames.minhub_part <- function(x, pattern = "") {
  grep(pattern, completions(attr(x, "model"), attr(x, "path")), value = TRUE)
}

# Nothing is to be said, or to go wrong, in the line that is being typed.
completions <- function(model, path) {
  tryCatch(suppressMessages(child_names(model, path)), minhubpy_error = function(e) character())
}

# All weights, in and out

state_dict <- function(model) {
  table <- ask("parameters", model = model)
  weights <- Map(function(name, dtype) weight_values(model, name, dtype), table$name, table$dtype)
  stats::setNames(weights, table$name)
}

load_state_dict <- function(model, state) {
  if (!is.list(state) || is.null(names(state))) {
    fail("state_dict must be a list of weights with their names, not ", describe(state))
  }
  table <- ask("parameters", model = model)
  differ(names(state), table$name)
  for (name in table$name) {
    here <- table$shape[[match(name, table$name)]]
    given <- dim_of(state[[name]])
    if (!identical(as.integer(given), as.integer(here))) {
      fail(name, " is ", paste(given, collapse = " x "), ", the model's is ", paste(here, collapse = " x "))
    }
  }
  # All is looked at before the first is changed.
  values <- lapply(state[table$name], weight_to_send, where = "state_dict")
  attr(model, "self")$changed <- TRUE
  for (name in table$name) ask("set_parameter", model = model, name = name, value = values[[name]])
  invisible(model)
}

differ <- function(given, wanted) {
  unknown <- setdiff(given, wanted)
  missing <- setdiff(wanted, given)
  if (anyDuplicated(given)) fail("state_dict has ", given[duplicated(given)][[1L]], " twice")
  if (length(unknown)) fail("the model has no weight ", paste(utils::head(unknown, 5L), collapse = ", "))
  if (length(missing)) fail("state_dict lacks ", paste(utils::head(missing, 5L), collapse = ", "))
}

weight_values <- function(model, name, dtype) {
  if (tensors_are_wanted()) weight_tensor(model, name, dtype) else ask("parameter", model = model, name = name)
}

dim_of <- function(x) if (inherits(x, "torch_tensor")) x$shape else if (is.null(dim(x))) length(x) else dim(x)

weight_to_send <- function(x, where) {
  if (inherits(x, "torch_tensor")) return(tensor_parts(x))
  if (!is.numeric(x) || is.object(x) || anyNA(x)) fail(where, " must hold numbers without NA, or R torch tensors")
  x
}
