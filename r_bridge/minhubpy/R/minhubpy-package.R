#' Language models of the Hugging Face Hub
#'
#' minhubpy loads language models of the Hugging Face Hub, generates text, and
#' computes log-probabilities, embeddings and attention weights:
#'
#' ```r
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' generate(model, "ROMEO:")
#' ```
#'
#' The models run in a Python process with the package minhub_py. R does not load
#' Python: the first call starts the process (the worker), which ends with the R
#' session. [minhub_start()] reports the selected Python, and [minhub_install()]
#' installs minhub_py.
#'
#' Token IDs are 0-based, as on the Hub. R torch tensors are the only exception:
#' they contain 1-based token IDs, like all indices in R torch.
#'
#' The column `logprob` of all data frames is a natural logarithm. The columns
#' `surprisal` and `entropy` are in bits.
#'
#' @section No texts and missing texts:
#' All functions with a separate result for each text follow one rule. No texts
#' (`character()`) have an empty result of the usual type. A text that is `NA` has
#' the result `NA`; where a text may have several rows, such as one per token, it
#' has none. `NULL` is an error: it usually is a misspelled column. Functions that
#' compute one result from all texts, such as [tuned_lens()], or that have a single
#' text, such as [attention_weights()], reject `NA`.
#'
#' @section Classes of R:
#' A factor and text of any class are strings. Integers of the package bit64
#' (`integer64`, below 2^53) are numbers, and labels of the package haven are
#' ignored. Numbers of other classes have another meaning, such as dates, times or
#' units, and are errors that name the class.
#'
#' @section Conditions:
#' Errors have the class `minhubpy_error`. An error from Python also has the
#' class of the Python exception, such as `FileNotFoundError`. Warnings from
#' Python have the class `minhubpy_warning`.
#'
#' @seealso
#' Start with [from_pretrained()] and [generate()]. The vignettes
#' `vignette("minhubpy")`, `vignette("words")`, `vignette("embed")`,
#' `vignette("encoders")`, `vignette("labels")`, `vignette("decisions")`,
#' `vignette("zeroshot")`, `vignette("teach")`, `vignette("inside")`, `vignette("replay")`, `vignette("chat")`,
#' `vignette("shiny")` and `vignette("cache")` (knitr and targets) are guides with
#' examples.
#'
#' An installation from the source folder, such as by `minhub r --install`,
#' contains no vignettes, and `browseVignettes("minhubpy")` finds none. To install
#' them, run `make vignette` in a checkout of minhub_py and install the package
#' that it builds. Their sources are in the folder `vignettes` of the package.
#'
#' @section Options:
#' * `minhubpy.python`: the path of a Python, see [minhub_start()].
#' * `minhubpy.threads`: the number of threads of the Python worker, see
#'   [minhub_start()].
#' * `minhubpy.quiet`: `TRUE` suppresses messages and progress bars.
#' @importFrom tools pskill
#' @importFrom utils .DollarNames str
#' @keywords internal
"_PACKAGE"

# State of the R session: the link to Python, the numbers of objects that Python can release, and loaded models.
session <- new.env(parent = emptyenv())
session$link <- NULL
session$released <- integer()
session$handles <- 0L # the number of handles that R has not collected
session$variables <- character() # variables at top level that have held a model
session$chat_hint <- FALSE # whether generate() has pointed to its argument `chat`
session$embedders <- list() # models that embed_minhub() has loaded by name

.onLoad <- function(libname, pkgname) session$process <- Sys.getpid() # a forked child has another process ID

.onUnload <- function(libpath) {
  stop_watching()
  disconnect()
}
