# Results are bitwise identical to Python's. tests/support/r_package.py (write_reference) writes the reference.

reference <- function() {
  folder <- Sys.getenv("MINHUBPY_REFERENCE")
  skip_if_not(nzchar(folder), "MINHUBPY_REFERENCE is not set: no reference values")
  readRDS(file.path(folder, "reference.rds"))
}

# Calls a function for each checkpoint of the reference and its model.
over_cases <- function(test) {
  needs_python()
  cases <- reference()
  expect_gte(length(cases), 6L)
  for (name in names(cases)) {
    case <- cases[[name]]
    test(from_pretrained(case$model), case, name)
  }
}

test_that("logits are bitwise identical to Python's for a row, a batch and a full context", {
  over_cases(function(model, case, name) {
    for (ids in case$forward) {
      logits <- model(ids$ids)
      expect_identical(logits, ids$logits, info = name)
      shape <- if (is.matrix(ids$ids)) dim(ids$ids) else c(1L, length(ids$ids))
      expect_identical(dim(logits), c(shape, model$vocab_size), info = name)
    }
    # Other forms of the same token IDs.
    batch <- case$forward$batch
    rows <- lapply(seq_len(nrow(batch$ids)), function(row) batch$ids[row, ])
    expect_identical(model(rows), batch$logits, info = name)
    expect_identical(model(batch$ids + 0), batch$logits, info = name)
    expect_identical(model(structure(batch$ids, dimnames = list(letters[1:3], NULL))), batch$logits, info = name)
  })
})

test_that("greedy token IDs match Python's for ragged prompts, beyond the context and in single calls", {
  over_cases(function(model, case, name) {
    made <- generate(model, case$prompts, max_new_tokens = case$n, temperature = 0)
    expect_identical(made, case$greedy, info = name)
    for (row in seq_along(case$prompts)) {
      alone <- generate(model, case$prompts[[row]], max_new_tokens = case$n, temperature = 0)
      expect_identical(alone, case$greedy[row], info = name)
    }
  })
})

test_that("sampled token IDs match Python's for all seeds and settings", {
  over_cases(function(model, case, name) {
    made <- generate(model, case$prompts, case$n, temperature = 1.1, seed = 7)
    expect_identical(made, case$sampled, info = name)
    made <- generate(
      model, case$prompts, case$n,
      temperature = 0.9, top_k = 20, top_p = 0.95, repetition_penalty = 1.3, seed = c(1, 2, 2^40), eos_id = NULL
    )
    expect_identical(made, case$settings, info = name)
    ended <- generate(model, case$prompts, case$n, temperature = 0, eos_id = case$end)
    expect_identical(ended, case$ended, info = name)
  })
})

test_that("log-probabilities, perplexities and next tokens match Python's", {
  over_cases(function(model, case, name) {
    scores <- token_logprobs(model, case$prompts)
    expect_identical(split(scores$logprob, scores$text), stats::setNames(case$scores, c("1", "3")), info = name)
    expect_identical(scores$id, unlist(lapply(case$prompts, `[`, -1L)), info = name)
    expect_identical(scores$position, unlist(lapply(case$prompts, function(x) seq_along(x)[-1L])), info = name)
    expect_equal(perplexity(model, case$prompts), case$perplexity, tolerance = 1e-12, info = name)
    likely <- next_tokens(model, case$prompts[[3L]], n = 5)
    expect_identical(likely$id, case$likely$id, info = name)
    # The reference is from the model's forward, and the result from the C decoder.
    expect_equal(likely$logprob, case$likely$logprob, tolerance = 1e-5, info = name)
    expect_equal(likely$prob, exp(likely$logprob), tolerance = 1e-12, info = name)
  })
})

test_that("weights match Python's, with the dimensions in the same order", {
  over_cases(function(model, case, name) {
    weight <- model$parameter(case$weight$name)
    expect_identical(weight, case$weight$value, info = name)
    expect_identical(dim(weight), case$weight$shape, info = name)
    expect_identical(sum(model$parameters()$numel), case$parameters, info = name)
  })
})

test_that("texts have the same tokens and generated texts as in Python", {
  needs_python()
  texts <- reference()
  for (case in Filter(function(case) !is.null(case$text), texts)) {
    model <- from_pretrained(case$model)
    tok <- tokenizer_from_pretrained(case$model)
    expect_identical(tok$encode(case$text$prompt)$ids, case$text$ids)
    expect_identical(tok$decode(case$text$ids), case$text$decoded)
    expect_identical(generate(model, case$text$prompt, 30, temperature = 0), case$text$greedy)
    expect_identical(generate(model, case$text$prompt, 30, seed = 3, tokenizer = tok), case$text$sampled)
    expect_identical(token_logprobs(model, case$text$prompt)$logprob, case$text$scores)
  }
})
