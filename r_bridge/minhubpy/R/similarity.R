#' Compare text embeddings
#'
#' `text_similarity()` computes the similarity of each pair of embeddings.
#' `text_search()` finds the embeddings that are most similar to each query.
#'
#' @param x,y Numeric matrices with one embedding per row, such as the results of
#'   [text_embeddings()], or a vector for one embedding. `y = NULL` compares the
#'   rows of `x` with each other.
#' @param method `"cosine"`, the cosine of the angle between two embeddings;
#'   `"dot"`, their dot product; or the negative `"euclidean"` or `"manhattan"`
#'   distance, so that a larger number is always a larger similarity.
#' @param query,texts The embeddings of the queries and of the texts to search, as
#'   `x` and `y`.
#' @param n The number of texts for each query.
#' @returns `text_similarity()` returns a numeric matrix with one row per row of
#'   `x`, one column per row of `y`, and their row names. The similarity of an
#'   embedding with `NA` is `NA`.
#'
#'   `text_search()` returns a data frame with `n` rows per query, the most similar
#'   text first, and the columns
#'   * `query`, for several queries: the number of the query, or a factor of the
#'     row names of `query`;
#'   * `text`: the number of the text, or a factor of the row names of `texts`,
#'     whose integer codes are the numbers;
#'   * `rank`: from 1;
#'   * `score`: the similarity.
#'
#'   Embeddings with `NA` are not found.
#' @family functions for text encoders
#' @examples
#' x <- rbind(a = c(1, 0), b = c(1, 1), c = c(-1, 0.1))
#' text_similarity(x)
#' text_search(c(1, 0.2), x, n = 2)
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' lines <- c("Good night, good night!", "My lord, the king is dead.", "Off with his head!")
#' text_search(text_embeddings(model, "Good morrow, sir."), text_embeddings(model, lines), n = 1)
#' \dontshow{minhubpy:::end_example()}
#' @export
text_similarity <- function(x, y = NULL, method = c("cosine", "dot", "euclidean", "manhattan")) {
  method <- choice(method, c("cosine", "dot", "euclidean", "manhattan"))
  x <- embedding_matrix(x, "x")
  y <- if (is.null(y)) x else embedding_matrix(y, "y")
  check_widths(x, y)
  similarity_of(x, y, method)
}

#' @rdname text_similarity
#' @export
text_search <- function(query, texts, n = 10, method = c("cosine", "dot", "euclidean", "manhattan")) {
  method <- choice(method, c("cosine", "dot", "euclidean", "manhattan"))
  n <- whole_number(n, min = 1)
  query <- embedding_matrix(query, "query")
  texts <- embedding_matrix(texts, "texts")
  check_widths(query, texts)
  scores <- similarity_of(query, texts, method)
  best <- lapply(seq_len(nrow(scores)), function(row) utils::head(order(scores[row, ], decreasing = TRUE, na.last = NA), n))
  queries <- rep(seq_along(best), lengths(best))
  rows <- as.integer(unlist(best))
  result <- data.frame(
    query = text_of_row(queries, rownames(query)), text = text_of_row(rows, rownames(texts)),
    rank = sequence(lengths(best)), score = scores[cbind(queries, rows)]
  )
  if (nrow(query) == 1L) result$query <- NULL
  result
}

# Embeddings as a matrix of doubles.
embedding_matrix <- function(x, what) {
  x <- plain(x, what)
  if (!is_plain_number(x) || length(dim(x)) > 2L || !length(x)) {
    fail(what, " must be a matrix of embeddings, as text_embeddings() returns, not ", describe(x))
  }
  if (!is.matrix(x)) x <- matrix(x, 1L)
  storage.mode(x) <- "double"
  x
}

check_widths <- function(x, y) {
  if (ncol(x) != ncol(y)) fail("embeddings must have the same number of columns, not ", ncol(x), " and ", ncol(y), ": use the same model")
}

similarity_of <- function(x, y, method) {
  # Like Python, an embedding of zeros has the cosine 0.
  unit <- function(x) x / pmax(sqrt(rowSums(x^2)), 1e-12)
  distances <- function(distance) {
    result <- matrix(NA_real_, nrow(x), nrow(y))
    for (row in seq_len(nrow(y))) result[, row] <- distance(x - rep(y[row, ], each = nrow(x)))
    -result
  }
  result <- switch(method,
    cosine = tcrossprod(unit(x), unit(y)),
    dot = tcrossprod(x, y),
    euclidean = distances(function(d) sqrt(rowSums(d^2))),
    manhattan = distances(function(d) rowSums(abs(d)))
  )
  names <- list(rownames(x), rownames(y))
  dimnames(result) <- if (!all(vapply(names, is.null, NA))) names
  result
}
