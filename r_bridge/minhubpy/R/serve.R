#' Serve a model over HTTP
#'
#' Starts a server in the background with the OpenAI API, the Ollama API and a
#' chat page. R remains available, and other programs on this machine, such as the
#' packages ellmer, tidyllm, ollamar and rollama, can use the model. The server
#' stops at the end of the session or by `server$stop()`.
#'
#' The server requires the extra `serve` of minhub_py, see [minhub_install()].
#'
#' @section Access:
#' The server listens on 127.0.0.1, so that other machines cannot connect.
#' Without `api_key`, it answers every program and every user of this machine.
#' Set `api_key` on a shared machine: the server rejects clients without the key.
#'
#' @param model A model, see [from_pretrained()], or a run of [minhub_train()].
#' @param name The name of the model in the APIs.
#' @param port The port. 0 selects a free port.
#' @param max_requests The maximum number of requests that the server processes
#'   concurrently. Further requests wait.
#' @param context The maximum number of tokens of a prompt and its reply. By
#'   default, the context of the model, at most 4096.
#' @param api_key A key that clients must send. `NULL`: no key is required.
#' @param cache_dir A folder for the prefix cache, so that beginnings of prompts are
#'   not computed again after a restart. Replies do not change. `NULL`: the cache is
#'   in memory only.
#' @param cache_size The maximum size of `cache_dir` in bytes. The least recently
#'   used files are deleted.
#' @param tokenizer A tokenizer, see [tokenizer_from_pretrained()]. By default,
#'   the model's tokenizer.
#' @param adapters LoRA adapters of the model, which share its weights: folders or
#'   runs with names, such as `c(codes = "runs/codes")`. Requests select one by its
#'   name, or as `"minhub+codes"`.
#' @returns An object of class `minhub_server` with the fields `$address` and
#'   `$name` and the methods `$stop()` and `$chat(...)`. `$chat()` creates a chat of
#'   the package ellmer, with its arguments (such as `system_prompt` and `params`)
#'   passed to `ellmer::chat_openai_compatible()`.
#' @family functions that generate text
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
minhub_serve <- function(model, name = "minhub", port = 0, max_requests = 8, context = NULL, api_key = NULL, tokenizer = NULL,
                         cache_dir = NULL, cache_size = 10e9, adapters = NULL) {
  model <- check_model(model)
  if (!is.null(adapters)) {
    if (!is.character(adapters) && !is_plain_list(adapters)) {
      fail("adapters must be folders or runs with names, not ", describe(adapters))
    }
    adapters <- as.list(adapters)
    if (is.null(names(adapters)) || !all(nzchar(names(adapters))) || anyDuplicated(names(adapters))) {
      fail("adapters must have unique names, such as c(codes = \"runs/codes\")")
    }
    if (name %in% names(adapters)) fail("adapters must not have the name of the model, ", describe(name))
    adapters <- lapply(adapters, adapter_folder)
  }
  result <- ask(
    "serve",
    model = model, tokenizer = check_tokenizer(tokenizer), name = string(name),
    port = whole_number(port, max = 65535), max_requests = whole_number(max_requests, min = 1, max = 1024),
    context = optional(context, whole_number, what = "context", min = 2), key = optional(api_key, string, what = "api_key"),
    cache_dir = if (!is.null(cache_dir)) absolute(file_path(cache_dir)), cache_size = number(cache_size, min = 1, max = 2^53), adapters = adapters
  )
  if (!is.null(result$note)) note(name, " has ", result$note)
  server <- new.env(parent = emptyenv())
  server$address <- result$address
  server$name <- name
  server$epoch <- session$link$epoch
  server$number <- result$number
  server$stop <- function() {
    if (is_serving(server)) ask("stop_serving", server = get("number", server))
    assign("number", NULL, server)
    invisible(server)
  }
  server$chat <- function(...) ellmer_chat(server, api_key, ...)
  class(server) <- "minhub_server"
  if (interactive()) note("Serving ", name, " on ", result$address)
  server
}

# A server stops with its worker.
is_serving <- function(server) !is.null(get("number", server)) && identical(get("epoch", server), session$link$epoch)

ellmer_chat <- function(server, key, ...) {
  if (!requireNamespace("ellmer", quietly = TRUE)) {
    fail("$chat() requires the package ellmer, version 0.4.0 or newer: run install.packages(\"ellmer\")")
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
