#' Project embeddings on the direction between two meanings
#'
#' The direction points from the mean embedding of one set of texts to the mean of another
#' set, such as from negative to positive words. The projection of a text shows where it is
#' between them. `plot()` draws the words along the direction.
#'
#' All embeddings are scaled to length 1. The projection is the cosine of the direction
#' and of the embedding relative to the midpoint of the two means: 0 is the midpoint.
#' Texts that define the direction have extreme projections by construction. Use other
#' texts for conclusions, and compare with the projections of random directions.
#'
#' @param x Embeddings: a matrix with one row per text, such as the result of
#'   [text_embeddings()]. Row names, if any, are the words of the plot.
#' @param from,to Embeddings of the texts that define the direction, as `x`.
#' @returns A data frame of class `minhub_projection` with one row per row of `x` and
#'   the columns
#'   * `text`: the number of the row, or a factor of the row names of `x`;
#'   * `projection`: from -1 to 1; `NA` for an embedding with `NA`.
#'
#'   The attribute `direction` is a vector of length 1, to which other embeddings can be
#'   compared.
#' @references Kozlowski, Taddy & Evans (2019), "The Geometry of Culture"; Grand et al.
#'   (2022), "Semantic projection recovers rich human knowledge of multiple object
#'   features from word embeddings".
#' @family functions for text encoders
#' @examples
#' x <- rbind(cold = c(1, 0, 0.2), warm = c(0.6, 0.7, 0.1), hot = c(0, 1, 0.3))
#' projected <- text_projection(x, from = x["cold", ], to = x["hot", ])
#' projected
#' plot(projected, labels = c("cold", "hot"))
#' @export
text_projection <- function(x, from, to) {
  x <- embedding_matrix(x, "x")
  from <- embedding_matrix(from, "from")
  to <- embedding_matrix(to, "to")
  check_widths(x, from)
  check_widths(x, to)
  if (!all(is.finite(from), is.finite(to))) fail("from and to must not contain NA or infinite numbers: drop these texts")
  low <- colMeans(unit_rows(from))
  high <- colMeans(unit_rows(to))
  direction <- high - low
  if (sqrt(sum(direction^2)) < 1e-9) fail("from and to must have different means")
  direction <- direction / sqrt(sum(direction^2))
  centered <- unit_rows(x) - rep((low + high) / 2, each = nrow(x))
  structure(
    data.frame(
      text = text_of_row(seq_len(nrow(x)), rownames(x)), projection = drop(unname(unit_rows(centered) %*% direction))
    ),
    class = c("minhub_projection", "data.frame"), direction = direction
  )
}

# Like Python, an embedding of zeros remains zero.
unit_rows <- function(x) x / pmax(sqrt(rowSums(x^2)), 1e-12)

#' @rdname text_projection
#' @param labels The names of the two ends.
#' @param main The title.
#' @param most The maximum number of words: those with the largest absolute
#'   projections.
#' @param col The colors of the two ends.
#' @param ... Graphical parameters for [graphics::par()].
#' @export
plot.minhub_projection <- function(x, labels = c("from", "to"), main = "Projection of each text", most = 60,
                                   col = c("#D55E00", "#0072B2"), ...) {
  known <- x[!is.na(x$projection), ]
  check_plotted(known, c("text", "projection"), "there is no projection to plot")
  most <- whole_number(most, min = 1)
  labels <- rep_len(texts(labels), 2L)
  col <- rep_len(check_color(col), 2L)
  draw_panels(main, function(i) draw_projection(known, most, labels, col), ...)
  invisible(x)
}

# Words at their projections, in as many lines as they need without overlaps.
draw_projection <- function(x, most, labels, col) {
  shown <- x[sort(utils::head(order(-abs(x$projection)), most)), ]
  shown <- shown[order(shown$projection), ]
  set_margins(left = 0.2, bottom = lines_high(4), right = 0.2)
  reach <- max(abs(shown$projection), 0.01)
  graphics::plot.window(c(-1.15, 1.15) * reach, c(0, 1), xaxs = "i", yaxs = "i")
  words <- shorten(written(data.frame(token = as.character(shown$text), id = NA)), 20L)
  wide <- graphics::strwidth(words, cex = 0.8)
  area <- graphics::par("usr")
  center <- pmin(pmax(shown$projection, area[[1L]] + wide / 2), area[[2L]] - wide / 2)
  ends <- numeric() # the right end of the last word in each line
  line <- integer(length(words))
  for (i in seq_along(words)) {
    free <- which(ends < center[[i]] - wide[[i]] / 2 - graphics::xinch(0.05))
    line[[i]] <- if (length(free)) free[[1L]] else length(ends) + 1L
    ends[[line[[i]]]] <- center[[i]] + wide[[i]] / 2
  }
  y <- line / (max(line) + 1)
  graphics::abline(v = 0, col = "grey70", lty = 2L)
  graphics::segments(shown$projection, 0, shown$projection, 0.03, col = "grey60")
  size <- min(0.8, graphics::par("pin")[[2L]] / (max(line) + 1) / lines_high(1))
  graphics::text(center, y, words, cex = size, col = col[1L + (shown$projection > 0)], xpd = NA)
  graphics::axis(1L, lwd = 0, lwd.ticks = 1, mgp = c(2, 0.5, 0))
  graphics::abline(h = 0, col = "grey50")
  graphics::mtext(labels[[1L]], 1L, 1.9, adj = 0, col = col[[1L]])
  graphics::mtext(labels[[2L]], 1L, 1.9, adj = 1, col = col[[2L]])
  if (nrow(x) > nrow(shown)) footer("the most extreme ", nrow(shown), " of ", grouped(nrow(x)), " texts")
}

#' Find topics by clustering embeddings
#'
#' Divides texts into groups with similar embeddings by k-means, and names the words
#' that distinguish each group.
#'
#' Embeddings are scaled to length 1. The result depends on random starts: use
#' [set.seed()]. The words of a topic have the largest class-based TF-IDF
#' (Grootendorst 2022): their share of the topic's words, times `log(1 + mean / n)`,
#' where `n` counts the word in all topics, and `mean` is the mean number of words per
#' topic.
#'
#' @param x Embeddings of texts: a matrix, such as the result of [text_embeddings()].
#' @param texts The texts, one per row of `x`, for the words of the topics; or `NULL`.
#' @param topics The number of topics.
#' @param words The number of words per topic.
#' @param ignore Words to ignore, such as stop words.
#' @param starts The number of random starts; the best result is returned.
#' @returns An object of class `minhub_topics`: a list with two data frames.
#'   * `$topics` has one row per topic, the largest first, and the columns `topic` (a
#'     number), `size` (the number of texts) and `words`.
#'   * `$texts` has one row per text and the columns `text` (the number, or a factor of
#'     the row names of `x`), `topic` and `similarity` (the cosine to the topic's mean).
#'     A text with `NA` has no topic. `as.data.frame()` returns this one.
#'
#'   `plot()` draws the size and the words of each topic.
#' @references Grootendorst (2022), "BERTopic: Neural topic modeling with a class-based
#'   TF-IDF procedure".
#' @family functions for text encoders
#' @examples
#' texts <- c("a red apple", "a green apple", "the old king", "the young king")
#' x <- rbind(c(1, 0.1), c(0.9, 0), c(0, 1), c(0.1, 0.8))
#' set.seed(1)
#' found <- text_topics(x, texts, topics = 2)
#' found
#' plot(found)
#' @export
text_topics <- function(x, texts = NULL, topics = 10, words = 8, ignore = character(), starts = 10) {
  x <- embedding_matrix(x, "x")
  topics <- whole_number(topics, min = 1)
  words <- whole_number(words, min = 1)
  ignore <- if (length(ignore)) texts(ignore) else character()
  if (!is.null(texts)) texts <- argument_texts(texts, missing = TRUE)
  if (!is.null(texts) && length(texts) != nrow(x)) fail("texts must have one text per row of x, ", nrow(x), ", not ", length(texts))
  unit <- unit_rows(x)
  known <- which(!is.na(rowSums(unit)))
  different <- nrow(unique(unit[known, , drop = FALSE]))
  if (topics > different) fail("topics must be at most ", different, ", the number of different embeddings, not ", topics)
  cluster <- stats::kmeans(
    unit[known, , drop = FALSE], topics, nstart = whole_number(starts, min = 1), iter.max = 100L,
    algorithm = if (topics < length(known)) "Hartigan-Wong" else "Lloyd" # the former requires fewer clusters than rows
  )$cluster
  cluster <- match(cluster, order(-tabulate(cluster, topics))) # the largest topic is the first
  topic <- similarity <- rep(NA, nrow(x))
  topic[known] <- cluster
  centers <- unit_rows(rowsum(unit[known, , drop = FALSE], cluster, reorder = TRUE))
  similarity[known] <- rowSums(unit[known, , drop = FALSE] * centers[cluster, , drop = FALSE])
  structure(
    list(
      topics = data.frame(
        topic = seq_len(topics), size = tabulate(cluster, topics),
        words = if (is.null(texts)) NA_character_ else topic_words(texts[known], cluster, topics, words, ignore)
      ),
      texts = data.frame(
        text = text_of_row(seq_len(nrow(x)), rownames(x)), topic = as.integer(topic), similarity = as.double(similarity)
      )
    ),
    class = "minhub_topics"
  )
}

topic_words <- function(texts, topic, topics, most, ignore) {
  tokens <- strsplit(tolower(texts), "[^\\p{L}\\p{N}'\u2019]+", perl = TRUE)
  word <- unlist(tokens)
  topic <- factor(rep(topic, lengths(tokens)), seq_len(topics))
  kept <- !is.na(word) & nzchar(word) & !word %in% tolower(ignore)
  counts <- table(word[kept], topic[kept])
  if (!length(counts)) return(rep("", topics))
  share <- sweep(counts, 2L, pmax(colSums(counts), 1), "/")
  weight <- share * log(1 + mean(colSums(counts)) / rowSums(counts))
  apply(weight, 2L, function(column) {
    best <- utils::head(order(-column), most)
    paste(rownames(counts)[best[column[best] > 0]], collapse = ", ")
  })
}

#' @export
format.minhub_topics <- function(x, ...) {
  c(paste0("<", nrow(x$topics), " topics of ", grouped(nrow(x$texts)), " texts>"), format_rows(x$topics))
}

#' @export
print.minhub_topics <- function(x, ...) print_format(x, ...)

#' @rdname tidy.minhub
#' @export
as.data.frame.minhub_topics <- function(x, ...) x$texts

#' @rdname text_topics
#' @param main The title.
#' @param col The color of the bars.
#' @param ... Graphical parameters for [graphics::par()].
#' @export
plot.minhub_topics <- function(x, main = "Texts and words of each topic", col = "#0072B2", ...) {
  col <- check_color(col)
  draw_panels(main, function(i) draw_topics(x$topics, col), ...)
  invisible(x)
}

draw_topics <- function(topics, col) {
  n <- nrow(topics)
  names <- paste("topic", topics$topic)
  size <- text_size(names, figure_width() * 0.2, (figure_height() - lines_high(5)) / n)
  set_margins(left = text_width(names, size, "") + 0.25, bottom = lines_high(2), right = 0.2)
  graphics::plot.window(c(0, max(topics$size) * 3), c(n + 0.5, 0.5), xaxs = "i", yaxs = "i")
  graphics::rect(0, seq_len(n) - 0.4, topics$size, seq_len(n) + 0.4, col = col, border = NA)
  graphics::text(-graphics::xinch(0.08), seq_len(n), names, adj = c(1, 0.5), cex = size, xpd = NA)
  words <- ifelse(is.na(topics$words), "", topics$words)
  room <- graphics::par("usr")[[2L]] - topics$size - graphics::xinch(0.2)
  shown <- paste0(grouped(topics$size), "   ", words)
  small <- size * pmin(1, room / graphics::strwidth(shown, cex = size))
  graphics::text(topics$size + graphics::xinch(0.08), seq_len(n), shown, adj = c(0, 0.5), cex = pmax(small, 0.1))
}
