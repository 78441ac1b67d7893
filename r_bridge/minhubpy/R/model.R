#' Load a pretrained model
#'
#' `from_pretrained()` takes any family, the others only their own. Files that
#' are not in the Hub's cache are downloaded and checked by their hash; a
#' download that was stopped continues where it was.
#'
#' @param identifier A repository of the Hub (`"gpt2"`,
#'   `"EleutherAI/gpt-neo-125m"`), a local folder in the Hub's layout, a GGUF
#'   file (`"model.gguf"`, or `"owner/name:model.gguf"` of a repository), or a
#'   model that comes with the package: `"minhub/shakespeare-gpt2"`,
#'   `"minhub/shakespeare-gptneo"` or `"minhub/shakespeare-lstm"`.
#' @param revision A branch, tag or commit of the repository.
#' @param device `"auto"` (see [minhub_devices()]), `"cpu"`, `"cuda"`,
#'   `"cuda:1"`, `"mps"` or `"xpu"`, or a `torch_device()` of R torch. Devices
#'   count from 0.
#' @param dtype `"auto"` (as stored, where the device computes in it),
#'   `"float32"`, `"bfloat16"` or `"float16"`, or a dtype of R torch, such as
#'   `torch_float16()`.
#' @param token A token for gated and private repositories; if not given, the
#'   environment variable `HF_TOKEN` or what `hf auth login` stored.
#' @param local_files_only `TRUE`: use the cache alone, open no connection.
#' @param quantize `"int8"` or `"nf4"` (4 bits): smaller weights and, on a CPU,
#'   faster text, from results that differ a little. With `dtype = "bfloat16"`
#'   prompts are read faster still, and results differ more; `"auto"` is float32
#'   then, on a CPU. Such a model has no float weights to look at, and cannot be made an R torch module, or saved.
#'   `"auto"`: compute with the quantized weights of a GGUF file, without loss.
#'   `"none"`: turn them into floating point. `NULL`, the default, is `"auto"`
#'   for a GGUF file on a CPU if `dtype` is `"auto"`, and `"none"` otherwise.
#' @returns A model, see [minhub_model].
#' @seealso [generate()], [next_tokens()], [token_logprobs()]
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' model
#' \dontshow{minhubpy:::end_example()}
#' @export
from_pretrained <- function(identifier, revision = "main", device = "auto", dtype = "auto",
                            token = NULL, local_files_only = FALSE, quantize = NULL) {
  load_model(identifier, revision, NULL, device, dtype, token, local_files_only, quantize)
}

# Makes the same function for one family, so that a family costs one line.
pretrained_of <- function(family) {
  force(family)
  function(identifier, revision = "main", device = "auto", dtype = "auto",
           token = NULL, local_files_only = FALSE, quantize = NULL) {
    load_model(identifier, revision, family, device, dtype, token, local_files_only, quantize)
  }
}

#' @rdname from_pretrained
#' @export
gpt2_from_pretrained <- pretrained_of("gpt2")

#' @rdname from_pretrained
#' @export
gptneo_from_pretrained <- pretrained_of("gptneo")

#' @rdname from_pretrained
#' @export
gptbigcode_from_pretrained <- pretrained_of("gptbigcode")

#' @rdname from_pretrained
#' @export
gptneox_from_pretrained <- pretrained_of("gptneox")

#' @rdname from_pretrained
#' @export
gptoss_from_pretrained <- pretrained_of("gptoss")

#' @rdname from_pretrained
#' @export
gptj_from_pretrained <- pretrained_of("gptj")

#' @rdname from_pretrained
#' @export
phi_from_pretrained <- pretrained_of("phi")

#' @rdname from_pretrained
#' @export
opt_from_pretrained <- pretrained_of("opt")

#' @rdname from_pretrained
#' @export
lstm_from_pretrained <- pretrained_of("lstm")

#' @rdname from_pretrained
#' @export
sinusoidal_from_pretrained <- pretrained_of("sinusoidal")

#' @rdname from_pretrained
#' @export
llama_from_pretrained <- pretrained_of("llama")

#' @rdname from_pretrained
#' @export
mistral_from_pretrained <- pretrained_of("mistral")

#' @rdname from_pretrained
#' @export
ministral_from_pretrained <- pretrained_of("ministral")

#' @rdname from_pretrained
#' @export
qwen2_from_pretrained <- pretrained_of("qwen2")

#' @rdname from_pretrained
#' @export
qwen3_from_pretrained <- pretrained_of("qwen3")

#' @rdname from_pretrained
#' @export
gemma_from_pretrained <- pretrained_of("gemma")

#' @rdname from_pretrained
#' @export
gemma2_from_pretrained <- pretrained_of("gemma2")

#' @rdname from_pretrained
#' @export
gemma3_from_pretrained <- pretrained_of("gemma3")

#' @rdname from_pretrained
#' @export
olmo2_from_pretrained <- pretrained_of("olmo2")

#' @rdname from_pretrained
#' @export
qwen35_from_pretrained <- pretrained_of("qwen35")

#' @rdname from_pretrained
#' @export
t5_from_pretrained <- pretrained_of("t5")

load_model <- function(identifier, revision, family, device, dtype, token, local_files_only, quantize) {
  arguments <- list(
    identifier = path_or_name(identifier), revision = string(revision), family = family,
    device = device_name(device), dtype = dtype_name(dtype), token = optional(token, string, what = "token"),
    local_files_only = flag(local_files_only), quantize = optional(quantize, string, what = "quantize")
  )
  new_model("from_pretrained", arguments)
}

path_or_name <- function(identifier) {
  identifier <- string(identifier)
  if (startsWith(identifier, "~")) path.expand(identifier) else if (file.exists(identifier)) normalizePath(identifier) else identifier
}

#' Make a model with random weights
#'
#' `gpt2()`, `llama()` and the others take settings by the names of the Hub's
#' config.json; what is not given is as in the first published model of the
#' family. The `_from_config()` functions take the settings of a repository or
#' folder. The weights follow R's random numbers: `set.seed()` before, or
#' `seed`, makes them repeatable.
#'
#' @inheritParams from_pretrained
#' @param vocab_size,n_embd,n_head,n_layer Sizes of a GPT-2.
#' @param ... Further settings, such as `n_positions = 512` or
#'   `resid_pdrop = 0` (GPT-2), `hidden_size = 64` (the others).
#' @param max_pos,pdrop The names that the package minhub has for
#'   `n_positions`, and for `embd_pdrop`, `attn_pdrop` and `resid_pdrop`.
#' @param seed A whole number; if not given, R's random numbers give one.
#' @returns A model in training mode, see [minhub_model].
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' set.seed(1)
#' gpt2(vocab_size = 65, n_embd = 32, n_head = 2, n_layer = 2, n_positions = 16)
#' gpt2_from_config("minhub/shakespeare-gpt2", seed = 1)
#' \dontshow{minhubpy:::end_example()}
#' @export
gpt2 <- function(vocab_size = 50257, n_embd = 768, n_head = 12, n_layer = 12, max_pos = NULL, pdrop = NULL, ...,
                 seed = NULL) {
  new_fresh("gpt2", c(
    list(vocab_size = vocab_size, n_embd = n_embd, n_head = n_head, n_layer = n_layer),
    if (!is.null(max_pos)) list(n_positions = max_pos),
    if (!is.null(pdrop)) list(embd_pdrop = pdrop, attn_pdrop = pdrop, resid_pdrop = pdrop),
    list(...)
  ), seed)
}

fresh_of <- function(family) {
  force(family)
  function(..., seed = NULL) new_fresh(family, list(...), seed)
}

configured_of <- function(family) {
  force(family)
  function(identifier, revision = "main", token = NULL, local_files_only = FALSE, seed = NULL) {
    configured(family, identifier, revision, token, local_files_only, seed)
  }
}

#' @rdname gpt2
#' @export
gptneo <- fresh_of("gptneo")

#' @rdname gpt2
#' @export
gptbigcode <- fresh_of("gptbigcode")

#' @rdname gpt2
#' @export
gptneox <- fresh_of("gptneox")

#' @rdname gpt2
#' @export
gptoss <- fresh_of("gptoss")

#' @rdname gpt2
#' @export
gptj <- fresh_of("gptj")

#' @rdname gpt2
#' @export
phi <- fresh_of("phi")

#' @rdname gpt2
#' @export
opt <- fresh_of("opt")

#' @rdname gpt2
#' @export
lstm <- fresh_of("lstm")

#' @rdname gpt2
#' @export
sinusoidal <- fresh_of("sinusoidal")

#' @rdname gpt2
#' @export
llama <- fresh_of("llama")

#' @rdname gpt2
#' @export
mistral <- fresh_of("mistral")

#' @rdname gpt2
#' @export
ministral <- fresh_of("ministral")

#' @rdname gpt2
#' @export
qwen2 <- fresh_of("qwen2")

#' @rdname gpt2
#' @export
qwen3 <- fresh_of("qwen3")

#' @rdname gpt2
#' @export
gemma <- fresh_of("gemma")

#' @rdname gpt2
#' @export
gemma2 <- fresh_of("gemma2")

#' @rdname gpt2
#' @export
gemma3 <- fresh_of("gemma3")

#' @rdname gpt2
#' @export
olmo2 <- fresh_of("olmo2")

#' @rdname gpt2
#' @export
qwen35 <- fresh_of("qwen35")

#' @rdname gpt2
#' @export
t5 <- fresh_of("t5")

#' @rdname gpt2
#' @export
gpt2_from_config <- configured_of("gpt2")

#' @rdname gpt2
#' @export
gptneo_from_config <- configured_of("gptneo")

#' @rdname gpt2
#' @export
gptbigcode_from_config <- configured_of("gptbigcode")

#' @rdname gpt2
#' @export
gptneox_from_config <- configured_of("gptneox")

#' @rdname gpt2
#' @export
gptoss_from_config <- configured_of("gptoss")

#' @rdname gpt2
#' @export
gptj_from_config <- configured_of("gptj")

#' @rdname gpt2
#' @export
phi_from_config <- configured_of("phi")

#' @rdname gpt2
#' @export
opt_from_config <- configured_of("opt")

#' @rdname gpt2
#' @export
lstm_from_config <- configured_of("lstm")

#' @rdname gpt2
#' @export
sinusoidal_from_config <- configured_of("sinusoidal")

#' @rdname gpt2
#' @export
llama_from_config <- configured_of("llama")

#' @rdname gpt2
#' @export
mistral_from_config <- configured_of("mistral")

#' @rdname gpt2
#' @export
ministral_from_config <- configured_of("ministral")

#' @rdname gpt2
#' @export
qwen2_from_config <- configured_of("qwen2")

#' @rdname gpt2
#' @export
qwen3_from_config <- configured_of("qwen3")

#' @rdname gpt2
#' @export
gemma_from_config <- configured_of("gemma")

#' @rdname gpt2
#' @export
gemma2_from_config <- configured_of("gemma2")

#' @rdname gpt2
#' @export
gemma3_from_config <- configured_of("gemma3")

#' @rdname gpt2
#' @export
olmo2_from_config <- configured_of("olmo2")

#' @rdname gpt2
#' @export
qwen35_from_config <- configured_of("qwen35")

#' @rdname gpt2
#' @export
t5_from_config <- configured_of("t5")

new_fresh <- function(family, config, seed) {
  config <- plain_config(config, paste0(family, "(vocab_size = 65)"))
  new_model("fresh", list(family = family, config = config, seed = one_seed(seed)))
}

# Settings by the names of config.json. Python checks which names there are.
plain_config <- function(config, example) {
  if (length(config) && (is.null(names(config)) || !all(nzchar(names(config))))) {
    fail("settings need names, such as ", example)
  }
  if (anyDuplicated(names(config))) fail("settings are given twice: ", names(config)[duplicated(names(config))][[1L]])
  plain <- function(x) {
    kind <- is.numeric(x) || is.logical(x) || is.list(x) || (is.character(x) && all(validUTF8(x)))
    kind && !is.object(x) && length(x) > 0L && !anyNA(x, recursive = TRUE)
  }
  bad <- Position(Negate(plain), config)
  if (!is.na(bad)) fail("the setting ", names(config)[[bad]], " cannot be ", describe(config[[bad]]))
  config
}

configured <- function(family, identifier, revision, token, local_files_only, seed) {
  new_model("from_config", list(
    identifier = path_or_name(identifier), revision = string(revision), family = family,
    token = optional(token, string, what = "token"), local_files_only = flag(local_files_only), seed = one_seed(seed)
  ))
}

# The given seed, or one drawn from R's random numbers, so that set.seed() decides Python's draws too.
one_seed <- function(seed) if (is.null(seed)) draw_seeds(1L) else whole(seed, "seed")

draw_seeds <- function(n) sample.int(.Machine$integer.max, n, replace = TRUE)

#' A model
#'
#' What [from_pretrained()] and similar functions return: a function from token
#' ids to logits. The weights are in Python; R holds a reference to them.
#'
#' @section As a function:
#' `model(idx)` takes 0-based ids: a vector (one row), a matrix (a row each)
#' or a list of vectors of one length. It returns the logits as an array with
#' the dimensions batch, time and vocabulary. With an R torch tensor of ids,
#' which count from 1, it returns an R torch tensor, on the device of the ids
#' and in the dtype of the model, without gradients: [as_torch_module()] is for
#' training. `model(x = idx)` is the same: `x` is the name in the package
#' minhub.
#'
#' @section Fields:
#' * `model$config`: the settings, by the names of config.json.
#' * `model$family`, `model$device`, `model$dtype`, `model$context` (the most
#'   ids it can look back on; `NULL` for an LSTM), `model$vocab_size`,
#'   `model$training`.
#' * `model$eval()`, `model$train()`: dropout off, or on.
#' * `model$to(device =, dtype =)`: moves the weights.
#' * `model$parameters()`: a data frame with the name, shape, number of
#'   elements and dtype of each weight. `model$parameters` is also like a list
#'   of the weights, for `lapply()`, `names()` and `[[`.
#' * `model$parameter(name)`: one weight as an array.
#' * `model$state_dict()`: copies of all weights, a list with names: of arrays,
#'   or after `library(torch)` of R torch tensors.
#' * `model$load_state_dict(state_dict)`: takes such a list, also that of a
#'   module that was trained in R torch, or of a checkpoint with the Hub's
#'   names (`transformer.wte.weight`, `lm_head.weight`) and layout. All weights
#'   must be there, of the right shapes and without NaN; otherwise the model
#'   stays as it is.
#' * `model$wte$weight` and the like: a weight by its path, with `$shape`,
#'   `$dtype` and `$numel()`. `as.array()` has its values, and `[`, `mean()`
#'   and arithmetic work on them. After `library(torch)` it is an R torch
#'   tensor, a copy. The Hub's names, `model$transformer$wte$weight` and
#'   `model$lm_head$weight`, work too.
#'
#' Models survive `saveRDS()` and the end of the Python worker: a pretrained
#' one is loaded again, from the same commit, and a random one is made again
#' from its seed. Weights that came by `load_state_dict()` do not:
#' [save_pretrained()] keeps them, and `load_state_dict()` can give them again.
#'
#' @param x,object A model.
#' @param ... Not used.
#' @returns `print()`: the model, invisibly. `summary()`: a list with the line
#'   that describes the `model`, the number of parameters of its `parts`, and its
#'   `config`, which has a `print()` method.
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
  as_model(new_self(method, arguments, title))
}

# The namespace is looked up at each call: a model that was read from a file, or made before the package was loaded again,
# may have another.
as_model <- function(self) {
  model <- structure(
    function(idx, x) getNamespace("minhubpy")$forward(model, idx, x),
    class = c(paste0("minhub_", self$about$family), "minhub_model"), self = self
  )
  model
}

forward <- function(model, idx, x) {
  if (missing(idx) && missing(x)) {
    fail("idx is missing: give the model token ids, such as tok$encode(\"ROMEO:\")$ids")
  }
  if (!missing(idx) && !missing(x)) fail("idx and x are two names of one argument: give one of them")
  if (missing(idx)) idx <- x
  if (inherits(idx, "torch_tensor")) return(forward_torch(model, idx))
  ids <- token_ids(idx)
  check_length(if (is.list(ids)) max(lengths(ids)) else if (is.matrix(ids)) ncol(ids) else length(ids), model$context)
  ask("forward", model = model, ids = ids, first = 0L, as_torch = FALSE)
}

# Before ids are sent: millions of them take many seconds to convert.
check_length <- function(longest, context) {
  if (!is.null(context) && longest > context) fail(longest, " positions; this model has ", context)
}

MODEL_FIELDS <- c("config", "family", "device", "dtype", "context", "vocab_size", "training", "quantized")
MODEL_METHODS <- c("eval", "train", "to", "parameters", "parameter", "state_dict", "load_state_dict")

#' @export
`$.minhub_model` <- function(x, name) {
  self <- attr(x, "self")
  if (name %in% MODEL_FIELDS) return(self$about[[name]])
  switch(name,
    eval = function() set_mode(x, FALSE),
    train = function(mode = TRUE) set_mode(x, flag(mode)),
    to = function(device = NULL, dtype = NULL) move_model(x, device, dtype),
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
  fail("a model's ", name, " cannot be set; model$to() moves it, model$train() and model$eval() switch dropout")
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

# R torch users pass torch_device("cuda") and torch_float16().
device_name <- function(device) {
  if (!inherits(device, "torch_device")) return(string(device))
  if (is.null(device$index)) device$type else paste0(device$type, ":", device$index)
}

dtype_name <- function(dtype) {
  if (!inherits(dtype, "torch_dtype")) return(string(dtype))
  name <- as.character(dtype)
  known <- c(Float = "float32", Double = "float64", Half = "float16", BFloat16 = "bfloat16")
  if (name %in% names(known)) known[[name]] else name # Python refuses it
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
  context <- if (is.null(about$context)) "any length" else paste(about$context, "ids")
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
  fail("a model has no picture; plot(next_tokens(model, \"ROMEO\")) and plot(token_logprobs(model, \"To be\")) show what it expects")
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
#' Writes config.json and model.safetensors, and tokenizer.json if there is a
#' tokenizer, as the Hub has them: [from_pretrained()] and Python's
#' transformers load the folder.
#'
#' @param model A model.
#' @param folder Where to.
#' @param tokenizer The tokenizer to write with it; the model's own, if not
#'   given.
#' @returns The folder, invisibly.
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
  if (!nzchar(x)) fail(what, " is empty: give a path")
  path.expand(x)
}

# Python may have another working directory than R.
absolute <- function(path) {
  if (grepl("^(/|[A-Za-z]:|\\\\\\\\)", path)) return(path)
  if (is.null(getwd())) fail("the working directory was removed: setwd() changes to another")
  file.path(getwd(), path)
}

# A model, or that of a run.
check_model <- function(model) {
  if (inherits(model, "minhub_run")) model <- model$model
  if (inherits(model, "nn_module")) {
    fail(
      "model must be a model of this package, not an R torch module: ",
      "model$load_state_dict(module$state_dict()) brings a module's weights back to its model"
    )
  }
  if (!inherits(model, "minhub_model")) {
    fail("model must be a model, such as from_pretrained() returns, not ", describe(model))
  }
  model
}
