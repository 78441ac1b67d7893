# Models for the tests with R torch.

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

# A training step of an R torch module.
learn <- function(module, idx) {
  optimizer <- optim_sgd(module$parameters, lr = 0.1)
  module(idx)$pow(2)$mean()$backward()
  optimizer$step()
}
