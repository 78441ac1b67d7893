#' Train a model
#'
#' `minhub_train()` trains a new model on text or, with `from`, fine-tunes an
#' existing model on text or on examples of a task. `minhub_resume()` continues an interrupted run, or a finished
#' run with more steps. `minhub_run()` reads a run's folder.
#'
#' The last tenth of the text is held out for evaluation. The run stores the model
#' with the lowest loss on it. Losses on text are in nats per token (natural log),
#' and their `exp()` is the perplexity. `print()` shows the unit of other losses.
#'
#' @section Interruption and resumption:
#' Esc or Ctrl-C stops the training before the next batch and writes a checkpoint.
#' `minhub_resume(out)` repeats the unfinished step or evaluation, and the result
#' is the same as without the interruption. After a crash, it continues from the
#' last checkpoint or from the beginning. A run that was interrupted while its
#' text was being prepared requires the same text files. Only one process at a
#' time can train in a folder. With `out = NULL`, the folder is deleted at the end
#' of the R session.
#'
#' With a different number of `steps`, the learning rate follows a new cosine
#' schedule, and the result differs from a new run with this number of steps. A
#' message and the model card (README.md in the folder) state it.
#'
#' @section Examples of a task:
#' The columns of a data frame, or of a file with the extension `.jsonl`, `.json`,
#' `.csv`, `.tsv` or `.parquet`, determine the task:
#'
#' * `messages`, a list with one conversation per row: a data frame with the
#'   columns `role` and `content`, or a list of such lists. The loss counts the
#'   assistant's replies only, except those whose `weight` is 0. A column `tools`
#'   contains the definitions of tools as JSON.
#' * `conversations` (ShareGPT's form, with `from` and `value`), or `instruction`,
#'   `input` and `output` (Alpaca's form): as `messages`.
#' * `prompt` and `completion`: the loss counts the completions only. Both are
#'   strings, or lists of conversations.
#' * `prompt`, `chosen` and `rejected`: preferences (DPO), with `lora`. `beta`
#'   (0.1) limits the distance to the model without the adapter. Without `prompt`,
#'   `chosen` and `rejected` are lists of conversations.
#' * `text` and `label`: classification by a factor, strings or whole numbers (the
#'   loss is in nats per label), and regression by other numbers (mean squared
#'   error). `from` is a text encoder, or a decoder of an
#'   architecture with a classification head.
#' * `anchor` and `positive`: text embeddings. Similar texts become more similar
#'   than an anchor and the other texts of a batch; `scale` (20) is the factor of
#'   their cosine. With `negative`, also than the anchor and this text; `margin`
#'   instead requires this difference of the distances in triplets only.
#' * `text`: all tokens, or masked words with a text encoder.
#'
#' Other columns have no effect, which a note states. `NA` is a missing value, and
#' an error in a column of the task. In `.csv` and `.tsv` files, a value is missing
#' if it has no quotes and is one of the strings `na` (`""` and `"NA"`, as
#' `write.csv()` writes them).
#'
#' With `lora`, a logical column `keep` marks rows that keep the answers of the
#' model: their loss is the divergence from the model without the adapter, times
#' `keep_weight` (10).
#'
#' A tenth of the rows, drawn by `seed`, is held out (`held_out`). `epochs` is the
#' number of passes over the rows (4), instead of `steps`. `objective` is `"chat"`,
#' `"completion"`, `"preference"`, `"labels"`, `"decision"`, `"pairs"`,
#' `"triplets"`, `"text"` or `"masked"`, if the columns leave a choice.
#'
#' @section Further settings:
#' `...` accepts the other settings of Python's `minhub_py.train()`, with the same
#' defaults: `revision` (branch, tag or commit of `from`), `vocab_size` (of a
#' `"bpe"` tokenizer), `held_out` (0.1, the held-out part: the end of the text, or
#' examples drawn by `seed`),
#' `accumulate` (the number of parts into which a step's rows are split to
#' reduce memory; at most this number for examples), `warm_up` (100, the number of
#' steps until the maximum learning rate; with `from`, at most a tenth of `steps`),
#' `epochs`, `objective`, `na`, `beta`, `scale`, `margin`, `keep_weight`, `checkpointing` (`TRUE` saves memory),
#' `floor`, `weight_decay` (0.1, with `from` 0.01, with `lora` 0), `beta2`, `clip`, `carry` (`FALSE`: an LSTM
#' resets its state at each step), `evaluate_tokens`, `checkpoint_every`,
#' `sample_tokens`, `dtype`, `compile`, `parallel` and `threads`.
#'
#' @param text The training text: paths of UTF-8 text files, or a character vector
#'   of lines. Or examples: a data frame, or paths of files with such columns, see
#'   below.
#' @param family The architecture: `"lstm"`, `"gpt2"`, `"llama"`, `"qwen3"` or
#'   another family, which the error for an unknown one lists. With `from`, the
#'   architecture of that model.
#' @param out The folder of the run, which must not contain a run. `NULL`: a folder
#'   that is deleted at the end of the R session. For `minhub_resume()` and
#'   `minhub_run()`, the folder of a run, or the run.
#' @param layers,width,heads The number of layers, of channels (for an LSTM, the
#'   hidden size), and of attention heads of a new model. Defaults: 4 layers of
#'   128 channels with heads of size 32; for an LSTM, 2 layers of 256.
#' @param context The number of tokens in a row of the batch, and the maximum
#'   number of positions of a transformer. Default: 128.
#' @param dropout The dropout probability. Default: 0.1.
#' @param steps The number of steps. Default: 2,000. With `from`, four passes over
#'   the data, or the further setting `epochs`.
#' @param batch The number of rows in each step. Default: 32, or 8 with `from`.
#' @param learning_rate The maximum learning rate. Default: 0.0015, for an LSTM
#'   0.003, a tenth of that with `from` (0.00005 for labels and masked words), and
#'   0.0005 with `lora` (0.00001 for preferences).
#' @param tokenizer `"characters"` (one token per character), `"bpe"` (learned
#'   from the text), a tokenizer of [tokenizer_from_pretrained()], or the
#'   `identifier` of a model as in [from_pretrained()].
#' @param from The model to fine-tune: an `identifier` as in [from_pretrained()], a
#'   model, or a run.
#' @param sample A prompt that the model continues at each evaluation.
#' @param seed An integer. By default, the seed is drawn from R's random numbers,
#'   so `set.seed()` makes the training reproducible.
#' @param device The device, as in [from_pretrained()].
#' @param patience The number of evaluations without a lower loss after which the
#'   training stops. `NULL`: no early stopping.
#' @param evaluate_every The number of steps between two evaluations. Default: 250,
#'   with `from` at most a quarter of `steps`.
#' @param config Further settings of the model: a list with the names of
#'   config.json, such as `list(window_size = 64)`.
#' @param lora Train a LoRA adapter of `from` instead of all weights: its rank, such
#'   as 16, or a list with `r`, `alpha`, `dropout`, `targets`, `dora`, `rslora` and
#'   `invocation`: the text in the prompt that activates the adapter, such as
#'   `list(r = 16, invocation = " Lumo")`. Other texts have the results of `from`.
#'   The folder then contains the adapter in PEFT's format. The further setting
#'   `quantize = "nf4"` (or `"int8"`) stores the frozen weights in 4 (or 8) bits.
#' @param metrics Where to write losses and speed during the run, too: the path of a
#'   file of JSON lines, `"tensorboard:FOLDER"` or `"wandb:PROJECT"`. The last two
#'   need a Python package, which an error names.
#' @param progress Whether to print the losses and, in an interactive console, a
#'   status line. Outside a console, a line appears at least once a minute. Or a
#'   function that is called with each event: a list with the `event`
#'   (`"preparing"`, `"begins"`, `"estimated"`, `"working"`, `"stepped"`,
#'   `"evaluated"`, `"sampled"` or `"note"`) and its values.
#' @param ... Further settings by name, see below. `minhub_resume()` accepts the
#'   settings that can change during a run, such as `evaluate_every`, `patience`,
#'   `sample` and `device`.
#' @returns A run, a list of class `minhub_run`:
#'   * `model`: the best model, see [minhub_model];
#'   * `tokenizer`: its tokenizer;
#'   * `losses`: a data frame with one row per evaluation and the columns `step`,
#'     `tokens`, `train_loss` (the mean since the previous row), `held_out_loss`,
#'     `learning_rate`, `gradient_norm`, `tokens_per_second` and `seconds`, and
#'     for examples with labels `accuracy` and `f1_macro`, or `r_squared`, of the
#'     held-out examples;
#'   * `best_loss` and `best_step`: the lowest loss on held-out data, and its
#'     step;
#'   * `folder`: the folder of the run;
#'   * `settings`: the settings of the run.
#'
#'   [plot()][plot.minhub_losses] draws a run's losses, and
#'   [minhub_compare()] compares runs.
#' @family functions for training
#' @examplesIf minhubpy:::is_ready()
#' text <- rep("To be, or not to be, that is the question.", 50)
#' run <- minhub_train(
#'   text,
#'   steps = 30, width = 16, layers = 1, context = 16, batch = 4, evaluate_every = 10, seed = 1
#' )
#' run
#' run$losses
#' plot(run)
#' generate(run$model, "To be", max_new_tokens = 20, seed = 1, stream = FALSE)
#' run <- minhub_resume(run, steps = 40)
#'
#' # Teach a model a task by examples.
#' examples <- data.frame(
#'   prompt = c("late train:", "cold soup:"), completion = c(" transport", " food")
#' )
#' run <- minhub_train(
#'   examples[rep(1:2, 4), ],
#'   from = "minhub/shakespeare-gpt2", lora = 4, steps = 2, context = 32, seed = 1
#' )
#' \dontshow{minhubpy:::end_example()}
#' @export
minhub_train <- function(text, family = "lstm", out = NULL, layers = NULL, width = NULL, heads = NULL, context = NULL,
                         dropout = NULL, steps = NULL, batch = NULL, learning_rate = NULL, tokenizer = NULL,
                         from = NULL, sample = NULL, seed = NULL, device = NULL, patience = NULL,
                         evaluate_every = NULL, config = list(), lora = NULL, metrics = NULL, progress = interactive(),
                         ...) {
  on_event <- event_handler(progress)
  common <- list(
    family = if (missing(family) && !is.null(from)) NULL else optional(family, string, what = "family"),
    from = optional(from, start_name), tokenizer = optional(tokenizer, tokenizer_name),
    device = optional(device, device_name), seed = if (is.null(seed)) draw_seeds(1L) else number(seed, "seed", integer = TRUE)
  )
  numbers <- list(
    layers = layers, width = width, heads = heads, context = context, dropout = dropout, steps = steps, batch = batch,
    learning_rate = learning_rate, sample = sample, patience = patience, evaluate_every = evaluate_every
  )
  settings <- c(common, plain_settings(c(numbers, metrics = optional(metrics, metrics_target), named(list(...)))))
  if (!is.list(config) && !is.atomic(config)) fail("config must be a named list, not ", describe(config))
  if (length(config)) settings$config <- plain_config(as.list(config), "config = list(window_size = 64)")
  if (!is.null(lora)) {
    settings$lora <- lora_settings(lora)
  }
  out <- if (is.null(out)) tempfile("minhub-run-") else absolute(file_path(out))
  settings <- Filter(Negate(is.null), settings)
  if (is.data.frame(text)) {
    columns <- example_columns(text)
    path <- tempfile("minhub-examples-", fileext = ".jsonl")
    # After an interrupt of the preparation, minhub_resume() reads the file again.
    on.exit(if (!file.exists(file.path(out, "tokens", "begun.json"))) unlink(path))
    result <- train_in(out, on_event, "train_on_examples", columns = columns, path = path, settings = settings)
    return(new_run(result, result$device))
  }
  files <- text_files(text)
  on.exit(unlink(files$temporary, recursive = TRUE))
  result <- train_in(out, on_event, "train_model", texts = files$paths, copy = length(files$temporary) > 0L, settings = settings)
  new_run(result, result$device)
}

#' @rdname minhub_train
#' @export
minhub_resume <- function(out, steps = NULL, progress = interactive(), ..., metrics = NULL) {
  on_event <- event_handler(progress)
  settings <- plain_settings(c(list(steps = steps, metrics = optional(metrics, metrics_target)), named(list(...))))
  result <- train_in(run_folder(out), on_event, "resume_training", settings = settings)
  new_run(result, result$device)
}

#' @rdname minhub_train
#' @export
minhub_run <- function(out) new_run(ask("read_run", out = run_folder(out)), "auto") # the device of the run may not exist on this machine

# Arguments

# Returns list(paths, temporary): the text files, and the temporary folder with a file of the text, if `text` is not a
# vector of paths.
text_files <- function(text) {
  if (length(text) == 0L) fail("text is empty: pass text or the paths of text files")
  text <- texts(text, "text")
  if (!any(nzchar(text))) fail("text is empty: pass text or the paths of text files")
  if (are_paths(text)) return(list(paths = check_files(text), temporary = character()))
  folder <- tempfile("minhub-text-")
  dir.create(folder)
  path <- file.path(folder, "text.txt")
  file <- file(path, "wb")
  on.exit(close(file))
  writeLines(text, file, sep = if (length(text) == 1L) "" else "\n", useBytes = TRUE)
  list(paths = path, temporary = folder)
}

# The target of metrics, with absolute paths: the working directory of Python is another one.
metrics_target <- function(metrics) {
  metrics <- string(metrics, "metrics")
  if (startsWith(metrics, "wandb:")) return(metrics)
  kind <- if (startsWith(metrics, "tensorboard:")) "tensorboard:" else ""
  paste0(kind, absolute(file_path(substring(metrics, nchar(kind) + 1L))))
}

# An adapter's settings, from its rank or from a list.
lora_settings <- function(lora) {
  if (is.list(lora)) plain_config(lora, "lora = list(r = 16)") else list(r = number(lora, "lora", integer = TRUE))
}

EXAMPLE_COLUMNS <- list(
  "messages", c("prompt", "completion"), c("chosen", "rejected"), "conversations", c("text", "label"),
  c("instruction", "output"), "text"
)

# The columns of examples as Python writes them to a file: strings, numbers, and conversations as lists of roles and
# contents.
example_columns <- function(data) {
  if (nrow(data) == 0L) fail("text is a data frame without rows: pass one example per row")
  if (!any(vapply(EXAMPLE_COLUMNS, function(names) all(names %in% names(data)), NA))) {
    fail(
      "text has the columns ", toString(names(data)), ": a data frame needs messages; prompt and completion; chosen and ",
      "rejected; conversations (ShareGPT); text and label; instruction, input and output (Alpaca); or text"
    )
  }
  used <- c(unlist(EXAMPLE_COLUMNS), "prompt", "keep", "input", "system", "tools")
  columns <- lapply(names(data), function(name) {
    # Python notes the other columns, which it does not use.
    if (name %in% used) example_column(data[[name]], name) else rep("", nrow(data))
  })
  names(columns) <- names(data)
  columns
}

example_column <- function(x, name) {
  if (is.list(x) && !is.data.frame(x)) {
    return(lapply(seq_along(x), function(row) conversation(x[[row]], paste0(name, ", row ", row))))
  }
  if (is.data.frame(x) || is.matrix(x)) fail(name, " must be a column of strings, not ", describe(x))
  x <- plain(x, name)
  if (is_plain_number(x) && name == "label" && any(x != floor(x), na.rm = TRUE)) return(as.double(x))
  if (!is.character(x)) x <- as.character(x)
  missing <- is.na(x)
  x[!missing] <- texts(x[!missing], name)
  as.character(x)
}

# A conversation as a list of columns: role and content, or from and value, and others such as weight.
conversation <- function(x, what) {
  if (is_plain_list(x) && is.null(names(x)) && length(x) && all(vapply(x, is.list, NA))) x <- message_columns(x)
  needed <- if (is.list(x) && all(c("from", "value") %in% names(x))) c("from", "value") else c("role", "content")
  if (!is.list(x) || !all(needed %in% names(x))) {
    fail(what, " must be a data frame with the columns role and content, not ", describe(x))
  }
  columns <- lapply(names(x), function(name) {
    values <- x[[name]]
    if (name %in% needed) return(texts(values, paste0(name, " of ", what)))
    if (!is.atomic(values)) fail(name, " of ", what, " must be a vector: write such rows to a .jsonl file")
    if (is.numeric(values) || is.logical(values)) as.double(values) else as.character(values)
  })
  names(columns) <- names(x)
  columns
}

# The columns of a list of messages; NA where a message lacks the element.
message_columns <- function(messages) {
  names <- unique(unlist(lapply(messages, names)))
  columns <- lapply(names, function(name) {
    values <- lapply(messages, function(message) if (is.null(message[[name]])) NA else message[[name]])
    if (all(lengths(values) == 1L)) unlist(values) else values
  })
  names(columns) <- names
  columns
}

# Whether all strings are paths or look like paths. Checks the first string first, because a text may have many.
are_paths <- function(text) {
  is_path <- function(x) {
    short <- nchar(x, "bytes") < 1000L & !grepl("\n", x, fixed = TRUE)
    all(short) && all(grepl("[.](txt|json|jsonl|csv|tsv|parquet)$|[/\\\\]", x) | file.exists(path.expand(x)))
  }
  is_path(text[[1L]]) && is_path(text)
}

check_files <- function(paths) {
  expanded <- path.expand(paths)
  exists <- file.exists(expanded)
  if (!all(exists)) {
    fail('the text file "', paths[!exists][[1L]], '" does not exist: check its name, or append "\\n" to pass it as text')
  }
  folder <- dir.exists(expanded)
  if (any(folder)) fail('"', paths[folder][[1L]], '" is a folder: pass its files with list.files(full.names = TRUE)')
  vapply(expanded, absolute, "", USE.NAMES = FALSE)
}

# The identifier of the model to fine-tune, which must be in a folder or on the Hub.
start_name <- function(from) {
  if (inherits(from, "minhub_run")) return(from$folder)
  if (!inherits(from, "minhub_model")) return(path_or_name(from))
  self <- attr(from, "self")
  if (self$how$method != "from_pretrained" || isTRUE(self$changed)) {
    fail("from must be a model in a folder or on the Hub: save the model with save_pretrained() and pass the folder")
  }
  # The folder is a specific commit of a repository.
  if (is.null(self$about$commit)) self$how$arguments$identifier else self$about$folder
}

tokenizer_name <- function(tokenizer) {
  if (!inherits(tokenizer, "minhub_tokenizer")) {
    tokenizer <- string(tokenizer, "tokenizer")
    return(if (tokenizer %in% c("characters", "bpe")) tokenizer else path_or_name(tokenizer))
  }
  how <- attr(tokenizer, "self")$how
  if (how$method != "tokenizer_from_pretrained") {
    fail("tokenizer must be from tokenizer_from_pretrained(), not from a file: pass the folder with tokenizer.json")
  }
  how$arguments$identifier
}

run_folder <- function(out) if (inherits(out, "minhub_run")) out$folder else absolute(file_path(out, "out"))

named <- function(settings) {
  if (length(settings) && (is.null(names(settings)) || !all(nzchar(names(settings))))) {
    fail("settings must have names, such as warm_up = 20")
  }
  settings
}

# Checks that each setting is a number, a string or a flag. Python checks the type.
plain_settings <- function(settings) {
  if (anyDuplicated(names(settings))) {
    fail("settings must not be repeated: ", names(settings)[duplicated(names(settings))][[1L]])
  }
  settings <- Filter(Negate(is.null), settings)
  for (name in names(settings)) {
    x <- settings[[name]]
    if (is.atomic(x) && length(x) == 1L && is.na(x)) fail(name, " must not be NA: pass a value or omit it")
    if (name == "na") {
      settings[[name]] <- as.list(texts(x, name))
    } else if (is.character(x) || is.factor(x)) {
      settings[[name]] <- string(x, name)
    } else if (is.logical(x)) {
      settings[[name]] <- flag(x, name)
    } else {
      settings[[name]] <- number(x, name)
    }
  }
  settings
}

# The run

# A call of Python that may take hours. After an error or an interrupt, R waits until Python has written a checkpoint,
# because the end of the R session would also end Python.
train_in <- function(out, on_event, method, ...) {
  collect_handles() # training needs the memory of models that are no longer used
  ended <- FALSE
  on.exit({
    end_status(on_event)
    if (!ended) wait_for_checkpoint()
  })
  result <- withCallingHandlers(
    tryCatch(ask(method, ..., out = out, on_event = on_event), interrupt = function(condition) {
      end_status(on_event)
      wait_for_checkpoint()
      message <- resume_advice(out)
      note(message)
      interrupt(message)
    }),
    minhubpy_error = function(condition) end_status(on_event), # R prints the message before on.exit()
    minhubpy_worker_lost = function(condition) {
      if (is_resumable(out)) fail(conditionMessage(condition), ". ", resume_advice(out), class = "minhubpy_worker_lost")
    }
  )
  ended <- TRUE
  result
}

# Waits for the checkpoint. A second interrupt ends the wait, and Python still writes the checkpoint.
wait_for_checkpoint <- function() {
  link <- session$link
  if (is.null(link) || is_busy() || !suspendInterrupts(link$is_alive())) return(invisible())
  tryCatch(ask("nothing"), interrupt = function(condition) NULL, error = function(condition) NULL)
  invisible()
}

# Whether a folder contains a run, or a run whose text was being prepared.
is_resumable <- function(out) any(file.exists(file.path(out, c("settings.json", "tokens/begun.json"))))

resume_advice <- function(out) {
  if (!is_resumable(out)) return("Stopped before the first step: nothing was written")
  checkpoints <- sub("^step-", "", dir(file.path(out, "checkpoints"), "^step-[0-9]+$"))
  after <- if (length(checkpoints)) paste(" after step", counted(as.integer(max(checkpoints))))
  paste0("Stopped", after, ": continue with minhub_resume(", encodeString(out, quote = '"'), ")")
}

new_run <- function(about, device) {
  losses <- structure(
    about$losses, class = c("minhub_losses", "data.frame"), unit = about$unit, has_perplexity = about$has_perplexity
  )
  structure(
    list(
      model = from_pretrained(about$folder, device = device, quantize = about$settings$quantize),
      tokenizer = tokenizer_from_pretrained(about$folder),
      losses = losses, best_loss = about$loss, best_step = about$best_step, folder = about$folder,
      settings = about$settings
    ),
    class = "minhub_run", about = about[names(about) != "losses"]
  )
}

#' @export
format.minhub_run <- function(x, ...) {
  about <- attr(x, "about")
  of <- if (about$steps < about$wanted) paste(" of", counted(about$wanted))
  paste0("<run: ", about$title, ", ", count(about$parameters), " parameters, ", counted(about$steps), of, " steps>")
}

MEASURES <- c(accuracy = "accuracy", f1_macro = "macro F1", r_squared = "R2") # of examples with labels

#' @export
print.minhub_run <- function(x, ...) {
  about <- attr(x, "about")
  cat(format(x), "\n", sep = "")
  cat(
    "  held-out loss  ", sprintf("%.4f", x$best_loss), " ", about$unit, " after step ", counted(x$best_step),
    ": run$model\n",
    sep = ""
  )
  for (name in names(about$measures)) cat("  ", formatC(MEASURES[[name]], width = -13L), "  ", sprintf("%.4f", about$measures[[name]]), "\n", sep = "")
  cat("  took           ", about$time, ", ", counted(about$tokens_per_second), " tokens/s\n", sep = "")
  cat("  folder         ", x$folder, "\n", sep = "")
  invisible(x)
}
