# What the tests share. They run in both ways in: with a worker (R CMD check, tests/r_bridge/test_r_package.py) and in an R that
# Python hosts (tests/r_bridge/test_hosted_r.py).

options(minhubpy.quiet = TRUE)

BUILT_IN <- paste0("minhub/shakespeare-", c("gpt2", "gptneo", "lstm"))

# Everything but the checks of arguments needs a Python.
needs_python <- function() {
  skip_if_not(minhubpy:::is_ready(), "there is no Python with minhub_py")
}

needs_extra <- function(name) {
  needs_python()
  skip_if_not(minhubpy:::is_ready(name), paste0("this Python lacks minhub_py[", name, "]"))
}

needs_worker <- function() {
  needs_python()
  skip_if(minhubpy:::is_hosted(), "only a plain R session has a worker")
}

# Loaded once: a model that is dropped and loaded again costs a moment.
shared <- new.env()

the <- function(name, make) {
  needs_python()
  if (is.null(shared[[name]])) shared[[name]] <- make
  shared[[name]]
}

a_model <- function() the("model", gpt2_from_pretrained(BUILT_IN[[1L]]))
a_tokenizer <- function() the("tokenizer", tokenizer_from_pretrained(BUILT_IN[[1L]]))
# Without a tokenizer, and without dropout.
a_random_model <- function() {
  the("random", gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 16, seed = 1)$eval())
}

# An error of the package: its class, its message, and the call that the user wrote.
expect_refused <- function(object, message, class = "minhubpy_error", fixed = TRUE) {
  call <- substitute(object)
  shown <- paste(deparse(call), collapse = " ")
  condition <- tryCatch(
    {
      object
      NULL
    },
    error = identity
  )
  gave <- if (is.null(condition)) "no error" else paste(class(condition)[[1L]], conditionMessage(condition))
  testthat::expect(inherits(condition, "minhubpy_error"), paste0(shown, " gave ", gave))
  if (!inherits(condition, "minhubpy_error")) return(invisible())
  testthat::expect(class %in% class(condition), paste0(shown, " is of class ", toString(class(condition))))
  testthat::expect_match(conditionMessage(condition), message, fixed = fixed, info = shown)
  testthat::expect_identical(deparse(conditionCall(condition)), deparse(call), info = shown)
  # Nothing of how the package is built shows.
  said <- conditionMessage(condition)
  testthat::expect(
    !grepl("Traceback|unexpected .* in Python|<environment>|structure\\(|\n$", said), paste0(shown, " says ", said)
  )
}
# A function of the tests is not to look like one of the package.
environment(expect_refused) <- globalenv()

worker_pid <- function() {
  minhubpy:::ask("nothing")
  minhubpy:::session$link$pid
}

# The same seed anywhere, in the order of tests or alone.
random_text <- function(n) {
  set.seed(n)
  paste(sample(c(letters, " ", "\n"), n, replace = TRUE), collapse = "")
}

# What is drawn, as the operators of PDF.
drawn <- function(draw, width = 7, height = 5) {
  path <- tempfile(fileext = ".pdf")
  on.exit(unlink(path))
  grDevices::pdf(path, width, height, compress = FALSE)
  tryCatch(force(draw), finally = grDevices::dev.off())
  iconv(readLines(path, warn = FALSE, encoding = "latin1"), "latin1", "UTF-8", sub = "?")
}

# The texts in the order in which they were drawn.
strings <- function(lines) {
  shown <- regmatches(lines, regexpr("\\(.*\\) Tj|\\[.*\\] TJ", lines))
  kerned <- gsub("\\) -?[0-9.]+ \\(", "", sub("^\\[?\\(", "", sub("\\)\\]? T[jJ]$", "", shown)))
  gsub("\\\\([()\\\\])", "\\1", kerned)
}

# Files of `resume`: a record of the job, then one object for each part.
parts_in <- function(file) length(objects_in(file)) - 1L

keep_parts <- function(file, n) writeBin(do.call(c, lapply(objects_in(file)[seq_len(n + 1L)], serialize, NULL)), file)

objects_in <- function(file) {
  opened <- file(file, "rb")
  on.exit(close(opened))
  found <- list()
  while (length(object <- tryCatch(list(unserialize(opened)), error = function(e) NULL))) found <- c(found, object)
  found
}
