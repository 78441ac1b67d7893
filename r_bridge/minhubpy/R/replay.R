#' Repeat a job and compare its results
#'
#' Repeats a job from its manifest, with the same and with other batch sizes and
#' numbers of threads, and compares the results with its output.
#'
#' The argument `manifest` of [word_logprobs()], [annotate_texts()] and
#' [text_embeddings()], and the option `--manifest` of commands such as
#' `minhub score`, write a manifest, which contains the hashes of all files, all
#' arguments, the versions and the machine. On the same class of processor and with
#' the same versions, results of the C decoder are bitwise identical for any batch
#' size and number of threads. Otherwise, the observed difference is reported.
#'
#' @param manifest The path of the manifest, a .json file. Its input, output and local
#'   model are where they were, relative to it.
#' @param rows The number of rows of the input, from the first. `NULL`: all.
#' @param x The result.
#' @param ... Not used.
#' @returns An object of class `minhub_replay`, a list with `identical`; `guarantee`
#'   (`"bitwise"` or `"close"`); `same_class`, whether the processor class and the
#'   versions equal the manifest's; `broken`, whether rows differ although the
#'   manifest guarantees equality; `changes`, the differences from the manifest; and
#'   `runs`, a data frame with one row per repetition and the columns chunk (texts
#'   computed together), threads, rows, differing, largest (difference), and file,
#'   row, column, stored and replayed of the first difference.
#' @family functions for predictability
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' folder <- tempfile("job")
#' dir.create(folder)
#' manifest <- file.path(folder, "job.json")
#' word_logprobs(model, c("To", "be,", "or", "not"), manifest = manifest)
#' minhub_replay(manifest)
#' unlink(folder, recursive = TRUE)
#' \dontshow{minhubpy:::end_example()}
#' @export
minhub_replay <- function(manifest, rows = NULL) {
  path <- normalizePath(string(manifest), mustWork = FALSE)
  if (!file.exists(path)) fail("the manifest ", path, " does not exist: check its path")
  result <- ask("replay", manifest = path, rows = optional(rows, whole_number, "rows", min = 1), on_event = show_progress())
  structure(result, class = "minhub_replay")
}

#' @rdname minhub_replay
#' @export
print.minhub_replay <- function(x, ...) print_format(x, ...)

#' @export
format.minhub_replay <- function(x, ...) {
  c(
    format_rows(x$runs[c("chunk", "threads", "rows", "differing", "largest")]),
    strwrap(strsplit(x$text, "\n", fixed = TRUE)[[1L]], exdent = 2)
  )
}

#' @rdname minhub_replay
#' @export
as.data.frame.minhub_replay <- function(x, ...) x$runs

# Runs a job whose input and output are files in the manifest's folder. Returns the columns of the results.
run_job <- function(model, manifest, task, data, settings, column, extra_columns = NULL, tokenizer = NULL, resume = NULL) {
  self <- attr(model, "self")
  if (!is.null(resume)) fail("resume and manifest cannot be combined: the same call with manifest continues an interrupted job")
  if (!is.null(tokenizer)) fail("manifest requires the tokenizer of the model: leave tokenizer unset")
  if (self$how$method != "from_pretrained" || isTRUE(self$changed) || !is.null(self$moved)) {
    fail("manifest requires an unchanged model from from_pretrained(), so that its files describe it: save this model with save_pretrained(), and load the folder")
  }
  if (!is.null(self$how$arguments$adapter)) fail("manifest does not support adapter: merge it with minhub convert")
  path <- path.expand(string(manifest, "manifest"))
  if (!grepl("\\.json$", path)) fail('manifest must name a file that ends in ".json", not ', describe(manifest))
  if (!dir.exists(dirname(path))) fail("manifest must be in an existing folder: create ", dirname(path))
  arguments <- self$how$arguments
  ask(
    "run_job",
    identifier = arguments$identifier, loading = arguments[c("revision", "device", "dtype", "quantize")], task = task,
    column = column, extra_columns = extra_columns, data = data, settings = settings, manifest = absolute(path),
    on_event = show_progress()
  )
}
