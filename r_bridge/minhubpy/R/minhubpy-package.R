#' Language models of the Hugging Face Hub, shared with Python
#'
#' One call loads a model, another writes text with it:
#'
#' ```r
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' generate(model, "ROMEO:")
#' ```
#'
#' The models are those of the Python package minhub_py. R does not load
#' Python: the first call starts a Python process of its own (a worker), which
#' ends with the R session. [minhub_start()] says which Python that
#' is, and how to get one. Some functions need an extra of minhub_py:
#' [minhub_serve()] `minhub_py[serve]`, replies with a `schema` `minhub_py[json]`,
#' and GGUF files `minhub_py[gguf]`. [minhub_install()] installs them, and
#' [minhub_doctor()] lists those that are missing.
#'
#' Ids of tokens count from 0, as on the Hub, with one exception: in and out of
#' an R torch tensor they count from 1, as everything does in R torch.
#'
#' Every error has the class `minhubpy_error`; an error from Python also has
#' the name of Python's exception as a class, such as `FileNotFoundError`.
#' Python's warnings are R warnings of class `minhubpy_warning`.
#'
#' @seealso [from_pretrained()] and [generate()] to begin with;
#'   `vignette("minhubpy")`, `vignette("words")`, `vignette("embed")` and
#'   `vignette("chat")`.
#'
#' @section Options:
#' * `minhubpy.python`: the Python to use, see [minhub_start()].
#' * `minhubpy.quiet`: `TRUE` for no messages and no progress.
#' @importFrom tools pskill
#' @importFrom utils .DollarNames str
#' @keywords internal
"_PACKAGE"

# State of the R session: the link to Python, and the numbers of dropped objects to send to it.
session <- new.env(parent = emptyenv())
session$link <- NULL
session$released <- integer()

.onUnload <- function(libpath) disconnect()
