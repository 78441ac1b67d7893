# as_torch_module(), skipped without R torch.

# Detached at the end of this file, because weights are tensors if torch is attached.
attached_before <- "package:torch" %in% search()

test_that("without a working R torch, as_torch_module() raises an error with a solution", {
  needs_python()
  skip_if(!minhubpy:::is_hosted() && minhubpy:::torch_works(), "R torch works here")
  expected <- if (nzchar(system.file(package = "torch"))) "does not work" else "install.packages"
  expect_refused(as_torch_module(a_model()), expected)
  expect_refused(as_torch_module(a_model(), lora = "a"), "lora must be one number")
})

test_that("a module computes the model's logits for any batch size and length", {
  over_models(function(model, name) {
    module <- as_torch_module(model)
    expect_true(is_nn_module(module))
    longest <- if (is.null(model$context)) 100L else model$context
    for (shape in list(c(1L, 1L), c(2L, 5L), c(1L, 9L), c(3L, 37L), c(1L, longest))) {
      ids <- some_ids(shape[[1L]], shape[[2L]], model$vocab_size)
      logits <- module(torch_tensor(ids) + 1L)
      expect_true(logits$requires_grad)
      expect_near(logits, model(ids), info = paste(name, toString(shape)))
    }
    expect_near(module(torch_tensor(c(1, 3, 2))), model(c(0L, 2L, 1L)), info = name)
  })
})

test_that("the parameters of a module match the model's, and tied weights are one parameter", {
  over_models(function(model, name) {
    parameters <- as_torch_module(model)$parameters
    expect_type(parameters, "list")
    expect_identical(names(parameters), model$parameters()$name, info = name)
    for (weight in names(parameters)) {
      expect_identical(as.array(parameters[[weight]]), model$parameter(weight), info = weight)
    }
    expect_true(all(vapply(parameters, function(weight) weight$requires_grad && is_nn_parameter(weight), NA)))
  })
})

test_that("a module leaves no file and requires no Python", {
  skip_without_torch()
  model <- from_pretrained(BUILT_IN[[1L]])
  before <- list.files(tempdir())
  module <- as_torch_module(model)
  expect_identical(list.files(tempdir()), before)
  expected <- model(0:5)
  minhub_stop()
  expect_near(module(torch_tensor(1:6)), expected)
  expect_null(minhubpy:::session$link)
})

test_that("train() and eval() switch dropout, and the initial mode is the model's", {
  skip_without_torch()
  for (name in BUILT_IN) {
    model <- from_pretrained(name)
    module <- as_torch_module(model)
    idx <- torch_tensor(some_ids(2L, 20L, 65L) + 1L)
    differs <- function() !torch_equal(module(idx), module(idx))
    expect_false(module$training || differs(), info = name)
    expect_true(module$train()$training && differs(), info = name)
    expect_false(module$eval()$training || differs(), info = name)
    module <- as_torch_module(model$train())
    expect_true(module$training && differs(), info = name)
    expect_visible(as_torch_module(model))
    expect_invisible(module$eval())
  }
})

test_that("gradients match Python's", {
  skip_without_torch()
  path <- tempfile()
  code <- "
import sys, torch, minhub_py
model = minhub_py.from_pretrained(sys.argv[1], device='cpu', dtype='float32')
idx = torch.arange(80).view(2, 40) % 65
logits = model(idx)[:, :-1].flatten(0, 1)
torch.nn.functional.cross_entropy(logits, idx[:, 1:].flatten()).backward()
torch.cat([weight.grad.flatten() for weight in model.parameters()]).numpy().tofile(sys.argv[2])
"
  for (name in BUILT_IN) {
    minhubpy:::run_python(minhubpy:::choose_python(), c("-c", shQuote(code), name, path))
    module <- as_torch_module(from_pretrained(name))
    idx <- torch_tensor(matrix(0:79 %% 65L, 2L, byrow = TRUE)) + 1L
    nnf_cross_entropy(module(idx)[, 1:-2, ]$flatten(end_dim = 2), idx[, 2:N]$flatten())$backward()
    gradients <- lapply(module$parameters, function(weight) as.numeric(weight$grad$flatten()))
    gradients <- unlist(gradients, use.names = FALSE)
    expected <- readBin(path, "numeric", length(gradients) + 1L, size = 4L)
    expect_near(array(gradients), array(expected), 1e-4, info = name)
  }
  unlink(path)
})

test_that("training reduces the loss of a module", {
  over_models(function(model, name) {
    module <- as_torch_module(model)
    idx <- torch_tensor(some_ids(2L, 20L, model$vocab_size) + 1L)
    optimizer <- optim_adamw(module$parameters, lr = 1e-3)
    losses <- vapply(1:15, function(step) {
      optimizer$zero_grad()
      loss <- nnf_cross_entropy(module(idx)[, 1:-2, ]$flatten(end_dim = 2), idx[, 2:N]$flatten())
      loss$backward()
      optimizer$step()
      loss$item()
    }, 0)
    expect_lt(losses[[15L]], losses[[1L]] - 0.02, label = name)
  })
})

test_that("weights without requires_grad are not trained", {
  skip_without_torch()
  module <- as_torch_module(a_random_model())
  frozen <- module$parameters[grepl("^h\\.", names(module$parameters))]
  for (weight in frozen) weight$requires_grad_(FALSE)
  before <- lapply(module$parameters, as.array)
  optimizer <- optim_adamw(module$parameters, lr = 0.1)
  module(torch_tensor(1:5))$pow(2)$sum()$backward()
  optimizer$step()
  module$to(dtype = torch_double())$to(dtype = torch_float())
  same <- vapply(names(before), function(name) identical(as.array(module$parameters[[name]]), before[[name]]), NA)
  expect_setequal(names(before)[same], names(frozen))
  expect_identical(module$parameters[["wte.weight"]]$requires_grad, TRUE)
  expect_identical(module$parameters[[names(frozen)[[1L]]]]$requires_grad, FALSE)
})

test_that("to() converts the weights, their gradients and the computation", {
  over_models(function(model, name) {
    module <- as_torch_module(model)
    weight <- module$parameters[[1L]]
    ids <- some_ids(2L, 20L, model$vocab_size)
    idx <- torch_tensor(ids) + 1L
    module(idx)$pow(2)$sum()$backward()
    module$to(dtype = torch_double())
    expect_identical(as.character(weight$dtype), "Double")
    expect_identical(as.character(weight$grad$dtype), "Double")
    logits <- module(idx)
    expect_identical(as.character(logits$dtype), "Double")
    expect_near(logits, model(ids), info = name)
    logits$sum()$backward()
    module$cpu()
    module$to(device = "cpu", dtype = torch_float())
    expect_near(module(idx), model(ids), info = name)
    module$to(dtype = torch_half())
    expect_identical(as.character(module(idx)$dtype), "Half")
    expect_near(module(idx), model(ids), 0.02, info = name)
  })
})

test_that("a module has the model's dtype", {
  skip_without_torch()
  for (dtype in list(torch_double(), torch_float16(), torch_bfloat16())) {
    for (name in BUILT_IN) {
      model <- from_pretrained(name)$to(dtype = dtype)
      logits <- as_torch_module(model)(torch_tensor(1:40))
      expect_true(logits$dtype == dtype)
      expect_near(logits, model(0:39), if (dtype == torch_double()) 1e-12 else 0.05, info = name)
    }
  }
})

test_that("a module can be part of another module", {
  skip_without_torch()
  Classifier <- nn_module(
    initialize = function(body) {
      self$body <- body
      self$head <- nn_linear(65, 2)
    },
    forward = function(idx) self$head(self$body(idx))
  )
  for (name in BUILT_IN) {
    body <- as_torch_module(from_pretrained(name))
    whole <- Classifier(body)
    idx <- torch_tensor(matrix(1:10, 2L))
    expect_setequal(names(whole$parameters), c(paste0("body.", names(body$parameters)), "head.weight", "head.bias"))
    whole$train()
    expect_true(body$training)
    expect_false(torch_equal(whole(idx), whole(idx)))
    whole$eval()
    expect_true(torch_equal(whole(idx), whole(idx)))
    whole$to(dtype = torch_double())
    expect_identical(as.character(whole(idx)$dtype), "Double")
    before <- as.array(body(idx))
    optimizer <- optim_sgd(whole$parameters, lr = 0.1)
    whole(idx)$pow(2)$mean()$backward()
    optimizer$step()
    expect_gt(max(abs(as.array(body(idx)) - before)), 0)
  }
})

test_that("trained weights are saved and loaded", {
  skip_without_torch()
  path <- tempfile()
  for (name in BUILT_IN) {
    model <- from_pretrained(name)
    module <- as_torch_module(model)
    optimizer <- optim_adamw(module$parameters, lr = 0.01)
    idx <- torch_tensor(matrix(1:10, 2L))
    module(idx)$pow(2)$mean()$backward()
    optimizer$step()
    torch_save(module$state_dict(), path)
    other <- as_torch_module(model)
    other$load_state_dict(torch_load(path))
    expect_true(torch_allclose(other(idx), module(idx)), info = name) # the last bits of an LSTM depend on the memory layout of its weights
    expect_false(torch_allclose(module(idx), as_torch_module(model)(idx)), info = name)
  }
  unlink(path)
})

test_that("a clone has separate weights and a separate mode", {
  skip_without_torch()
  for (name in names(random_models())) {
    module <- as_torch_module(random_models()[[name]]$eval())
    frozen <- module$parameters[[1L]]$requires_grad_(FALSE)
    idx <- torch_tensor(matrix(1:10, 2L))
    expected <- module(idx)
    twin <- module$clone(deep = TRUE)
    expect_true(torch_allclose(twin(idx), expected), info = name)
    expect_false(twin$parameters[[1L]]$requires_grad)
    twin$train()
    expect_false(module$training)
    expect_true(torch_allclose(module(idx), module(idx)), info = name)
    expect_false(torch_equal(twin(idx), twin(idx)), info = name)
    twin$eval()$to(dtype = torch_double())
    expect_identical(as.character(module(idx)$dtype), "Float")
    expect_identical(as.character(twin(idx)$dtype), "Double")
    learn(twin, idx)
    expect_true(torch_allclose(module(idx), expected), info = name)
    expect_false(torch_allclose(twin(idx)$float(), expected), info = name)
    expect_identical(as.character(twin$clone(deep = TRUE)(idx)$dtype), "Double")
    whole <- nn_sequential(module, nn_linear(31, 2))
    both <- whole$clone(deep = TRUE)
    expect_true(torch_allclose(both(idx), whole(idx)), info = name)
    learn(both, idx)
    expect_true(torch_allclose(module(idx), expected), info = name)
    expect_false(torch_allclose(both(idx), whole(idx)), info = name)
  }
})

test_that("a saved module can be loaded, alone and as part of another module", {
  skip_without_torch()
  path <- tempfile()
  idx <- torch_tensor(matrix(1:10, 2L))
  for (name in names(random_models())) {
    module <- as_torch_module(random_models()[[name]]$eval())
    for (saved in list(module, nn_sequential(module, nn_linear(31, 2)))) {
      expected <- saved(idx)
      torch_save(saved, path)
      loaded <- torch_load(path)
      expect_identical(names(loaded$parameters), names(saved$parameters))
      expect_true(torch_allclose(loaded$eval()(idx), expected), info = name)
      expect_false(torch_equal(loaded$train()(idx), loaded(idx)), info = name)
      loaded$eval()
      learn(loaded, idx)
      expect_false(torch_allclose(loaded(idx), expected), info = name)
      expect_identical(as.character(loaded$to(dtype = torch_double())(idx)$dtype), "Double")
      expect_true(torch_allclose(saved(idx), expected), info = name)
    }
  }
  unlink(path)
})

test_that("a module computes with replaced parameters", {
  skip_without_torch()
  module <- as_torch_module(a_random_model())
  idx <- torch_tensor(1:3)
  zeros <- lapply(module$state_dict(), torch_zeros_like)
  module$load_state_dict(zeros, .refer_to_state_dict = TRUE)
  expect_identical(max(abs(as.array(module(idx)$detach()))), 0)
  module$ln_f.bias <- nn_parameter(torch_ones(8))
  module$wte.weight <- nn_parameter(torch_ones(10, 8))
  expect_identical(as.array(module(idx)$detach()), array(8, c(1L, 3L, 10L)))
  module(idx)$sum()$backward()
  expect_identical(as.array(module$parameters$ln_f.bias$grad), rep(30, 8L))
})

test_that("a module accepts idx as x, and a missing idx is an error", {
  skip_without_torch()
  model <- a_random_model()
  module <- as_torch_module(model)
  idx <- torch_tensor(1:3)
  expect_true(torch_equal(module(x = idx), module(idx)))
  expect_true(torch_equal(model(x = idx), model(idx)))
  expect_refused(module(), "idx is missing: pass an R torch tensor")
  expect_refused(module(idx, x = idx), "names of the same argument")
})

# The tests of the R package minhub with a built-in model.
test_that("functions for modules reject models with a solution", {
  skip_without_torch()
  model <- a_random_model()
  module <- as_torch_module(model)
  for (optimizer in list(optim_adamw, optim_sgd, optim_ignite_adamw)) {
    for (weights in list(model$parameters, as.list(model$parameters), model$state_dict())) {
      expect_error(optimizer(weights, lr = 0.1), "as_torch_module", class = "minhubpy_error")
    }
  }
  expect_refused(generate(module, list(1:3)), "model$load_state_dict(module$state_dict())")
  expect_refused(token_logprobs(module, list(1:3)), "model$load_state_dict(module$state_dict())")
})

test_that("an adapter is trained in R torch and saved in PEFT's format", {
  skip_without_torch()
  model <- a_model()
  module <- as_torch_module(model, lora = 4, seed = 1)
  trained <- Filter(function(weight) weight$requires_grad, module$parameters)
  expect_match(names(trained), "[.]factors[.]lora_[AB]$")
  expect_lt(length(trained), length(module$parameters))
  idx <- torch_tensor(matrix(2:9, 1L))
  loss <- function() nnf_cross_entropy(module(idx)[1, 1:7, ], idx[1, 2:8])
  expect_equal(as.array(module(idx)$detach()), as.array(model(idx)), tolerance = 1e-5)
  optimizer <- optim_adamw(module$parameters, lr = 0.01)
  before <- loss()$item()
  for (step in 1:5) {
    optimizer$zero_grad()
    loss()$backward()
    optimizer$step()
  }
  expect_lt(loss()$item(), before)
  folder <- save_adapter(module, tempfile("adapter "))
  expect_equal(as.array(model$adapter(folder)(idx)), as.array(module(idx)$detach()), tolerance = 1e-5)
  more <- as_torch_module(model$adapter(folder)) # continues the training
  expect_equal(as.array(more(idx)$detach()), as.array(module(idx)$detach()), tolerance = 1e-5)
  expect_refused(save_adapter(as_torch_module(model), folder), "the module has no adapter")
})

if (!attached_before && "package:torch" %in% search()) detach("package:torch")
