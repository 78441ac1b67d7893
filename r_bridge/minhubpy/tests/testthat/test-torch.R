# Tests with R torch, which are skipped without it.

# Detached at the end of this file, because weights are tensors if torch is attached.
attached_before <- "package:torch" %in% search()

skip_without_torch <- function() {
  needs_python()
  skip_if(minhubpy:::is_hosted(), "R torch does not work in a process that has Python's PyTorch")
  skip_if_not(minhubpy:::torch_works(), "R torch is not installed here, or its libraries are not")
  suppressPackageStartupMessages(library(torch))
}

# Relative to the maximum, because versions of LibTorch differ in the summation order.
expect_near <- function(x, y, tolerance = 1e-5, info = NULL) {
  x <- as.array(if (inherits(x, "torch_tensor")) x$detach()$to(dtype = torch_double()) else x)
  expect_identical(dim(x), dim(y), info = info)
  expect_lte(max(abs(x - y)) / max(abs(y)), tolerance, label = paste(info, "relative difference"))
}

some_ids <- function(rows, length, size) {
  set.seed(rows + length)
  matrix(sample.int(size, rows * length, replace = TRUE) - 1L, rows)
}

# One model per architecture, with unusual settings.
random_models <- function() {
  the("random models", list(
    gpt2 = gpt2(
      vocab_size = 31, n_embd = 24, n_head = 3, n_layer = 2, n_positions = 40, scale_attn_by_inverse_layer_idx = TRUE,
      tie_word_embeddings = FALSE, initializer_range = 0.3, seed = 1
    ),
    gptneo = gptneo(
      vocab_size = 31, hidden_size = 24, num_heads = 3, num_layers = 3, max_position_embeddings = 40, window_size = 4,
      attention_types = list(list(c("local", "global", "local"), 1)), resid_dropout = 0.1, initializer_range = 0.3,
      seed = 1
    ),
    lstm = lstm(
      vocab_size = 31, embedding_size = 8, hidden_size = 24, num_layers = 2, dropout = 0.1, initializer_range = 0.3,
      seed = 1
    )
  ))
}

over_models <- function(test) {
  skip_without_torch()
  for (name in BUILT_IN) test(the(name, from_pretrained(name)), name)
  for (name in names(random_models())) test(random_models()[[name]]$eval(), name)
}

test_that("without a working R torch, as_torch_module() raises an error with a solution", {
  needs_python()
  skip_if(!minhubpy:::is_hosted() && minhubpy:::torch_works(), "R torch works here")
  expected <- if (nzchar(system.file(package = "torch"))) "does not work" else "install.packages"
  expect_refused(as_torch_module(a_model()), expected)
  expect_refused(as_torch_module(a_model(), lora = "a"), "lora must be one number")
})

test_that("a model accepts 1-based token IDs of R torch", {
  over_models(function(model, name) {
    ids <- some_ids(3L, 37L, model$vocab_size)
    expected <- model(ids)
    logits <- model(torch_tensor(ids) + 1L)
    expect_s3_class(logits, "torch_tensor")
    expect_identical(as.array(logits), expected, info = name)
    expect_identical(as.character(logits$dtype), "Float")
    expect_identical(logits$device$type, "cpu")
    expect_false(logits$requires_grad)
    expect_identical(as.array(model(torch_tensor(ids[1L, ]) + 1L)), model(ids[1L, ]), info = name)
    expect_identical(as.array(model(torch_tensor(5L))), model(4L), info = name)
    for (dtype in list(torch_int(), torch_int16(), torch_uint8(), torch_float(), torch_double())) {
      expect_identical(as.array(model(torch_tensor(ids + 1L, dtype = dtype))), expected, info = name)
    }
    transposed <- torch_tensor(ids + 1L)$t()
    expect_identical(as.array(model(transposed[2:5, ])), model(t(ids)[2:5, ]), info = name)
  })
})

test_that("the logits own their memory", {
  skip_without_torch()
  model <- the(BUILT_IN[[1L]], from_pretrained(BUILT_IN[[1L]]))
  ids <- some_ids(8L, 200L, model$vocab_size)
  expected <- model(ids)
  results <- lapply(1:10, function(i) model(torch_tensor(ids + 1L)))
  for (i in 1:10) {
    gc()
    rubbish <- lapply(1:10, function(k) as.raw(rep(9L, length(expected) * 4L)))
  }
  for (logits in results) expect_identical(as.array(logits), expected)
})

test_that("logits have the model's dtype", {
  skip_without_torch()
  for (family in names(random_models())) {
    model <- random_models()[[family]]$eval()
    for (dtype in list(torch_float16(), torch_bfloat16())) {
      model$to(dtype = dtype)
      logits <- model(torch_tensor(1:9))
      expect_true(logits$dtype == dtype)
      expect_identical(as.array(logits$to(dtype = torch_float())), model(0:8), info = family)
    }
    model$to(dtype = torch_float32(), device = torch_device("cpu"))
    expect_identical(model$dtype, "float32")
  }
  shared[["random models"]] <- NULL # to() rounded their weights
  expect_refused(a_model()$to(dtype = torch_int()), "Int")
})

test_that("models and modules reject invalid token IDs", {
  skip_without_torch()
  model <- a_random_model() # vocabulary 10, context 16
  for (call in list(model, as_torch_module(model))) {
    expect_refused(call(torch_tensor(0:3)), "(an id is 0, but .*count from 1|must be 1-based, not 0).*add 1L", fixed = FALSE)
    expect_refused(call(torch_tensor(c(1, 0))), "an id is 0|not 0", fixed = FALSE)
    expect_refused(call(torch_tensor(c(3L, 11L))), "an id is 11; .*from 1 to 10|between 1 and 10, not 11", fixed = FALSE)
    expect_refused(call(torch_tensor(c(3L, -2L))), "an id is -2; .*from 1 to 10|between 1 and 10, not -2", fixed = FALSE)
    expect_refused(call(torch_tensor(3e9)$to(dtype = torch_long())), "an id is 3000000000|not 3000000000", fixed = FALSE)
    expect_refused(call(torch_tensor(1.5)), "not a whole number|must be whole numbers", fixed = FALSE)
    expect_refused(call(torch_tensor(NaN)), "an id is NA|must not contain NA", fixed = FALSE)
    expect_refused(call(torch_tensor(c(1L, NA))), "an id is NA|must not contain NA", fixed = FALSE)
    expect_refused(call(torch_tensor(TRUE)), "not Bool")
    expect_refused(call(torch_tensor(1L)$half()), "not Half")
    expect_refused(call(torch_empty(c(2, 0))), "idx is empty: pass at least one token ID")
    expect_refused(call(torch_empty(0, dtype = torch_long())), "idx is empty: pass at least one token ID")
    expect_refused(call(torch_ones(c(1, 2, 3))), "one or two dimensions")
    expect_refused(call(torch_ones(17, dtype = torch_long())), "a sequence must have at most 16 tokens, the model's context, not 17")
  }
  expect_refused(as_torch_module(model)(1:3), "must be an R torch tensor of 1-based token IDs")
  expect_refused(as_torch_module("gpt2"), "model must be a model")
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

learn <- function(module, idx) {
  optimizer <- optim_sgd(module$parameters, lr = 0.1)
  module(idx)$pow(2)$mean()$backward()
  optimizer$step()
}

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
test_that("code written for minhub runs: load, tokenize, predict", {
  skip_without_torch()
  model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
  total <- as.integer(sum(model$parameters()$numel))
  if (requireNamespace("purrr", quietly = TRUE)) {
    map_int <- getExportedValue("purrr", "map_int")
    expect_identical(sum(map_int(model$parameters, ~ .x$numel())), total)
  }
  expect_equal(sum(sapply(model$parameters, function(x) x$numel())), total)
  expect_equal(sum(sapply(model$parameters, function(x) prod(x$shape))), total)
  expect_identical(model$parameters[[1L]]$device, "cpu")

  tok <- tokenizer$from_pretrained("minhub/shakespeare-gpt2")
  idx <- torch_tensor(tok$encode("Hello world ")$ids)$view(c(1, -1))
  model$eval()
  with_no_grad({
    logits <- model(idx + 1L)
  })
  expect_equal(as.numeric(logits[1, -1, 1:5]), model(tok$encode("Hello world ")$ids)[1, 12, 1:5])
})

test_that("code written for minhub runs: generate samples", {
  skip_without_torch()
  model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
  tok <- tokenizer_from_pretrained("minhub/shakespeare-gpt2")
  model$eval()
  write <- function(choose, n) {
    idx <- torch_tensor(tok$encode("ROMEO:")$ids)$view(c(1, -1))
    for (i in seq_len(n)) {
      with_no_grad({
        logits <- model(idx + 1L)
      })
      best <- logits[, -1, ]$topk(50)
      logits <- torch_full_like(logits[, -1, ], -Inf)$scatter_(-1, best[[2L]], best[[1L]])
      id_next <- choose(nnf_softmax(logits, dim = -1)) - 1L
      expect_true(id_next$item() %in% 0:64)
      idx <- torch_cat(list(idx, id_next), dim = 2)
    }
    tok$decode(as.integer(idx))
  }
  greedy <- write(function(probs) torch_argmax(probs, dim = -1, keepdim = TRUE), 30)
  expect_identical(greedy, paste0("ROMEO:", generate(model, "ROMEO:", 30, temperature = 0, stream = FALSE)))
  sampled <- write(function(probs) torch_multinomial(probs, num_samples = 1), 10)
  expect_identical(nchar(sampled), nchar("ROMEO:") + 10L)
})

test_that("code written for minhub runs: weights by their path, on a device", {
  skip_without_torch()
  model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
  wte <- model$transformer$wte$weight
  lm_head <- model$lm_head$weight
  expect_equal(as.numeric(torch_mean(wte)), as.numeric(torch_mean(lm_head)))
  expect_identical(as.array(wte), model$parameter("wte.weight"))
  expect_identical(as.array(model$transformer$h[[2]]$attn$c_attn$bias), model$parameter("h.1.attn.c_attn.bias"))
  expect_identical(length(model$transformer$h), model$config$n_layer)
  expect_identical(as.character(model$to(dtype = torch_float16())$transformer$wte$weight$dtype), "Half")

  model <- gpt2(vocab_size = 1000, n_embd = 48, n_layer = 2)
  model$to(device = "cpu")
  x <- torch_tensor(sample.int(100, size = 100), device = "cpu")$view(c(1, -1))
  with_no_grad({
    out <- model(x)
  })
  expect_identical(out$shape, c(1L, 100L, 1000L))
})

test_that("without R torch attached, a weight by its path is a description", {
  model <- a_model()
  if ("package:torch" %in% search()) detach("package:torch") # the next test attaches it
  weight <- model$transformer$wte$weight
  expect_s3_class(weight, "minhub_parameter")
  expect_identical(weight$numel(), model$vocab_size * model$config$n_embd)
})

test_that("weights trained in R torch can be loaded into the model, also in a new worker", {
  skip_without_torch()
  model <- lstm_from_pretrained("minhub/shakespeare-lstm")
  before <- model(1:8)
  module <- as_torch_module(model)
  idx <- torch_tensor(matrix(2:9, 1L))
  kill <- function() {
    tools::pskill(worker_pid(), tools::SIGKILL)
    while (minhubpy:::session$link$is_alive()) NULL
  }
  for (end in list(function() NULL, minhub_stop, kill)) {
    with_no_grad(for (weight in module$parameters) weight$mul_(1.1))
    end()
    suppressMessages(model$load_state_dict(module$state_dict()))
    expect_false(isTRUE(all.equal(model(1:8), before)))
    expect_equal(as.array(model(idx)), as.array(module(idx)$detach()), tolerance = 1e-5)
  }
})

test_that("a model takes R torch's state_dict(): its dtype, the Hub's names, and no NaN", {
  skip_without_torch()
  model <- a_random_model()
  weights <- model$state_dict()
  expect_s3_class(weights[[1L]], "torch_tensor")
  expect_refused(
    model$load_state_dict(replace(weights, "wte.weight", list(weights$wte.weight * NaN))), "NA or NaN"
  )
  exact <- gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 16, seed = 2)$to(dtype = "float64")
  third <- lapply(exact$state_dict(), function(weight) torch_full_like(weight, 1 / 3))
  exact$load_state_dict(stats::setNames(third, paste0("transformer.", names(third))))
  expect_identical(exact$parameter("ln_f.bias"), rep(1 / 3, 8L))
})

test_that("from_pretrained() accepts devices and dtypes of R torch", {
  skip_without_torch()
  model <- from_pretrained(BUILT_IN[[1L]], device = torch_device("cpu"), dtype = torch_float16())
  expect_identical(c(model$device, model$dtype), c("cpu", "float16"))
})

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

if (!attached_before && "package:torch" %in% search()) detach("package:torch")

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
