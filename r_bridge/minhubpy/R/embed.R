#' Texts as numbers
#'
#' Reads texts with a model and gives for each a vector of numbers, the hidden
#' state of one of its layers: texts of like meaning get vectors of like
#' direction. A matrix of them is what [stats::lm()], [stats::prcomp()],
#' [stats::hclust()] and any classifier take.
#'
#' A text longer than the model's context is read in overlapping parts, as
#' [token_logprobs()] reads it. Esc or Ctrl-C stops a long call; the session and the
#' model stay as they are. The function of this name that R has, which lags a
#' time series, stays there as [stats::embed()].
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param texts A character vector or a factor, such as a column of a data
#'   frame; or ids, as for [generate()]. A text that is `NA` or `""` gives a row
#'   of `NA`.
#' @param layer Which layer: 0 is the embeddings, 1 the first layer, and so on;
#'   -1 the last one, -2 the one before. Layers in the middle often tell more of
#'   a text's meaning than the last, which is made to predict the next token.
#'   An encoder-decoder such as T5 gives the layers of its encoder.
#' @param pool What becomes of the tokens of a text: their `"mean"`, the
#'   `"last"` one, which alone has seen the whole text, or `"none"`: each token
#'   keeps a vector of its own.
#' @param resume The name of a file (.rds) that keeps what is done of a long job:
#'   see [word_logprobs()].
#' @returns A matrix with a row for each text, in their order, and their names
#'   as row names. With `pool = "none"`, a list of matrices with a row for each
#'   token of the text, which is its row name.
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
    fail("texts must be one column of the data frame, such as ", deparse(substitute(texts))[[1L]], "$", column)
  }
  labels <- labels_of(texts)
  texts <- texts_or_ids(na_as_empty(texts), "texts")
  settings <- list(tokenizer = check_tokenizer(tokenizer), layer = whole(layer, least = -1e6), pool = pool)
  found <- in_parts(seq_along(texts), resume, c(list(call = "embed", model = model, texts = texts), settings), function(rows, news) {
    do.call(ask, c(list("embed", model = model, texts = texts[rows]), settings, list(news = news)))
  }, size = TEXTS_OF_PART, join = join_vectors)
  if (pool != "none") {
    rownames(found$vectors) <- labels
    return(found$vectors)
  }
  each <- Map(function(vectors, tokens) {
    if (length(tokens) && !anyNA(tokens)) rownames(vectors) <- tokens
    vectors
  }, found$vectors, found$tokens)
  stats::setNames(each, labels)
}

TEXTS_OF_PART <- 256L # of a long job, see in_parts()

# What text_embeddings() has of each part: rows of a matrix, or a matrix and the tokens of each text.
join_vectors <- function(found, rows) {
  part <- function(name) lapply(found, `[[`, name)
  if (is.matrix(found[[1L]]$vectors)) return(list(vectors = do.call(rbind, part("vectors"))))
  list(vectors = do.call(c, part("vectors")), tokens = do.call(c, part("tokens")))
}
