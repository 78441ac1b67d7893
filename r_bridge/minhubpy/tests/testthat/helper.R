# Helpers of the tests. tests/r_bridge/test_r_package.py runs the tests with a worker and in R inside Python.

options(minhubpy.quiet = TRUE)

BUILT_IN <- paste0("minhub/shakespeare-", c("gpt2", "gptneo", "lstm"))

# Only argument checks run without Python.
needs_python <- function() {
  skip_if_not(minhubpy:::is_ready(), "no Python with minhub_py")
}

needs_extra <- function(name) {
  needs_python()
  skip_if_not(minhubpy:::is_ready(name), paste0("this Python lacks minhub_py[", name, "]"))
}

needs_worker <- function() {
  needs_python()
  skip_if(minhubpy:::is_hosted(), "only a plain R session has a worker")
}

# Objects that are loaded once.
shared <- new.env()

the <- function(name, make) {
  needs_python()
  if (is.null(shared[[name]])) shared[[name]] <- make
  shared[[name]]
}

a_model <- function() the("model", gpt2_from_pretrained(BUILT_IN[[1L]]))
a_tokenizer <- function() the("tokenizer", tokenizer_from_pretrained(BUILT_IN[[1L]]))
# A random model without a tokenizer and without dropout.
a_random_model <- function() {
  the("random", gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 16, seed = 1)$eval())
}

# Expects an error of the package with this class, this message and the user's call.
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
  # The message does not contain implementation details.
  said <- conditionMessage(condition)
  testthat::expect(
    !grepl("Traceback|unexpected .* in Python|<environment>|structure\\(|\n$", said), paste0(shown, " says ", said)
  )
}
# users_call() must not take this function for a function of the package.
environment(expect_refused) <- globalenv()

worker_pid <- function() {
  minhubpy:::ask("nothing")
  minhubpy:::session$link$pid
}

# Does not depend on the order of the tests.
random_text <- function(n) {
  set.seed(n)
  paste(sample(c(letters, " ", "\n"), n, replace = TRUE), collapse = "")
}

# The PDF operators of a plot.
drawn <- function(draw, width = 7, height = 5) {
  path <- tempfile(fileext = ".pdf")
  on.exit(unlink(path))
  grDevices::pdf(path, width, height, compress = FALSE)
  tryCatch(force(draw), finally = grDevices::dev.off())
  iconv(readLines(path, warn = FALSE, encoding = "latin1"), "latin1", "UTF-8", sub = "?")
}

# The strings of a plot, in drawing order.
strings <- function(lines) {
  shown <- regmatches(lines, regexpr("\\(.*\\) Tj|\\[.*\\] TJ", lines))
  kerned <- gsub("\\) -?[0-9.]+ \\(", "", sub("^\\[?\\(", "", sub("\\)\\]? T[jJ]$", "", shown)))
  gsub("\\\\([()\\\\])", "\\1", kerned)
}

# Files of `resume`: a record of the job, then one object per part.
parts_in <- function(file) length(objects_in(file)) - 1L

keep_parts <- function(file, n) writeBin(do.call(c, lapply(objects_in(file)[seq_len(n + 1L)], serialize, NULL)), file)

objects_in <- function(file) {
  opened <- file(file, "rb")
  on.exit(close(opened))
  found <- list()
  while (length(object <- tryCatch(list(unserialize(opened)), error = function(e) NULL))) found <- c(found, object)
  found
}
