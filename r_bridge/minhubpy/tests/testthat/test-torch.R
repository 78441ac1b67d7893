# Models with R torch, skipped without it.

# Detached at the end of this file, because weights are tensors if torch is attached.
attached_before <- "package:torch" %in% search()

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

if (!attached_before && "package:torch" %in% search()) detach("package:torch")
