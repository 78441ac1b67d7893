# How R calls Python: one exchange for both ways in. A link is a worker (wire.R) or the Python that hosts this R.

# What the method returns. `news` is a function that is given what comes on the way.
ask <- function(method, ..., news = NULL) {
  not_now()
  link <- connect()
  arguments <- lapply(list(...), reference)
  # An answer is read whole or not at all: interrupts wait, except while there is nothing to read.
  answer <- suspendInterrupts(exchange(link, method, arguments, news))
  for (text in answer$warnings) warn(text)
  switch(answer$kind,
    done = answer$value,
    failed = fail(answer$value$message, class = answer$value$class),
    interrupt()
  )
}

# The last frame of a call, list(kind, value), with the warnings that came before it.
exchange <- function(link, method, arguments, news) {
  call <- link$calls <- link$calls + 1L
  ended <- FALSE
  warnings <- character()
  link$busy <- TRUE
  on.exit({
    link$busy <- FALSE
    if (!ended && identical(session$link, link)) suspendInterrupts(link$send("CANCEL", call))
  })
  link$send("CALL", call, list(method = method, arguments = arguments, release = take_released()))
  repeat {
    allowInterrupts(link$wait())
    frame <- link$receive(call)
    if (is.null(frame)) next
    if (frame$kind == "part") {
      if (is_warning(frame$value)) {
        warnings <- c(warnings, frame$value$warning)
      } else if (!is.null(news)) {
        allowInterrupts(news(frame$value))
      }
      next
    }
    ended <- TRUE
    return(list(kind = frame$kind, value = frame$value, warnings = warnings))
  }
}

is_warning <- function(value) is.list(value) && identical(names(value), "warning")

not_now <- function() {
  if (is_busy()) fail("a function that is called while Python is at work cannot call Python itself: do so afterwards")
}

is_busy <- function() isTRUE(session$link$busy) && session$link$owner == Sys.getpid()

connect <- function() {
  link <- session$link
  # A forked child (parallel::mclapply) must not speak on its parent's line.
  if (!is.null(link) && link$owner != Sys.getpid()) link <- session$link <- NULL
  if (!is.null(link) && !suspendInterrupts(link$is_alive())) {
    note("The Python worker has ended", last_words(link$log), ": starting another")
    disconnect()
    link <- NULL
  }
  if (is.null(link)) suspendInterrupts(start_link()) else link
}

# An interrupt may come while this waits, and nowhere else: it would leave a worker that R does not know of.
start_link <- function() {
  link <- start_worker(choose_python())
  link$calls <- 0L
  session$released <- integer()
  session$link <- link
  reg.finalizer(link, function(link) if (identical(link$owner, Sys.getpid())) link$close(), onexit = TRUE)
  link
}

disconnect <- function() {
  link <- session$link
  session$link <- NULL
  if (!is.null(link) && identical(link$owner, Sys.getpid())) link$close()
  invisible()
}

# A Python process that hosts R (r_bridge.RSession) gives two functions, and then serves in place of a worker.
# send(raw) starts a call, or with raw(0) cancels it; receive() returns its next frame.
attach_host <- function(send, receive) {
  link <- new.env(parent = emptyenv())
  link$owner <- Sys.getpid()
  link$epoch <- paste("host", link$owner)
  link$calls <- 0L
  link$send <- function(kind, call, value) {
    send(if (kind == "CANCEL") raw() else serialize(value, NULL, xdr = FALSE, version = 2L))
  }
  link$is_alive <- function() TRUE
  link$wait <- function() NULL
  link$receive <- function(call) unserialize(receive())
  link$close <- function() NULL
  disconnect()
  session$link <- link
  invisible()
}

# As Ctrl-C does it.
interrupt <- function(message = "interrupted") {
  signalCondition(structure(list(message = message, call = NULL), class = c("interrupt", "condition")))
  invokeRestart("abort")
}

# Objects that Python holds for R

# A number in Python's list, with the link that it is good for. Python is told when R has dropped it.
new_handle <- function(number) {
  handle <- new.env(parent = emptyenv())
  handle$number <- number
  handle$epoch <- session$link$epoch
  reg.finalizer(handle, function(handle) {
    if (identical(handle$epoch, session$link$epoch)) session$released <- c(session$released, handle$number)
  })
  handle
}

take_released <- function() {
  released <- session$released
  session$released <- integer()
  released
}

# What stands for an R object in a call: the number of a model or tokenizer, anything else itself. One that an earlier
# worker held, or that was read from a file, is made again first.
reference <- function(x) {
  if (!inherits(x, c("minhub_model", "minhub_tokenizer"))) return(x)
  self <- attr(x, "self")
  if (!identical(self$handle$epoch, session$link$epoch)) {
    if (isTRUE(self$changed)) {
      fail(
        "the weights that this model was given are gone with the Python worker that had them: ",
        "model$load_state_dict() gives them again; save_pretrained() would have kept them"
      )
    }
    note("The Python worker is new: loading ", self$title, " again")
    load_again(self)
  }
  self$handle$number
}

# What R keeps of an object that Python holds: how it was made, as plain data, so that it can be made again, also by
# another version of this package from a file.
new_self <- function(method, arguments, title) {
  self <- new.env(parent = emptyenv())
  self$title <- title
  self$how <- list(method = method, arguments = arguments)
  made <- make(self)
  self$how$arguments <- arguments[names(arguments) != "token"] # a secret has no place in a file; the cache has the model now
  if (is.list(made)) remember(self, made)
  self
}

make <- function(self) {
  made <- do.call(ask, c(list(self$how$method), self$how$arguments, list(news = show_progress())))
  self$handle <- new_handle(if (is.list(made)) made$number else made)
  made
}

load_again <- function(self) {
  made <- make(self)
  if (!is.list(made)) return(invisible())
  mode <- self$about$training
  remember(self, made)
  model <- as_model(self)
  if (!is.null(self$moved)) move_model(model, self$moved$device, self$moved$dtype)
  if (!identical(mode, made$training)) set_mode(model, mode)
}

# What Python says of a model. Whatever a branch is by then, the same commit is loaded again.
remember <- function(self, about) {
  self$about <- about
  if (!is.null(about$commit)) self$how$arguments$revision <- about$commit
}
