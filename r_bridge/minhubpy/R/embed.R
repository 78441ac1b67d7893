#' Compute text embeddings
#'
#' Computes one vector per text from the hidden states of a layer. Texts with
#' similar meanings have vectors with similar directions. The resulting matrix is
#' suitable for [stats::lm()], [stats::prcomp()], [stats::hclust()] and any
#' classifier.
#'
#' Texts longer than the model's context are processed in overlapping windows, as
#' in [token_logprobs()]. Esc or Ctrl-C interrupts a long call; the session and
#' the model remain usable.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param texts A character vector or a factor, such as a column of a data
#'   frame, or token IDs as in [generate()]. The row of a text that is `NA` or
#'   `""` is `NA`.
#' @param layer The layer: 0 for the embeddings, 1 for the first layer, -1 for the
#'   last layer, -2 for the layer before it. Middle layers often represent the
#'   meaning of a text better than the last layer, which is trained to predict
#'   the next token. For an encoder-decoder such as T5, the layers of the encoder.
#' @param pool How to pool the tokens of a text: `"mean"`; `"last"`, the only
#'   token whose hidden state depends on the complete text; or `"none"`, which
#'   returns one vector per token.
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()].
#' @returns A numeric matrix with one row per text, in the order of `texts`, and
#'   the names of `texts` as row names. With `pool = "none"`, a list of matrices
#'   with one row per token and the tokens as row names.
#' @family functions that look inside a model
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' lines <- c(
#'   juliet = "O Romeo, Romeo!", romeo = "O speak again, bright angel!",
#'   king = "Off with his head!"
#' )
#' vectors <- text_embeddings(model, lines)
#' dim(vectors)
#' dist(vectors)
#' text_embeddings(model, data.frame(line = c("To be,", NA))$line, layer = 2, pool = "last")[, 1:3]
#' \dontshow{minhubpy:::end_example()}
#' @export
text_embeddings <- function(model, texts, layer = -1, pool = c("mean", "last", "none"), tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  pool <- choice(pool, c("mean", "last", "none"))
  if (is.data.frame(texts)) {
    column <- deparse(as.name(names(texts)[1L]), backtick = TRUE)
    fail("texts must be a column of the data frame, not the data frame: pass ", deparse(substitute(texts))[[1L]], "$", column)
  }
  labels <- labels_of(texts)
  texts <- texts_or_ids(na_as_empty(texts), "texts")
  settings <- list(tokenizer = check_tokenizer(tokenizer), layer = whole_number(layer, min = -1e6), pool = pool)
  result <- in_parts(seq_along(texts), resume, c(list(call = "embed", model = model, texts = texts), settings), function(rows, on_event) {
    do.call(ask, c(list("embed", model = model, texts = texts[rows]), settings, list(on_event = on_event)))
  }, size = TEXTS_OF_PART, join = join_vectors)
  if (pool != "none") {
    rownames(result$vectors) <- labels
    return(result$vectors)
  }
  matrices <- Map(function(vectors, tokens) {
    if (length(tokens) && !anyNA(tokens)) rownames(vectors) <- tokens
    vectors
  }, result$vectors, result$tokens)
  stats::setNames(matrices, labels)
}

TEXTS_OF_PART <- 256L # texts in each part of a long job, see in_parts()

# Joins the results of the parts: matrices, or with pool = "none" lists of matrices and of tokens.
join_vectors <- function(result, rows) {
  part <- function(name) lapply(result, `[[`, name)
  if (is.matrix(result[[1L]]$vectors)) return(list(vectors = do.call(rbind, part("vectors"))))
  list(vectors = do.call(c, part("vectors")), tokens = do.call(c, part("tokens")))
}
