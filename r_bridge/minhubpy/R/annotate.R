#' Label texts with a language model
#'
#' Computes each label's probability as the answer to a prompt, which
#' consists of an instruction, examples and the text. A model with a chat template
#' receives the prompt as messages.
#'
#' A label's score is the log-probability of its complete token sequence;
#' the probabilities are a softmax of the scores over the labels. `length` divides
#' the score by the number of tokens or of characters. If one label's tokens are the
#' beginning of another label, the end token is added to every label.
#'
#' `calibrate = "contextual"` divides the probabilities by their mean for the texts
#' `"N/A"`, `""` and `"[MASK]"` (Zhao et al. 2021). `"pmi"` subtracts the
#' log-probability of the label after the prompt without the text (Holtzman et al.
#' 2021).
#'
#' @inheritParams generate
#' @inheritParams word_logprobs
#' @param model A model, or a list of models with names, to compare their labels.
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()].
#' @param texts A character vector or a factor, or a data frame with a column
#'   `text`. The result of a text that is `NA` is `NA`.
#' @param labels Labels: a character vector. Its names, if any, are the labels, and
#'   its values their definitions. Or a codebook's path in YAML.
#' @param instruction The task. `NULL`: the codebook's, or a list of the labels.
#' @param examples Coded examples: a data frame with the columns `text` and `label`.
#' @param calibrate `NULL`, `"contextual"` or `"pmi"`.
#' @param length `"sum"`, `"tokens"` or `"characters"`.
#' @param template A text's prompt, with `{text}`.
#' @param premise For `"pmi"`: the prompt without a text. `NULL`: `template`
#'   without the text.
#' @param chat Whether to use the chat template. `NULL`: if the model has one.
#' @param sep The string between prompt and label. `NULL`: a space, or nothing for a
#'   chat.
#' @returns A data frame with one row per text and the columns
#'   * `label`: the most likely label, a factor;
#'   * `prob`: its probability;
#'   * `margin`: the difference to the second largest probability;
#'   * `prob_LABEL` for each label: its probability.
#'
#'   If `texts` is a data frame, the columns are added to it. For a list of models, the
#'   rows of all models follow each other, and the first column is `model`, a factor:
#'   `do.call(label_agreement, split(x$label, x$model))` compares the models.
#' @family functions for labels
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' annotate_texts(model, c("O Romeo!", NA), c("joy", "grief"))
#' \dontshow{minhubpy:::end_example()}
#' @export
annotate_texts <- function(model, texts, labels, instruction = NULL, examples = NULL, calibrate = NULL,
                           length = c("sum", "tokens", "characters"), template = NULL, premise = NULL, chat = NULL,
                           sep = NULL, tokenizer = NULL, resume = NULL, manifest = NULL) {
  if (is_plain_list(model)) {
    names <- names(model)
    if (!base::length(model) || is.null(names) || !all(nzchar(names)) || anyDuplicated(names)) {
      fail("a list of models must have unique names, such as list(small = , large = )")
    }
    if (!is.null(resume) || !is.null(manifest)) fail("resume and manifest require one model: call annotate_texts() for each")
    # Before the first one computes.
    models <- Map(check_model, model, paste0("model$", names))
    if (is.data.frame(texts) && "model" %in% names(texts)) {
      warn("existing columns of the data frame were replaced: model")
      texts$model <- NULL
    }
    results <- lapply(names, function(name) {
      result <- annotate_texts(
        models[[name]], texts, labels, instruction, examples, calibrate, length, template, premise, chat, sep, tokenizer
      )
      cbind(model = factor(rep(name, nrow(result)), names), result)
    })
    return(do.call(rbind, results))
  }
  model <- check_model(model)
  input <- texts
  if (is.data.frame(texts)) texts <- column_of(texts, "text")
  texts <- check_words(texts, NULL, "texts")
  codebook <- definitions <- NULL
  if (is.character(labels) && base::length(labels) == 1L && grepl("\\.(ya?ml|json)$", labels, ignore.case = TRUE)) {
    codebook <- normalizePath(labels, mustWork = FALSE)
    if (!file.exists(codebook)) fail("labels: the codebook ", labels, " does not exist: check its path")
    labels <- NULL
  } else {
    if (!is.null(names(labels))) {
      definitions <- texts(unname(labels), "labels")
      labels <- names(labels)
    }
    labels <- texts(labels)
    if (base::length(labels) < 2L) fail("labels must be at least two labels, not ", describe(labels))
    if (anyDuplicated(labels)) fail("labels must not be repeated: ", labels[duplicated(labels)][[1L]])
  }
  if (!is.null(examples) && !is.data.frame(examples)) fail("examples must be a data frame with the columns text and label")
  settings <- list(
    labels = labels, definitions = definitions, codebook = codebook,
    instruction = optional(instruction, string, "instruction"),
    example_texts = if (!is.null(examples)) texts(column_of(examples, "text"), "examples"),
    example_labels = if (!is.null(examples)) texts(column_of(examples, "label"), "examples"),
    calibrate = optional(calibrate, choice, c("contextual", "pmi"), "calibrate"),
    length = choice(length, c("sum", "tokens", "characters")), template = optional(template, string, "template"),
    premise = optional(premise, string, "premise"), chat = optional(chat, flag, "chat"), sep = optional(sep, string, "sep"),
    tokenizer = check_tokenizer(tokenizer)
  )
  if (!is.null(manifest)) {
    given <- settings[names(settings) != "tokenizer"]
    result <- run_job(model, manifest, "annotate", list(text = texts), given, "text", NULL, settings$tokenizer, resume)
    result <- as.data.frame(result, optional = TRUE)
    result$label <- factor(result$label, sub("^prob_", "", names(result)[-(1:3)]))
    return(with_labels(input, result))
  }
  content <- if (!is.null(codebook)) readLines(codebook, warn = FALSE)
  with_labels(input, ask_labels("annotate", model, texts, settings, resume, record = list(content = content)))
}

#' Measure the agreement of raters
#'
#' Computes percent agreement, Cohen's kappa, weighted kappa, Fleiss' kappa,
#' Krippendorff's alpha, Gwet's AC1 and AC2, and macro F1, with bootstrap intervals
#' over units.
#'
#' Krippendorff's alpha is correct for three or more raters and for missing
#' labels. Fleiss' kappa pools the marginals of the raters, so that it is Scott's
#' pi for two raters. With missing labels, each label has the same weight; the package
#' irrCAC gives each unit the same weight. AC1 and AC2 are less affected by unequal
#' frequencies of the labels; AC2 counts partial agreement and requires another
#' `level` than `"nominal"`. Macro F1 leaves out categories that no rater uses.
#'
#' @param ... Vectors with each rater's labels, one value per unit, or a data
#'   frame with one column per rater. Names are the names of the raters. `NA` is a
#'   missing label.
#' @param level The level of measurement: `"nominal"`, `"ordinal"`, `"interval"`
#'   or `"ratio"`.
#' @param bootstrap The number of bootstrap samples; 0 for no intervals.
#' @param confidence The confidence of the intervals.
#' @param seed The seed of the bootstrap.
#' @param x The result.
#' @param col The color of the confusion matrix.
#' @param main The title of the plot.
#' @returns An object of class `minhub_agreement`, a list with `statistics` (a data
#'   frame with the columns statistic, estimate, lower and upper), `confusion` (for
#'   two raters, with rows for the first), `f1` of each category, and `units`.
#'   Factors keep the order of their levels.
#' @family functions for labels
#' @examplesIf minhubpy:::is_ready()
#' human <- c("a", "b", "a", NA, "b", "a")
#' model <- c("a", "b", "b", "a", "b", "a")
#' label_agreement(human, model)
#' \dontshow{minhubpy:::end_example()}
#' @export
label_agreement <- function(..., level = c("nominal", "ordinal", "interval", "ratio"), bootstrap = 1000, confidence = 0.95,
                            seed = 0) {
  raters <- list(...)
  if (length(raters) == 1L && is.data.frame(raters[[1L]])) raters <- as.list(raters[[1L]])
  raters <- lapply(raters, plain, what = "a rater")
  if (length(raters) < 2L) fail("label_agreement() needs at least two raters: pass one vector for each, or a data frame")
  level <- choice(level, c("nominal", "ordinal", "interval", "ratio"))
  categories <- NULL
  factors <- vapply(raters, is.factor, NA)
  if (any(factors)) categories <- unique(unlist(lapply(raters, function(x) if (is.factor(x)) levels(x) else sort(unique(as.character(x))))))
  numeric <- !any(factors) && all(vapply(raters, function(x) is_plain_number(x) || is.logical(x), NA))
  names <- names(raters)
  raters <- lapply(raters, function(x) if (numeric) as.double(x) else as.character(x))
  result <- ask(
    "label_agreement",
    raters = unname(raters), level = level, categories = categories,
    bootstrap = whole_number(bootstrap), confidence = number(confidence, min = 0, max = 1), seed = whole_number(seed)
  )
  confusion <- result$confusion
  if (!is.null(confusion)) dimnames(confusion) <- stats::setNames(list(result$categories, result$categories), rater_names(names))
  f1 <- result$f1
  if (!is.null(f1)) names(f1) <- result$categories
  structure(
    list(statistics = result$frame, confusion = confusion, f1 = f1, units = result$units, raters = length(raters)),
    class = "minhub_agreement"
  )
}

rater_names <- function(names) {
  default <- c("first rater", "second rater")
  if (is.null(names)) default else ifelse(nzchar(names), names, default)
}

#' @rdname label_agreement
#' @export
print.minhub_agreement <- function(x, ...) print_format(x, ...)

#' @export
format.minhub_agreement <- function(x, ...) {
  c(paste0("Agreement of ", x$raters, " raters, ", x$units, " units"), format_rows(x$statistics))
}

#' @rdname label_agreement
#' @export
as.data.frame.minhub_agreement <- function(x, ...) x$statistics

#' @rdname label_agreement
#' @export
plot.minhub_agreement <- function(x, main = "Confusion matrix", col = "#0072B2", ...) {
  if (is.null(x$confusion)) fail("a confusion matrix requires exactly two raters: call label_agreement() with two of them")
  col <- check_color(col)
  draw_panels(main, function(i) draw_confusion(x$confusion, col), ...)
  invisible(x)
}

draw_confusion <- function(counts, col) {
  n <- nrow(counts)
  share <- as.vector(counts / pmax(rowSums(counts), 1))
  shade <- shades(col)
  cells <- data.frame(
    column = as.vector(base::col(counts)), row = n + 1L - as.vector(row(counts)), color = shade[1L + round(100 * share)]
  )
  labels <- shorten(rownames(counts), 16L)
  raters <- names(dimnames(counts))
  draw_cells(cells, rev(labels), labels, xlab = raters[[2L]], ylab = raters[[1L]], family = "")
  graphics::text(cells$column - 0.5, cells$row - 0.5, as.vector(counts), col = ifelse(share > 0.5, "white", "grey15"))
  legend_of_colors(shade, c("0", "1 of the row"))
}
