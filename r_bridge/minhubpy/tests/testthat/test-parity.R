# The numbers of Python itself, bit for bit: tests/support/r_package.py writes them (write_reference) and says where.

reference <- function() {
  folder <- Sys.getenv("MINHUBPY_REFERENCE")
  skip_if_not(nzchar(folder), "MINHUBPY_REFERENCE is not set: there are no numbers of Python's to compare with")
  readRDS(file.path(folder, "reference.rds"))
}

# Every checkpoint of the reference, with its model.
over_cases <- function(test) {
  needs_python()
  cases <- reference()
  expect_gte(length(cases), 6L)
  for (name in names(cases)) {
    case <- cases[[name]]
    test(from_pretrained(case$model), case, name)
  }
}

test_that("logits are Python's to the last bit: one row, a batch, a full context", {
  over_cases(function(model, case, name) {
    for (ids in case$forward) {
      logits <- model(ids$ids)
      expect_identical(logits, ids$logits, info = name)
      shape <- if (is.matrix(ids$ids)) dim(ids$ids) else c(1L, length(ids$ids))
      expect_identical(dim(logits), c(shape, model$vocab_size), info = name)
    }
    # The same rows in the other forms that they may have.
    batch <- case$forward$batch
    rows <- lapply(seq_len(nrow(batch$ids)), function(row) batch$ids[row, ])
    expect_identical(model(rows), batch$logits, info = name)
    expect_identical(model(batch$ids + 0), batch$logits, info = name)
    expect_identical(model(structure(batch$ids, dimnames = list(letters[1:3], NULL))), batch$logits, info = name)
  })
})

test_that("greedy ids are Python's: ragged prompts, beyond the context, and each alone", {
  over_cases(function(model, case, name) {
    made <- generate(model, case$prompts, max_new_tokens = case$n, temperature = 0)
    expect_identical(made, case$greedy, info = name)
    for (row in seq_along(case$prompts)) {
      alone <- generate(model, case$prompts[[row]], max_new_tokens = case$n, temperature = 0)
      expect_identical(alone, case$greedy[row], info = name)
    }
  })
})

test_that("sampled ids are Python's: a seed for all, a seed for each, and every setting", {
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

test_that("scores, perplexities and next tokens are Python's", {
  over_cases(function(model, case, name) {
    scores <- token_logprobs(model, case$prompts)
    expect_identical(split(scores$logprob, scores$text), stats::setNames(case$scores, c("1", "3")), info = name)
    expect_identical(scores$id, unlist(lapply(case$prompts, `[`, -1L)), info = name)
    expect_identical(scores$position, unlist(lapply(case$prompts, function(x) seq_along(x)[-1L])), info = name)
    expect_equal(perplexity(model, case$prompts), case$perplexity, tolerance = 1e-12, info = name)
    likely <- next_tokens(model, case$prompts[[3L]], n = 5)
    expect_identical(likely$id, case$likely$id, info = name)
    # Theirs are of the model's own forward, ours of the decoder in C.
    expect_equal(likely$logprob, case$likely$logprob, tolerance = 1e-5, info = name)
    expect_equal(likely$prob, exp(likely$logprob), tolerance = 1e-12, info = name)
  })
})

test_that("weights are Python's, in R's own order of rows and columns", {
  over_cases(function(model, case, name) {
    weight <- model$parameter(case$weight$name)
    expect_identical(weight, case$weight$value, info = name)
    expect_identical(dim(weight), case$weight$shape, info = name)
    expect_identical(sum(model$parameters()$numel), case$parameters, info = name)
  })
})

test_that("texts give Python's tokens and Python's texts", {
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
