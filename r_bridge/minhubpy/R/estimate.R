#' Choose texts for human coding
#'
#' Chooses texts for human coding, uncertain ones more often, each with a known
#' probability, which [corrected_estimate()] requires.
#'
#' A text's probability is `n / N * (minimum + (1 - minimum) * u / mean(u))`,
#' at most 1, with `u = sqrt((1 - margin) / 2)`. Exactly `n` texts are chosen, by
#' systematic sampling in random order.
#'
#' @param x The margins of the texts, or a data frame with a column `margin`, such as
#'   the result of [annotate_texts()]. A text without a margin is not available.
#' @param n The number of texts.
#' @param minimum The share of the probability that does not depend on the margin.
#'   1 is a simple random sample.
#' @param uncertainty The expected root of each text's squared error, instead of
#'   `u`.
#' @param seed The seed. `NULL`: drawn from R's generator, so that `set.seed()`
#'   applies.
#' @returns A data frame with the columns `selected` and `probability`. If `x` is a
#'   data frame, the columns are added to it. Store the probability with the texts.
#' @family functions for labels
#' @examplesIf minhubpy:::is_ready()
#' choose_for_coding(c(0.1, 0.9, 0.5, 0.7), 2, seed = 1)
#' \dontshow{minhubpy:::end_example()}
#' @export
choose_for_coding <- function(x, n, minimum = 0.1, uncertainty = NULL, seed = NULL) {
  margin <- plain(if (is.data.frame(x)) column_of(x, "margin") else x)
  uncertainty <- plain(uncertainty)
  if (!is_plain_number(margin)) fail("x must be margins or a data frame with a column margin, not ", describe(x))
  if (!is.null(uncertainty) && !is_plain_number(uncertainty)) fail("uncertainty must be numbers, not ", describe(uncertainty))
  if (is.null(seed)) seed <- sample.int(.Machine$integer.max, 1L)
  result <- ask(
    "choose_for_coding",
    margin = as.double(margin), n = whole_number(n, min = 1), minimum = number(minimum),
    uncertainty = if (!is.null(uncertainty)) as.double(uncertainty), seed = whole_number(seed)
  )
  if (is.data.frame(x)) add_columns(x, result) else result
}

#' Estimate means and regressions from a model's labels, corrected by human labels
#'
#' Intervals from a model's labels alone ignore the errors of the model. Human
#' labels of some texts, drawn with known probabilities, correct both the estimate
#' and its interval.
#'
#' * `"ppi++"`, `"ppi"`: prediction-powered inference (Angelopoulos et al. 2023), for a
#'   simple random sample of texts.
#' * `"dsl"`: design-based supervised learning (Egami et al. 2023).
#' * `"confidence"`: confidence-driven inference (Gligoric et al. 2024).
#' * `"human"`: the coded texts only. `"naive"`: the model's labels only.
#'
#' `"auto"` is `"ppi++"` for a simple random sample, and `"confidence"` otherwise.
#'
#' @param formula A formula such as `human ~ year + party`, or `human ~ 1` for a mean.
#'   Its left side is `NA` for texts without a human label. It may be a comparison,
#'   such as `human == "positive"`.
#' @param data A data frame with one row per text, or the result of [decide_texts()]
#'   with the columns of all options, and columns of hand-coded answers and covariates.
#' @param prediction The model's labels as numbers or logical values, such as a column
#'   of probabilities: a column's name, or a vector. `NULL`, for decisions: the
#'   probability of `true`, or the score.
#' @param question For decisions, the question whose rows are used.
#' @param probability Each text's probability of being chosen: a column's name,
#'   or a vector. `NULL`: a simple random sample.
#' @param family `"linear"` or `"logistic"`.
#' @param method The method.
#' @param confidence The confidence of the intervals.
#' @param cluster Each text's cluster, such as its author, for standard errors
#'   that allow for dependent texts: a column's name, or a vector.
#' @param cross_fit The number of folds of cross-fitting: the labels of a fold are
#'   predicted from the model's labels, the covariates and the human labels of the
#'   other folds, for shorter intervals. 0: the model's labels.
#' @param splits The number of divisions into folds; the result is their median.
#' @param seed The seed of the divisions.
#' @param object,x The result.
#' @param parm Terms, by name or number. `NULL`: all.
#' @param level Not used: `confidence` sets the confidence.
#' @param main The title of the plot.
#' @param col The colors of the corrected and of the naive estimates.
#' @param ... For plots, graphical parameters. Otherwise not used.
#' @returns An object of class `minhub_estimate`, a list with `estimates` (a data
#'   frame with the columns term, estimate, std_error, lower and upper), `naive` (the
#'   same from the model's labels alone), `covariance`, `method`, `power`, `texts`
#'   and `coded`. [coef()], [vcov()], [confint()], [plot()], [as.data.frame()] and
#'   `generics::tidy()` apply to it.
#' @importFrom stats coef confint vcov
#' @family functions for labels
#' @examplesIf minhubpy:::is_ready()
#' set.seed(1)
#' texts <- data.frame(year = rnorm(300))
#' truth <- rbinom(300, 1, 0.5)
#' texts$model <- ifelse(runif(300) < 0.2, 1 - truth, truth)
#' texts$human <- ifelse(seq_len(300) <= 80, truth, NA)
#' corrected_estimate(human ~ year, texts, prediction = "model")
#' \dontshow{minhubpy:::end_example()}
#' @export
corrected_estimate <- function(formula, data, prediction = NULL, probability = NULL, family = c("linear", "logistic"),
                               method = c("auto", "ppi++", "ppi", "dsl", "confidence", "naive", "human"),
                               confidence = 0.95, cluster = NULL, cross_fit = 0, splits = 10, seed = 0, question = NULL) {
  if (!inherits(formula, "formula") || length(formula) != 3L) fail("formula must have two sides, such as human ~ year, not ", describe(formula))
  if (!is.data.frame(data)) fail("data must be a data frame, not ", describe(data))
  all <- nrow(data)
  rows <- rows_of_question(data, question)
  data <- plain_columns(data[rows, , drop = FALSE])
  if (is.null(prediction)) prediction <- prediction_of(data)
  frame <- tryCatch(
    stats::model.frame(formula, data, na.action = stats::na.pass),
    error = function(error) fail("formula cannot be evaluated with the columns of data (", toString(names(data)), "): ", conditionMessage(error))
  )
  human <- plain(stats::model.response(frame))
  if (!is_plain_number(human) && !is.logical(human)) {
    fail("the left side of formula must be numbers or logical values, not ", describe(human), ': compare it, as in human == "positive"')
  }
  design <- stats::model.matrix(attr(frame, "terms"), frame)
  if (nrow(design) != nrow(data)) fail("a covariate must not contain NA: drop the rows without it")
  of_rows <- function(value) if (length(value) == all && nrow(data) < all) value[rows] else value # vectors for all rows of `data`
  column <- function(value, what) {
    if (is.character(value) && length(value) == 1L) value <- column_of(data, value)
    value <- of_rows(plain(value, what))
    if (!is_plain_number(value) && !is.logical(value)) fail(what, " must be numbers, logical values or the name of such a column, not ", describe(value))
    if (length(value) != nrow(data)) fail(what, " must have one value for each of ", nrow(data), " rows, not ", length(value))
    as.double(value)
  }
  if (is.character(cluster) && length(cluster) == 1L) cluster <- column_of(data, cluster)
  cluster <- of_rows(plain(cluster))
  if (!is.null(cluster)) {
    if (!is.atomic(cluster)) fail("cluster must be a vector or the name of a column, not ", describe(cluster))
    if (length(cluster) != nrow(data)) fail("cluster must have one value for each of ", nrow(data), " rows, not ", length(cluster))
    if (anyNA(cluster)) fail("cluster must not contain NA, as at position ", positions_of(is.na(cluster)), ": drop or replace it")
    cluster <- match(cluster, unique(cluster))
  }
  result <- ask(
    "corrected_estimate",
    cluster = cluster, cross_fit = whole_number(cross_fit), splits = whole_number(splits, min = 1), seed = whole_number(seed),
    human = as.double(human), predicted = column(prediction, "prediction"),
    design = matrix(as.double(design), nrow(design)), terms = colnames(design),
    family = choice(family, c("linear", "logistic")),
    estimator = choice(method, c("auto", "ppi++", "ppi", "dsl", "confidence", "naive", "human")),
    probability = if (!is.null(probability)) column(probability, "probability"), confidence = number(confidence, min = 0, max = 1)
  )
  covariance <- matrix(result$covariance, ncol(design), dimnames = list(colnames(design), colnames(design)))
  structure(
    list(
      estimates = result$frame, naive = result$naive, covariance = covariance, method = result$method, power = result$power,
      texts = result$texts, coded = result$coded, confidence = confidence, formula = formula
    ),
    class = "minhub_estimate"
  )
}

# The rows of one question of a decision table.
rows_of_question <- function(data, question) {
  if (is.null(question)) {
    asked <- if (is_decisions(data)) unique(as.character(data$question))
    if (length(asked) > 1L) fail("data has decisions about several questions: set question to one of ", toString(asked))
    return(seq_len(nrow(data)))
  }
  asked <- as.character(column_of(data, "question"))
  question <- choice(question, unique(asked))
  which(asked == question)
}

is_decisions <- function(data) all(c("text", "question", "type", "answer") %in% names(data))

# The column of predictions of a question of true and false, or of a score.
prediction_of <- function(data) {
  type <- if (is_decisions(data)) unique(as.character(data$type))
  if (identical(type, "noul")) return("prob_true")
  if (identical(type, "score")) return("score")
  options <- grep("^prob_", names(data), value = TRUE)
  fail("prediction must be the name of a column of numbers", if (length(options)) c(", such as ", options[[1L]]))
}

#' @rdname corrected_estimate
#' @export
print.minhub_estimate <- function(x, ...) print_format(x, ...)

#' @export
format.minhub_estimate <- function(x, ...) {
  formula <- paste(deparse(x$formula), collapse = " ")
  c(
    paste0(formula, ": ", x$texts, " texts, ", x$coded, " with a human label, method ", x$method, ", ", 100 * x$confidence, " % intervals"),
    format_rows(x$estimates)
  )
}

#' @rdname corrected_estimate
#' @export
as.data.frame.minhub_estimate <- function(x, ...) x$estimates

#' @rdname corrected_estimate
#' @export
coef.minhub_estimate <- function(object, ...) stats::setNames(object$estimates$estimate, object$estimates$term)

#' @rdname corrected_estimate
#' @export
vcov.minhub_estimate <- function(object, ...) object$covariance

#' @rdname corrected_estimate
#' @export
confint.minhub_estimate <- function(object, parm = NULL, level = NULL, ...) {
  result <- as.matrix(object$estimates[c("lower", "upper")])
  rownames(result) <- object$estimates$term
  if (is.null(parm)) result else result[parm, , drop = FALSE]
}

#' @rdname corrected_estimate
#' @export
plot.minhub_estimate <- function(x, main = "Estimates", col = c("#0072B2", "#D55E00"), ...) {
  col <- rep_len(check_color(col), 2L)
  draw_panels(main, function(i) draw_estimates(x, col), ...)
  invisible(x)
}

draw_estimates <- function(x, col) {
  series <- Filter(Negate(is.null), list(x$estimates, x$naive))
  limits <- range(0, lapply(series, `[`, c("lower", "upper")))
  draw_intervals(shorten(x$estimates$term, 30L), series, col, limits, reference = 0)
  if (length(series) > 1L) legend_above(c(x$method, "model's labels only"), col, c(1L, 1L), c(2.5, 2.5))
  footer(100 * x$confidence, " % intervals; ", grouped(x$coded), " of ", grouped(x$texts), " texts with a human label")
}
