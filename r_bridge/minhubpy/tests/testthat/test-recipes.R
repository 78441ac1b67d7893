# The step of the package recipes.

lines <- function() data.frame(text = c("To be,", "or not", NA, "the king"), year = 1:4, y = c(1, 0, 1, 0))

test_that("wrong arguments are errors of the package, also without recipes", {
  expect_refused(step_minhub_embedding(1, model = "gpt2"), "recipe must be a recipe, as recipes::recipe() returns, not 1")
})

test_that("the step replaces texts by their embeddings", {
  skip_if_not_installed("recipes")
  model <- a_model()
  data <- lines()
  recipe <- recipes::recipe(y ~ ., data = data)
  step <- step_minhub_embedding(recipe, text, model = BUILT_IN[[1L]], layer = 2, pool = "last", dimensions = 3)
  prepared <- recipes::prep(step, training = data)
  baked <- as.data.frame(recipes::bake(prepared, new_data = data))
  expected <- text_embeddings(model, data$text, layer = 2, pool = "last", dimensions = 3)
  names <- paste0("embedding_text_", 1:3)
  expect_named(baked, c("year", "y", names))
  expect_equal(as.matrix(baked[names]), expected, ignore_attr = TRUE, tolerance = 1e-5)
  expect_identical(is.na(baked$embedding_text_1), c(FALSE, FALSE, TRUE, FALSE))
  expect_identical(nrow(recipes::bake(prepared, new_data = data[0, ])), 0L)
  expect_identical(ncol(recipes::bake(prepared, new_data = data[0, ])), 5L)
  # a prepared recipe can be saved, because it contains the name of the model
  restored <- unserialize(serialize(prepared, NULL))
  expect_equal(recipes::bake(restored, new_data = data), recipes::bake(prepared, new_data = data), tolerance = 1e-5)
  expect_output(print(prepared$steps[[1L]]), "Text embeddings by minhub/shakespeare-gpt2 for text [trained]", fixed = TRUE)
  expect_identical(as.character(recipes::tidy(prepared$steps[[1L]])$terms), "text")
  expect_identical(recipes::required_pkgs(prepared$steps[[1L]]), "minhubpy")
  kept <- step_minhub_embedding(recipe, text, model = model, dimensions = 12, keep_original_cols = TRUE, prefix = "e")
  baked <- recipes::bake(recipes::prep(kept, training = data), new_data = data[1:2, ])
  expect_true(all(c("text", "e_text_01", "e_text_12") %in% names(baked)))
})

test_that("wrong columns and models are errors", {
  needs_python()
  skip_if_not_installed("recipes")
  recipe <- recipes::recipe(y ~ ., data = lines())
  prepare <- function(...) recipes::prep(step_minhub_embedding(recipe, ...), training = lines())
  expect_error(prepare(year, model = BUILT_IN[[1L]]), "needs columns with texts, but year is")
  expect_error(prepare(text, model = BUILT_IN[[1L]], layer = 99), "layer must be")
  expect_error(prepare(text, model = "minhub/nothing"), "no built-in")
  expect_error(step_minhub_embedding(recipe, text), "model is missing")
  expect_error(step_minhub_embedding(recipe, text, model = a_model(), pool = "none"), "pool must be one of")
})
