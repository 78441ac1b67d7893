#' Language models
#'
#' A model, such as the result of [from_pretrained()], is a function from token
#' IDs to logits. Python stores the weights, and the R object is a reference to
#' them.
#'
#' @section Logits:
#' `model(idx)` computes logits. `idx` contains 0-based token IDs: a vector (one
#' sequence), a matrix with one row per sequence, or a list of vectors of equal
#' length. The result is an array with the dimensions batch, position and
#' vocabulary.
#'
#' For an R torch tensor of 1-based token IDs, the result is an R torch tensor on
#' the device of `idx` and with the dtype of the model. It has no gradients; use
#' [as_torch_module()] for training. `model(x = idx)` is equivalent, for
#' compatibility with the package minhub.
#'
#' A text encoder such as BERT returns the result of the checkpoint's head:
#' logits (batch, position, vocabulary) of a masked language model, scores (batch,
#' label) of a classifier of texts, or scores (batch, position, label) of a
#' classifier of tokens. Without a head, the result contains the hidden states
#' (batch, position, channel). Two further arguments have the shape of `idx`:
#' * `attention_mask`: 1 or `TRUE` for tokens, 0 or `FALSE` for padding. The
#'   results at padding are meaningless.
#' * `token_type_ids`: each token's segment in a pair of texts, 0 or 1.
#'
#' @section Fields:
#' * `model$config`: the settings, with the names of config.json.
#' * `model$family` (the architecture), `model$device`, `model$dtype`,
#'   `model$context` (the maximum number of tokens; `NULL` for an LSTM),
#'   `model$vocab_size`, `model$training`.
#'
#' @section Methods:
#' * `model$eval()` and `model$train()` disable and enable dropout.
#' * `model$to(device =, dtype =)` moves or converts the weights.
#' * `model$adapter(adapter)` returns the model with a LoRA adapter: a folder, a
#'   repository of the Hub or a run of [minhub_train()]. All models with adapters
#'   share the weights of `model`; `NULL` is the model without an adapter.
#' * `model$parameters()` returns a data frame with the name, shape, number of
#'   elements and dtype of each weight. `model$parameters` is also a list-like
#'   object for `lapply()`, `names()` and `[[`.
#' * `model$parameter(name)` returns a weight as an array.
#' * `model$state_dict()` returns a named list with copies of all weights: arrays,
#'   or R torch tensors if torch is attached.
#' * `model$load_state_dict(state_dict)` replaces the weights of the model. It
#'   accepts such a list, the state dict of a module that was trained in R torch,
#'   and weights with the names and layout of the Hub (`transformer.wte.weight`,
#'   `lm_head.weight`). All weights are required, with matching shapes and without
#'   NaN; otherwise the model remains unchanged.
#' * `model$wte$weight` is a weight by its path, with `$shape`, `$dtype` and
#'   `$numel()`. `as.array()` returns its values. `[`, `mean()` and arithmetic
#'   operate on them. If torch is attached, it is an R torch tensor with a copy of
#'   the values. The names of the Hub, `model$transformer$wte$weight` and
#'   `model$lm_head$weight`, are aliases.
#'
#' @section Saving and reloading:
#' `saveRDS()` saves the call that created a model, not its weights. After
#' `readRDS()` or a restart of the worker, a pretrained model is reloaded from the
#' same commit, and a random model is recreated from its seed. Weights from
#' `load_state_dict()` are lost unless [save_pretrained()] has saved them.
#'
#' @section Memory:
#' Python releases a model when no variable refers to it: at once after `rm(model)`
#' or a new value of the variable at top level, in a console or a script, and
#' otherwise at R's next garbage collection, which also runs before a model is
#' loaded. So a loop or a function that replaces a model has at most two in memory.
#'
#' @param x,object A model.
#' @param ... Not used.
#' @returns `print()` returns the model, invisibly. `summary()` returns a list of
#'   class `summary.minhub_model` with a description of the `model`, the number of
#'   parameters of its `parts`, and its `config`.
#' @seealso [generate()], [token_logprobs()]
#' @name minhub_model
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' dim(model(c(1L, 2L, 3L)))
#' model$config$n_layer
#' summary(model)
#' \dontshow{minhubpy:::end_example()}
NULL

new_model <- function(method, arguments) {
  title <- if (is.null(arguments$identifier)) paste("a random", arguments$family) else arguments$identifier
  watch_expressions()
  as_model(new_self(method, arguments, title))
}

# The function looks up the namespace at each call, because readRDS() and reloading the package replace it.
as_model <- function(self) {
  model <- structure(
    function(idx, x, attention_mask = NULL, token_type_ids = NULL) {
      getNamespace("minhubpy")$forward(model, idx, x, attention_mask, token_type_ids)
    },
    class = c(paste0("minhub_", self$about$family), "minhub_model"), self = self
  )
  model
}

forward <- function(model, idx, x, attention_mask = NULL, token_type_ids = NULL) {
  if (missing(idx) && missing(x)) {
    fail("idx is missing: pass token IDs, such as tok$encode(\"ROMEO:\")$ids")
  }
  if (!missing(idx) && !missing(x)) fail("idx and x are names of the same argument: pass one of them")
  if (missing(idx)) idx <- x
  if (inherits(idx, "torch_tensor")) {
    if (!is.null(attention_mask) || !is.null(token_type_ids)) {
      fail("attention_mask and token_type_ids require 0-based token IDs, not an R torch tensor: pass as.array(idx) - 1L")
    }
    return(forward_torch(model, idx))
  }
  ids <- token_ids(idx)
  check_length(if (is.list(ids)) max(lengths(ids)) else if (is.matrix(ids)) ncol(ids) else length(ids), model$context)
  ask(
    "forward",
    model = model, ids = ids, first = 0L, as_torch = FALSE,
    attention_mask = optional(attention_mask, like_ids, "attention_mask", ids),
    token_type_ids = optional(token_type_ids, like_ids, "token_type_ids", ids)
  )
}

# A mask or token types as integers in the shape of token IDs. Python checks their range.
like_ids <- function(x, what, ids) {
  as_numbers <- function(x) {
    x <- plain(x, what)
    if (is.object(x) || !(is.numeric(x) || is.logical(x)) || anyNA(x)) fail(what, " must contain numbers without NA, not ", describe(x))
    x + 0L
  }
  same_shape <- if (is.list(ids)) is.list(x) && identical(lengths(x), lengths(ids)) else identical(dim(x), dim(ids)) && length(x) == length(ids)
  if (!same_shape) fail(what, " must have the shape of idx")
  if (is.list(x)) lapply(unname(x), as_numbers) else as_numbers(x)
}

# Checks the length before the token IDs are sent, because converting millions of them is slow.
check_length <- function(length, context) {
  if (!is.null(context) && length > context) fail("a sequence must have at most ", context, " tokens, the model's context, not ", length)
}

MODEL_FIELDS <- c("config", "family", "device", "dtype", "context", "vocab_size", "training", "quantized")
MODEL_METHODS <- c("eval", "train", "to", "adapter", "parameters", "parameter", "state_dict", "load_state_dict")

#' @export
`$.minhub_model` <- function(x, name) {
  self <- attr(x, "self")
  if (name %in% MODEL_FIELDS) return(self$about[[name]])
  switch(name,
    eval = function() set_mode(x, FALSE),
    train = function(mode = TRUE) set_mode(x, flag(mode)),
    to = function(device = NULL, dtype = NULL) move_model(x, device, dtype),
    adapter = function(adapter = NULL) with_adapter(x, adapter),
    parameters = new_parameters(x),
    parameter = function(name) ask("parameter", model = x, name = string(name)),
    state_dict = function() state_dict(x),
    load_state_dict = function(state_dict) load_state_dict(x, state_dict),
    {
      part <- child(x, name)
      if (is.null(part)) no_model_member(name)
      part
    }
  )
}

no_model_member <- function(name) {
  device <- if (name %in% c("cuda", "cpu")) paste0("; model$to(\"", name, "\") moves it")
  no_member("a model", name, MODEL_FIELDS, MODEL_METHODS, device)
}

#' @export
`[[.minhub_model` <- function(x, i) {
  do.call(`$`, list(x, member_name(i, "a model", c(MODEL_FIELDS, MODEL_METHODS))))
}

#' @export
`$<-.minhub_model` <- function(x, name, value) {
  fail("the fields of a model are read-only, as is ", name, ": use model$to(), model$train() or model$eval()")
}

#' @export
.DollarNames.minhub_model <- function(x, pattern = "") {
  grep(pattern, c(MODEL_FIELDS, paste0(MODEL_METHODS, "("), completions(x, "")), value = TRUE)
}

set_mode <- function(model, training) {
  ask("train", model = model, mode = training)
  attr(model, "self")$about$training <- training
  invisible(model)
}

move_model <- function(model, device, dtype) {
  self <- attr(model, "self")
  device <- optional(device, device_name)
  dtype <- optional(dtype, dtype_name)
  about <- ask("to", model = model, device = device, dtype = dtype)
  self$about[c("device", "dtype")] <- about[c("device", "dtype")]
  self$moved <- list(device = about$device, dtype = about$dtype)
  invisible(model)
}

with_adapter <- function(model, adapter) {
  source <- optional(adapter, adapter_folder)
  title <- paste0(attr(model, "self")$title, if (!is.null(source)) paste0(" + ", basename(source)))
  as_model(new_self("adapter", list(model = model, source = source), title))
}

# Accepts torch_device("cuda") of R torch.
device_name <- function(device) {
  if (!inherits(device, "torch_device")) return(string(device))
  if (is.null(device$index)) device$type else paste0(device$type, ":", device$index)
}

dtype_name <- function(dtype) {
  if (!inherits(dtype, "torch_dtype")) return(string(dtype))
  name <- as.character(dtype)
  dtypes <- c(Float = "float32", Double = "float64", Half = "float16", BFloat16 = "bfloat16")
  if (name %in% names(dtypes)) dtypes[[name]] else name # Python rejects the name
}

#' @export
format.minhub_model <- function(x, ...) {
  about <- attr(x, "self")$about
  paste0(
    "<", about$class, " ", attr(x, "self")$title, ": ", count(about$parameters), " parameters, ",
    if (!is.null(about$quantized)) paste0("weights in ", about$quantized, ", "),
    about$dtype, " on ", about$device, ">"
  )
}

#' @rdname minhub_model
#' @export
print.minhub_model <- function(x, ...) {
  about <- attr(x, "self")$about
  cat(format(x), "\n", sep = "")
  context <- if (is.null(about$context)) "any length" else paste(about$context, "tokens")
  cat("  vocabulary ", about$vocab_size, ", context ", context, if (about$training) ", training mode", "\n", sep = "")
  invisible(x)
}

#' @rdname minhub_model
#' @export
summary.minhub_model <- function(object, ...) {
  structure(
    list(model = format(object), parts = weights_by_part(object$parameters()), config = object$config),
    class = "summary.minhub_model"
  )
}

#' @export
print.summary.minhub_model <- function(x, ...) {
  cat(x$model, "\n\n", sep = "")
  parts <- x$parts
  parts$parameters <- format(parts$parameters, big.mark = ",", scientific = FALSE)
  print(parts, row.names = FALSE, right = TRUE)
  cat("\n")
  utils::str(x$config, no.list = TRUE, give.attr = FALSE, comp.str = " ")
  invisible(x)
}

#' @export
plot.minhub_model <- function(x, ...) {
  fail("a model has no plot: use plot(next_tokens(model, \"ROMEO\")) or plot(token_logprobs(model, \"To be\"))")
}

#' @export
str.minhub_model <- function(object, ...) str_format(object)

count <- function(n) {
  unit <- if (n >= 1e9) c(1e9, "B") else if (n >= 1e6) c(1e6, "M") else if (n >= 1e4) c(1e3, "k") else c(1, "")
  paste0(format(round(n / as.numeric(unit[[1L]]), 1L), nsmall = 0L), unit[[2L]])
}

#' @export
as.list.minhub_model <- function(x, ...) attr(x, "self")$about[MODEL_FIELDS]

#' Save a model
#'
#' Writes config.json, model.safetensors and, if the model has a tokenizer,
#' tokenizer.json in the Hub's layout. [from_pretrained()] and Python's
#' transformers can load the folder.
#'
#' @param model A model, see [from_pretrained()], or a run of [minhub_train()].
#' @param folder The path of the folder.
#' @param tokenizer The tokenizer to save. By default, the model's tokenizer.
#' @returns `folder`, invisibly.
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' model <- lstm_from_pretrained("minhub/shakespeare-lstm")
#' folder <- save_pretrained(model, file.path(tempdir(), "my-lstm"))
#' dir(folder)
#' \dontshow{minhubpy:::end_example()}
#' @export
save_pretrained <- function(model, folder, tokenizer = NULL) {
  model <- check_model(model)
  folder <- file_path(folder)
  ask("save_pretrained", model = model, folder = absolute(folder), tokenizer = check_tokenizer(tokenizer))
  invisible(folder)
}

file_path <- function(x, what = deparse(substitute(x))) {
  x <- string(x, what)
  if (!nzchar(x)) fail(what, " is empty: pass a path")
  path.expand(x)
}

# The working directories of R and Python may differ.
absolute <- function(path) {
  if (grepl("^(/|[A-Za-z]:|\\\\\\\\)", path)) return(path)
  if (is.null(getwd())) fail("the working directory was removed: change to another one with setwd()")
  file.path(getwd(), path)
}

# Returns a model, or the model of a run.
check_model <- function(model, what = "model") {
  if (inherits(model, "minhub_run")) model <- model$model
  if (inherits(model, "nn_module")) {
    fail(
      what, " must be a model of this package, not an R torch module: ",
      "copy the weights to its model with model$load_state_dict(module$state_dict())"
    )
  }
  if (!inherits(model, "minhub_model")) {
    fail(what, " must be a model, as from_pretrained() returns, not ", describe(model))
  }
  model
}
