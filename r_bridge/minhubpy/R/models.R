#' List, download and delete models
#'
#' `minhub_models()` lists the models on this machine: the built-in models, and
#' the models in the Hub's cache, which Python's huggingface_hub and transformers
#' share. `minhub_download()` downloads a model into the cache without loading it,
#' for example before a trip or for a cluster without internet access.
#' `minhub_delete()` deletes a model from the cache.
#'
#' An interrupted download continues at the next call, and the hash of each file
#' is verified. [from_pretrained()] also downloads a model that is not in the
#' cache. The environment variable `HF_HUB_CACHE` sets the folder of the cache.
#'
#' @param identifier A repository of the Hub (`"gpt2"`,
#'   `"EleutherAI/gpt-neo-125m"`), or one GGUF file of a repository
#'   (`"owner/name:model.gguf"`). For `minhub_download()` also the URL of one of them
#'   on the Hub, such as `"https://huggingface.co/owner/name/resolve/main/model.gguf"`,
#'   as a browser shows it.
#' @param revision A branch, tag or commit of the repository. For
#'   `minhub_delete()`, `NULL` selects all cached revisions.
#' @param token A token for gated and private repositories. By default, the
#'   environment variable `HF_TOKEN` or the token stored by `hf auth login`.
#' @param ask Whether to ask for confirmation before deleting the files. The
#'   default is `TRUE` in an interactive session.
#' @returns
#' * `minhub_models()`: a data frame of class `minhub_models` with one row per
#'   model and revision and the columns `model`, `source` (`"built-in"` or
#'   `"cache"`), `revision`, `bytes`, `complete` (whether the model can be loaded
#'   without a connection) and `folder`.
#' * `minhub_download()`: the folder of the model or the path of its GGUF file,
#'   invisibly. [from_pretrained()] loads either.
#' * `minhub_delete()`: `TRUE` if the files were deleted, otherwise `FALSE`,
#'   invisibly.
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' minhub_models()
#' \dontrun{
#' minhub_download("gpt2")
#' minhub_delete("gpt2")
#' }
#' \dontshow{minhubpy:::end_example()}
#' @export
minhub_models <- function() structure(ask("list_models"), class = c("minhub_models", "data.frame"))

#' @rdname minhub_models
#' @export
minhub_download <- function(identifier, revision = "main", token = NULL) {
  folder <- ask(
    "download",
    identifier = string(identifier), revision = string(revision), token = optional(token, string, what = "token"),
    on_event = show_progress()
  )
  invisible(folder)
}

#' @rdname minhub_models
#' @export
minhub_delete <- function(identifier, revision = NULL, ask = interactive()) {
  identifier <- string(identifier)
  revision <- optional(revision, string, what = "revision")
  ask <- flag(ask)
  plan <- ask("plan_deletion", identifier = identifier, revision = revision)
  what <- paste0(identifier, " (", toString(substr(plan$commits, 1L, 7L)), "; ", megabytes(plan$bytes), ")")
  if (ask && !isTRUE(utils::askYesNo(paste0("Delete ", what, "?"), default = FALSE))) {
    note("Nothing was deleted")
    return(invisible(FALSE))
  }
  ask("delete_cached", identifier = identifier, revision = revision)
  note("Deleted ", what)
  invisible(TRUE)
}

#' @export
format.minhub_models <- function(x, ...) {
  state <- ifelse(x$source == "built-in", "built-in", ifelse(x$complete, substr(x$revision, 1L, 20L), "incomplete: minhub_download()"))
  sizes <- vapply(x$bytes, megabytes, "")
  if (nrow(x)) paste0(format(x$model), "  ", format(sizes, justify = "right"), "  ", state) else character()
}

#' @export
print.minhub_models <- function(x, ...) {
  if (!all(c("model", "source", "revision", "bytes", "complete") %in% names(x))) return(NextMethod())
  cat(format(x), sep = "\n")
  if (!any(x$source == "cache")) cat("No cached models yet: download one with minhub_download()\n")
  invisible(x)
}

#' @export
summary.minhub_models <- function(object, ...) {
  if (!all(c("source", "bytes") %in% names(object))) return(NextMethod())
  parts <- split(object$bytes, object$source)
  data.frame(
    source = names(parts), models = lengths(parts, use.names = FALSE), bytes = vapply(parts, sum, 0, USE.NAMES = FALSE)
  )
}
