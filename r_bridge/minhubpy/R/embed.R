#' Compute text embeddings
#'
#' Computes one vector per text from a layer's hidden states. Texts with
#' similar meanings have vectors with similar directions. The resulting matrix is
#' suitable for [text_similarity()], [stats::lm()], [stats::prcomp()],
#' [stats::hclust()] and any classifier.
#'
#' For repositories of the Python package sentence-transformers, such as
#' `"sentence-transformers/all-MiniLM-L6-v2"`, the defaults equal its `encode()`:
#' pooling, dense layers, normalization, maximum length and default prompt follow
#' the repository.
#'
#' SPLADE models compute sparse embeddings: the weights of the tokens of the
#' vocabulary. ColBERT models compute one vector per token; the prompts `"query"`
#' and `"document"` also determine the maximum length, and which tokens have a
#' vector. [text_search()] compares all three kinds.
#'
#' Text encoders such as BERT, and these repositories, truncate a text at the
#' maximum length. Other models process texts longer than their context in
#' overlapping windows, as in [token_logprobs()]. Esc or Ctrl-C interrupts a long
#' call; the session and the model remain usable.
#'
#' @inheritParams generate
#' @inheritParams next_tokens
#' @param texts A character vector or a factor, a data frame with a column `text`,
#'   or token IDs as in [generate()]. The row of a text that is `NA` is `NA`. So is the row of `""`, unless the model is a text encoder, which embeds
#'   its special tokens.
#' @param layer The layer: 0 for the embeddings, 1 for the first layer, -1 for the
#'   last layer, -2 for the layer before it. Middle layers often represent the
#'   meaning of a text better than the last layer, which is trained to predict
#'   the next token. For an encoder-decoder such as T5, the layers of the encoder.
#'   Several layers, such as `c(-2, -1)`, are combined before the pooling.
#' @param pool How to pool a text's tokens: `"mean"`; `"last"`, in a decoder
#'   the only token whose hidden state depends on the complete text; `"cls"`, the
#'   first token; `"max"`; `"splade"`, for models with a masked-LM head; or
#'   `"none"`, which returns one vector per token. Decoders support `"mean"`, `"last"` and `"none"`. `NULL`: the repository's
#'   pooling, with its dense layers and normalization, or `"mean"`.
#' @param prompt The name of a prompt of the repository, such as `"query"` or
#'   `"document"`, which is inserted before each text. `NULL`: the repository's
#'   default prompt.
#' @param dimensions The number of leading dimensions to return, for models
#'   trained with Matryoshka representation learning; of sparse embeddings, the
#'   number of largest weights to keep. `NULL`: all.
#' @param normalize Whether to divide each embedding by its length at the end.
#'   `NULL`: as in the repository.
#' @param resume The path of an .rds file that stores the results of a long job,
#'   so that the same call can resume it, see [word_logprobs()].
#' @param manifest The path of a .json file that describes the job, for
#'   [minhub_replay()], see [word_logprobs()].
#' @param combine How to combine several layers: `"join"` puts their vectors one
#'   after the other, `"mean"` averages them.
#' @returns A numeric matrix with one row per text, in the order of `texts`, and
#'   the names of `texts` as row names. With `pool = "none"`, and of ColBERT
#'   models, a list of matrices with one row per token and the tokens as row names.
#'   Of SPLADE models, a list of numeric vectors with the tokens as names, the
#'   largest weight first; `NA` for a missing text.
#' @seealso [embed_minhub()] for the package ragnar.
#' @family functions that look inside a model
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' lines <- c(
#'   juliet = "O Romeo, Romeo!", romeo = "O speak again, bright angel!",
#'   king = "Off with his head!"
#' )
#' vectors <- text_embeddings(model, lines)
#' dim(vectors)
#' text_similarity(vectors)
#' text_embeddings(model, data.frame(text = c("To be,", NA)), layer = 2, pool = "last")[, 1:3]
#' dim(text_embeddings(model, lines, layer = c(2, 3)))
#' \dontshow{minhubpy:::end_example()}
#' @export
text_embeddings <- function(model, texts, layer = -1, pool = NULL, tokenizer = NULL, resume = NULL, prompt = NULL,
                            dimensions = NULL, normalize = NULL, manifest = NULL, combine = c("join", "mean")) {
  model <- check_model(model)
  pool <- optional(pool, choice, c("mean", "last", "cls", "max", "splade", "none"), "pool")
  combine <- choice(combine, c("join", "mean"))
  if (is.data.frame(texts)) {
    column <- if (length(texts)) paste0("; or pass a column, such as ", deparse(substitute(texts))[[1L]], "$", deparse(as.name(names(texts)[1L]), backtick = TRUE))
    texts <- column_of(texts, "text", column)
  }
  labels <- labels_of(texts)
  texts <- texts_or_ids(texts, missing = TRUE)
  settings <- list(
    tokenizer = check_tokenizer(tokenizer), layer = check_layers(layer), combine = combine, pool = pool,
    prompt = optional(prompt, string, "prompt"), dimensions = optional(dimensions, whole_number, "dimensions", min = 1),
    normalize = optional(normalize, flag, "normalize")
  )
  if (!is.null(manifest)) {
    if (isTRUE(pool %in% c("splade", "none")) || !is.character(texts)) fail("manifest requires text and one vector per text: pass text, and a pool other than \"none\" and \"splade\"")
    data <- list(text = texts)
    given <- settings[setdiff(names(settings), c("tokenizer", if (length(settings$layer) == 1L) "combine"))]
    result <- run_job(model, manifest, "embed", data, given, "text", NULL, settings$tokenizer, resume)
    rownames(result$embedding) <- labels
    return(result$embedding)
  }
  result <- ask_in_parts("embed", model, list(texts = texts), settings, resume, join = join_vectors)
  if (is.matrix(result$vectors)) {
    rownames(result$vectors) <- labels
    return(result$vectors)
  }
  named <- Map(function(vectors, tokens) {
    if (!length(tokens) || anyNA(tokens)) return(vectors)
    if (is.matrix(vectors)) rownames(vectors) <- tokens else names(vectors) <- tokens
    vectors
  }, result$vectors, result$tokens)
  stats::setNames(named, labels)
}

#' Compute embeddings of words in context
#'
#' Computes one vector per word: the mean of the hidden states of its tokens in a
#' layer, or in several. A word's vector differs between contexts.
#'
#' Words are separated by white space. A token belongs to the word of its last
#' character, so that the space before a word belongs to the word. A text longer
#' than the maximum length of the model is divided into overlapping windows, and a
#' token has the vector of the window that contains more of its context.
#'
#' @inheritParams text_embeddings
#' @param texts A character vector or a factor, or a data frame with a column
#'   `text`. A text that is `NA` has no rows.
#' @param layer The layer, or several: 0 for the embeddings, 1 for the first layer,
#'   -1 for the last layer, -2 for the layer before it.
#' @returns A data frame with one row per word, in the order of the texts, and the
#'   columns
#'   * `text`: the number of the text, or a factor of the names of `texts`;
#'   * `word`: the word;
#'   * `dim1`, `dim2`, ...: the vector. It is `NA` for a word that shares its token
#'     with the word after it.
#' @family functions that look inside a model
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready()
#' model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
#' words <- word_embeddings(model, c("the king of England", "the king of France"), layer = c(2, 3))
#' words[1:3, 1:5]
#' kings <- as.matrix(words[words$word == "king", -(1:2)])
#' text_similarity(kings)
#' \dontshow{minhubpy:::end_example()}
#' @export
word_embeddings <- function(model, texts, layer = -1, combine = c("join", "mean"), tokenizer = NULL, resume = NULL) {
  model <- check_model(model)
  combine <- choice(combine, c("join", "mean"))
  if (is.data.frame(texts)) texts <- column_of(texts, "text")
  labels <- names(texts)
  texts <- check_words(texts, NULL, "texts")
  settings <- list(tokenizer = check_tokenizer(tokenizer), layer = check_layers(layer), combine = combine)
  result <- ask_in_parts("word_embeddings", model, list(texts = texts), settings, resume, join = join_word_vectors)
  vectors <- result$vectors
  if (length(vectors)) colnames(vectors) <- paste0("dim", seq_len(ncol(vectors)))
  words <- data.frame(text = text_of_row(result$text, labels), word = as.character(result$word))
  if (length(vectors)) cbind(words, as.data.frame(vectors)) else words
}

# The numbers of one layer or several.
check_layers <- function(layer) {
  layer <- plain(layer, "layer")
  if (!is_plain_number(layer)) fail("layer must be a whole number or several, not ", describe(layer))
  if (!length(layer)) fail("layer must name at least one layer")
  vapply(layer, function(layer) whole_number(layer, min = -1e6), 0L)
}

# Joins the words of the parts, whose texts count from each part's first text.
join_word_vectors <- function(result, rows) {
  kept <- lengths(lapply(result, `[[`, "word")) > 0
  list(
    text = as.integer(unlist(Map(function(part, rows) rows[part$text], result, rows))), word = unlist(lapply(result, `[[`, "word")),
    vectors = do.call(rbind, lapply(result[kept], `[[`, "vectors"))
  )
}

# Joins the results of the parts: matrices, or lists of vectors or matrices and of tokens.
join_vectors <- function(result, rows) {
  part <- function(name) lapply(result, `[[`, name)
  if (is.matrix(result[[1L]]$vectors)) return(list(vectors = do.call(rbind, part("vectors"))))
  list(vectors = do.call(c, part("vectors")), tokens = do.call(c, part("tokens")))
}

#' Embed texts for the package ragnar
#'
#' An embedding function for the argument `embed` of
#' `ragnar::ragnar_store_create()`. It follows the conventions of ragnar's own
#' functions, such as `embed_ollama()`, and computes the embeddings in this
#' session's Python, without a server.
#'
#' A store serializes the function that `embed_minhub()` returns without `x`. The
#' function refers to this package only, so a later session can use the store. A
#' model that is given by its name is loaded at the first call, and remains loaded.
#'
#' @inheritParams text_embeddings
#' @param x A character vector, or a data frame with a column `text`. Without `x`,
#'   the result is a function of `x` with the other arguments.
#' @param model A model's name, see [from_pretrained()], or a model.
#' @param ... Arguments of [from_pretrained()] for a model that is given by its
#'   name, such as `revision` and `device`.
#' @returns For a character vector, a numeric matrix with one row per text, or
#'   `NULL` if it is empty. For a data frame, the data frame with a matrix in the
#'   column `embedding`. Without `x`, a function.
#' @family functions for text encoders
#' @examplesIf minhubpy:::is_ready()
#' embed <- embed_minhub(model = "minhub/shakespeare-gpt2")
#' dim(embed(c("To be,", "or not to be")))
#'
#' # store <- ragnar::ragnar_store_create("store.duckdb", embed = embed)
#' \dontshow{minhubpy:::end_example()}
#' @export
embed_minhub <- function(x, model, prompt = NULL, dimensions = NULL, normalize = NULL, ...) {
  if (missing(model)) fail('model is missing: pass the name of a model, such as "sentence-transformers/all-MiniLM-L6-v2"')
  if (!inherits(model, c("minhub_model", "minhub_run"))) model <- string(model)
  loading <- list(...)
  if (length(loading) && !is.character(model)) fail("arguments of from_pretrained() require the name of a model: pass the name, or pass them to from_pretrained()")
  if (missing(x) || is.null(x)) {
    settings <- c(list(model = model, prompt = prompt, dimensions = dimensions, normalize = normalize), loading)
    call <- as.call(c(quote(minhubpy::embed_minhub), quote(x), Filter(Negate(is.null), settings)))
    return(as.function(c(alist(x = ), call), baseenv()))
  }
  if (is.data.frame(x)) {
    texts <- column_of(x, "text")
    x$embedding <- embed_minhub(texts, model, prompt, dimensions, normalize, ...)
    return(x)
  }
  if (!length(x) && (is.character(x) || is.factor(x))) return(NULL)
  x <- check_words(x, NULL, "x")
  vectors <- text_embeddings(loaded_model(model, loading), x, prompt = prompt, dimensions = dimensions, normalize = normalize)
  if (!is.matrix(vectors)) fail("ragnar requires one vector per text: use a model other than SPLADE or ColBERT")
  unname(vectors)
}

# A model by its name, which is loaded once per session.
loaded_model <- function(model, arguments) {
  if (!is.character(model)) return(model)
  unknown <- setdiff(names(arguments), names(formals(from_pretrained)))
  if (length(arguments) && (is.null(names(arguments)) || !all(nzchar(names(arguments))))) fail("arguments of from_pretrained() must have names, such as device = \"cpu\"")
  if (length(unknown)) fail("from_pretrained() has no argument ", unknown[[1L]], ": see ?from_pretrained")
  call <- c(list(model), arguments)
  known <- Position(function(loaded) identical(loaded$call, call), session$embedders)
  if (!is.na(known)) return(session$embedders[[known]]$model)
  model <- do.call(from_pretrained, call)
  session$embedders <- c(session$embedders, list(list(call = call, model = model)))
  model
}
