# The R side of the protocol in r_bridge/protocol.py: frames over a local socket.

MAGIC <- 0x4255484DL
KINDS <- c(
  HELLO = 1L, WELCOME = 2L, CALL = 3L, CANCEL = 4L, part = 11L, done = 12L, failed = 13L, cancelled = 14L, ahead = 15L
)
ANSWERS <- c("part", "done", "failed", "cancelled")
FILE <- 256L
START_SECONDS <- 60

# The worker's code. Does not import modules from R's working directory.
START <- "import sys; sys.path[:] = [p for p in sys.path if p]; from r_bridge.worker import main; main()"

# Starts a worker and connects to it. Requires suspended interrupts, and handles them while it waits.
start_worker <- function(python) {
  folder <- private_folder()
  log <- file.path(folder, "log")
  pid <- link <- NULL
  connected <- FALSE
  on.exit(if (!connected) {
    kill(pid) # a worker with an unknown process ID ends after the deletion of its folder
    if (!is.null(link)) close(link$socket)
    unlink(folder, recursive = TRUE)
  })
  variables <- replace_environment(thread_variables())
  on.exit(set_environment(variables), add = TRUE)
  pid <- start_python(python, c("-c", shQuote(START), shQuote(folder), Sys.getpid()), log)
  address <- wait_for_address(folder, log, pid)
  link <- new_link(folder, log, address)
  send_frame(link, KINDS[["HELLO"]], 0L, address$secret)
  welcome <- receive_bytes(link)
  if (is.null(welcome) || !identical(welcome$payload, address$proof)) {
    fail("another program answered instead of the Python worker: try again")
  }
  connected <- TRUE
  link
}

new_link <- function(folder, log, address) {
  link <- new.env(parent = emptyenv())
  link$folder <- folder
  link$log <- log
  link$owner <- Sys.getpid()
  link$pid <- address$pid
  link$epoch <- paste(as.character(address$proof), collapse = "")
  link$socket <- socketConnection(
    "127.0.0.1", address$port,
    open = "r+b", blocking = TRUE, timeout = 86400L * 365L, options = "no-delay"
  )
  link$send <- function(kind, call, value) {
    payload <- if (missing(value)) raw() else serialize(value, NULL, xdr = FALSE, version = 2L)
    send_frame(link, KINDS[[kind]], call, payload)
  }
  link$is_alive <- function() is_ours(link$socket) && skip_frames(link)
  link$wait <- function() wait_for_frame(link)
  link$receive <- function(call) receive_frame(link, call)
  link$close <- function() close_link(link)
  link
}

# Whether a connection is still open. After closeAllConnections(), another connection may have its number.
is_ours <- function(socket) {
  now <- tryCatch(getConnection(socket), error = function(e) NULL)
  !is.null(now) && identical(attr(now, "conn_id"), attr(socket, "conn_id"))
}

close_link <- function(link) {
  if (is_ours(link$socket)) {
    close(link$socket)
    resume_process(link$pid) # a stopped worker would not notice the closed connection
  }
  unlink(link$folder, recursive = TRUE)
}

# R checks setTimeLimit() in Sys.sleep(), which must not interrupt the reading of a frame.
wait_for_frame <- function(link) {
  while (!socketSelect(list(link$socket), timeout = 0.2)) Sys.sleep(0)
}

wait_for_address <- function(folder, log, pid) {
  path <- file.path(folder, "address")
  in_time <- allowInterrupts(wait_until(function() file.exists(path) || !is_running(pid), START_SECONDS))
  if (!in_time) fail("the Python worker did not start in ", START_SECONDS, " seconds", last_words(log))
  if (!file.exists(path)) fail("the Python worker did not start", last_words(log, "no output, possibly killed"))
  on.exit(unlink(path))
  file <- file(path, "rb")
  on.exit(close(file), add = TRUE)
  unserialize(file)
}

# Creates a folder for this user only, in memory if possible, because it contains large results.
private_folder <- function() {
  remove_abandoned("/dev/shm")
  for (parent in c("/dev/shm", tempdir(check = TRUE))) {
    folder <- tempfile(paste0("minhubpy-", Sys.getpid(), "-"), parent)
    if (dir.create(folder, showWarnings = FALSE, mode = "0700")) {
      if (has_room(folder)) return(folder)
      unlink(folder, recursive = TRUE)
    }
  }
  fail("no file can be created in ", parent, ": free disk space, or set the environment variable TMPDIR before starting R")
}

# Removes the folders of this user's R sessions that were killed with their workers. The age protects sessions in other
# containers, whose process IDs are unknown here.
remove_abandoned <- function(parent, age = 3600) {
  folders <- Sys.glob(file.path(parent, "minhubpy-*-*"))
  owner <- as.integer(sub("^minhubpy-([0-9]+)-.*$|.*", "\\1", basename(folders)))
  old <- difftime(Sys.time(), file.mtime(folders), units = "secs") > age
  ended <- !is.na(owner) & old & !vapply(owner, function(pid) is.na(pid) || is_running(pid), NA)
  unlink(folders[ended], recursive = TRUE) # fails silently for the folders of other users
}

# Whether the address file fits into the folder. Large results have an alternative (protocol.py, send_value).
has_room <- function(folder) {
  path <- file.path(folder, "room")
  on.exit(unlink(path))
  suppressWarnings(tryCatch(
    {
      writeBin(raw(4096L), path)
      file.size(path) == 4096
    },
    error = function(e) FALSE
  ))
}

send_frame <- function(link, kind, call, payload) {
  frame <- c(writeBin(c(MAGIC, kind, call, length(payload)), raw()), payload)
  sent <- tryCatch(
    {
      writeBin(frame, link$socket)
      TRUE
    },
    error = function(e) FALSE, warning = function(w) FALSE
  )
  if (!sent) lost(link)
}

# Reads a frame. Returns NULL at the end of the connection or for invalid bytes.
receive_bytes <- function(link) {
  header <- readBin(link$socket, "integer", 4L)
  if (length(header) < 4L || anyNA(header) || header[[1L]] != MAGIC || header[[4L]] < 0L) return(NULL)
  payload <- readBin(link$socket, "raw", header[[4L]])
  if (length(payload) < header[[4L]]) return(NULL)
  list(kind = header[[2L]], call = header[[3L]], payload = payload)
}

# Reads the next frame of `call` as list(kind, value). Returns NULL for a frame of a cancelled call and for AHEAD.
receive_frame <- function(link, call) {
  frame <- receive_bytes(link)
  if (is.null(frame)) lost(link)
  path <- NULL
  if (frame$kind >= FILE) {
    path <- file_of(link, frame)
    on.exit(unlink(path))
  }
  ahead <- link$ahead
  link$ahead <- NULL
  if (frame$call != call) return(NULL)
  kind <- names(KINDS)[match(frame$kind %% FILE, KINDS)]
  if (identical(kind, "ahead")) {
    link$ahead <- read_ahead(file_of(link, frame))
    return(NULL)
  }
  value <- tryCatch(
    if (is.null(path)) unserialize(frame$payload) else if (identical(ahead$path, path)) ahead$value else read_value(path),
    error = function(e) lost(link)
  )
  if (!kind %in% ANSWERS || (kind == "failed" && !is_failure(value))) lost(link)
  list(kind = kind, value = value)
}

is_failure <- function(value) is.list(value) && is.character(value$class) && is.character(value$message)

# Drops the frames of cancelled calls. Returns FALSE if the connection has ended.
skip_frames <- function(link) {
  while (socketSelect(list(link$socket), timeout = 0)) {
    frame <- receive_bytes(link)
    if (is.null(frame)) return(FALSE)
    if (frame$kind >= FILE) unlink(file_of(link, frame))
  }
  TRUE
}

# The file with a frame's payload.
file_of <- function(link, frame) file.path(link$folder, basename(rawToChar(frame$payload[frame$payload != 0L])))

# Reads a file while the worker writes it, as list(path, value). Returns NULL if R reaches the end too early.
read_ahead <- function(path) tryCatch(list(path = path, value = read_value(path)), error = function(e) NULL)

read_value <- function(path) {
  file <- file(path, "rb")
  on.exit(close(file))
  unserialize(file)
}

# Raises an error because the worker has ended or sent invalid bytes.
lost <- function(link) {
  reason <- last_words(link$log)
  disconnect()
  fail(
    "the Python worker ended unexpectedly", reason, ": the next call starts a new worker and reloads the models",
    class = "minhubpy_worker_lost"
  )
}

# The error in a worker's log, in parentheses.
last_words <- function(log, none = NULL) {
  line <- (if (file.exists(log)) error_line(readLines(log, warn = FALSE))) %||% none
  if (!is.null(line)) paste0(" (", line, ")")
}
