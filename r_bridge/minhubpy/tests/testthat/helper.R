# Helpers of the tests. tests/r_bridge/test_r_package.py runs the tests with a worker and in R inside Python.

options(minhubpy.quiet = TRUE)

BUILT_IN <- paste0("minhub/shakespeare-", c("gpt2", "gptneo", "lstm"))

# Only argument checks run without Python.
needs_python <- function() {
  skip_if_not(minhubpy:::is_ready(), "no Python with minhub_py")
}

needs_extra <- function(name) {
  needs_python()
  skip_if_not(minhubpy:::is_ready(name), paste0("this Python lacks minhub_py[", name, "]"))
}

needs_worker <- function() {
  needs_python()
  skip_if(minhubpy:::is_hosted(), "only a plain R session has a worker")
}

# Only the C decoder makes drafts, and bitwise identical results in any batch. The variable is set where it is missing.
has_decoder <- function() !nzchar(Sys.getenv("MINHUB_NO_DECODER"))

needs_decoder <- function() {
  needs_python()
  skip_if_not(has_decoder(), "no C decoder")
}

# Results in another batch: identical with the decoder, else up to rounding.
expect_same <- function(actual, expected) {
  if (has_decoder()) testthat::expect_identical(actual, expected) else testthat::expect_equal(actual, expected, tolerance = 1e-5)
}

# Objects that are loaded once.
shared <- new.env()

the <- function(name, make) {
  needs_python()
  if (is.null(shared[[name]])) shared[[name]] <- make
  shared[[name]]
}

a_model <- function() the("model", gpt2_from_pretrained(BUILT_IN[[1L]]))
a_tokenizer <- function() the("tokenizer", tokenizer_from_pretrained(BUILT_IN[[1L]]))
# A random model without a tokenizer and without dropout.
a_random_model <- function() {
  the("random", gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 16, seed = 1)$eval())
}

# Expects an error of the package with this class, this message and the user's call.
expect_refused <- function(object, message, class = "minhubpy_error", fixed = TRUE) {
  call <- substitute(object)
  shown <- paste(deparse(call), collapse = " ")
  condition <- tryCatch(
    {
      object
      NULL
    },
    error = identity
  )
  gave <- if (is.null(condition)) "no error" else paste(class(condition)[[1L]], conditionMessage(condition))
  testthat::expect(inherits(condition, "minhubpy_error"), paste0(shown, " gave ", gave))
  if (!inherits(condition, "minhubpy_error")) return(invisible())
  testthat::expect(class %in% class(condition), paste0(shown, " is of class ", toString(class(condition))))
  testthat::expect_match(conditionMessage(condition), message, fixed = fixed, info = shown)
  testthat::expect_identical(deparse(conditionCall(condition)), deparse(call), info = shown)
  # The message does not contain implementation details.
  said <- conditionMessage(condition)
  testthat::expect(
    !grepl("Traceback|unexpected .* in Python|<environment>|structure\\(|\n$", said), paste0(shown, " says ", said)
  )
}
# users_call() must not take this function for a function of the package.
environment(expect_refused) <- globalenv()

worker_pid <- function() {
  minhubpy:::ask("nothing")
  minhubpy:::session$link$pid
}

# Does not depend on the order of the tests.
random_text <- function(n) {
  set.seed(n)
  paste(sample(c(letters, " ", "\n"), n, replace = TRUE), collapse = "")
}

# The PDF operators of a plot.
drawn <- function(draw, width = 7, height = 5) {
  path <- tempfile(fileext = ".pdf")
  on.exit(unlink(path))
  grDevices::pdf(path, width, height, compress = FALSE)
  tryCatch(force(draw), finally = grDevices::dev.off())
  iconv(readLines(path, warn = FALSE, encoding = "latin1"), "latin1", "UTF-8", sub = "?")
}

# A plot's strings, in drawing order.
strings <- function(lines) {
  shown <- regmatches(lines, regexpr("\\(.*\\) Tj|\\[.*\\] TJ", lines))
  kerned <- gsub("\\) -?[0-9.]+ \\(", "", sub("^\\[?\\(", "", sub("\\)\\]? T[jJ]$", "", shown)))
  gsub("\\\\([()\\\\])", "\\1", kerned)
}

# Files of `resume`: a record of the job, then one object per part.
parts_in <- function(file) length(objects_in(file)) - 1L

keep_parts <- function(file, n) writeBin(do.call(c, lapply(objects_in(file)[seq_len(n + 1L)], serialize, NULL)), file)

objects_in <- function(file) {
  opened <- file(file, "rb")
  on.exit(close(opened))
  found <- list()
  while (length(object <- tryCatch(list(unserialize(opened)), error = function(e) NULL))) found <- c(found, object)
  found
}

ENCODER_WORDS <- c(
  "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "king", "is", "dead", "green", "my", "lord", "good", "night", "day",
  "##s", "##ly", "what", "news", "from", "duke", "he", "lives", "query", ".", ",", "?", ":", "!", "'"
)

# The folder of a small random BERT with a WordPiece tokenizer. Large weights make the results distinct.
encoder_folder <- function(class = "BertForMaskedLM", labels = NULL, seed = 1) {
  needs_python()
  folder <- tempfile("encoder ")
  model <- from_config(
    "bert",
    vocab_size = length(ENCODER_WORDS), hidden_size = 32, num_hidden_layers = 2, num_attention_heads = 4, intermediate_size = 48,
    max_position_embeddings = 24, initializer_range = 0.4, architectures = class, num_labels = max(1L, length(labels)), seed = seed
  )
  save_pretrained(model, folder)
  config <- readLines(file.path(folder, "config.json"))
  if (!is.null(labels)) {
    names <- paste0('"', seq_along(labels) - 1L, '": "', labels, '"', collapse = ", ")
    config <- sub('"model_type"', paste0('"id2label": {', names, '}, "model_type"'), sub('"num_labels": [0-9]+,', "", config))
    stopifnot(any(grepl("id2label", config)))
  }
  writeLines(config, file.path(folder, "config.json"))
  writeLines(word_piece(ENCODER_WORDS), file.path(folder, "tokenizer.json"))
  folder
}

# A tokenizer.json that lower-cases texts, as BERT's.
word_piece <- function(words) {
  vocabulary <- paste0('"', words, '": ', seq_along(words) - 1L, collapse = ", ")
  special <- paste0(
    '{"id": ', 0:4, ', "content": "', words[1:5], '", "single_word": false, "lstrip": false, "rstrip": false, ',
    '"normalized": false, "special": true}', collapse = ", "
  )
  paste0(
    '{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [', special, '], ',
    '"normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, ',
    '"lowercase": true}, "pre_tokenizer": {"type": "BertPreTokenizer"}, ',
    '"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}, ',
    '"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true}, "model": {"type": "WordPiece", "unk_token": "[UNK]", ',
    '"continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {', vocabulary, "}}}"
  )
}

a_masked_model <- function() the("masked", from_pretrained(encoder_folder()))
a_classifier <- function() {
  the("classifier", from_pretrained(encoder_folder("BertForSequenceClassification", c("bad", "neutral", "good"), seed = 2)))
}
an_entailment_model <- function() {
  the("entailment", from_pretrained(encoder_folder("BertForSequenceClassification", c("entailment", "neutral", "contradiction"), seed = 3)))
}
a_cross_encoder <- function() {
  the("cross", from_pretrained(encoder_folder("BertForSequenceClassification", "relevance", seed = 4)))
}
a_token_classifier <- function() {
  the("tokens", from_pretrained(encoder_folder("BertForTokenClassification", c("O", "B-PER", "I-PER", "LOC"), seed = 6)))
}
a_question_model <- function() {
  the("questions", from_pretrained(encoder_folder("BertForQuestionAnswering", seed = 7)))
}
# In the layout of sentence-transformers: mean pooling, normalization, prompts and a maximum length.
a_sentence_model <- function() {
  the("sentence", {
    folder <- encoder_folder("BertModel", seed = 5)
    write <- function(text, ...) writeLines(text, file.path(folder, ...))
    dir.create(file.path(folder, "1_Pooling"))
    write('{"pooling_mode": "mean", "embedding_dimension": 32}', "1_Pooling", "config.json")
    write('{"max_seq_length": 8}', "sentence_bert_config.json")
    write('{"prompts": {"query": "query: ", "document": ""}}', "config_sentence_transformers.json")
    modules <- paste0('{"idx": ', 0:2, ', "name": "', 0:2, '", "path": "', c("", "1_Pooling", "2_Normalize"),
                      '", "type": "sentence_transformers.models.', c("Transformer", "Pooling", "Normalize"), '"}')
    write(paste0("[", paste(modules, collapse = ", "), "]"), "modules.json")
    from_pretrained(folder)
  })
}

# bit64::as.integer64(), whose package is not required: the bits of whole numbers in the memory of doubles.
as_integer64 <- function(x) {
  high <- floor(x / 2^32)
  low <- x - high * 2^32
  words <- rbind(ifelse(low >= 2^31, low - 2^32, low), high)
  words[, is.na(x)] <- c(0, NA) # the smallest integer, which is NA in integers of 32 bits, too
  if (.Platform$endian == "big") words <- words[2:1, , drop = FALSE]
  structure(readBin(writeBin(as.integer(words), raw()), "double", length(x)), class = "integer64")
}

# A model with a chat template, and labels of one token for decide_texts().
a_decider <- function() {
  the("decider", {
    folder <- file.path(tempfile("decider"))
    save_pretrained(a_model(), folder, tokenizer = a_tokenizer())
    writeLines("{% for m in messages %}{{ m.content }}{% endfor %}\nAnswer:", file.path(folder, "chat_template.jinja"))
    writeLines('{"labels": {"noul": ["Y", "N"]}}', file.path(folder, "decision.json"))
    from_pretrained(folder)
  })
}

# A chat model. Its template writes the special token "!" after each message, which thus ends a reply.
a_chat_model <- function() {
  the("chat", {
    folder <- tempfile("chat-")
    save_pretrained(a_model(), folder, tokenizer = a_tokenizer())
    file <- file.path(folder, "tokenizer.json")
    end <- '[{"id": 2, "content": "!", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}]'
    text <- paste(readLines(file, warn = FALSE), collapse = "\n")
    stopifnot(grepl('"!": *2,', text), grepl('"added_tokens": *\\[\\]', text))
    writeLines(sub('"added_tokens": *\\[\\]', paste0('"added_tokens": ', end), text), file)
    writeLines(CHAT_TEMPLATE, file.path(folder, "chat_template.jinja"), sep = "")
    from_pretrained(folder)
  })
}
CHAT_TEMPLATE <- "{% for m in messages %}{{ m.role }}: {{ m.content }}!\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
tokenizer_of <- function(model) tokenizer_from_pretrained(attr(model, "self")$how$arguments$identifier)
