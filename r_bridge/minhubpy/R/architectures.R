# The architectures with functions of their names, such as llama(), llama_from_config() and llama_from_pretrained(): the
# end of this file creates them. from_config() and from_pretrained() support all architectures.
ARCHITECTURES <- c("gpt2", "gptneo", "lstm", "llama", "gptneox", "gptbigcode", "gptoss", "gemma3")

#' Load a pretrained model
#'
#' `from_pretrained()` loads a model of any supported architecture: the
#' `model_type` in its config.json decides. For the architectures of the R package
#' minhub and the LSTM, functions such as `gpt2_from_pretrained()` load models of
#' their architecture only. Files
#' that are not in the Hub's cache are downloaded, and their hash is verified. An
#' interrupted download continues at the next call.
#'
#' @param identifier A repository of the Hub (`"gpt2"`,
#'   `"EleutherAI/gpt-neo-125m"`), a local folder in the Hub's layout, a GGUF
#'   file (`"model.gguf"`, or `"owner/name:model.gguf"` in a repository), or a
#'   built-in model: `"minhub/shakespeare-gpt2"`, `"minhub/shakespeare-gptneo"` or
#'   `"minhub/shakespeare-lstm"`.
#' @param revision A branch, tag or commit of the repository.
#' @param device `"auto"` (see [minhub_devices()]), `"cpu"`, `"cuda"`,
#'   `"cuda:1"` (0-based), `"mps"`, `"xpu"`, or a `torch_device()` of R torch.
#' @param dtype `"auto"` (the dtype of the checkpoint, if the device supports
#'   it), `"float32"`, `"bfloat16"`, `"float16"`, or a dtype of R torch, such as
#'   `torch_float16()`.
#' @param token A token for gated and private repositories. By default, the
#'   environment variable `HF_TOKEN` or the token stored by `hf auth login`.
#' @param local_files_only Whether to use the cache only, without a connection.
#' @param quantize The quantization of the weights:
#'   * `"int8"` or `"nf4"` (4 bits) reduce the size of the model and increase its
#'     speed on a CPU. Results differ slightly. With `dtype = "bfloat16"`, prefill
#'     is faster and results differ more; `"auto"` is float32 on a CPU. A
#'     quantized model has no float weights, cannot be saved, and cannot become an
#'     R torch module.
#'   * `"auto"` computes with the quantized weights of a GGUF, GPTQ or AWQ
#'     file, without further loss.
#'   * `"none"` converts them to floating point.
#'   * `NULL` is `"auto"` for such a file on a CPU with `dtype = "auto"`, and
#'     `"none"` otherwise.
#' @param adapter A LoRA adapter of the model in PEFT's format: its folder, a
#'   repository of the Hub (with `"@revision"` at the end for a branch, tag or
#'   commit), or a run of [minhub_train()] with `lora`.
#' @param mtp Whether to load the head for multi-token prediction, too, for
#'   `generate(draft = "mtp")`: Qwen 3.5 and Qwen 3 Next.
#' @returns A model, see [minhub_model].
#' @eval one_per_architecture("_from_pretrained")
#' @seealso [generate()], [next_tokens()], [token_logprobs()]
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' model
#' \dontshow{minhubpy:::end_example()}
#' @export
from_pretrained <- function(identifier, revision = "main", device = "auto", dtype = "auto",
                            token = NULL, local_files_only = FALSE, quantize = NULL, adapter = NULL, mtp = FALSE) {
  load_model(identifier, revision, NULL, device, dtype, token, local_files_only, quantize, adapter, mtp)
}

# from_pretrained() for one architecture.
pretrained_of <- function(family) {
  force(family)
  function(identifier, revision = "main", device = "auto", dtype = "auto",
           token = NULL, local_files_only = FALSE, quantize = NULL, adapter = NULL, mtp = FALSE) {
    load_model(identifier, revision, family, device, dtype, token, local_files_only, quantize, adapter, mtp)
  }
}

#' @rdname from_pretrained
#' @export
gpt2_from_pretrained <- pretrained_of("gpt2")

load_model <- function(identifier, revision, family, device, dtype, token, local_files_only, quantize, adapter, mtp) {
  arguments <- list(
    identifier = path_or_name(identifier), revision = string(revision), family = family,
    device = device_name(device), dtype = dtype_name(dtype), token = optional(token, string, what = "token"),
    local_files_only = flag(local_files_only), quantize = optional(quantize, string, what = "quantize"),
    adapter = optional(adapter, adapter_folder), mtp = flag(mtp)
  )
  new_model("from_pretrained", arguments)
}

adapter_folder <- function(adapter) if (inherits(adapter, "minhub_run")) adapter$folder else path_or_name(adapter)

path_or_name <- function(identifier) {
  identifier <- string(identifier)
  if (startsWith(identifier, "~")) path.expand(identifier) else if (file.exists(identifier)) normalizePath(identifier) else identifier
}

#' Create a model with random weights
#'
#' `from_config()` creates a model of any supported architecture. `gpt2()`,
#' `llama()` and similar functions create a model of their architecture from
#' settings, and `gpt2_from_config()` and similar functions from the config.json of
#' a repository or a folder.
#'
#' Settings have their names in the Hub's config.json. The defaults of a model type
#' are the settings of its first published model.
#'
#' @inheritParams from_pretrained
#' @param identifier For `from_config()`: a model type of config.json, such as
#'   `"mixtral"` or `"xlm-roberta"`, or a repository, folder or GGUF file as in
#'   [from_pretrained()], whose settings are used. A model type takes precedence:
#'   `"./llama"` is the folder llama.
#' @param vocab_size,n_embd,n_head,n_layer The vocabulary size, the number of
#'   channels, of heads per layer, and of layers of a GPT-2.
#' @param ... Further settings, such as `n_positions = 512` or
#'   `resid_pdrop = 0` (GPT-2) or `hidden_size = 64` (other architectures). In
#'   `from_config()` and similar functions, they replace values of the config.json.
#'   The setting `architectures` selects a text encoder's head, such as
#'   `"BertForMaskedLM"` or `"BertForSequenceClassification"`.
#' @param max_pos,pdrop The names in the R package minhub for `n_positions`, and
#'   for `embd_pdrop`, `attn_pdrop` and `resid_pdrop`.
#' @param seed An integer. By default, the seed is drawn from R's random numbers,
#'   so `set.seed()` makes the weights reproducible.
#' @returns A model in training mode, see [minhub_model].
#' @eval one_per_architecture(c("", "_from_config"))
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' set.seed(1)
#' gpt2(vocab_size = 65, n_embd = 32, n_head = 2, n_layer = 2, n_positions = 16)
#' gpt2_from_config("minhub/shakespeare-gpt2", seed = 1)
#' from_config("minhub/shakespeare-gpt2", n_layer = 2)
#' from_config("mixtral",
#'   vocab_size = 65, hidden_size = 32, intermediate_size = 32, num_hidden_layers = 2,
#'   num_attention_heads = 4, num_key_value_heads = 2
#' )
#' \dontshow{minhubpy:::end_example()}
#' @export
gpt2 <- function(vocab_size = 50257, n_embd = 768, n_head = 12, n_layer = 12, max_pos = NULL, pdrop = NULL, ...,
                 seed = NULL) {
  new_random_model("gpt2", c(
    list(vocab_size = vocab_size, n_embd = n_embd, n_head = n_head, n_layer = n_layer),
    if (!is.null(max_pos)) list(n_positions = max_pos),
    if (!is.null(pdrop)) list(embd_pdrop = pdrop, attn_pdrop = pdrop, resid_pdrop = pdrop),
    list(...)
  ), seed)
}

random_model_of <- function(family) {
  force(family)
  function(..., seed = NULL) new_random_model(family, list(...), seed)
}

#' @rdname gpt2
#' @export
llama <- random_model_of("llama")

#' @rdname gpt2
#' @export
from_config <- function(identifier, revision = "main", ..., token = NULL, local_files_only = FALSE, seed = NULL) {
  load_config(NULL, identifier, revision, list(...), token, local_files_only, seed)
}

# from_config() for one architecture.
from_config_of <- function(family) {
  force(family)
  function(identifier, revision = "main", ..., token = NULL, local_files_only = FALSE, seed = NULL) {
    load_config(family, identifier, revision, list(...), token, local_files_only, seed)
  }
}

#' @rdname gpt2
#' @export
gpt2_from_config <- from_config_of("gpt2")

new_random_model <- function(family, config, seed) {
  config <- plain_config(config, paste0(family, "(vocab_size = 65)"))
  new_model("fresh", list(family = family, config = config, seed = one_seed(seed)))
}

# Settings with the names of config.json. Python checks the names.
plain_config <- function(config, example) {
  if (length(config) && (is.null(names(config)) || !all(nzchar(names(config))))) {
    fail("settings must have names, such as ", example)
  }
  if (anyDuplicated(names(config))) fail("settings must not be repeated: ", names(config)[duplicated(names(config))][[1L]])
  config[] <- lapply(config, plain_setting)
  valid <- function(x) {
    kind <- is.numeric(x) || is.logical(x) || is.list(x) || (is.character(x) && all(validUTF8(x)))
    is.null(x) || kind && !is.object(x) && length(x) > 0L && !anyNA(x, recursive = TRUE) && (!is.list(x) || all(vapply(x, valid, NA)))
  }
  bad <- Position(Negate(valid), config)
  if (!is.na(bad)) fail("the setting ", names(config)[[bad]], " must not be ", describe(config[[bad]]))
  if (is.character(config$architectures)) config$architectures <- as.list(config$architectures) # a list in config.json
  config
}

# A setting as plain values, also in lists.
plain_setting <- function(x) if (is_plain_list(x)) lapply(x, plain_setting) else plain(x, "a setting")

load_config <- function(family, identifier, revision, config, token, local_files_only, seed) {
  new_model("from_config", list(
    identifier = string(identifier), path = path_or_name(identifier), revision = string(revision), family = family,
    config = plain_config(config, 'from_config("gpt2", vocab_size = 65)'), token = optional(token, string, what = "token"),
    local_files_only = flag(local_files_only), seed = one_seed(seed)
  ))
}

# A NULL seed is drawn from R's random numbers, so that set.seed() also determines Python's random numbers.
one_seed <- function(seed) if (is.null(seed)) draw_seeds(1L) else whole_number(seed, "seed")

draw_seeds <- function(n) sample.int(.Machine$integer.max, n, replace = TRUE)

# roxygen2 tags for the functions of ARCHITECTURES: their aliases, and a section with the names.
one_per_architecture <- function(endings) {
  functions <- paste0("`ARCHITECTURE", endings, "()`", collapse = " and ")
  c(
    paste("@aliases", paste0(ARCHITECTURES, rep(endings, each = length(ARCHITECTURES)), collapse = " ")),
    paste0("@section Architectures:\nIn ", functions, ", ARCHITECTURE is one of ", toString(ARCHITECTURES), ".")
  )
}

#' @evalNamespace outer(ARCHITECTURES, c("", "_from_config", "_from_pretrained"), function(x, y) paste0("export(", x, y, ")"))
NULL

for (family in ARCHITECTURES) {
  if (family != "gpt2") assign(family, random_model_of(family))
  assign(paste0(family, "_from_config"), from_config_of(family))
  assign(paste0(family, "_from_pretrained"), pretrained_of(family))
}
rm(family)
