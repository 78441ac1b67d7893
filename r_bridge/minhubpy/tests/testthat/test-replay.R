# Jobs with a manifest, and their replay. tests/jobs/test_replay.py tests the comparison.

test_that("results of a job with a manifest equal those without, and are replayed", {
  model <- a_model()
  folder <- tempfile("job")
  dir.create(folder)
  on.exit(unlink(folder, recursive = TRUE))
  manifest <- file.path(folder, "job.json")
  words <- data.frame(item = c("a", "b", "a", "b", "a", NA), word = c("To", "My", "be,", "lord", NA, "or"))
  plain <- word_logprobs(model, words, by = "item", renyi = 0.5, lags = 1)
  expect_identical(word_logprobs(model, words, by = "item", renyi = 0.5, lags = 1, manifest = manifest), plain)
  result <- minhub_replay(manifest)
  expect_s3_class(result, "minhub_replay")
  expect_identical(result$guarantee, if (has_decoder()) "bitwise" else "close")
  expect_identical(result$runs$differing[[1L]], 0L)
  expect_lt(max(result$runs$largest), 1e-3)
  expect_identical(as.data.frame(result), result$runs)
  if (has_decoder()) {
    expect_true(result$identical)
    expect_output(print(result), "bitwise identical")
  }
  texts <- c("To be", NA, "or not")
  labels <- annotate_texts(model, texts, c("joy", "grief"), template = "{text}", instruction = "a")
  expect_equal(annotate_texts(model, texts, c("joy", "grief"), template = "{text}", instruction = "a", manifest = manifest), labels)
  expect_true(minhub_replay(manifest, rows = 2)$identical || !has_decoder())
  vectors <- text_embeddings(model, texts)
  expect_equal(text_embeddings(model, texts, manifest = manifest), vectors, tolerance = 1e-6)
})

test_that("manifests that cannot describe a call are errors", {
  model <- a_model()
  manifest <- tempfile(fileext = ".json")
  expect_refused(word_logprobs(model, "To", context = "Well,", manifest = manifest), "manifest does not support context")
  expect_refused(word_logprobs(model, "To", resume = "x.rds", manifest = manifest), "resume and manifest cannot be combined")
  expect_refused(word_logprobs(model, "To", manifest = "job.txt"), 'must name a file that ends in ".json"')
  expect_refused(word_logprobs(gpt2_from_config("minhub/shakespeare-gpt2"), "To", manifest = manifest), "manifest requires")
  expect_refused(minhub_replay(manifest), "does not exist")
})
