# Calls from R to Python, through a link to a worker process (wire.R) or to the Python process that hosts R.

# Calls a Python method and returns its value. `on_event` receives the events that the method sends before its value.
ask <- function(method, ..., on_event = NULL) {
  not_now()
  link <- connect()
  arguments <- list(...)
  arguments <- Map(to_python, arguments, names(arguments))
  # An interrupt is handled between two frames only: a partly read frame would break the connection.
  answer <- suspendInterrupts(exchange(link, method, arguments, on_event))
  for (text in answer$warnings) warn(text)
  switch(answer$kind,
    done = answer$value,
    failed = fail(answer$value$message, class = answer$value$class),
    interrupt()
  )
}

# Sends a call and reads its frames. Returns the last frame, list(kind, value), with the warnings that preceded it.
exchange <- function(link, method, arguments, on_event) {
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
      } else if (!is.null(on_event)) {
        allowInterrupts(on_event(frame$value))
      }
      next
    }
    ended <- TRUE
    return(list(kind = frame$kind, value = frame$value, warnings = warnings))
  }
}

is_warning <- function(value) is.list(value) && identical(names(value), "warning")

not_now <- function() {
  if (is_busy()) fail("a callback cannot call Python while a call is running: call it after that call returns")
}

is_busy <- function() isTRUE(session$link$busy) && session$link$owner == Sys.getpid()

connect <- function() {
  link <- session$link
  # A forked child (parallel::mclapply) must not use its parent's link.
  if (!is.null(link) && link$owner != Sys.getpid()) link <- session$link <- NULL
  if (!is.null(link) && !suspendInterrupts(link$is_alive())) {
    note("The Python worker ended", last_words(link$log), ": starting a new worker")
    disconnect()
    link <- NULL
  }
  if (is.null(link)) suspendInterrupts(start_link()) else link
}

# Requires suspended interrupts, and handles them only while it waits: otherwise R could lose track of a new worker.
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

# Called by a Python process that hosts R (r_bridge.RSession) and replaces the worker. send(raw) starts a call, and
# send(raw(0)) cancels it. receive() returns the next frame.
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

# Signals an interrupt, like Ctrl-C.
interrupt <- function(message = "interrupted") {
  signalCondition(structure(list(message = message, call = NULL), class = c("interrupt", "condition")))
  invokeRestart("abort")
}

# References to Python objects

# The number and the link of a Python object. Python releases the object after R's garbage collection.
new_handle <- function(number) {
  handle <- new.env(parent = emptyenv())
  handle$number <- number
  handle$epoch <- session$link$epoch
  session$handles <- session$handles + 1L
  reg.finalizer(handle, function(handle) {
    session$handles <- session$handles - 1L
    if (identical(handle$epoch, session$link$epoch)) session$released <- c(session$released, handle$number)
  })
  handle
}

take_released <- function() {
  released <- session$released
  session$released <- integer()
  released
}

# An argument as a value that means the same in Python: without classes, and with the numbers of Python's objects. `what`:
# the name of the argument.
to_python <- function(x, what) {
  x <- plain(reference(x), what)
  if (is.object(x) && !is.factor(x) && !is.data.frame(x)) {
    fail(what, " must not contain ", describe(x), ": convert it with as.numeric() or as.character()")
  }
  if (is.list(x)) x[] <- lapply(x, to_python, what = what)
  x
}

# Replaces a model, tokenizer or lens by its number in Python. Reloads objects of an earlier worker or from an RDS file.
reference <- function(x) {
  if (!inherits(x, c("minhub_model", "minhub_tokenizer", "minhub_tuned_lens"))) return(x)
  self <- attr(x, "self")
  if (!identical(self$handle$epoch, session$link$epoch)) {
    if (isTRUE(self$changed)) {
      fail(
        "the weights from load_state_dict() were lost with the previous Python worker: ",
        "load them again with model$load_state_dict(), and keep them with save_pretrained()"
      )
    }
    note("Loading ", self$title, " again in the new Python worker")
    reload(self)
  }
  self$handle$number
}

# The R side of a Python object. Stores the call that created the object as plain data, so that an RDS file can recreate
# it with another version of this package.
new_self <- function(method, arguments, title) {
  self <- new.env(parent = emptyenv())
  self$title <- title
  self$how <- list(method = method, arguments = arguments)
  result <- create(self)
  self$how$arguments <- arguments[names(arguments) != "token"] # saveRDS() must not write a secret
  if (is.list(result)) store_description(self, result)
  self
}

# The methods that allocate weights.
LOADING <- c("from_pretrained", "from_config", "fresh")

create <- function(self) {
  if (self$how$method %in% LOADING) collect_handles()
  result <- do.call(ask, c(list(self$how$method), self$how$arguments, list(on_event = show_progress())))
  self$handle <- new_handle(if (is.list(result)) result$number else result)
  result
}

reload <- function(self) {
  result <- create(self)
  mode <- self$about$training
  if (is.null(mode)) return(invisible()) # not a model
  store_description(self, result)
  model <- as_model(self)
  if (!is.null(self$moved)) move_model(model, self$moved$device, self$moved$dtype)
  if (!identical(mode, result$training)) set_mode(model, mode)
}

# Stores Python's description of a model. Reloading uses the same commit, even if the branch has moved.
store_description <- function(self, about) {
  self$about <- about
  if (!is.null(about$commit)) self$how$arguments$revision <- about$commit
}
