#' Answer typed questions about texts
#'
#' Answers questions with a chat model, with a probability for every answer. Nothing
#' is generated: a question's options have labels of one token (Yes and No, or A,
#' B, C, and so on), and their probabilities after the prompt are the result. Questions
#' about a text share its computation.
#'
#' A repository may contain labels, temperatures and a prompt for decisions
#' (`decision.json` and `decision_template.jinja`, as in the Python package
#' transformers), which are then used.
#'
#' An option's position in the prompt affects its probability. `orders` averages
#' over several orders of the options (Pezeshkpour and Hruschka 2024).
#'
#' @inheritParams generate
#' @inheritParams word_logprobs
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()].
#' @param model A chat model, see [from_pretrained()].
#' @param texts A character vector or a factor, or a data frame with a column
#'   `text`. The answers about a text that is `NA` are `NA`.
#' @param questions A named list of questions. A question is a list with
#'   * `type`: `"choice"` (one of several options), `"score"` (a level) or `"noul"`
#'     (true or false);
#'   * `instructions`: the question, a string;
#'   * `criteria`: for `"choice"`, a character vector of options, or of descriptions
#'     with the options as names; for `"score"`, descriptions of the levels, lowest
#'     first; for `"noul"`, optional descriptions with the names `true` and `false`.
#'     `NA` is no description.
#' @param orders The number of orders of the options whose mean is the result.
#'   Options are rotated; a score's levels are reversed in every second order.
#' @param seed The seed of the permutations after a full rotation.
#' @param options Whether to add each option's probability.
#' @returns A data frame with one row per text and question, and the columns
#'   * `text`: the number of the text, or a factor of the names of `texts`;
#'   * `question`: a factor;
#'   * `type`: the type of the question;
#'   * `answer`: the most likely option; for a score, the level from 0;
#'   * `prob`: its probability;
#'   * `confidence`: from 0 for equal probabilities to 1; `NA` for `"noul"`;
#'   * `score`: the expected level; `NA` for other types;
#'   * `spread`: the standard deviation of `prob` over the orders;
#'   * `temperature`: the temperature of the question's type, see [calibrate_decisions()];
#'   * `prob_OPTION` for each option, if `options`.
#' @references
#' Pezeshkpour, P. and Hruschka, E. (2024). Large language models sensitivity to the
#' order of options in multiple-choice questions. Findings of NAACL 2024.
#' @family functions for labels
#' @examplesIf minhubpy:::is_ready(model = "HuggingFaceTB/SmolLM2-135M-Instruct")
#' model <- from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
#' questions <- list(
#'   tone = list(type = "choice", instructions = "What is the tone?", criteria = c("calm", "angry")),
#'   refund = list(type = "noul", instructions = "Is a refund requested?")
#' )
#' decide_texts(model, c("I was charged twice and want my money back.", NA), questions)
#' \dontshow{minhubpy:::end_example()}
#' @export
decide_texts <- function(model, texts, questions, orders = 1, seed = 0, options = FALSE, tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  if (is.data.frame(texts)) texts <- column_of(texts, "text")
  labels <- names(texts)
  texts <- check_words(texts, NULL, "texts")
  asked <- check_questions(questions)
  settings <- list(
    questions = asked, orders = whole_number(orders, min = 1), seed = whole_number(seed),
    options = flag(options), tokenizer = check_tokenizer(tokenizer)
  )
  result <- ask_labels("decide", model, texts, settings, resume, join = join_tokens)
  result$text <- text_of_row(result$text, labels)
  result$question <- factor(result$question, names(asked))
  result
}

# The questions as flat lists. Python checks the types and the number of options.
check_questions <- function(questions) {
  example <- 'list(spam = list(type = "noul", instructions = "Is it spam?"))'
  if (!is.list(questions) || !length(questions) || is.null(names(questions)) || !all(nzchar(names(questions)))) {
    fail("questions must be a named list, such as ", example)
  }
  lapply(stats::setNames(nm = names(questions)), function(name) {
    question <- questions[[name]]
    unknown <- setdiff(names(question), c("type", "instructions", "criteria"))
    if (!is.list(question) || length(unknown)) {
      fail("question ", name, " must be a list with type, instructions and criteria, such as ", example)
    }
    type <- choice(question$type, c("choice", "score", "noul"), paste("the type of question", name))
    criteria <- question$criteria
    if (is.list(criteria)) criteria <- vapply(criteria, function(x) if (is.null(x)) NA_character_ else as.character(x), "")
    if (!is.null(criteria) && !is.character(criteria)) {
      fail("the criteria of question ", name, " must be a character vector, not ", describe(criteria))
    }
    named <- !is.null(names(criteria))
    if (type == "noul" && length(criteria) && !named) fail("the criteria of question ", name, " must be named true and false")
    list(
      type = type, instructions = optional(question$instructions, string, "instructions"),
      options = if (length(criteria)) (if (named) names(criteria) else unname(criteria)),
      descriptions = if (length(criteria)) (if (named || type == "score") unname(criteria) else rep(NA_character_, length(criteria)))
    )
  })
}

#' Calibrate the probabilities of decisions by hand-coded answers
#'
#' Of the answers with a calibrated probability of 0.8, 80 % are right. Hand-coded
#' answers to some of the questions calibrate the probabilities by cross-fitting. The
#' probabilities of a text do not depend on its hand-coded answer, so that errors
#' before and after are comparable, and [corrected_estimate()] remains valid.
#'
#' * `"temperature"`: one number for each type of question, which divides the scores
#'   of the options (Guo et al. 2017). It changes no answer. It needs the result of
#'   [decide_texts()] with `orders = 1`; with several orders, use `"isotonic"`.
#' * `"isotonic"`: for each option of a question, an increasing step function of its
#'   probability (Zadrozny and Elkan 2002). It corrects more, and needs more
#'   hand-coded answers.
#'
#' @param decisions The result of [decide_texts()] with the columns of all options.
#' @param truth The hand-coded answers: a column's name, or a vector with one
#'   element for each row, `NA` for rows that were not coded. Answers are options, levels from
#'   0, or `TRUE` and `FALSE`.
#' @param method The method.
#' @param folds The number of folds.
#' @param bins The number of bins of the expected calibration error.
#' @param seed The seed of the division into folds.
#' @param save A model's folder, see [save_pretrained()], in whose
#'   `decision.json` the temperatures are stored. [decide_texts()], [minhub_serve()]
#'   and the Python package transformers use them. `NULL`: they are not stored.
#' @param object,x The result.
#' @param main The titles of the plots. `NULL`: the types of questions.
#' @param col The colors before and after.
#' @param ... For plots, graphical parameters. Otherwise not used.
#' @returns An object of class `minhub_calibration`, a list with
#'   * `errors`: a data frame with the columns type, n (hand-coded answers),
#'     temperature, `ece_before`, `ece_after` (expected calibration error),
#'     `brier_before`, `brier_after` (Brier score, from 0 to 1), and spread (mean over
#'     the orders of the options);
#'   * `decisions`: the data frame `decisions` with calibrated columns;
#'   * `temperature`: the temperature of each type, from all hand-coded answers;
#'   * `curve`: the points of the plot, which shows the share of right answers by the
#'     probability of the answer.
#' @references
#' Guo, C., Pleiss, G., Sun, Y. and Weinberger, K. Q. (2017). On calibration of modern
#' neural networks. ICML.
#'
#' Zadrozny, B. and Elkan, C. (2002). Transforming classifier scores into accurate
#' multiclass probability estimates. KDD.
#' @family functions for labels
#' @examplesIf minhubpy:::is_ready()
#' set.seed(1)
#' p <- runif(300)
#' decisions <- data.frame(
#'   text = 1:300, question = "refund", type = "noul", prob_true = p, prob_false = 1 - p,
#'   spread = 0, temperature = 1
#' )
#' decisions$coded <- ifelse(1:300 <= 60, runif(300) < plogis(qlogis(p) / 3), NA)
#' calibrate_decisions(decisions, "coded")
#' \dontshow{minhubpy:::end_example()}
#' @export
calibrate_decisions <- function(decisions, truth, method = c("temperature", "isotonic"), folds = 5, bins = 10, seed = 0,
                                save = NULL) {
  if (!is.data.frame(decisions)) fail("decisions must be the data frame of decide_texts(), not ", describe(decisions))
  if (is.character(truth) && length(truth) == 1L) truth <- column_of(decisions, truth)
  truth <- as_text(truth)
  if (is.logical(truth)) truth <- as.character(truth)
  if (!is.atomic(truth) || length(truth) != nrow(decisions)) {
    fail("truth must have one value for each of ", nrow(decisions), " rows, or be the name of a column, not ", describe(truth))
  }
  method <- choice(method, c("temperature", "isotonic"))
  options <- grep("^prob_", names(decisions), value = TRUE)
  if (!length(options)) fail("decisions has no columns prob_OPTION: call decide_texts() with options = TRUE")
  used <- c("text", "question", "type", options, "spread", "temperature")
  columns <- lapply(stats::setNames(nm = used), function(name) as_text(column_of(decisions, name)))
  if (anyNA(columns$question)) fail("the column question must not contain NA, as at position ", positions_of(is.na(columns$question)), ": drop these rows")
  result <- ask(
    "calibrate",
    table = columns, truth = truth, estimator = method, folds = whole_number(folds, min = 2),
    bins = whole_number(bins, min = 1), seed = whole_number(seed), save = optional(save, string, "save")
  )
  decisions[names(result$decisions)] <- result$decisions
  decisions$temperature <- NA_real_
  structure(
    list(
      errors = result$frame, decisions = decisions, temperature = stats::setNames(as.double(result$temperature), result$types),
      curve = result$curve, method = method
    ),
    class = "minhub_calibration"
  )
}

#' @rdname calibrate_decisions
#' @export
print.minhub_calibration <- function(x, ...) print_format(x, ...)

#' @export
format.minhub_calibration <- function(x, ...) c(paste0("Calibration by ", x$method, ", cross-fitted"), format_rows(x$errors))

#' @rdname calibrate_decisions
#' @export
as.data.frame.minhub_calibration <- function(x, ...) x$errors

#' @rdname calibrate_decisions
#' @export
coef.minhub_calibration <- function(object, ...) object$temperature

#' @rdname calibrate_decisions
#' @export
plot.minhub_calibration <- function(x, main = NULL, col = c("#D55E00", "#0072B2"), ...) {
  col <- rep_len(check_color(col), 2L)
  types <- x$errors$type
  draw_panels(panel_titles(main, types, "types of questions", "the types"), function(i) draw_reliability(x$curve[x$curve$type == types[[i]], ], col), ...)
  invisible(x)
}

draw_reliability <- function(curve, col) {
  set_margins(left = lines_high(3), bottom = lines_high(3.6), right = 0.3)
  graphics::plot.window(c(0, 1), c(0, 1))
  ticks <- seq(0, 1, 0.25)
  graphics::abline(0, 1, col = "grey50", lty = 2L)
  graphics::axis(1L, ticks, lwd = 0, mgp = c(2, 0.3, 0))
  graphics::axis(2L, ticks, lwd = 0, mgp = c(2, 0.3, 0), las = 1L)
  for (i in 1:2) {
    points <- curve[curve$when == c("before", "after")[[i]], ]
    graphics::lines(points$prob, points$correct, col = col[[i]], lwd = 1.5)
    graphics::points(points$prob, points$correct, pch = 16L, cex = 0.6 + 1.6 * sqrt(points$n / sum(points$n)), col = col[[i]])
  }
  graphics::mtext("share of right answers", side = 2L, line = 2, cex = 0.9 * graphics::par("cex"))
  legend_above(c("before", "after"), col, c(1L, 1L), c(2.5, 2.5))
  footer("probability of the answer; ", grouped(sum(curve$n) / 2), " hand-coded answers")
}
