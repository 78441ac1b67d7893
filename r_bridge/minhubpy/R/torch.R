#' Convert a model to an R torch module
#'
#' Creates an `nn_module` of R torch with a copy of a model's weights. The
#' module runs in R without Python and supports training.
#'
#' The input is an R torch tensor of 1-based token IDs, as everywhere in R torch:
#' `module(idx + 1L)` for the token IDs of a tokenizer. It contains whole numbers
#' of an integer or floating-point dtype and has one row per sequence, or one
#' dimension for a single sequence. The logits have the dimensions batch, position
#' and vocabulary. `model(idx)` with the same tensor computes the same logits
#' without a module and without gradients.
#'
#' The module is on the CPU, with the dtype and the mode (training or evaluation)
#' of the model. `module$parameters` has the names of the model's weights; a
#' weight that the model uses twice is a single parameter. `module$train()`,
#' `module$eval()` and `module$to()` work as in other modules, also if the module
#' is part of another module. Dropout depends on the mode.
#'
#' @section Saving:
#' * `torch_save(module$state_dict(), path)` saves the trained weights, and
#'   `module$load_state_dict(torch_load(path))` loads them into another module.
#' * `model$load_state_dict(module$state_dict())` copies the weights to the model,
#'   for [generate()] and [save_pretrained()].
#' * `torch_save()` also saves the complete module, and
#'   `module$clone(deep = TRUE)` copies it with its weights and mode.
#'
#' @section Limitations of R torch:
#' As of version 0.17:
#' * The processes of a `dataloader()` with `num_workers` load no packages. If the
#'   dataset uses this package, for example a tokenizer, set
#'   `worker_packages = "minhubpy"`.
#' * `jit_trace(module)` cannot trace this module, which is already compiled. The
#'   shell command `minhub convert MODEL model.pt --to torchscript` writes a file
#'   for `jit_load()`.
#' * `train()` and `eval()` fail for the result of `jit_load()`. Use
#'   `loaded$..ptr..()$train(FALSE)`.
#' * `clone()` without `deep = TRUE` shares the weights, so that `to()` moves both
#'   modules.
#'
#' @section Adapters:
#' With `lora`, the module is the model with a new LoRA adapter, and only the
#' adapter's weights have gradients. [save_adapter()] saves them in PEFT's format
#' after the training. A model with an adapter, such as
#' `from_pretrained(adapter = )`, becomes a module that continues its training. DoRA
#' adapters are not supported.
#'
#' @param model A model, see [from_pretrained()].
#' @param lora The rank of a new LoRA adapter, such as 16, or its settings as in
#'   [minhub_train()]. `NULL`: no new adapter.
#' @param seed The seed of the adapter's initial weights. By default, drawn from R's
#'   random numbers.
#' @returns An `nn_module`.
#' @family functions for models
#' @examplesIf minhubpy:::is_ready() && minhubpy:::torch_works()
#' module <- as_torch_module(gpt2_from_pretrained("minhub/shakespeare-gpt2"))
#' idx <- torch::torch_tensor(matrix(c(1L, 5L, 9L), nrow = 1))
#' logits <- module(idx)
#' logits$shape
#'
#' optimizer <- torch::optim_adamw(module$parameters, lr = 1e-3)
#' loss <- torch::nnf_cross_entropy(logits[1, 1:2, ], idx[1, 2:3])
#' loss$backward()
#' optimizer$step()
#' \dontshow{minhubpy:::end_example()}
#' @export
as_torch_module <- function(model, lora = NULL, seed = NULL) {
  model <- check_model(model)
  lora <- optional(lora, lora_settings)
  need_torch()
  if (!is.null(lora)) {
    arguments <- list(model = model, lora = lora, seed = one_seed(seed))
    model <- as_model(new_self("new_adapter", arguments, attr(model, "self")$title))
  }
  path <- tempfile("minhubpy-", fileext = ".pt")
  on.exit(unlink(path))
  ask("save_torchscript", model = model, path = path)
  trained <- ask("adapter_weights", model = model)
  module <- script_as_module()(torch::jit_load(path), model$vocab_size, model$context, trained, if (length(trained)) model)
  module$train(model$training)
  module
}

#' Save an adapter
#'
#' Saves the LoRA adapter of a model in PEFT's format: adapter_config.json and
#' adapter_model.safetensors. `from_pretrained(adapter = folder)` and the Python
#' package peft load the folder.
#'
#' @param model A model with an adapter, a run of [minhub_train()] with `lora`, or a
#'   module of [as_torch_module()] with an adapter, whose weights the model then
#'   receives.
#' @param folder The path of the folder.
#' @returns `folder`, invisibly.
#' @family functions for models
#' @examplesIf minhubpy:::is_ready() && minhubpy:::torch_works()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' module <- as_torch_module(model, lora = 4)
#' optimizer <- torch::optim_adamw(module$parameters, lr = 1e-3)
#' idx <- torch::torch_tensor(matrix(c(1L, 5L, 9L), nrow = 1))
#' loss <- torch::nnf_cross_entropy(module(idx)[1, 1:2, ], idx[1, 2:3])
#' loss$backward()
#' optimizer$step()
#' folder <- save_adapter(module, file.path(tempdir(), "adapter"))
#' model$adapter(folder)
#' \dontshow{minhubpy:::end_example()}
#' @export
save_adapter <- function(model, folder) {
  folder <- file_path(folder)
  weights <- NULL
  if (inherits(model, "minhub_module")) {
    parameters <- model$parameters
    model <- model$adapted_model()
    if (is.null(model)) fail("the module has no adapter: create it with as_torch_module(model, lora = 16)")
    weights <- send_weights(parameters[ask("adapter_weights", model = model)])
  }
  ask("save_adapter", model = check_model(model), folder = absolute(folder), weights = weights$number)
  invisible(folder)
}

# jit_load() returns a TorchScript module with 0-based token IDs. Its train() fails, because it sets a read-only field,
# and its to() creates new parameters, which TorchScript's LSTM ignores. Therefore it is a private field of a module
# with the same tensors as parameters. If other tensors replace the parameters, as in a clone or after torch_load(), the
# module creates a new TorchScript module from `code`, which contains no weights.
script_as_module <- function() {
  torch::nn_module(
    "minhub_module",
    private = list(
      script = NULL, weights = NULL, code = NULL, adapted = NULL,
      # Copies replaced parameters into a new script.
      sync_script = function() {
        parameters <- private$parameters_[names(private$weights)]
        if (identical(parameters, private$weights)) return(invisible())
        private$script <- torch::jit_unserialize(private$code)
        private$weights <- Map(copy_parameter, private$script$parameters[names(parameters)], parameters)
        private$parameters_[names(parameters)] <- private$weights
      }
    ),
    # trained: the names of an adapter's weights; the others are constant. adapted: its model.
    initialize = function(script, vocab_size, context, trained = character(), adapted = NULL) {
      self$vocab_size <- vocab_size
      self$context <- context
      private$script <- script
      private$weights <- lapply(script$parameters, torch::nn_parameter)
      # torch_save() writes elements in memory order, which is wrong for a transposed weight.
      for (weight in private$weights) torch::with_no_grad(weight$set_data(weight$contiguous()))
      if (length(trained)) {
        for (weight in private$weights[setdiff(names(private$weights), trained)]) weight$requires_grad_(FALSE)
      }
      private$adapted <- adapted
      private$parameters_ <- private$weights
      private$code <- code_of(script)
    },
    forward = function(idx, x) {
      if (missing(idx) && missing(x)) fail("idx is missing: pass an R torch tensor of 1-based token IDs")
      if (!missing(idx) && !missing(x)) fail("idx and x are names of the same argument: pass one of them")
      if (missing(idx)) idx <- x
      private$sync_script()
      script <- private$script$..ptr..()
      if (script$is_training != self$training) script$train(self$training)
      private$script(zero_based(idx, self$vocab_size, self$context))
    },
    adapted_model = function() private$adapted,
    # to(), cuda() and cpu() call this function, also for a module that contains this module.
    .apply = function(fn) {
      for (weight in private$weights) {
        gradient <- weight$grad
        torch::with_no_grad({
          weight$set_data(fn(weight))
          if (!torch::is_undefined_tensor(gradient)) weight$set_grad_(fn(gradient))
        })
      }
      self$train(self$training) # returns the module as a function
    },
    # module$name <- value, torch_load() and clone(deep = TRUE) replace the parameters.
    register_parameter = function(name, param) {
      super$register_parameter(name, param)
      private$sync_script()
    },
    .load_from_state_dict = function(state_dict, prefix) {
      super$.load_from_state_dict(state_dict, prefix)
      private$sync_script()
    },
    .replace_values_from_table = function(table) {
      super$.replace_values_from_table(table)
      private$sync_script()
    }
  )
}

utils::globalVariables(c("private", "self", "super"))

# Serializes a TorchScript module without its weights, which are replaced by an expanded zero.
code_of <- function(script) {
  weights <- script$parameters
  values <- lapply(weights, function(weight) weight$detach())
  on.exit(for (name in names(weights)) torch::with_no_grad(weights[[name]]$set_data(values[[name]])))
  for (weight in weights) {
    torch::with_no_grad(weight$set_data(torch::torch_zeros(1L, dtype = weight$dtype)$expand(weight$shape)))
  }
  torch::jit_serialize(script)
}

# Copies the values and the gradient of a parameter to a tensor of the script.
copy_parameter <- function(weight, parameter) {
  torch::with_no_grad(weight$set_data(parameter$detach()$contiguous()))
  if (!torch::is_undefined_tensor(parameter$grad)) weight$set_grad_(parameter$grad)
  torch::nn_parameter(weight, parameter$requires_grad)
}

# Converts 1-based token IDs of R torch to 0-based token IDs (B, T) of TorchScript.
zero_based <- function(idx, size, context) {
  check_tensor(idx)
  if (as.logical(torch::torch_isnan(idx)$any())) fail(ID_IS_NA)
  ids <- idx$to(dtype = torch::torch_long())
  if (!torch::torch_equal(ids$to(dtype = idx$dtype), idx)) fail("token IDs must be whole numbers")
  if (length(ids$shape) == 1L) ids <- ids$unsqueeze(1L)
  check_length(ids$size(2L), context)
  # One copy from the device. Doubles, because an ID may exceed the range of R's integers.
  range <- as.numeric(torch::torch_stack(list(ids$min(), ids$max()))$to(dtype = torch::torch_double()))
  if (range[[1L]] == NA_INTEGER) fail(ID_IS_NA)
  if (range[[1L]] == 0) fail("token IDs in an R torch tensor must be 1-based, not 0: add 1L to 0-based token IDs")
  outside <- range[range < 1 | range > size]
  if (length(outside)) {
    fail("token IDs must be between 1 and ", size, ", not ", format(outside[[1L]], scientific = FALSE))
  }
  ids - 1L
}

ID_IS_NA <- "token IDs must not contain NA: drop or replace it"
NA_INTEGER <- -2^31 # R's integer NA in R torch

# Half and BFloat16 are rejected, because they cannot represent all token IDs, such as 2049 or 257.
check_tensor <- function(idx) {
  if (!inherits(idx, "torch_tensor")) {
    fail("idx must be an R torch tensor of 1-based token IDs, not ", describe(idx))
  }
  dtype <- as.character(idx$dtype)
  if (!dtype %in% c("Long", "Int", "Short", "Char", "Byte", "Float", "Double")) {
    fail("idx must contain whole numbers, such as torch_tensor(1:3), not ", dtype)
  }
  if (!length(idx$shape) %in% 1:2) {
    fail("idx must have one or two dimensions (sequences and positions), not ", length(idx$shape))
  }
  if (!prod(idx$shape)) fail("idx is empty: pass at least one token ID")
}

# model(idx) for an R torch tensor. Python checks the range of the token IDs.
forward_torch <- function(model, idx) {
  check_tensor(idx)
  check_length(idx$size(-1L), model$context)
  ids <- as.array(idx$cpu()$to(dtype = torch::torch_double())) # R integers would wrap, and Int16 has no as.array()
  if (length(dim(ids)) == 1L) ids <- as.vector(ids)
  parts <- ask("forward", model = model, ids = ids, first = 1L, as_torch = TRUE)
  # torch_tensor_from_buffer() shares the memory of the R vector, which R may free.
  logits <- torch::torch_tensor_from_buffer(parts$data, parts$shape, dtype = parts$dtype)$clone()
  logits$to(device = idx$device)
}

weight_tensor <- function(model, name, dtype) {
  values <- torch::torch_tensor(ask("parameter", model = model, name = name), dtype = torch::torch_double())
  values$to(dtype = switch(dtype,
    float16 = torch::torch_half(),
    bfloat16 = torch::torch_bfloat16(),
    float64 = torch::torch_double(),
    torch::torch_float()
  ))
}

# Converts a tensor for Python. buffer_from_torch_tensor() copies from the start of the storage, even if the tensor is
# another part of it, so that a clone is necessary.
tensor_parts <- function(tensor) {
  wide <- as.character(tensor$dtype) == "Double"
  dtype <- if (wide) torch::torch_double() else torch::torch_float()
  tensor <- tensor$detach()$cpu()$to(dtype = dtype)$contiguous()$clone()
  list(shape = tensor$shape, dtype = if (wide) "float64" else "float32", data = torch::buffer_from_torch_tensor(tensor))
}

# torch_is_installed() is TRUE even if no operation works.
torch_works <- function() {
  suppressWarnings(requireNamespace("torch", quietly = TRUE)) &&
    !inherits(try(torch::torch_tensor(1), silent = TRUE), "try-error")
}

need_torch <- function() {
  if (torch_works()) return(invisible())
  if (!nzchar(system.file(package = "torch"))) {
    fail('as_torch_module() requires the R package torch: run install.packages("torch") and torch::install_torch()')
  }
  if (is_hosted()) {
    fail("R torch does not work in a process with Python's PyTorch: use a plain R session (R, Rscript)")
  }
  fail("the R package torch does not work: reinstall its libraries with torch::install_torch()")
}
