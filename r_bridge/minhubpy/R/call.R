# R's calls of Python. A link leads to a worker (wire.R) or to the Python that hosts this R; calls are the same for both.

# Calls a Python method and returns its value. `news` is a function that takes what the method sends before it.
ask <- function(method, ..., news = NULL) {
  not_now()
  link <- connect()
  arguments <- lapply(list(...), reference)
  # Interrupts are taken only while there is nothing to read, so that each answer is read whole or not at all.
  answer <- suspendInterrupts(exchange(link, method, arguments, news))
  for (text in answer$warnings) warn(text)
  switch(answer$kind,
    done = answer$value,
    failed = fail(answer$value$message, class = answer$value$class),
    interrupt()
  )
}

# Sends a call and reads its frames. Returns the last one, list(kind, value), with the warnings that came before it.
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
  # A forked child (parallel::mclapply) must not use its parent's link.
  if (!is.null(link) && link$owner != Sys.getpid()) link <- session$link <- NULL
  if (!is.null(link) && !suspendInterrupts(link$is_alive())) {
    note("The Python worker has ended", last_words(link$log), ": starting another")
    disconnect()
    link <- NULL
  }
  if (is.null(link)) suspendInterrupts(start_link()) else link
}

# Call it with interrupts suspended: it takes them only while it waits, so that no worker is left that R does not know.
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

# Called by a Python process that hosts R (r_bridge.RSession), which then serves in place of a worker. send(raw) starts a
# call, or cancels it with raw(0); receive() returns its next frame.
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
  link$receive <- function(call) receive()
  link$close <- function() NULL
  disconnect()
  session$link <- link
  invisible()
}

# Signals an interrupt, as Ctrl-C does.
interrupt <- function(message = "interrupted") {
  signalCondition(structure(list(message = message, call = NULL), class = c("interrupt", "condition")))
  invokeRestart("abort")
}

# Objects that Python holds for R

# The number of an object in Python, and the link that it belongs to. Python drops the object after R has.
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

# An argument as it is sent: the number of a model or tokenizer, any other value itself. An object of an earlier worker,
# or one that was read from a file, is made again first.
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

# R's part of an object that Python holds: the call that made it, as plain data, so that it can be made again, also from
# a file and by another version of this package.
new_self <- function(method, arguments, title) {
  self <- new.env(parent = emptyenv())
  self$title <- title
  self$how <- list(method = method, arguments = arguments)
  made <- make(self)
  self$how$arguments <- arguments[names(arguments) != "token"] # a secret must not get into a file; the model is in the cache now
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

# Stores Python's facts about a model. The same commit is loaded again, even if a branch has moved.
remember <- function(self, about) {
  self$about <- about
  if (!is.null(about$commit)) self$how$arguments$revision <- about$commit
}
