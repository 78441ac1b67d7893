# Long jobs: a file stores the result of each part, and a later call resumes the job.
#
# The file is a sequence of serialized objects: a record of the job, then list(part, size, value) for each part in
# order. `value` is the serialized result, and `size` its number of bytes. The worker locks the file and appends to it
# (r_bridge/methods/results.py), so that neither a second session nor a killed process can corrupt it.

# A part's size: a few seconds of work, which an interrupt loses.
ROWS_OF_PART <- 1000L
TEXTS_OF_PART <- 256L
PROMPTS_OF_PART <- 64L

# Calls work(rows, on_event) for all rows or, with a file, for each part, and stores the results in the file. A part
# contains complete texts. join(results, rows) combines the results.
in_parts <- function(texts, file, job, work, size = ROWS_OF_PART, join = join_rows) {
  if (is.null(file) || !length(texts)) return(work(seq_along(texts), show_progress()))
  file <- path.expand(string(file, "resume"))
  if (!grepl("\\.rds$", file, ignore.case = TRUE)) fail('resume must name a file that ends in ".rds", not ', describe(file))
  if (!dir.exists(dirname(file))) fail("resume must be in an existing folder: create ", dirname(file))
  file <- absolute(file)
  parts <- unname(split(seq_along(texts), part_of(match(texts, unique(texts)), size)))
  record <- list(minhubpy = 3L, job = lapply(job, identity_of))
  stored <- read_results(file, record)
  if (length(stored$values) < length(parts)) stored <- compute_parts(file, record, parts, work)
  join(stored$values, parts)
}

# Calls a method of Python with `columns`, named vectors with an element for each text, and `settings`, for parts of
# the texts as in_parts(). `texts` contains each element's text if several belong to one text, and `record` values
# that identify the job beyond the arguments.
ask_in_parts <- function(method, model, columns, settings, file, texts = seq_along(columns[[1L]]), record = NULL,
                         size = TEXTS_OF_PART, join = join_rows) {
  in_parts(texts, file, c(list(call = method, model = model), columns, settings, record), function(rows, on_event) {
    do.call(ask, c(list(method, model = model), lapply(columns, `[`, rows), settings, list(on_event = on_event)))
  }, size, join)
}

# Computes the missing parts. Returns all results.
compute_parts <- function(file, record, parts, work) {
  results <- open_results(file)
  stored <- list(values = list())
  on.exit({
    finished <- length(stored$values) == length(parts)
    close_results(results, finished)
    if (!finished) note("Stopped after ", length(stored$values), " of ", length(parts), " parts: repeat the call to continue")
  })
  stored <- read_results(file, record) # another session may have written before the lock
  if (isTRUE(file.size(file) > stored$size)) ask("truncate_results", file = handle_of(results), size = stored$size)
  if (stored$size == 0) {
    bytes <- serialize(record, NULL)
    append_results(results, 0, bytes)
    stored$size <- length(bytes)
  }
  events <- events_of_parts(show_progress(), length(parts))
  for (part in seq_along(parts)[seq_along(parts) > length(stored$values)]) {
    value <- work(parts[[part]], events(part))
    bytes <- serialize(part_record(part, serialize(value, NULL)), NULL)
    append_results(results, stored$size, bytes)
    stored$size <- stored$size + length(bytes)
    stored$values[[part]] <- value
  }
  stored
}

part_record <- function(part, bytes) list(part = part, size = length(bytes), value = bytes)

# Joins data frames and restores the order of the rows.
join_rows <- function(results, rows) do.call(rbind, results)[order(unlist(rows)), , drop = FALSE]

# Results file

# Returns the results of the complete parts, and the size of their records in bytes. A killed process may leave an
# incomplete part after them. Raises an error if the file belongs to another job.
read_results <- function(file, record) {
  stored <- list(values = list(), size = 0)
  if (!file.exists(file) || is_beginning(file, serialize(record, NULL))) return(stored)
  opened <- file(file, "rb")
  on.exit(close(opened))
  first <- next_object(opened)
  if (!identical(first, list(record))) {
    fail("resume: ", file, " belongs to another job (other words, model or settings): delete it or use another file")
  }
  stored$size <- length(serialize(record, NULL))
  repeat {
    part <- length(stored$values) + 1L
    object <- next_object(opened)
    value <- if (length(object)) value_of_part(object[[1L]], part)
    if (is.null(value)) return(stored)
    stored$values[part] <- value
    stored$size <- stored$size + length(serialize(object[[1L]], NULL))
  }
}

# Whether a file contains only a record's first bytes, because its session was killed.
is_beginning <- function(file, record) {
  size <- file.size(file)
  size < length(record) && identical(readBin(file, "raw", size), record[seq_len(size)])
}

# A connection's next object, in a list; NULL at the end or for a truncated object.
next_object <- function(opened) tryCatch(list(unserialize(opened)), error = function(e) NULL)

# The result in a part's record, in a list; NULL for the record of another part or a corrupt record.
value_of_part <- function(object, part) {
  if (!is.list(object) || !identical(names(object), c("part", "size", "value"))) return(NULL)
  if (!identical(object$part, part) || !is.raw(object$value) || !identical(object$size, length(object$value))) return(NULL)
  tryCatch(list(unserialize(object$value)), error = function(e) NULL)
}

# Locks a file. Raises an error if another session uses it.
open_results <- function(file) {
  results <- new.env(parent = emptyenv())
  results$file <- file
  results$handle <- new_handle(ask("open_results", file = file))
  results
}

# The number of the file in the worker. Locks the file again in a new worker.
handle_of <- function(results) {
  if (!identical(results$handle$epoch, connect()$epoch)) results$handle <- open_results(results$file)$handle
  results$handle$number
}

append_results <- function(results, size, bytes) {
  ask("append_results", file = handle_of(results), size = as.double(size), data = bytes)
}

# Unlocks a file. The end of a worker also unlocks it.
close_results <- function(results, finished) {
  link <- session$link
  if (!identical(results$handle$epoch, link$epoch) || is_busy() || !suspendInterrupts(link$is_alive())) return(invisible())
  tryCatch(
    ask("close_results", file = results$handle$number, finished = finished),
    interrupt = function(condition) NULL, minhubpy_worker_lost = function(condition) NULL
  )
  invisible()
}

# Job record

# Identifies a value of a job in another session: a model by its call and the hash of its files, a tokenizer by a hash.
identity_of <- function(value) {
  if (inherits(value, "minhub_tokenizer")) return(ask("tokenizer_fingerprint", tokenizer = value))
  if (!inherits(value, "minhub_model")) return(value)
  self <- attr(value, "self")
  arguments <- self$how$arguments
  if (inherits(arguments$model, "minhub_model")) { # the model is derived from another one
    derived <- c(list(identity_of(arguments$model)), arguments[names(arguments) != "model"])
    return(c(derived, fingerprint = if (self$how$method == "adapter") ask("model_fingerprint", model = value)))
  }
  if (isTRUE(self$changed)) fail("resume requires a model from a file, and load_state_dict() changed its weights: save it with save_pretrained() and load it again")
  c(self$how, moved = list(self$moved), fingerprint = ask("model_fingerprint", model = value))
}

# The part of each row. A part contains complete texts, in order.
part_of <- function(numbers, size) {
  before <- cumsum(tabulate(numbers)) - 1L
  (before %/% size)[numbers]
}

# Combines the progress of the parts.
events_of_parts <- function(show, parts) {
  function(part) {
    if (is.null(show)) return(NULL)
    function(event) {
      event$done <- 1000 * (part - 1) + if (event$total > 0) 1000 * event$done / event$total else 0
      event$total <- 1000 * parts
      show(event)
    }
  }
}
