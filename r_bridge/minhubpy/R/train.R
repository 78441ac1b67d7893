# Training: arguments for Python, its events on the console, and the results of a run.

#' Train a model
#'
#' `minhub_train()` trains a model on text: a new one or, with `from`, an
#' existing one (fine-tuning). `minhub_resume()` continues a run that was
#' stopped, or one that was finished with more steps. `minhub_run()` reads
#' the folder of a run.
#'
#' The last tenth of the text is held out: the loss on it, at each evaluation,
#' says how good the model is, and the best model is kept. Losses are
#' in nats per token, whose `exp()` is the perplexity.
#'
#' @section To stop and to go on:
#' Esc or Ctrl-C stops the training before the next batch, with a checkpoint:
#' `minhub_resume(out)` repeats an unfinished step or evaluation and continues
#' as if the training had not stopped. After a crash it continues from the last
#' checkpoint, or from the beginning if there is none yet. A run that was
#' stopped while its text was being prepared needs its text files, unchanged,
#' once more. Only one process at a time can train in a folder. With
#' `out = NULL` the folder is removed with the R session.
#'
#' With other `steps` the learning rate follows another cosine from there on:
#' the run comes to another model than a new one of so many steps. A message
#' and the model card (README.md in the folder) say so.
#'
#' @section Further settings:
#' All are those of Python's `minhub_py.train`, and what is not given is as
#' there: `revision` (the branch, tag or commit of `from`), `vocab_size` (of a
#' tokenizer that is `"bpe"`), `held_out` (0.1, the part of the text that is
#' held out), `accumulate` (split the rows of a step into so many parts, which
#' needs less memory), `warm_up` (100 steps until the highest learning rate),
#' `floor`, `weight_decay`, `beta2`, `clip`, `carry` (`FALSE`: an LSTM forgets
#' from step to step), `evaluate_tokens`, `checkpoint_every`, `sample_tokens`,
#' `dtype`, `compile`, `parallel` and `threads`.
#'
#' @param text Text to learn from: the paths of text files (UTF-8), or the text
#'   itself, a character vector whose elements are lines.
#' @param family A family by the name of its functions: `"lstm"`, `"gpt2"`,
#'   `"llama"`, `"qwen3"` and so on; with `from`, its own.
#' @param out The folder of the run, which must not hold one yet. `NULL`: one
#'   that goes away with the R session; give a folder to keep it.
#'   [save_pretrained()] keeps the model alone. For `minhub_resume()` and
#'   `minhub_run()`, the folder of a run, or the run.
#' @param layers,width,heads Sizes of a fresh model: `width` is the number of
#'   channels, or the hidden size of an LSTM, which has no heads. If not given,
#'   4 layers of 128 channels, in heads of 32; an LSTM has 2 of 256.
#' @param context Tokens of a row, and the positions of a transformer; 128, if
#'   not given.
#' @param dropout The part that is dropped; 0.1, if not given.
#' @param steps The number of steps; 2,000, if not given.
#' @param batch Rows in each step; 32, if not given.
#' @param learning_rate The highest; 0.0015, for an LSTM 0.003, and a tenth of
#'   that with `from`, if not given.
#' @param tokenizer `"characters"` (a token for each), `"bpe"` (learnt from the
#'   text), or that of a model: what [from_pretrained()] takes, or what
#'   [tokenizer_from_pretrained()] returned.
#' @param from A model to train further: what [from_pretrained()] takes or
#'   returned, or a run.
#' @param sample A text from which the model writes on at each evaluation.
#' @param seed A whole number; if not given, R's random numbers give one, so
#'   `set.seed()` before makes the training repeatable.
#' @param device As for [from_pretrained()].
#' @param patience Stop after so many evaluations without a lower loss.
#' @param evaluate_every Steps between two evaluations; 250, if not given.
#' @param config Further settings of the model, a list by the names of
#'   config.json, such as `list(window_size = 64)`.
#' @param progress `TRUE`: show the losses as they come, and in an interactive
#'   console a line that moves; elsewhere a line comes at least once a minute.
#'   Or a function that is called with each piece of
#'   news: a list with `event`, which is `"preparing"`, `"begins"`, `"estimated"`,
#'   `"working"`, `"stepped"`, `"evaluated"`, `"sampled"` or `"note"`, and what belongs to
#'   it.
#' @param ... Further settings by their names, see below. `minhub_resume()`
#'   takes those that can still change, such as `evaluate_every`, `patience`,
#'   `sample` and `device`.
#' @returns A run, a list of class `minhub_run`:
#'   * `model`: the best model, as [from_pretrained()] returns it, and
#'     `tokenizer`, its tokenizer;
#'   * `losses`: a data frame with a row for each evaluation, and the columns
#'     `step`, `tokens`, `train_loss`, `held_out_loss`, `learning_rate`,
#'     `gradient_norm`, `tokens_per_second` and `seconds`; `train_loss` is the
#'     mean of the steps since the row before;
#'   * `best_loss` and `best_step`, `folder`, and `settings`.
#'
#'   [plot()][plot.minhub_losses] draws the losses of a run, and
#'   [minhub_compare()] puts runs side by side.
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
#' \dontshow{minhubpy:::end_example()}
#' @export
minhub_train <- function(text, family = "lstm", out = NULL, layers = NULL, width = NULL, heads = NULL, context = NULL,
                         dropout = NULL, steps = NULL, batch = NULL, learning_rate = NULL, tokenizer = NULL,
                         from = NULL, sample = NULL, seed = NULL, device = NULL, patience = NULL,
                         evaluate_every = NULL, config = list(), progress = interactive(), ...) {
  news <- training_news(progress)
  common <- list(
    family = if (missing(family) && !is.null(from)) NULL else optional(family, string, what = "family"),
    from = optional(from, start_name), tokenizer = optional(tokenizer, tokenizer_name),
    device = optional(device, device_name), seed = if (is.null(seed)) draw_seeds(1L) else number(seed, "seed", whole = TRUE)
  )
  numbers <- list(
    layers = layers, width = width, heads = heads, context = context, dropout = dropout, steps = steps, batch = batch,
    learning_rate = learning_rate, sample = sample, patience = patience, evaluate_every = evaluate_every
  )
  settings <- c(common, plain_settings(c(numbers, named(list(...)))))
  if (!is.list(config) && !is.atomic(config)) fail("config must be a list with names, not ", describe(config))
  if (length(config)) settings$config <- plain_config(as.list(config), "config = list(window_size = 64)")
  out <- if (is.null(out)) tempfile("minhub-run-") else absolute(file_path(out))
  files <- text_files(text)
  on.exit(unlink(files$ours, recursive = TRUE))
  settings <- Filter(Negate(is.null), settings)
  made <- train_in(out, news, "train_model", texts = files$paths, copy = length(files$ours) > 0L, settings = settings)
  new_run(made, made$device)
}

#' @rdname minhub_train
#' @export
minhub_resume <- function(out, steps = NULL, progress = interactive(), ...) {
  news <- training_news(progress)
  settings <- plain_settings(c(list(steps = steps), named(list(...))))
  made <- train_in(run_folder(out), news, "resume_training", settings = settings)
  new_run(made, made$device)
}

#' @rdname minhub_train
#' @export
minhub_run <- function(out) new_run(ask("read_run", out = run_folder(out)), "auto") # the run may be from another machine

# Arguments

# list(paths, ours): the files that are named, or a file made of the text, in a folder `ours` to remove afterwards.
text_files <- function(text) {
  if (length(text) == 0L) fail("text is empty: give text, or the paths of text files")
  text <- texts(text, "text")
  if (!any(nzchar(text))) fail("text is empty: give text, or the paths of text files")
  if (are_paths(text)) return(list(paths = check_files(text), ours = character()))
  folder <- tempfile("minhub-text-")
  dir.create(folder)
  path <- file.path(folder, "text.txt")
  file <- file(path, "wb")
  on.exit(close(file))
  writeLines(text, file, sep = if (length(text) == 1L) "" else "\n", useBytes = TRUE)
  list(paths = path, ours = folder)
}

# Whether all are files, or look like files. For most texts the first line decides.
are_paths <- function(text) {
  is_path <- function(x) {
    short <- nchar(x, "bytes") < 1000L & !grepl("\n", x, fixed = TRUE)
    all(short) && all(grepl("[.]txt$|[/\\\\]", x) | file.exists(path.expand(x)))
  }
  is_path(text[[1L]]) && is_path(text)
}

check_files <- function(paths) {
  expanded <- path.expand(paths)
  there <- file.exists(expanded)
  if (!all(there)) {
    fail('there is no text file "', paths[!there][[1L]], '": check its name (text that is meant itself may end with "\\n")')
  }
  folder <- dir.exists(expanded)
  if (any(folder)) fail('"', paths[folder][[1L]], '" is a folder: give its files, as list.files(full.names = TRUE) does')
  vapply(expanded, absolute, "", USE.NAMES = FALSE)
}

# The identifier of a model to start from, which must be in a folder or on the Hub.
start_name <- function(from) {
  if (inherits(from, "minhub_run")) return(from$folder)
  if (!inherits(from, "minhub_model")) return(path_or_name(from))
  self <- attr(from, "self")
  if (self$how$method != "from_pretrained" || isTRUE(self$changed)) {
    fail("from is a model that no folder has: save_pretrained() writes it into one, whose path from takes")
  }
  # The commit of a repository.
  if (is.null(self$about$commit)) self$how$arguments$identifier else self$about$folder
}

tokenizer_name <- function(tokenizer) {
  if (!inherits(tokenizer, "minhub_tokenizer")) {
    tokenizer <- string(tokenizer, "tokenizer")
    return(if (tokenizer %in% c("characters", "bpe")) tokenizer else path_or_name(tokenizer))
  }
  how <- attr(tokenizer, "self")$how
  if (how$method != "tokenizer_from_pretrained") {
    fail("tokenizer is one of a file: give the folder that holds its tokenizer.json")
  }
  how$arguments$identifier
}

run_folder <- function(out) if (inherits(out, "minhub_run")) out$folder else absolute(file_path(out, "out"))

named <- function(settings) {
  if (length(settings) && (is.null(names(settings)) || !all(nzchar(names(settings))))) {
    fail("settings need names, such as warm_up = 20")
  }
  settings
}

# Each setting is one number, text or flag; Python checks which.
plain_settings <- function(settings) {
  if (anyDuplicated(names(settings))) {
    fail("settings are given twice: ", names(settings)[duplicated(names(settings))][[1L]])
  }
  settings <- Filter(Negate(is.null), settings)
  for (name in names(settings)) {
    x <- settings[[name]]
    if (is.atomic(x) && length(x) == 1L && is.na(x)) fail(name, " is NA: give a value, or leave it out")
    if (is.character(x) || is.factor(x)) {
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

# A call of Python that may take hours. Whatever ends it, Python first makes a checkpoint and R waits for it, since at R's
# end there is no time for that.
train_in <- function(out, news, method, ...) {
  ended <- FALSE
  on.exit({
    news_end(news)
    if (!ended) wait_for_checkpoint()
  })
  made <- withCallingHandlers(
    tryCatch(ask(method, ..., out = out, news = news), interrupt = function(condition) {
      news_end(news)
      wait_for_checkpoint()
      words <- how_to_go_on(out)
      note(words)
      interrupt(words)
    }),
    minhubpy_worker_lost = function(condition) {
      if (has_run(out)) fail(conditionMessage(condition), ". ", how_to_go_on(out), class = "minhubpy_worker_lost")
    }
  )
  ended <- TRUE
  made
}

# A second interrupt ends the wait, and Python still makes the checkpoint.
wait_for_checkpoint <- function() {
  link <- session$link
  if (is.null(link) || is_busy() || !suspendInterrupts(link$is_alive())) return(invisible())
  tryCatch(ask("nothing"), interrupt = function(condition) NULL, error = function(condition) NULL)
  invisible()
}

# Whether there is a run to resume, or one whose text was being prepared.
has_run <- function(out) any(file.exists(file.path(out, c("settings.json", "tokens/begun.json"))))

how_to_go_on <- function(out) {
  if (!has_run(out)) return("Stopped before the first step: nothing was written")
  found <- sub("^step-", "", dir(file.path(out, "checkpoints"), "^step-[0-9]+$"))
  after <- if (length(found)) paste(" after step", counted(as.integer(max(found))))
  paste0("Stopped", after, "; minhub_resume(", encodeString(out, quote = '"'), ") goes on")
}

new_run <- function(about, device) {
  losses <- structure(about$losses, class = c("minhub_losses", "data.frame"))
  structure(
    list(
      model = from_pretrained(about$folder, device = device), tokenizer = tokenizer_from_pretrained(about$folder),
      losses = losses, best_loss = about$nats_per_token, best_step = about$best_step, folder = about$folder,
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

#' @export
print.minhub_run <- function(x, ...) {
  about <- attr(x, "about")
  cat(format(x), "\n", sep = "")
  cat(
    "  held-out loss  ", sprintf("%.4f", x$best_loss), " nats per token after step ", counted(x$best_step),
    ": run$model\n",
    sep = ""
  )
  cat("  took           ", about$time, ", ", counted(about$tokens_per_second), " tokens/s\n", sep = "")
  cat("  folder         ", x$folder, "\n", sep = "")
  invisible(x)
}

# Console

# The function that takes events: it shows them, calls the user's own function, or does nothing.
training_news <- function(progress) {
  if (is.function(progress)) return(function(news) if (!is.null(news$event)) progress(news))
  show <- flag(progress, "progress")
  if (quiet()) return(NULL)
  if (!show) return(function(news) if (identical(news$event, "note")) note("Note: ", news$text))
  screen <- new.env(parent = emptyenv())
  screen$moves <- interactive() && !isTRUE(getOption("knitr.in.progress"))
  screen$shown <- 0L
  screen$said <- seconds_now()
  screen$download <- show_progress()
  structure(function(news) show_news(screen, news), screen = screen)
}

news_end <- function(news) {
  screen <- attr(news, "screen")
  if (!is.null(screen)) move_line(screen, "")
}

show_news <- function(screen, news) {
  switch(if (is.null(news$event)) "download" else news$event,
    download = if (!is.null(screen$download)) screen$download(news),
    preparing = move_line(screen, news$what, sprintf(" the text: %.0f %%", 100 * news$done / max(news$total, 1))),
    begins = {
      say_line(screen, news$family, ", ", counted(news$parameters), " parameters, on ", news$device, ", ", news$dtype)
      say_line(
        screen, counted(news$train_tokens), " tokens to train on, ", counted(news$held_out_tokens), " held out; ",
        counted(news$steps), " steps of ", counted(news$batch), " x ", counted(news$context)
      )
      if (news$finished) {
        more <- if (news$step == news$steps) c("; for more: minhub_resume(out, steps = ", 2 * news$steps, ")")
        return(say_line(screen, "finished already, after step ", counted(news$step), more))
      }
      if (news$step > 0L) say_line(screen, "continues after step ", counted(news$step))
    },
    estimated = {
      say_line(screen, "about ", news$time, " for ", counted(news$steps), " steps and ", counted(news$evaluations), " evaluations")
      if (news$seconds >= 600) say_line(screen, "smaller values take less time: steps, batch, context, evaluate_tokens")
    },
    working = show_state(
      screen, if (news$task == "step") paste("step", counted(news$step + 1L)) else "evaluating",
      ": batch ", counted(news$batch), " of ", counted(news$batches)
    ),
    stepped = show_state(
      screen, "step ", counted(news$step), " of ", counted(news$steps), sprintf("  loss %.4f  ", news$loss),
      counted(news$tokens_per_second), " tokens/s  ", news$time_left, " left"
    ),
    evaluated = {
      if (!isTRUE(screen$headed)) {
        say_line(screen, sprintf("%8s  %8s  %8s  %10s  %12s", "STEP", "TRAINING", "HELD OUT", "TOKENS/S", "TIME"))
      }
      screen$headed <- TRUE
      say_line(
        screen,
        sprintf(
          "%8s  %8s  %8.4f  %10s  %12s%s", counted(news$step), if (is.na(news$train_loss)) "" else sprintf("%.4f", news$train_loss),
          news$held_out_loss, if (news$step > 0L) counted(news$tokens_per_second) else "", news$time,
          if (news$best) "" else "  not better"
        )
      )
    },
    sampled = say_line(screen, "\n", gsub("^\n+|\n+$", "", news$text), "\n"),
    note = say_line(screen, "Note: ", news$text)
  )
}

# Shows the state of a run in the status line; without one, as a line a minute.
show_state <- function(screen, ...) {
  if (screen$moves) move_line(screen, ...) else if (seconds_now() - screen$said >= 60) say_line(screen, ...)
}

# Prints a line that stays, over the status line.
say_line <- function(screen, ...) {
  move_line(screen, "")
  message(...)
  screen$said <- seconds_now()
}

seconds_now <- function() proc.time()[["elapsed"]]

# Prints the status line. The next line overwrites it, so it must not be wider than the console.
move_line <- function(screen, ...) {
  if (!screen$moves) return(invisible())
  line <- strtrim(paste0(...), max(20L, getOption("width") - 1L))
  wide <- nchar(line, "width")
  if (wide == 0L && screen$shown == 0L) return(invisible())
  rest <- strrep(" ", max(0L, screen$shown - wide))
  message("\r", line, rest, if (wide == 0L) "\r", appendLF = FALSE)
  screen$shown <- wide
}

counted <- function(n) format(round(n), big.mark = ",", scientific = FALSE)
