#' Text embeddings in a recipe
#'
#' A step of the package recipes (tidymodels) that replaces columns of texts by
#' their embeddings, see [text_embeddings()]. It needs the package recipes.
#'
#' A model that is given by its name is loaded when the step is first prepared or
#' baked in a session, so that a fitted workflow can be saved and used in a later
#' session.
#'
#' @inheritParams text_embeddings
#' @param recipe A recipe, as `recipes::recipe()` returns.
#' @param ... Selectors of the columns with texts, as in other steps.
#' @param model A model's name, see [from_pretrained()], or a model.
#' @param prefix The beginning of the names of the new columns, before the name of
#'   the column and a number.
#' @param keep_original_cols Whether the columns with texts remain.
#' @param role,trained,columns,skip,id As in the steps of the package recipes.
#' @returns The recipe with the step.
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready() && requireNamespace("recipes", quietly = TRUE)
#' letters <- data.frame(
#'   text = c("To be,", "or not to be", "that is", "the question"), happy = c(1, 0, 1, 0)
#' )
#' recipe <- recipes::recipe(happy ~ text, data = letters)
#' recipe <- step_minhub_embedding(recipe, text, model = "minhub/shakespeare-gpt2", dimensions = 3)
#' recipes::bake(recipes::prep(recipe), new_data = NULL)
#' \dontshow{minhubpy:::end_example()}
#' @export
step_minhub_embedding <- function(recipe, ..., model, layer = -1, pool = NULL, prompt = NULL, dimensions = NULL,
                                  normalize = NULL, combine = c("join", "mean"), prefix = "embedding", keep_original_cols = FALSE, role = "predictor",
                                  trained = FALSE, columns = NULL, skip = FALSE, id = NULL) {
  if (!inherits(recipe, "recipe")) fail("recipe must be a recipe, as recipes::recipe() returns, not ", describe(recipe))
  if (missing(model)) fail('model is missing: pass the name of a model, such as "sentence-transformers/all-MiniLM-L6-v2"')
  if (!inherits(model, c("minhub_model", "minhub_run"))) model <- string(model)
  settings <- list(
    layer = check_layers(layer), combine = choice(combine, c("join", "mean")), pool = optional(pool, choice, c("mean", "last", "cls", "max"), "pool"),
    prompt = optional(prompt, string, "prompt"), dimensions = optional(dimensions, whole_number, "dimensions", min = 1),
    normalize = optional(normalize, flag, "normalize")
  )
  step <- recipes::step(
    subclass = "minhub_embedding", terms = rlang::enquos(...), role = role, trained = flag(trained), columns = columns,
    model = model, settings = settings, prefix = string(prefix), keep_original_cols = flag(keep_original_cols),
    skip = flag(skip), id = if (is.null(id)) recipes::rand_id("minhub_embedding") else string(id)
  )
  recipes::add_step(recipe, step)
}

#' @exportS3Method recipes::prep
prep.step_minhub_embedding <- function(x, training, info = NULL, ...) {
  columns <- unname(recipes::recipes_eval_select(x$terms, training, info))
  for (column in columns) {
    values <- training[[column]]
    if (!is.character(values) && !is.factor(values)) {
      fail("step_minhub_embedding() needs columns with texts, but ", column, " is ", describe(values))
    }
  }
  x$columns <- columns
  # Errors of the model and of the settings appear now, and the width is known for data without rows.
  if (length(columns)) x$width <- ncol(embedded(x, "text"))
  x$trained <- TRUE
  x
}

#' @exportS3Method recipes::bake
bake.step_minhub_embedding <- function(object, new_data, ...) {
  for (column in object$columns) {
    if (!column %in% names(new_data)) fail("new_data has no column ", column, ", which step_minhub_embedding() embeds")
    texts <- as.character(new_data[[column]])
    vectors <- if (length(texts)) embedded(object, texts) else matrix(0, 0L, object$width)
    names <- recipes::names0(ncol(vectors), paste0(object$prefix, "_", column, "_"))
    for (i in seq_along(names)) new_data[[names[[i]]]] <- vectors[, i]
    if (!object$keep_original_cols) new_data[[column]] <- NULL
  }
  new_data
}

# A step's embeddings, one row per text.
embedded <- function(step, texts) {
  vectors <- do.call(text_embeddings, c(list(loaded_model(step$model, list()), unname(texts)), step$settings))
  if (!is.matrix(vectors)) fail("step_minhub_embedding() requires one vector per text: use a model other than SPLADE or ColBERT")
  vectors
}

#' @export
print.step_minhub_embedding <- function(x, ...) {
  on <- if (x$trained) toString(x$columns) else "columns of texts"
  model <- if (is.character(x$model)) x$model else "a model"
  cat("Text embeddings by ", model, " for ", if (nzchar(on)) on else "<none>", if (x$trained) " [trained]", "\n", sep = "")
  invisible(x)
}

#' @exportS3Method generics::tidy
tidy.step_minhub_embedding <- function(x, ...) {
  terms <- if (x$trained) as.character(x$columns) else vapply(x$terms, function(term) rlang::as_label(term), "")
  model <- if (is.character(x$model)) x$model else NA_character_
  as_tidy(data.frame(terms = unname(terms), model = rep(model, length(terms)), id = rep(x$id, length(terms))))
}

#' @exportS3Method recipes::required_pkgs
required_pkgs.step_minhub_embedding <- function(x, ...) "minhubpy"
