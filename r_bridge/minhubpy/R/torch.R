# R torch, if it is installed. Ids count from 1 here, as all indices do in R torch.

#' A model as a module of R torch
#'
#' Makes R torch's own `nn_module` with a copy of a model's weights. It runs
#' in R without Python, and can be trained.
#'
#' As with any module of R torch, ids count from 1: `module(idx + 1L)` for the
#' ids of a tokenizer. `idx` is an R torch tensor with a row for each text, or
#' with one dimension for one text; the logits have the dimensions batch, time
#' and vocabulary. Its numbers are whole (`torch_tensor(1:3)`, and
#' `torch_tensor(c(1, 2, 3))` too).
#'
#' The module is on the CPU, and has the dtype and the mode (training or not)
#' of the model. `module$parameters` are named as in the model, and a weight
#' that the model uses twice is one. `module$train()`, `module$eval()` and
#' `module$to()` do what they do elsewhere, also where the module is a part of
#' another. Dropout follows the mode.
#'
#' `module$state_dict()` has the trained weights: `torch_save()` keeps them,
#' `module$load_state_dict(torch_load(path))` puts them in another module, and
#' `model$load_state_dict(module$state_dict())` brings them back to the model,
#' for [generate()] and [save_pretrained()]. The whole module can also be
#' saved with `torch_save()`, and copied with `module$clone(deep = TRUE)`: each
#' copy has weights and a mode of its own.
#'
#' `model(idx)`, with the same tensors, needs no module; its logits carry no
#' gradients.
#'
#' @section Limits of R torch:
#' These are R torch's own, as of version 0.17:
#' * The processes of a `dataloader()` with `num_workers` have no package
#'   loaded. Where the dataset uses this one, such as a tokenizer, it needs
#'   `worker_packages = "minhubpy"`.
#' * `jit_trace(module)` cannot trace this module, which is compiled already.
#'   `minhub convert MODEL model.pt --to torchscript` in a shell writes the
#'   file that `jit_load()` reads.
#' * `train()` and `eval()` fail on what `jit_load()` returns:
#'   `loaded$..ptr..()$train(FALSE)` works.
#' * `clone()` without `deep = TRUE` shares the weights, so `to()` moves both.
#'
#' @param model A model, see [from_pretrained()].
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
as_torch_module <- function(model) {
  model <- check_model(model)
  need_torch()
  path <- tempfile("minhubpy-", fileext = ".pt")
  on.exit(unlink(path))
  ask("save_torchscript", model = model, path = path)
  module <- script_as_module()(torch::jit_load(path), model$vocab_size, model$context)
  module$train(model$training)
  module
}

# What R torch loads is a TorchScript module: its ids count from 0, its own train() fails (it sets a read-only field),
# and its to() makes new parameters, which TorchScript's LSTM does not follow. So it is a private field of a module that
# has the same tensors as parameters. When other tensors replace them, as in a clone or after torch_load(), the module
# makes a new TorchScript module for them, from `code`, which has no weights.
script_as_module <- function() {
  torch::nn_module(
    "minhub_module",
    private = list(
      script = NULL, weights = NULL, code = NULL,
      # Use the module's parameters, if the script has others.
      follow = function() {
        given <- private$parameters_[names(private$weights)]
        if (identical(given, private$weights)) return(invisible())
        private$script <- torch::jit_unserialize(private$code)
        private$weights <- Map(adopt, private$script$parameters[names(given)], given)
        private$parameters_[names(given)] <- private$weights
      }
    ),
    initialize = function(script, vocab_size, context) {
      self$vocab_size <- vocab_size
      self$context <- context
      private$script <- script
      private$weights <- lapply(script$parameters, torch::nn_parameter)
      # torch_save() writes elements as they lie in memory, which is the wrong order for a transposed weight.
      for (weight in private$weights) torch::with_no_grad(weight$set_data(weight$contiguous()))
      private$parameters_ <- private$weights
      private$code <- code_of(script)
    },
    forward = function(idx, x) {
      if (missing(idx) && missing(x)) fail("idx is missing: give the module an R torch tensor of ids, which count from 1")
      if (!missing(idx) && !missing(x)) fail("idx and x are two names of one argument: give one of them")
      if (missing(idx)) idx <- x
      private$follow()
      script <- private$script$..ptr..()
      if (script$is_training != self$training) script$train(self$training)
      private$script(zero_based(idx, self$vocab_size, self$context))
    },
    # to(), cuda() and cpu() end here, also those of a module that contains this one.
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
    # All ways to replace the parameters: module$name <- value, torch_load() and clone(deep = TRUE).
    register_parameter = function(name, param) {
      super$register_parameter(name, param)
      private$follow()
    },
    .load_from_state_dict = function(state_dict, prefix) {
      super$.load_from_state_dict(state_dict, prefix)
      private$follow()
    },
    .replace_values_from_table = function(table) {
      super$.replace_values_from_table(table)
      private$follow()
    }
  )
}

utils::globalVariables(c("private", "self", "super"))

# A TorchScript module without its weights: each is one zero, expanded to its shape.
code_of <- function(script) {
  weights <- script$parameters
  values <- lapply(weights, function(weight) weight$detach())
  on.exit(for (name in names(weights)) torch::with_no_grad(weights[[name]]$set_data(values[[name]])))
  for (weight in weights) {
    torch::with_no_grad(weight$set_data(torch::torch_zeros(1L, dtype = weight$dtype)$expand(weight$shape)))
  }
  torch::jit_serialize(script)
}

# A script's own tensor with the values and the gradient of another.
adopt <- function(weight, given) {
  torch::with_no_grad(weight$set_data(given$detach()$contiguous()))
  if (!torch::is_undefined_tensor(given$grad)) weight$set_grad_(given$grad)
  torch::nn_parameter(weight, given$requires_grad)
}

# R torch's ids -> TorchScript's, (B, T). R torch's own modules refuse a 0 too.
zero_based <- function(idx, size, context) {
  check_tensor(idx)
  if (as.logical(torch::torch_isnan(idx)$any())) fail("an id is NA; drop or replace it first")
  ids <- idx$to(dtype = torch::torch_long())
  if (!torch::torch_equal(ids$to(dtype = idx$dtype), idx)) fail("an id is not a whole number")
  if (length(ids$shape) == 1L) ids <- ids$unsqueeze(1L)
  check_length(ids$size(2L), context)
  # In one step from the device, and not as R integers, for which an id may be too large.
  range <- as.numeric(torch::torch_stack(list(ids$min(), ids$max()))$to(dtype = torch::torch_double()))
  if (range[[1L]] == NA_INTEGER) fail("an id is NA; drop or replace it first")
  if (range[[1L]] == 0) fail("an id is 0, but the ids in an R torch tensor count from 1; add 1L to 0-based ids")
  outside <- range[range < 1 | range > size]
  if (length(outside)) {
    fail("an id is ", format(outside[[1L]], scientific = FALSE), "; this model's go from 1 to ", size)
  }
  ids - 1L
}

# R's integer NA as R torch stores it.
NA_INTEGER <- -2^31

# Not Half and BFloat16, which cannot hold all ids: 2049, or 257.
check_tensor <- function(idx) {
  if (!inherits(idx, "torch_tensor")) {
    fail("idx must be an R torch tensor of ids, which count from 1, not ", describe(idx))
  }
  dtype <- as.character(idx$dtype)
  if (!dtype %in% c("Long", "Int", "Short", "Char", "Byte", "Float", "Double")) {
    fail("idx must have whole numbers, as torch_tensor(1:3) has, not ", dtype)
  }
  if (!length(idx$shape) %in% 1:2) {
    fail("idx must have one or two dimensions (a row for each text), not ", length(idx$shape))
  }
  if (!prod(idx$shape)) fail("there are no ids: pass at least one")
}

# model(idx) for an R torch tensor; Python checks the ids' values.
forward_torch <- function(model, idx) {
  check_tensor(idx)
  check_length(idx$size(-1L), model$context)
  ids <- as.array(idx$cpu()$to(dtype = torch::torch_double())) # an R integer would wrap, and Int16 has no as.array()
  if (length(dim(ids)) == 1L) ids <- as.vector(ids)
  parts <- ask("forward", model = model, ids = ids, first = 1L, as_torch = TRUE)
  # The clone has its own memory; the tensor only borrows the vector's, which R may free.
  logits <- torch::torch_tensor_from_buffer(parts$data, parts$shape, dtype = parts$dtype)$clone()
  logits$to(device = idx$device)
}

# A copy of one weight.
weight_tensor <- function(model, name, dtype) {
  values <- torch::torch_tensor(ask("parameter", model = model, name = name), dtype = torch::torch_double())
  values$to(dtype = switch(dtype,
    float16 = torch::torch_half(),
    bfloat16 = torch::torch_bfloat16(),
    float64 = torch::torch_double(),
    torch::torch_float()
  ))
}

# A tensor in the form that is sent to Python. R torch copies from the start of a tensor's storage, even if the tensor is
# another part of it: hence the clone.
tensor_parts <- function(tensor) {
  wide <- as.character(tensor$dtype) == "Double"
  dtype <- if (wide) torch::torch_double() else torch::torch_float()
  tensor <- tensor$detach()$cpu()$to(dtype = dtype)$contiguous()$clone()
  list(shape = tensor$shape, dtype = if (wide) "float64" else "float32", data = torch::buffer_from_torch_tensor(tensor))
}

# torch_is_installed() is TRUE also if no operation works.
torch_works <- function() {
  suppressWarnings(requireNamespace("torch", quietly = TRUE)) &&
    !inherits(try(torch::torch_tensor(1), silent = TRUE), "try-error")
}

need_torch <- function() {
  if (torch_works()) return(invisible())
  if (!nzchar(system.file(package = "torch"))) {
    fail('this needs the R package torch: install.packages("torch"), then torch::install_torch()')
  }
  if (is_hosted()) {
    fail("R torch does not work here, where Python's PyTorch shares the process: use a plain R session (R, Rscript)")
  }
  fail("the R package torch is installed, but does not work: torch::install_torch() installs its libraries anew")
}
