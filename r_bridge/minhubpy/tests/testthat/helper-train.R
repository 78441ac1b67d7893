# Runs of small models on a small text, for several files.

VERSE <- rep(c("To be, or not to be, that is the question:", "Whether 'tis nobler in the mind to suffer", ""), 40)

small <- function(text = VERSE, family = "lstm", steps = 20, ...) {
  settings <- list(layers = 1, width = 16, context = 16, batch = 4, evaluate_every = 10, seed = 1, warm_up = 2)
  given <- list(...)
  settings[names(given)] <- given # NULL removes a setting
  do.call(minhub_train, c(list(text, family, steps = steps), settings))
}

a_run <- function() the("run", small(out = tempfile("a-run-")))

# The losses without columns that depend on time.
steps_of <- function(run) unclass(run$losses)[setdiff(names(run$losses), c("tokens_per_second", "seconds"))]

stopped_at <- function(folder) as.integer(sub("step-", "", dir(file.path(folder, "checkpoints"))))

# The condition that ends a run.
outcome <- function(code) {
  tryCatch(
    {
      code
      "it ran to its end"
    },
    interrupt = function(condition) condition, error = function(condition) condition
  )
}

# A progress function that acts on the first `event`.
at <- function(event, code) {
  first <- TRUE
  function(news) {
    if (news$event != event || !first) return()
    first <<- FALSE
    code()
  }
}
