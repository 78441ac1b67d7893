# Long jobs: a file stores the results of each part, and a later call continues from it.
#
# The file has one serialized object after another: a record of the job, then list(part, size, value) for each part in
# order; `value` is the serialized result of the part, `size` its number of bytes. A worker holds a lock and appends to the
# file (r_bridge/methods/results.py), so that neither a second session nor a kill can damage it.

ROWS_OF_PART <- 1000L # some seconds of work, the most that an interrupt costs

# Calls work(rows, news) for all rows at once or, with a file, for parts of whole texts, whose results the file stores.
# join(results, rows) combines the results of the parts.
in_parts <- function(texts, file, job, work, size = ROWS_OF_PART, join = join_rows) {
  if (is.null(file) || !length(texts)) return(work(seq_along(texts), show_progress()))
  file <- path.expand(string(file, "resume"))
  if (!grepl("\\.rds$", file, ignore.case = TRUE)) fail('resume must name a file that ends in ".rds", not ', describe(file))
  if (!dir.exists(dirname(file))) fail("resume: there is no folder ", dirname(file))
  file <- absolute(file)
  parts <- unname(split(seq_along(texts), part_of(match(texts, unique(texts)), size)))
  record <- list(minhubpy = 3L, job = lapply(job, identity_of))
  stored <- read_results(file, record)
  if (length(stored$values) < length(parts)) stored <- compute_parts(file, record, parts, work)
  join(stored$values, parts)
}

# Computes the missing parts. Returns the complete content of the file.
compute_parts <- function(file, record, parts, work) {
  results <- open_results(file)
  stored <- list(values = list())
  on.exit({
    finished <- length(stored$values) == length(parts)
    close_results(results, finished)
    if (!finished) note("Stopped after ", length(stored$values), " of ", length(parts), " parts: the same call continues from there")
  })
  stored <- read_results(file, record) # again, now that no other session writes to it
  if (isTRUE(file.size(file) > stored$size)) ask("truncate_results", file = handle_of(results), size = stored$size)
  if (stored$size == 0) {
    bytes <- serialize(record, NULL)
    append_results(results, 0, bytes)
    stored$size <- length(bytes)
  }
  news <- news_of_parts(show_progress(), length(parts))
  for (part in seq_along(parts)[seq_along(parts) > length(stored$values)]) {
    value <- work(parts[[part]], news(part))
    bytes <- serialize(part_record(part, serialize(value, NULL)), NULL)
    append_results(results, stored$size, bytes)
    stored$size <- stored$size + length(bytes)
    stored$values[[part]] <- value
  }
  stored
}

part_record <- function(part, bytes) list(part = part, size = length(bytes), value = bytes)

# Data frames with a row for each row.
join_rows <- function(results, rows) do.call(rbind, results)[order(unlist(rows)), , drop = FALSE]

# The file

# The results of the first parts, and the number of bytes that they and the record take. The bytes after them are an
# incomplete part, left by a kill. An error if the file belongs to another job.
read_results <- function(file, record) {
  stored <- list(values = list(), size = 0)
  if (!file.exists(file) || is_beginning(file, serialize(record, NULL))) return(stored)
  opened <- file(file, "rb")
  on.exit(close(opened))
  first <- next_object(opened)
  if (!identical(first, list(record))) {
    fail("resume: ", file, " holds something else than this job (other words, model or settings): remove it, or name another file")
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

# Whether a file has the first bytes of a record, and no more: its session was killed.
is_beginning <- function(file, record) {
  size <- file.size(file)
  size < length(record) && identical(readBin(file, "raw", size), record[seq_len(size)])
}

# The next object of a connection in a list; NULL at its end, or where it is cut.
next_object <- function(opened) tryCatch(list(unserialize(opened)), error = function(e) NULL)

# The result in the record of a part, in a list; NULL if it is not the record of this part, or corrupt.
value_of_part <- function(object, part) {
  if (!is.list(object) || !identical(names(object), c("part", "size", "value"))) return(NULL)
  if (!identical(object$part, part) || !is.raw(object$value) || !identical(object$size, length(object$value))) return(NULL)
  tryCatch(list(unserialize(object$value)), error = function(e) NULL)
}

# Locks a file. An error if another session uses it.
open_results <- function(file) {
  results <- new.env(parent = emptyenv())
  results$file <- file
  results$handle <- new_handle(ask("open_results", file = file))
  results
}

# The number of the file in the worker; a new worker must lock it again.
handle_of <- function(results) {
  if (!identical(results$handle$epoch, connect()$epoch)) results$handle <- open_results(results$file)$handle
  results$handle$number
}

append_results <- function(results, size, bytes) {
  ask("append_results", file = handle_of(results), size = as.double(size), data = bytes)
}

# Unlocks a file. A worker that ended has unlocked it.
close_results <- function(results, finished) {
  link <- session$link
  if (!identical(results$handle$epoch, link$epoch) || is_busy() || !suspendInterrupts(link$is_alive())) return(invisible())
  tryCatch(
    ask("close_results", file = results$handle$number, finished = finished),
    interrupt = function(condition) NULL, minhubpy_worker_lost = function(condition) NULL
  )
  invisible()
}

# The job

# What identifies a value of a job in another session: an object in Python by the call that made it, and by the hash of
# its files.
identity_of <- function(value) {
  if (inherits(value, "minhub_tokenizer")) return(ask("tokenizer_fingerprint", tokenizer = value))
  if (!inherits(value, "minhub_model")) return(value)
  self <- attr(value, "self")
  if (isTRUE(self$changed)) fail("resume: the weights of this model were changed here: save_pretrained() it, and load that")
  c(self$how, moved = list(self$moved), fingerprint = ask("model_fingerprint", model = value))
}

# The part of each row: whole texts, in order, as many as make up the rows of a part.
part_of <- function(numbers, size) {
  before <- cumsum(tabulate(numbers)) - 1L
  (before %/% size)[numbers]
}

# Progress of part after part, as one.
news_of_parts <- function(show, parts) {
  function(part) {
    if (is.null(show)) return(NULL)
    function(news) {
      news$done <- 1000 * (part - 1) + if (news$total > 0) 1000 * news$done / news$total else 0
      news$total <- 1000 * parts
      show(news)
    }
  }
}
