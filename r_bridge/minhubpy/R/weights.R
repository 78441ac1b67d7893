# A model's weights. model$parameters is a function that returns a data frame, and a list-like object.

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

# purrr requires a vctrs method.
#' @exportS3Method vctrs::vec_proxy
vec_proxy.minhub_parameters <- function(x, ...) as.list(x)

#' @export
names.minhub_parameters <- function(x) x()$name

#' @export
length.minhub_parameters <- function(x) nrow(x())

#' @export
`[[.minhub_parameters` <- function(x, i) {
  refuse_optimizer(parent.frame(), "model$parameters describes weights that Python holds")
  weights <- as.list(x)
  if (is.character(i) && !i %in% names(weights)) {
    no_member("the model", i, names(weights), advice = ": names(model$parameters) lists its weights")
  }
  weights[[i]]
}

#' @export
`$.minhub_parameters` <- function(x, name) {
  refuse_optimizer(parent.frame(), "model$parameters describes weights that Python holds")
  x[[name]]
}

# Rejects the optimizers of R torch, which would raise an unclear error or train copies.
refuse_optimizer <- function(frame, what) {
  caller <- get0("self", frame)
  if (inherits(caller, c("torch_optimizer", "OptimizerIgnite"))) {
    fail(
      "an optimizer cannot train these weights: ", what,
      ". Pass the parameters of as_torch_module(model)", call = NULL
    )
  }
}

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
`$.minhub_parameter` <- function(x, name) {
  fields <- names(unclass(x))
  if (name %in% fields) return(.subset2(x, name))
  refuse_optimizer(parent.frame(), "model$parameters describes weights that Python holds")
  no_member("a weight", name, setdiff(fields, "model"), advice = paste0(
    "; it has ", toString(setdiff(fields, "model")), "; as.array() has its values"
  ))
}

# Operations on a weight's values
#' @export
`[.minhub_parameter` <- function(x, ...) as.array(x)[...]

#' @export
`[[.minhub_parameter` <- function(x, i, ...) {
  if (is.character(i)) .subset2(x, i) else as.array(x)[[i, ...]]
}

#' @export
length.minhub_parameter <- function(x) prod(.subset2(x, "shape"))

#' @export
as.double.minhub_parameter <- function(x, ...) as.double(as.array(x))

#' @export
as.vector.minhub_parameter <- function(x, mode = "any") as.vector(as.array(x), mode)

#' @export
mean.minhub_parameter <- function(x, ...) mean(as.array(x), ...)

#' @export
Summary.minhub_parameter <- function(..., na.rm = FALSE) {
  values <- lapply(list(...), function(x) if (inherits(x, "minhub_parameter")) as.array(x) else x)
  do.call(.Generic, c(values, na.rm = na.rm))
}

#' @export
Math.minhub_parameter <- function(x, ...) get(.Generic)(as.array(x), ...)

#' @export
Ops.minhub_parameter <- function(e1, e2) {
  operate <- get(.Generic)
  if (inherits(e1, "minhub_parameter")) e1 <- as.array(e1)
  if (missing(e2)) return(operate(e1))
  if (inherits(e2, "minhub_parameter")) e2 <- as.array(e2)
  operate(e1, e2)
}

#' @export
dim.minhub_parameter <- function(x) x$shape

#' @export
format.minhub_parameter <- function(x, ...) {
  paste0("<", x$name, ": ", paste(x$shape, collapse = " x "), ", ", x$dtype, ">")
}

# A part of the model by its path, such as model$transformer$h.
child <- function(model, path) {
  table <- ask("parameters", model = model)
  row <- match(own_name(path, table$name), table$name)
  if (!is.na(row)) return(one_weight(model, table$name[[row]], table$shape[[row]], table$dtype[[row]]))
  if (!length(below(path, table$name))) return(NULL)
  structure(list(), class = "minhub_part", model = model, path = path)
}

# An R torch tensor if torch is attached, for compatibility with the package minhub. Otherwise a weight.
one_weight <- function(model, name, shape, dtype) {
  if (tensors_are_wanted()) weight_tensor(model, name, dtype) else new_parameter(model, name, shape, dtype)
}

tensors_are_wanted <- function() "package:torch" %in% search() && torch_works()

# Native name of a weight or a part. The Hub and the package minhub use the prefix transformer., and the name
# lm_head.weight also for a tied wte.weight.
own_name <- function(path, names) {
  path <- sub("^transformer(\\.|$)", "", path)
  if ("lm_head.weight" %in% names) path else sub("^lm_head", "wte", path)
}

# The names below a path, without the path.
below <- function(path, names) {
  path <- own_name(path, names)
  prefix <- if (nzchar(path)) paste0(path, ".") else ""
  substring(names[startsWith(names, prefix)], nchar(prefix) + 1L)
}

child_names <- function(model, path) unique(sub("\\..*", "", below(path, ask("parameters", model = model)$name)))

#' @export
`$.minhub_part` <- function(x, name) {
  child(attr(x, "model"), paste0(attr(x, "path"), ".", name)) %||% no_member(attr(x, "path"), name, names(x))
}

#' @export
`[[.minhub_part` <- function(x, i) {
  if (is_plain_number(i <- plain(i))) i <- names(x)[[i]] # h[[1]] is the first block, named 0
  do.call(`$`, list(x, i))
}

#' @export
length.minhub_part <- function(x) length(names(x))

#' @export
names.minhub_part <- function(x) child_names(attr(x, "model"), attr(x, "path"))

#' @export
.DollarNames.minhub_part <- function(x, pattern = "") {
  grep(pattern, completions(attr(x, "model"), attr(x, "path")), value = TRUE)
}

# Completion must not print messages or raise errors.
completions <- function(model, path) {
  tryCatch(suppressMessages(child_names(model, path)), minhubpy_error = function(e) character())
}

# State dicts
state_dict <- function(model) {
  table <- ask("parameters", model = model)
  weights <- Map(function(name, dtype) weight_values(model, name, dtype), table$name, table$dtype)
  structure(stats::setNames(weights, table$name), class = c("minhub_state_dict", "list"))
}

#' @export
`[[.minhub_state_dict` <- function(x, i) {
  refuse_optimizer(parent.frame(), "model$state_dict() has copies of the weights")
  unclass(x)[[i]]
}

# Checks names and shapes before sending a weight, and all values before changing the model.
load_state_dict <- function(model, state) {
  if (!is.list(state) || is.null(names(state)) || anyNA(names(state)) || !all(nzchar(names(state)))) {
    fail("state_dict must be a named list of weights, not ", describe(state))
  }
  state <- unclass(state)
  repeated <- names(state)[duplicated(names(state))]
  if (length(repeated)) fail("state_dict must not contain ", repeated[[1L]], " twice")
  undo <- allow_reload(attr(model, "self"))
  on.exit(undo())
  shapes <- unname(lapply(state, function(x) as.integer(dim_of(x))))
  ask("check_state_dict", model = model, names = names(state), shapes = shapes)
  weights <- send_weights(state)
  ask("prepare_state_dict", model = model, state = weights$number)
  on.exit() # the next call replaces the weights, or the worker ends
  attr(model, "self")$changed <- TRUE
  ask("load_state_dict", model = model, state = weights$number)
  invisible(model)
}

# Copies weights to Python. Returns their handle.
send_weights <- function(state) {
  weights <- new_handle(ask("new_state_dict"))
  for (name in names(state)) {
    ask("add_weight", state = weights$number, name = name, value = weight_to_send(state[[name]], name))
  }
  weights
}

# Permits reloading a model whose weights from load_state_dict() were lost, because all weights are about to be
# replaced. Returns a function that revokes the permission after an error.
allow_reload <- function(self) {
  changed <- self$changed
  handle <- self$handle
  self$changed <- FALSE
  function() {
    self$changed <- changed
    if (isTRUE(changed)) self$handle <- handle
  }
}

weight_values <- function(model, name, dtype) {
  if (tensors_are_wanted()) weight_tensor(model, name, dtype) else ask("parameter", model = model, name = name)
}

dim_of <- function(x) if (inherits(x, "torch_tensor")) x$shape else if (is.null(dim(x))) length(x) else dim(x)

weight_to_send <- function(x, name) {
  if (inherits(x, "torch_tensor")) return(tensor_parts(x))
  if (inherits(x, "minhub_parameter")) x <- as.array(x)
  x <- plain(x, name)
  if (!is_plain_number(x)) fail("state_dict must contain numbers or R torch tensors, but ", name, " is ", describe(x))
  if (anyNA(x)) fail("state_dict must not contain NA or NaN, as in ", name)
  x
}
