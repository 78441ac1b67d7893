#' Load a pretrained model
#'
#' `from_pretrained()` loads a model of any supported architecture. Functions
#' such as `gpt2_from_pretrained()` load models of their architecture only. Files
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
#'   * `"auto"` computes with the quantized weights of a GGUF file, without
#'     further loss.
#'   * `"none"` converts them to floating point.
#'   * `NULL` is `"auto"` for a GGUF file on a CPU with `dtype = "auto"`, and
#'     `"none"` otherwise.
#' @param adapter A LoRA adapter of the model in PEFT's format: its folder, a
#'   repository of the Hub (with `"@revision"` at the end for a branch, tag or
#'   commit), or a run of [minhub_train()] with `lora`.
#' @returns A model, see [minhub_model].
#' @seealso [generate()], [next_tokens()], [token_logprobs()]
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' model
#' \dontshow{minhubpy:::end_example()}
#' @export
from_pretrained <- function(identifier, revision = "main", device = "auto", dtype = "auto",
                            token = NULL, local_files_only = FALSE, quantize = NULL, adapter = NULL) {
  load_model(identifier, revision, NULL, device, dtype, token, local_files_only, quantize, adapter)
}

# from_pretrained() for one architecture.
pretrained_of <- function(family) {
  force(family)
  function(identifier, revision = "main", device = "auto", dtype = "auto",
           token = NULL, local_files_only = FALSE, quantize = NULL, adapter = NULL) {
    load_model(identifier, revision, family, device, dtype, token, local_files_only, quantize, adapter)
  }
}

#' @rdname from_pretrained
#' @export
gpt2_from_pretrained <- pretrained_of("gpt2")

#' @rdname from_pretrained
#' @export
gptneo_from_pretrained <- pretrained_of("gptneo")

#' @rdname from_pretrained
#' @export
gptbigcode_from_pretrained <- pretrained_of("gptbigcode")

#' @rdname from_pretrained
#' @export
gptneox_from_pretrained <- pretrained_of("gptneox")

#' @rdname from_pretrained
#' @export
gptoss_from_pretrained <- pretrained_of("gptoss")

#' @rdname from_pretrained
#' @export
gptj_from_pretrained <- pretrained_of("gptj")

#' @rdname from_pretrained
#' @export
phi_from_pretrained <- pretrained_of("phi")

#' @rdname from_pretrained
#' @export
opt_from_pretrained <- pretrained_of("opt")

#' @rdname from_pretrained
#' @export
lstm_from_pretrained <- pretrained_of("lstm")

#' @rdname from_pretrained
#' @export
sinusoidal_from_pretrained <- pretrained_of("sinusoidal")

#' @rdname from_pretrained
#' @export
llama_from_pretrained <- pretrained_of("llama")

#' @rdname from_pretrained
#' @export
mistral_from_pretrained <- pretrained_of("mistral")

#' @rdname from_pretrained
#' @export
ministral_from_pretrained <- pretrained_of("ministral")

#' @rdname from_pretrained
#' @export
qwen2_from_pretrained <- pretrained_of("qwen2")

#' @rdname from_pretrained
#' @export
qwen3_from_pretrained <- pretrained_of("qwen3")

#' @rdname from_pretrained
#' @export
gemma_from_pretrained <- pretrained_of("gemma")

#' @rdname from_pretrained
#' @export
gemma2_from_pretrained <- pretrained_of("gemma2")

#' @rdname from_pretrained
#' @export
gemma3_from_pretrained <- pretrained_of("gemma3")

#' @rdname from_pretrained
#' @export
gemma4_from_pretrained <- pretrained_of("gemma4")

#' @rdname from_pretrained
#' @export
olmo2_from_pretrained <- pretrained_of("olmo2")

#' @rdname from_pretrained
#' @export
lfm2_from_pretrained <- pretrained_of("lfm2")

#' @rdname from_pretrained
#' @export
lfm2moe_from_pretrained <- pretrained_of("lfm2moe")

#' @rdname from_pretrained
#' @export
mixtral_from_pretrained <- pretrained_of("mixtral")

#' @rdname from_pretrained
#' @export
olmoe_from_pretrained <- pretrained_of("olmoe")

#' @rdname from_pretrained
#' @export
qwen3moe_from_pretrained <- pretrained_of("qwen3moe")

#' @rdname from_pretrained
#' @export
granitemoe_from_pretrained <- pretrained_of("granitemoe")

#' @rdname from_pretrained
#' @export
qwen35_from_pretrained <- pretrained_of("qwen35")

#' @rdname from_pretrained
#' @export
bloom_from_pretrained <- pretrained_of("bloom")

#' @rdname from_pretrained
#' @export
xglm_from_pretrained <- pretrained_of("xglm")

#' @rdname from_pretrained
#' @export
olmo3_from_pretrained <- pretrained_of("olmo3")

#' @rdname from_pretrained
#' @export
exaone4_from_pretrained <- pretrained_of("exaone4")

#' @rdname from_pretrained
#' @export
ernie45_from_pretrained <- pretrained_of("ernie45")

#' @rdname from_pretrained
#' @export
seedoss_from_pretrained <- pretrained_of("seedoss")

#' @rdname from_pretrained
#' @export
internlm3_from_pretrained <- pretrained_of("internlm3")

#' @rdname from_pretrained
#' @export
hunyuan_from_pretrained <- pretrained_of("hunyuan")

#' @rdname from_pretrained
#' @export
starcoder2_from_pretrained <- pretrained_of("starcoder2")

#' @rdname from_pretrained
#' @export
glm4_from_pretrained <- pretrained_of("glm4")

#' @rdname from_pretrained
#' @export
cohere_from_pretrained <- pretrained_of("cohere")

#' @rdname from_pretrained
#' @export
cohere2_from_pretrained <- pretrained_of("cohere2")

#' @rdname from_pretrained
#' @export
stablelm_from_pretrained <- pretrained_of("stablelm")

#' @rdname from_pretrained
#' @export
phi3_from_pretrained <- pretrained_of("phi3")

#' @rdname from_pretrained
#' @export
smollm3_from_pretrained <- pretrained_of("smollm3")

#' @rdname from_pretrained
#' @export
granite_from_pretrained <- pretrained_of("granite")

#' @rdname from_pretrained
#' @export
granitehybrid_from_pretrained <- pretrained_of("granitehybrid")

#' @rdname from_pretrained
#' @export
qwen35moe_from_pretrained <- pretrained_of("qwen35moe")

#' @rdname from_pretrained
#' @export
qwen3next_from_pretrained <- pretrained_of("qwen3next")

#' @rdname from_pretrained
#' @export
t5_from_pretrained <- pretrained_of("t5")

#' @rdname from_pretrained
#' @export
bert_from_pretrained <- pretrained_of("bert")

#' @rdname from_pretrained
#' @export
roberta_from_pretrained <- pretrained_of("roberta")

#' @rdname from_pretrained
#' @export
xlmroberta_from_pretrained <- pretrained_of("xlmroberta")

#' @rdname from_pretrained
#' @export
camembert_from_pretrained <- pretrained_of("camembert")

#' @rdname from_pretrained
#' @export
distilbert_from_pretrained <- pretrained_of("distilbert")

#' @rdname from_pretrained
#' @export
electra_from_pretrained <- pretrained_of("electra")

#' @rdname from_pretrained
#' @export
mpnet_from_pretrained <- pretrained_of("mpnet")

#' @rdname from_pretrained
#' @export
modernbert_from_pretrained <- pretrained_of("modernbert")

load_model <- function(identifier, revision, family, device, dtype, token, local_files_only, quantize, adapter) {
  arguments <- list(
    identifier = path_or_name(identifier), revision = string(revision), family = family,
    device = device_name(device), dtype = dtype_name(dtype), token = optional(token, string, what = "token"),
    local_files_only = flag(local_files_only), quantize = optional(quantize, string, what = "quantize"),
    adapter = optional(adapter, adapter_folder)
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
#' `gpt2()`, `llama()` and similar functions create a model from settings with the
#' names of the Hub's config.json. The defaults are the settings of the first
#' published model of the architecture. The `_from_config()` functions use the
#' settings of a repository or a folder.
#'
#' @inheritParams from_pretrained
#' @param vocab_size,n_embd,n_head,n_layer The vocabulary size, the number of
#'   channels, of heads per layer, and of layers of a GPT-2.
#' @param ... Further settings, such as `n_positions = 512` or
#'   `resid_pdrop = 0` (GPT-2) or `hidden_size = 64` (other architectures). The
#'   setting `architectures` selects the head of a text encoder, such as
#'   `"BertForMaskedLM"` or `"BertForSequenceClassification"`.
#' @param max_pos,pdrop The names in the R package minhub for `n_positions`, and
#'   for `embd_pdrop`, `attn_pdrop` and `resid_pdrop`.
#' @param seed An integer. By default, the seed is drawn from R's random numbers,
#'   so `set.seed()` makes the weights reproducible.
#' @returns A model in training mode, see [minhub_model].
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' set.seed(1)
#' gpt2(vocab_size = 65, n_embd = 32, n_head = 2, n_layer = 2, n_positions = 16)
#' gpt2_from_config("minhub/shakespeare-gpt2", seed = 1)
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

from_config_of <- function(family) {
  force(family)
  function(identifier, revision = "main", token = NULL, local_files_only = FALSE, seed = NULL) {
    load_config(family, identifier, revision, token, local_files_only, seed)
  }
}

#' @rdname gpt2
#' @export
gptneo <- random_model_of("gptneo")

#' @rdname gpt2
#' @export
gptbigcode <- random_model_of("gptbigcode")

#' @rdname gpt2
#' @export
gptneox <- random_model_of("gptneox")

#' @rdname gpt2
#' @export
gptoss <- random_model_of("gptoss")

#' @rdname gpt2
#' @export
gptj <- random_model_of("gptj")

#' @rdname gpt2
#' @export
phi <- random_model_of("phi")

#' @rdname gpt2
#' @export
opt <- random_model_of("opt")

#' @rdname gpt2
#' @export
lstm <- random_model_of("lstm")

#' @rdname gpt2
#' @export
sinusoidal <- random_model_of("sinusoidal")

#' @rdname gpt2
#' @export
llama <- random_model_of("llama")

#' @rdname gpt2
#' @export
mistral <- random_model_of("mistral")

#' @rdname gpt2
#' @export
ministral <- random_model_of("ministral")

#' @rdname gpt2
#' @export
qwen2 <- random_model_of("qwen2")

#' @rdname gpt2
#' @export
qwen3 <- random_model_of("qwen3")

#' @rdname gpt2
#' @export
gemma <- random_model_of("gemma")

#' @rdname gpt2
#' @export
gemma2 <- random_model_of("gemma2")

#' @rdname gpt2
#' @export
gemma3 <- random_model_of("gemma3")

#' @rdname gpt2
#' @export
gemma4 <- random_model_of("gemma4")

#' @rdname gpt2
#' @export
olmo2 <- random_model_of("olmo2")

#' @rdname gpt2
#' @export
lfm2 <- random_model_of("lfm2")

#' @rdname gpt2
#' @export
lfm2moe <- random_model_of("lfm2moe")

#' @rdname gpt2
#' @export
mixtral <- random_model_of("mixtral")

#' @rdname gpt2
#' @export
olmoe <- random_model_of("olmoe")

#' @rdname gpt2
#' @export
qwen3moe <- random_model_of("qwen3moe")

#' @rdname gpt2
#' @export
granitemoe <- random_model_of("granitemoe")

#' @rdname gpt2
#' @export
qwen35 <- random_model_of("qwen35")

#' @rdname gpt2
#' @export
bloom <- random_model_of("bloom")

#' @rdname gpt2
#' @export
xglm <- random_model_of("xglm")

#' @rdname gpt2
#' @export
olmo3 <- random_model_of("olmo3")

#' @rdname gpt2
#' @export
exaone4 <- random_model_of("exaone4")

#' @rdname gpt2
#' @export
ernie45 <- random_model_of("ernie45")

#' @rdname gpt2
#' @export
seedoss <- random_model_of("seedoss")

#' @rdname gpt2
#' @export
internlm3 <- random_model_of("internlm3")

#' @rdname gpt2
#' @export
hunyuan <- random_model_of("hunyuan")

#' @rdname gpt2
#' @export
starcoder2 <- random_model_of("starcoder2")

#' @rdname gpt2
#' @export
glm4 <- random_model_of("glm4")

#' @rdname gpt2
#' @export
cohere <- random_model_of("cohere")

#' @rdname gpt2
#' @export
cohere2 <- random_model_of("cohere2")

#' @rdname gpt2
#' @export
stablelm <- random_model_of("stablelm")

#' @rdname gpt2
#' @export
phi3 <- random_model_of("phi3")

#' @rdname gpt2
#' @export
smollm3 <- random_model_of("smollm3")

#' @rdname gpt2
#' @export
granite <- random_model_of("granite")

#' @rdname gpt2
#' @export
granitehybrid <- random_model_of("granitehybrid")

#' @rdname gpt2
#' @export
qwen35moe <- random_model_of("qwen35moe")

#' @rdname gpt2
#' @export
qwen3next <- random_model_of("qwen3next")

#' @rdname gpt2
#' @export
t5 <- random_model_of("t5")

#' @rdname gpt2
#' @export
bert <- random_model_of("bert")

#' @rdname gpt2
#' @export
roberta <- random_model_of("roberta")

#' @rdname gpt2
#' @export
xlmroberta <- random_model_of("xlmroberta")

#' @rdname gpt2
#' @export
camembert <- random_model_of("camembert")

#' @rdname gpt2
#' @export
distilbert <- random_model_of("distilbert")

#' @rdname gpt2
#' @export
electra <- random_model_of("electra")

#' @rdname gpt2
#' @export
mpnet <- random_model_of("mpnet")

#' @rdname gpt2
#' @export
modernbert <- random_model_of("modernbert")

#' @rdname gpt2
#' @export
gpt2_from_config <- from_config_of("gpt2")

#' @rdname gpt2
#' @export
gptneo_from_config <- from_config_of("gptneo")

#' @rdname gpt2
#' @export
gptbigcode_from_config <- from_config_of("gptbigcode")

#' @rdname gpt2
#' @export
gptneox_from_config <- from_config_of("gptneox")

#' @rdname gpt2
#' @export
gptoss_from_config <- from_config_of("gptoss")

#' @rdname gpt2
#' @export
gptj_from_config <- from_config_of("gptj")

#' @rdname gpt2
#' @export
phi_from_config <- from_config_of("phi")

#' @rdname gpt2
#' @export
opt_from_config <- from_config_of("opt")

#' @rdname gpt2
#' @export
lstm_from_config <- from_config_of("lstm")

#' @rdname gpt2
#' @export
sinusoidal_from_config <- from_config_of("sinusoidal")

#' @rdname gpt2
#' @export
llama_from_config <- from_config_of("llama")

#' @rdname gpt2
#' @export
mistral_from_config <- from_config_of("mistral")

#' @rdname gpt2
#' @export
ministral_from_config <- from_config_of("ministral")

#' @rdname gpt2
#' @export
qwen2_from_config <- from_config_of("qwen2")

#' @rdname gpt2
#' @export
qwen3_from_config <- from_config_of("qwen3")

#' @rdname gpt2
#' @export
gemma_from_config <- from_config_of("gemma")

#' @rdname gpt2
#' @export
gemma2_from_config <- from_config_of("gemma2")

#' @rdname gpt2
#' @export
gemma3_from_config <- from_config_of("gemma3")

#' @rdname gpt2
#' @export
gemma4_from_config <- from_config_of("gemma4")

#' @rdname gpt2
#' @export
olmo2_from_config <- from_config_of("olmo2")

#' @rdname gpt2
#' @export
lfm2_from_config <- from_config_of("lfm2")

#' @rdname gpt2
#' @export
lfm2moe_from_config <- from_config_of("lfm2moe")

#' @rdname gpt2
#' @export
mixtral_from_config <- from_config_of("mixtral")

#' @rdname gpt2
#' @export
olmoe_from_config <- from_config_of("olmoe")

#' @rdname gpt2
#' @export
qwen3moe_from_config <- from_config_of("qwen3moe")

#' @rdname gpt2
#' @export
granitemoe_from_config <- from_config_of("granitemoe")

#' @rdname gpt2
#' @export
qwen35_from_config <- from_config_of("qwen35")

#' @rdname gpt2
#' @export
bloom_from_config <- from_config_of("bloom")

#' @rdname gpt2
#' @export
xglm_from_config <- from_config_of("xglm")

#' @rdname gpt2
#' @export
olmo3_from_config <- from_config_of("olmo3")

#' @rdname gpt2
#' @export
exaone4_from_config <- from_config_of("exaone4")

#' @rdname gpt2
#' @export
ernie45_from_config <- from_config_of("ernie45")

#' @rdname gpt2
#' @export
seedoss_from_config <- from_config_of("seedoss")

#' @rdname gpt2
#' @export
internlm3_from_config <- from_config_of("internlm3")

#' @rdname gpt2
#' @export
hunyuan_from_config <- from_config_of("hunyuan")

#' @rdname gpt2
#' @export
starcoder2_from_config <- from_config_of("starcoder2")

#' @rdname gpt2
#' @export
glm4_from_config <- from_config_of("glm4")

#' @rdname gpt2
#' @export
cohere_from_config <- from_config_of("cohere")

#' @rdname gpt2
#' @export
cohere2_from_config <- from_config_of("cohere2")

#' @rdname gpt2
#' @export
stablelm_from_config <- from_config_of("stablelm")

#' @rdname gpt2
#' @export
phi3_from_config <- from_config_of("phi3")

#' @rdname gpt2
#' @export
smollm3_from_config <- from_config_of("smollm3")

#' @rdname gpt2
#' @export
granite_from_config <- from_config_of("granite")

#' @rdname gpt2
#' @export
granitehybrid_from_config <- from_config_of("granitehybrid")

#' @rdname gpt2
#' @export
qwen35moe_from_config <- from_config_of("qwen35moe")

#' @rdname gpt2
#' @export
qwen3next_from_config <- from_config_of("qwen3next")

#' @rdname gpt2
#' @export
t5_from_config <- from_config_of("t5")

#' @rdname gpt2
#' @export
bert_from_config <- from_config_of("bert")

#' @rdname gpt2
#' @export
roberta_from_config <- from_config_of("roberta")

#' @rdname gpt2
#' @export
xlmroberta_from_config <- from_config_of("xlmroberta")

#' @rdname gpt2
#' @export
camembert_from_config <- from_config_of("camembert")

#' @rdname gpt2
#' @export
distilbert_from_config <- from_config_of("distilbert")

#' @rdname gpt2
#' @export
electra_from_config <- from_config_of("electra")

#' @rdname gpt2
#' @export
mpnet_from_config <- from_config_of("mpnet")

#' @rdname gpt2
#' @export
modernbert_from_config <- from_config_of("modernbert")

new_random_model <- function(family, config, seed) {
  config <- plain_config(config, paste0(family, "(vocab_size = 65)"))
  if (is.character(config$architectures)) config$architectures <- as.list(config$architectures) # a list in config.json
  new_model("fresh", list(family = family, config = config, seed = one_seed(seed)))
}

# Settings with the names of config.json. Python checks the names.
plain_config <- function(config, example) {
  if (length(config) && (is.null(names(config)) || !all(nzchar(names(config))))) {
    fail("settings must have names, such as ", example)
  }
  if (anyDuplicated(names(config))) fail("settings must not be repeated: ", names(config)[duplicated(names(config))][[1L]])
  plain <- function(x) {
    kind <- is.numeric(x) || is.logical(x) || is.list(x) || (is.character(x) && all(validUTF8(x)))
    is.null(x) || kind && !is.object(x) && length(x) > 0L && !anyNA(x, recursive = TRUE)
  }
  bad <- Position(Negate(plain), config)
  if (!is.na(bad)) fail("the setting ", names(config)[[bad]], " must not be ", describe(config[[bad]]))
  config
}

load_config <- function(family, identifier, revision, token, local_files_only, seed) {
  new_model("from_config", list(
    identifier = path_or_name(identifier), revision = string(revision), family = family,
    token = optional(token, string, what = "token"), local_files_only = flag(local_files_only), seed = one_seed(seed)
  ))
}

# A NULL seed is drawn from R's random numbers, so that set.seed() also determines Python's random numbers.
one_seed <- function(seed) if (is.null(seed)) draw_seeds(1L) else whole_number(seed, "seed")

draw_seeds <- function(n) sample.int(.Machine$integer.max, n, replace = TRUE)

#' Language models
#'
#' A model, such as the result of [from_pretrained()], is a function from token
#' IDs to logits. Python stores the weights, and the R object is a reference to
#' them.
#'
#' @section Logits:
#' `model(idx)` computes logits. `idx` contains 0-based token IDs: a vector (one
#' sequence), a matrix with one row per sequence, or a list of vectors of equal
#' length. The result is an array with the dimensions batch, position and
#' vocabulary.
#'
#' For an R torch tensor of 1-based token IDs, the result is an R torch tensor on
#' the device of `idx` and with the dtype of the model. It has no gradients; use
#' [as_torch_module()] for training. `model(x = idx)` is equivalent, for
#' compatibility with the package minhub.
#'
#' A text encoder such as BERT returns the result of the checkpoint's head:
#' logits (batch, position, vocabulary) of a masked language model, scores (batch,
#' label) of a classifier of texts, or scores (batch, position, label) of a
#' classifier of tokens. Without a head, the result contains the hidden states
#' (batch, position, channel). Two further arguments have the shape of `idx`:
#' * `attention_mask`: 1 or `TRUE` for tokens, 0 or `FALSE` for padding. The
#'   results at padding are meaningless.
#' * `token_type_ids`: the segment of each token in a pair of texts, 0 or 1.
#'
#' @section Fields:
#' * `model$config`: the settings, with the names of config.json.
#' * `model$family` (the architecture), `model$device`, `model$dtype`,
#'   `model$context` (the maximum number of tokens; `NULL` for an LSTM),
#'   `model$vocab_size`, `model$training`.
#'
#' @section Methods:
#' * `model$eval()` and `model$train()` disable and enable dropout.
#' * `model$to(device =, dtype =)` moves or converts the weights.
#' * `model$parameters()` returns a data frame with the name, shape, number of
#'   elements and dtype of each weight. `model$parameters` is also a list-like
#'   object for `lapply()`, `names()` and `[[`.
#' * `model$parameter(name)` returns a weight as an array.
#' * `model$state_dict()` returns a named list with copies of all weights: arrays,
#'   or R torch tensors if torch is attached.
#' * `model$load_state_dict(state_dict)` replaces the weights of the model. It
#'   accepts such a list, the state dict of a module that was trained in R torch,
#'   and weights with the names and layout of the Hub (`transformer.wte.weight`,
#'   `lm_head.weight`). All weights are required, with matching shapes and without
#'   NaN; otherwise the model remains unchanged.
#' * `model$wte$weight` is a weight by its path, with `$shape`, `$dtype` and
#'   `$numel()`. `as.array()` returns its values. `[`, `mean()` and arithmetic
#'   operate on them. If torch is attached, it is an R torch tensor with a copy of
#'   the values. The names of the Hub, `model$transformer$wte$weight` and
#'   `model$lm_head$weight`, are aliases.
#'
#' @section Saving and reloading:
#' `saveRDS()` saves the call that created a model, not its weights. After
#' `readRDS()` or a restart of the worker, a pretrained model is reloaded from the
#' same commit, and a random model is recreated from its seed. Weights from
#' `load_state_dict()` are lost unless [save_pretrained()] has saved them.
#'
#' @param x,object A model.
#' @param ... Not used.
#' @returns `print()` returns the model, invisibly. `summary()` returns a list of
#'   class `summary.minhub_model` with a description of the `model`, the number of
#'   parameters of its `parts`, and its `config`.
#' @seealso [generate()], [token_logprobs()]
#' @name minhub_model
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' dim(model(c(1L, 2L, 3L)))
#' model$config$n_layer
#' summary(model)
#' \dontshow{minhubpy:::end_example()}
NULL

new_model <- function(method, arguments) {
  title <- if (is.null(arguments$identifier)) paste("a random", arguments$family) else arguments$identifier
  as_model(new_self(method, arguments, title))
}

# The function looks up the namespace at each call, because readRDS() and reloading the package replace it.
as_model <- function(self) {
  model <- structure(
    function(idx, x, attention_mask = NULL, token_type_ids = NULL) {
      getNamespace("minhubpy")$forward(model, idx, x, attention_mask, token_type_ids)
    },
    class = c(paste0("minhub_", self$about$family), "minhub_model"), self = self
  )
  model
}

forward <- function(model, idx, x, attention_mask = NULL, token_type_ids = NULL) {
  if (missing(idx) && missing(x)) {
    fail("idx is missing: pass token IDs, such as tok$encode(\"ROMEO:\")$ids")
  }
  if (!missing(idx) && !missing(x)) fail("idx and x are names of the same argument: pass one of them")
  if (missing(idx)) idx <- x
  if (inherits(idx, "torch_tensor")) {
    if (!is.null(attention_mask) || !is.null(token_type_ids)) {
      fail("attention_mask and token_type_ids require 0-based token IDs, not an R torch tensor: pass as.array(idx) - 1L")
    }
    return(forward_torch(model, idx))
  }
  ids <- token_ids(idx)
  check_length(if (is.list(ids)) max(lengths(ids)) else if (is.matrix(ids)) ncol(ids) else length(ids), model$context)
  ask(
    "forward",
    model = model, ids = ids, first = 0L, as_torch = FALSE,
    attention_mask = optional(attention_mask, like_ids, "attention_mask", ids),
    token_type_ids = optional(token_type_ids, like_ids, "token_type_ids", ids)
  )
}

# A mask or token types as integers in the shape of token IDs. Python checks their range.
like_ids <- function(x, what, ids) {
  as_numbers <- function(x) {
    if (is.object(x) || !(is.numeric(x) || is.logical(x)) || anyNA(x)) fail(what, " must contain numbers without NA, not ", describe(x))
    x + 0L
  }
  same_shape <- if (is.list(ids)) is.list(x) && identical(lengths(x), lengths(ids)) else identical(dim(x), dim(ids)) && length(x) == length(ids)
  if (!same_shape) fail(what, " must have the shape of idx")
  if (is.list(x)) lapply(unname(x), as_numbers) else as_numbers(x)
}

# Checks the length before the token IDs are sent, because converting millions of them is slow.
check_length <- function(length, context) {
  if (!is.null(context) && length > context) fail("a sequence must have at most ", context, " tokens, the model's context, not ", length)
}

MODEL_FIELDS <- c("config", "family", "device", "dtype", "context", "vocab_size", "training", "quantized")
MODEL_METHODS <- c("eval", "train", "to", "parameters", "parameter", "state_dict", "load_state_dict")

#' @export
`$.minhub_model` <- function(x, name) {
  self <- attr(x, "self")
  if (name %in% MODEL_FIELDS) return(self$about[[name]])
  switch(name,
    eval = function() set_mode(x, FALSE),
    train = function(mode = TRUE) set_mode(x, flag(mode)),
    to = function(device = NULL, dtype = NULL) move_model(x, device, dtype),
    parameters = new_parameters(x),
    parameter = function(name) ask("parameter", model = x, name = string(name)),
    state_dict = function() state_dict(x),
    load_state_dict = function(state_dict) load_state_dict(x, state_dict),
    {
      part <- child(x, name)
      if (is.null(part)) no_model_member(name)
      part
    }
  )
}

no_model_member <- function(name) {
  device <- if (name %in% c("cuda", "cpu")) paste0("; model$to(\"", name, "\") moves it")
  no_member("a model", name, MODEL_FIELDS, MODEL_METHODS, device)
}

#' @export
`[[.minhub_model` <- function(x, i) {
  do.call(`$`, list(x, member_name(i, "a model", c(MODEL_FIELDS, MODEL_METHODS))))
}

#' @export
`$<-.minhub_model` <- function(x, name, value) {
  fail("the fields of a model are read-only, as is ", name, ": use model$to(), model$train() or model$eval()")
}

#' @export
.DollarNames.minhub_model <- function(x, pattern = "") {
  grep(pattern, c(MODEL_FIELDS, paste0(MODEL_METHODS, "("), completions(x, "")), value = TRUE)
}

set_mode <- function(model, training) {
  ask("train", model = model, mode = training)
  attr(model, "self")$about$training <- training
  invisible(model)
}

move_model <- function(model, device, dtype) {
  self <- attr(model, "self")
  device <- optional(device, device_name)
  dtype <- optional(dtype, dtype_name)
  about <- ask("to", model = model, device = device, dtype = dtype)
  self$about[c("device", "dtype")] <- about[c("device", "dtype")]
  self$moved <- list(device = about$device, dtype = about$dtype)
  invisible(model)
}

# Accepts torch_device("cuda") of R torch.
device_name <- function(device) {
  if (!inherits(device, "torch_device")) return(string(device))
  if (is.null(device$index)) device$type else paste0(device$type, ":", device$index)
}

dtype_name <- function(dtype) {
  if (!inherits(dtype, "torch_dtype")) return(string(dtype))
  name <- as.character(dtype)
  dtypes <- c(Float = "float32", Double = "float64", Half = "float16", BFloat16 = "bfloat16")
  if (name %in% names(dtypes)) dtypes[[name]] else name # Python rejects the name
}

#' @export
format.minhub_model <- function(x, ...) {
  about <- attr(x, "self")$about
  paste0(
    "<", about$class, " ", attr(x, "self")$title, ": ", count(about$parameters), " parameters, ",
    if (!is.null(about$quantized)) paste0("weights in ", about$quantized, ", "),
    about$dtype, " on ", about$device, ">"
  )
}

#' @rdname minhub_model
#' @export
print.minhub_model <- function(x, ...) {
  about <- attr(x, "self")$about
  cat(format(x), "\n", sep = "")
  context <- if (is.null(about$context)) "any length" else paste(about$context, "tokens")
  cat("  vocabulary ", about$vocab_size, ", context ", context, if (about$training) ", training mode", "\n", sep = "")
  invisible(x)
}

#' @rdname minhub_model
#' @export
summary.minhub_model <- function(object, ...) {
  structure(
    list(model = format(object), parts = weights_by_part(object$parameters()), config = object$config),
    class = "summary.minhub_model"
  )
}

#' @export
print.summary.minhub_model <- function(x, ...) {
  cat(x$model, "\n\n", sep = "")
  parts <- x$parts
  parts$parameters <- format(parts$parameters, big.mark = ",", scientific = FALSE)
  print(parts, row.names = FALSE, right = TRUE)
  cat("\n")
  utils::str(x$config, no.list = TRUE, give.attr = FALSE, comp.str = " ")
  invisible(x)
}

#' @export
plot.minhub_model <- function(x, ...) {
  fail("a model has no plot: use plot(next_tokens(model, \"ROMEO\")) or plot(token_logprobs(model, \"To be\"))")
}

#' @export
str.minhub_model <- function(object, ...) str_format(object)

count <- function(n) {
  unit <- if (n >= 1e9) c(1e9, "B") else if (n >= 1e6) c(1e6, "M") else if (n >= 1e4) c(1e3, "k") else c(1, "")
  paste0(format(round(n / as.numeric(unit[[1L]]), 1L), nsmall = 0L), unit[[2L]])
}

#' @export
as.list.minhub_model <- function(x, ...) attr(x, "self")$about[MODEL_FIELDS]

#' Save a model
#'
#' Writes config.json, model.safetensors and, if the model has a tokenizer,
#' tokenizer.json in the Hub's layout. [from_pretrained()] and Python's
#' transformers can load the folder.
#'
#' @param model A model, see [from_pretrained()], or a run of [minhub_train()].
#' @param folder The path of the folder.
#' @param tokenizer The tokenizer to save. By default, the model's tokenizer.
#' @returns `folder`, invisibly.
#' @family functions for models
#' @examplesIf minhubpy:::is_ready()
#' model <- lstm_from_pretrained("minhub/shakespeare-lstm")
#' folder <- save_pretrained(model, file.path(tempdir(), "my-lstm"))
#' dir(folder)
#' \dontshow{minhubpy:::end_example()}
#' @export
save_pretrained <- function(model, folder, tokenizer = NULL) {
  model <- check_model(model)
  folder <- file_path(folder)
  ask("save_pretrained", model = model, folder = absolute(folder), tokenizer = check_tokenizer(tokenizer))
  invisible(folder)
}

file_path <- function(x, what = deparse(substitute(x))) {
  x <- string(x, what)
  if (!nzchar(x)) fail(what, " is empty: pass a path")
  path.expand(x)
}

# The working directories of R and Python may differ.
absolute <- function(path) {
  if (grepl("^(/|[A-Za-z]:|\\\\\\\\)", path)) return(path)
  if (is.null(getwd())) fail("the working directory was removed: change to another one with setwd()")
  file.path(getwd(), path)
}

# Returns a model, or the model of a run.
check_model <- function(model) {
  if (inherits(model, "minhub_run")) model <- model$model
  if (inherits(model, "nn_module")) {
    fail(
      "model must be a model of this package, not an R torch module: ",
      "copy the weights to its model with model$load_state_dict(module$state_dict())"
    )
  }
  if (!inherits(model, "minhub_model")) {
    fail("model must be a model, as from_pretrained() returns, not ", describe(model))
  }
  model
}
