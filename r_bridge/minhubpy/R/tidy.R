#' Convert results to tidy data frames
#'
#' Methods of [as.data.frame()] and of `generics::tidy()`, which the packages
#' generics and broom export.
#'
#' | object | one row per |
#' | --- | --- |
#' | a chat of [minhub_chat()] | message |
#' | a reply of a chat | token |
#' | [activations()] | point, text, token and channel |
#' | [attention_weights()] | layer, head, token and attended-to token |
#' | [label_agreement()] | statistic |
#' | [calibrate_decisions()] | type of question |
#' | [corrected_estimate()] | term |
#' | [minimal_pairs()] | phenomenon |
#' | [tuned_lens()] | layer |
#' | [steering_direction()] | text |
#' | [linear_probe()] | row, with its fold and prediction |
#' | [text_topics()] | text |
#' | a run of [minhub_train()] | evaluation, as in `run$losses` |
#'
#' @param x An object of the table.
#' @param ... Not used.
#' @returns `as.data.frame()` returns a data frame. `tidy()` returns a tibble if
#'   the package tibble is installed, and a data frame otherwise.
#' @seealso [minhub_chat()], [attention_weights()], [minhub_train()]
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' head(as.data.frame(attention_weights(model, "To be")))
#' \dontshow{minhubpy:::end_example()}
#' @name tidy.minhub
NULL

#' @rdname tidy.minhub
#' @export
as.data.frame.minhub_attention <- function(x, ...) {
  size <- dim(x)
  index <- arrayInd(seq_along(x), size)
  labels <- dimnames(x)
  data.frame(
    layer = as.integer(labels[[1L]])[index[, 1L]], head = as.integer(labels[[2L]])[index[, 2L]],
    position = index[, 3L], token = labels[[3L]][index[, 3L]],
    attended_position = index[, 4L], attended_token = labels[[4L]][index[, 4L]], weight = as.vector(unclass(x))
  )
}

#' @rdname tidy.minhub
#' @export
as.data.frame.minhub_activations <- function(x, ...) {
  rows <- attr(x, "rows")
  parts <- lapply(names(x), function(point) {
    size <- dim(x[[point]])
    data.frame(
      point = point, place_of(point), rows[rep(seq_len(size[[1L]]), times = size[[2L]]), , drop = FALSE],
      channel = rep(seq_len(size[[2L]]), each = size[[1L]]), value = as.vector(x[[point]]), row.names = NULL
    )
  })
  do.call(rbind, parts)
}

#' @rdname tidy.minhub
#' @export
as.data.frame.minhub_reply <- function(x, ...) x$tokens

#' @rdname tidy.minhub
#' @export
as.data.frame.minhub_run <- function(x, ...) structure(x$losses, class = "data.frame")

as_tidy <- function(x, ...) {
  data <- as.data.frame(x)
  if (requireNamespace("tibble", quietly = TRUE)) tibble::as_tibble(data) else data
}

#' @rawNamespace S3method(generics::tidy,minhub_activations)
tidy.minhub_activations <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_agreement)
tidy.minhub_agreement <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_attention)
tidy.minhub_attention <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_calibration)
tidy.minhub_calibration <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_chat)
tidy.minhub_chat <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_direction)
tidy.minhub_direction <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_estimate)
tidy.minhub_estimate <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_pairs)
tidy.minhub_pairs <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_probe)
tidy.minhub_probe <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_reply)
tidy.minhub_reply <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_run)
tidy.minhub_run <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_topics)
tidy.minhub_topics <- as_tidy

#' @rawNamespace S3method(generics::tidy,minhub_tuned_lens)
tidy.minhub_tuned_lens <- as_tidy
