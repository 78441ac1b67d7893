# Local models. tests/checkpoints/test_cache.py and tests/r_bridge/test_r_interface.py test downloads and deletions.

test_that("built-in models are listed", {
  needs_python()
  found <- minhub_models()
  expect_named(found, c("model", "source", "revision", "bytes", "complete", "folder"))
  built_in <- found[found$source == "built-in", ]
  expect_setequal(built_in$model, BUILT_IN)
  expect_true(all(built_in$complete) && all(dir.exists(built_in$folder)))
  expect_output(print(found), "minhub/shakespeare-gpt2 .* MB +built-in")
  expect_identical(summary(found)$models[[1L]], nrow(built_in))
})

test_that("built-in models cannot be downloaded or deleted", {
  needs_python()
  expect_refused(minhub_delete("minhub/shakespeare-gpt2"), "ships with the package and cannot be deleted", "ValueError")
  expect_refused(minhub_download("minhub/shakespeare-gpt2"), "it does not need a download", "ValueError")
  expect_refused(minhub_delete("no/such-model-here"), "is not in the local cache: nothing to delete", "FileNotFoundError")
  expect_refused(minhub_delete(7), "identifier must be text")
  expect_refused(minhub_delete("no/such", ask = FALSE), "is not in the local cache", "FileNotFoundError")
})
