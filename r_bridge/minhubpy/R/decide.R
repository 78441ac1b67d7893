#' Answer typed questions about texts
#'
#' Answers questions with a chat model, with a probability for every answer. Nothing
#' is generated: the options of a question have labels of one token (Yes and No, or A,
#' B, C, and so on), and their probabilities after the prompt are the result. Questions
#' about a text share its computation.
#'
#' A repository may contain labels, temperatures and a prompt for decisions
#' (`decision.json` and `decision_template.jinja`, as in the Python package
#' transformers), which are then used.
#'
#' The position of an option in the prompt affects its probability. `orders` averages
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
#'   Options are rotated; the levels of a score are reversed in every second order.
#' @param seed The seed of the permutations after a full rotation.
#' @param options Whether to add the probability of each option.
#' @returns A data frame with one row per text and question, and the columns
#'   * `text`: the number of the text, or a factor of the names of `texts`;
#'   * `question`: a factor;
#'   * `type`: the type of the question;
#'   * `answer`: the most likely option; for a score, the level from 0;
#'   * `prob`: its probability;
#'   * `confidence`: from 0 for equal probabilities to 1; `NA` for `"noul"`;
#'   * `score`: the expected level; `NA` for other types;
#'   * `spread`: the standard deviation of `prob` over the orders;
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
