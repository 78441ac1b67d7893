#' Compare text embeddings
#'
#' `text_similarity()` computes the similarity of each pair of embeddings.
#' `text_search()` finds the embeddings that are most similar to each query.
#'
#' @param x,y Numeric matrices with one embedding per row, such as the results of
#'   [text_embeddings()], or a vector for one embedding; or the lists that
#'   [text_embeddings()] returns for SPLADE and ColBERT models. `y = NULL`
#'   compares the embeddings in `x` with each other.
#' @param method `"cosine"`, the cosine of the angle between two embeddings;
#'   `"dot"`, their dot product; or the negative `"euclidean"` or `"manhattan"`
#'   distance, so that a larger number is always a larger similarity. Sparse
#'   embeddings support `"dot"`, their default, and `"cosine"`. Vectors per token
#'   support `"maxsim"`, their default: the sum over the vectors of `x` of the
#'   largest dot product with a vector of `y`; and `"meanmaxsim"`, the mean.
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
text_similarity <- function(x, y = NULL, method = NULL) {
  x <- embeddings_in(x, "x")
  y <- if (is.null(y)) x else embeddings_in(y, "y")
  similarity_of(x, y, method_for(x, y, method))
}

#' @rdname text_similarity
#' @export
text_search <- function(query, texts, n = 10, method = NULL) {
  n <- whole_number(n, min = 1)
  query <- embeddings_in(query, "query")
  texts <- embeddings_in(texts, "texts")
  scores <- similarity_of(query, texts, method_for(query, texts, method))
  best <- lapply(seq_len(nrow(scores)), function(row) utils::head(order(scores[row, ], decreasing = TRUE, na.last = NA), n))
  queries <- rep(seq_along(best), lengths(best))
  rows <- as.integer(unlist(best))
  result <- data.frame(
    query = text_of_row(queries, rownames(scores)), text = text_of_row(rows, colnames(scores)),
    rank = sequence(lengths(best)), score = scores[cbind(queries, rows)]
  )
  if (nrow(scores) == 1L) result$query <- NULL
  result
}

# The methods for each kind of embeddings, the default first.
METHODS <- list(
  dense = c("cosine", "dot", "euclidean", "manhattan"), sparse = c("dot", "cosine"), tokens = c("maxsim", "meanmaxsim")
)

# Embeddings as a matrix of doubles, a list of named vectors (sparse), or a list of matrices (one vector per token).
embeddings_in <- function(x, what) {
  is_list <- is.list(x) && !is.data.frame(x) && length(x)
  if (is_list && all(vapply(x, function(row) is.matrix(row) && is.numeric(row), NA))) return(x)
  if (is_list && all(vapply(x, is_sparse_row, NA)) && !all(vapply(x, is.null, NA))) return(x)
  embedding_matrix(x, what)
}

# The weights of tokens, or NA for a missing text.
is_sparse_row <- function(row) is.numeric(row) && is.null(dim(row)) && (!is.null(names(row)) || !length(row) || all(is.na(row)))

kind_of <- function(x) if (is.matrix(x)) "dense" else if (is.matrix(x[[1L]])) "tokens" else "sparse"

# Checks that two sets of embeddings can be compared, and returns the method.
method_for <- function(x, y, method) {
  kind <- kind_of(x)
  if (kind != kind_of(y)) fail("embeddings must be of one kind, not ", kind, " and ", kind_of(y), ": use the same model")
  if (kind == "dense") check_widths(x, y)
  if (kind == "tokens") check_widths(x[[1L]], y[[1L]])
  if (is.null(method)) METHODS[[kind]][[1L]] else choice(method, METHODS[[kind]])
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
  if (!is.matrix(x)) return(similarity_of_lists(x, y, method))
  distances <- function(distance) {
    result <- matrix(NA_real_, nrow(x), nrow(y))
    for (row in seq_len(nrow(y))) result[, row] <- distance(x - rep(y[row, ], each = nrow(x)))
    -result
  }
  result <- switch(method,
    cosine = tcrossprod(unit_rows(x), unit_rows(y)), # of an embedding of zeros: 0, like Python
    dot = tcrossprod(x, y),
    euclidean = distances(function(d) sqrt(rowSums(d^2))),
    manhattan = distances(function(d) rowSums(abs(d)))
  )
  names <- list(rownames(x), rownames(y))
  dimnames(result) <- if (!all(vapply(names, is.null, NA))) names
  result
}

# Similarities of sparse embeddings, or of vectors per token.
similarity_of_lists <- function(x, y, method) {
  names <- if (!is.null(names(x)) || !is.null(names(y))) list(names(x), names(y))
  if (kind_of(x) == "tokens") {
    mean <- method == "meanmaxsim"
    scores <- lapply(y, function(text) vapply(x, late_interaction, 0, text = text, mean = mean))
    return(matrix(unlist(scores), length(x), length(y), dimnames = names))
  }
  if (method == "cosine") {
    unit <- function(row) row / max(sqrt(sum(row^2)), 1e-12)
    x <- lapply(x, unit)
    y <- lapply(y, unit)
  }
  tokens <- unique(unlist(lapply(x, names)))
  weights <- matrix(0, length(x), length(tokens))
  for (row in seq_along(x)) weights[row, match(names(x[[row]]), tokens)] <- x[[row]]
  scores <- lapply(y, function(text) {
    found <- match(names(text), tokens)
    known <- !is.na(found)
    weights[, found[known], drop = FALSE] %*% text[known]
  })
  result <- matrix(unlist(scores), length(x), length(y), dimnames = names)
  result[vapply(x, anyNA, NA), ] <- NA
  result[, vapply(y, anyNA, NA)] <- NA
  result
}

# The sum, or the mean, of each query vector's largest dot product with a vector of the text.
late_interaction <- function(query, text, mean) {
  if (!nrow(query) || !nrow(text)) return(NA_real_)
  products <- tcrossprod(query, text)
  best <- products[cbind(seq_len(nrow(products)), max.col(products, "first"))]
  if (mean) sum(best) / length(best) else sum(best)
}
