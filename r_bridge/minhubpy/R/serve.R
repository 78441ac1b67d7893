# A server in this session's Python, for programs that speak OpenAI's or Ollama's API, and for a browser.

#' Serve a model over HTTP
#'
#' Starts a server in the background: R stays free, and other programs on this
#' machine, among them the packages ellmer, tidyllm, ollamar and rollama, can
#' talk to the model through OpenAI's or Ollama's API. Its address opens a chat
#' in a web browser. The server ends with the session, or by `server$stop()`.
#'
#' The server needs the extra `minhub_py[serve]`, see [minhub_install()].
#'
#' @section Access:
#' The server listens on 127.0.0.1, so that other machines cannot reach it. But
#' without `api_key` it answers every program and every user of this machine,
#' who can then use the model and read the replies to their own requests. On a
#' machine that you share, set `api_key`: clients without the key are refused.
#'
#' @param model A model, see [from_pretrained()].
#' @param name What clients call it.
#' @param port The port of the address; 0 is any free one.
#' @param rows Replies that are made at the same time; others wait.
#' @param context The most tokens of a prompt and its reply together. If not
#'   given, those of the model, up to 4096.
#' @param api_key A key that clients must send. `NULL`: any local user and
#'   program is answered.
#' @param tokenizer The tokenizer, if not the model's own.
#' @returns A server: `$address`, `$name`, `$stop()`, and `$chat()`, which makes
#'   a chat of the package ellmer, and hands its arguments (`system_prompt`,
#'   `params` and others) on to `ellmer::chat_openai_compatible()`.
#' @family functions that write text
#' @examplesIf minhubpy:::is_ready("serve")
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' server <- minhub_serve(model)
#' server$address
#' \dontrun{
#' server$chat(system_prompt = "Answer in verse.")$chat("Who are you?")
#' }
#' server$stop()
#' \dontshow{if (!minhubpy:::is_hosted()) minhub_stop()}
#' @export
minhub_serve <- function(model, name = "minhub", port = 0, rows = 8, context = NULL, api_key = NULL, tokenizer = NULL) {
  model <- check_model(model)
  made <- ask(
    "serve",
    model = model, tokenizer = check_tokenizer(tokenizer), name = string(name),
    port = whole(port, most = 65535), rows = whole(rows, least = 1, most = 1024),
    context = optional(context, whole, what = "context", least = 2), key = optional(api_key, string, what = "api_key")
  )
  if (!is.null(made$note)) note(name, " has ", made$note)
  server <- new.env(parent = emptyenv())
  server$address <- made$address
  server$name <- name
  server$epoch <- session$link$epoch
  server$number <- made$number
  server$stop <- function() {
    if (is_serving(server)) ask("stop_serving", server = get("number", server))
    assign("number", NULL, server)
    invisible(server)
  }
  server$chat <- function(...) ellmer_chat(server, api_key, ...)
  class(server) <- "minhub_server"
  if (interactive()) note("Serving ", name, " on ", made$address)
  server
}

# The end of a Python worker is the end of its servers.
is_serving <- function(server) !is.null(get("number", server)) && identical(get("epoch", server), session$link$epoch)

ellmer_chat <- function(server, key, ...) {
  if (!requireNamespace("ellmer", quietly = TRUE)) {
    fail("$chat() needs the package ellmer, version 0.4.0 or newer: install.packages(\"ellmer\")")
  }
  new_chat <- getExportedValue("ellmer", "chat_openai_compatible")
  new_chat(
    base_url = paste0(server$address, "/v1"), name = "minhub", model = server$name,
    credentials = function() if (is.null(key)) "none" else key, ...
  )
}

#' @export
format.minhub_server <- function(x, ...) {
  if (!is_serving(x)) return(paste0("<minhub server> ", x$name, ": stopped"))
  paste0("<minhub server> ", x$name, " on ", x$address)
}
