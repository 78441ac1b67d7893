# Releases the memory of Python objects early. R collects garbage when its own memory grows, and a model takes almost none.

# Runs the finalizers of unreachable handles. The next call sends their numbers to Python.
collect_handles <- function() if (session$handles > 0L) gc(FALSE)

# Called by R after each complete expression at top level, in a console or a script: after rm(), or a new value of a
# variable that held a model, Python releases the model at once. Elsewhere, such as in functions and in documents of knitr,
# the next garbage collection or the next load releases it.
after_expression <- function(expr, value, ok, visible) {
  name <- assigned_name(expr)
  freed <- is_call_of(expr, c("rm", "remove")) || name %in% session$variables
  if (nzchar(name) && inherits(value, c("minhub_model", "minhub_run"))) session$variables <- union(session$variables, name)
  if (freed) release_now()
  TRUE # remains registered
}

watch_expressions <- function() {
  if (!"minhubpy" %in% getTaskCallbackNames()) addTaskCallback(after_expression, name = "minhubpy")
}

stop_watching <- function() if ("minhubpy" %in% getTaskCallbackNames()) removeTaskCallback("minhubpy")

# The name of the variable that an expression assigns, or "".
assigned_name <- function(expr) {
  if (is_call_of(expr, c("<-", "=", "<<-")) && (is.name(expr[[2L]]) || is.character(expr[[2L]]))) as.character(expr[[2L]]) else ""
}

is_call_of <- function(expr, names) is.call(expr) && is.name(expr[[1L]]) && as.character(expr[[1L]]) %in% names

# Sends the numbers of unreachable objects to Python. Starts no worker.
release_now <- function() {
  collect_handles()
  link <- session$link
  if (!length(session$released) || is.null(link) || link$owner != Sys.getpid() || is_busy()) return(invisible())
  if (suspendInterrupts(link$is_alive())) ask("nothing")
  invisible()
}
