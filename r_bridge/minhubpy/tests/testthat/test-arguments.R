# Each exported function must answer wrong argument values with a result or an error of the package. Errors of R and
# unexpected errors of Python are defects. test-input.R tests the messages.

# Arguments without a default.
REQUIRED <- list(
  recipe = function() "no recipe",
  model = a_model, prompts = function() "To", prompt = function() "To", texts = function() "To be", text = function() "To be",
  x = function() c("To", "be"), contexts = function() "To", targets = function() "be", out = function() tempfile("no run "),
  questions = function() list(q = list(type = "noul")), query = function() "To", question = function() "Who?", identifier = function() BUILT_IN[[1L]], folder = function() tempfile("saved "),
  manifest = function() tempfile("no job "), pairs = function() data.frame(sentence_good = "To be", sentence_bad = "To me"),
  labels = function() c("yes", "no"), clean = function() "To be", corrupted = function() "To me",
  fun = function() function(a) a, answers = function() c("T", "b"), token = function() "T", at = function() "layers.1.resid", positive = function() "To",
  decisions = function() {
    data.frame(
      text = 1:8, question = "q", type = "noul", prob_true = (1:8) / 9, prob_false = (8:1) / 9, spread = 0, temperature = 1,
      coded = rep(c("false", "true", "false", "true"), c(3, 1, 1, 3))
    )
  },
  truth = function() "coded", negative = function() "be", y = function() 1:8, n = function() 2,
  attention = function() attention_weights(a_model(), "To"), formula = function() human ~ 1, prediction = function() "guess",
  from = function() c(1, 0), to = function() c(0, 1),
  data = function() data.frame(human = c(1, 0, NA, NA), guess = c(0.9, 0.2, 0.8, 0.1), probability = 0.5)
)

# Values that R code may pass by mistake.
wrong_values <- function() {
  list(
    "NULL" = NULL, "NA" = NA, "an empty list" = list(), "a nested list" = list(list(1)), "an S4 object" = methods::getClass("numeric"),
    "a function" = function(piece) NULL, "a data frame without columns" = data.frame(),
    "a data frame without rows" = data.frame(word = character()), "a factor" = factor("a"), "a date" = as.Date("2026-01-01"),
    "a time" = as.POSIXlt("2026-01-01"), "no strings" = character(), "no numbers" = numeric(), "a complex number" = 1i,
    "raw bytes" = as.raw(1:2), "an environment" = new.env(), "a call" = quote(a + b), "a negative number" = -1, "a fraction" = 0.5,
    "a string" = "zz", "two strings" = c("a", "b"), "an empty string" = "", "a matrix" = matrix(1:4, 2L), "invalid UTF-8" = "\xff",
    "an invalid regular expression" = "[", "infinity" = Inf, "a large number" = 1e10
  )
}

# A call's error, or NULL.
error_of <- function(f, arguments) {
  utils::capture.output(outcome <- tryCatch(
    {
      value <- suppressWarnings(do.call(f, arguments, quote = TRUE))
      if (inherits(value, "minhub_server")) value$stop()
      NULL
    },
    error = identity
  ))
  outcome
}

# A call's defect, or NULL for a result or an error of the package.
defect <- function(f, arguments) {
  outcome <- error_of(f, arguments)
  if (is.null(outcome)) return(NULL)
  message <- conditionMessage(outcome)
  if (!inherits(outcome, "minhubpy_error")) return(paste("R's own error:", message))
  if (grepl("unexpected .* in Python|Traceback|^one .* is wanted|attributes that do not fit", message)) message
}

# The defects of wrong values for each argument, with valid values for the other arguments. Runs in a temporary folder,
# because some values are names of output files.
defects <- function(name, f, right, arguments = setdiff(names(formals(f)), "...")) {
  folder <- tempfile("written ")
  dir.create(folder)
  here <- setwd(folder)
  on.exit({
    setwd(here)
    unlink(folder, recursive = TRUE)
  })
  values <- wrong_values()
  found <- character()
  for (argument in arguments) {
    for (kind in names(values)) {
      call <- right
      call[argument] <- list(values[[kind]])
      problem <- defect(f, call)
      if (!is.null(problem)) found <- c(found, paste0(name, "(", argument, " = ", kind, "): ", problem))
    }
  }
  found
}

has_no_default <- function(f) {
  as.character(names(Filter(function(default) is.symbol(default) && !nzchar(as.character(default)), as.list(formals(f)))))
}

# The exported functions, except functions for the worker, the installation and training. One function represents each
# group of generated functions.
exported <- function() {
  names <- getNamespaceExports("minhubpy")
  names <- names[!grepl("^minhub_(start|stop|install|uninstall|train|resume)$", names)]
  names <- names[vapply(names, function(name) is.function(getExportedValue("minhubpy", name)), NA)]
  family <- sub("^(?!gpt2).*(_from_config|_from_pretrained)$", "\\1", names, perl = TRUE)
  fresh <- vapply(names, function(name) identical(names(formals(getExportedValue("minhubpy", name))), c("...", "seed")), NA)
  sort(names[!duplicated(family) & !fresh])
}

# An exported function, or its method for models.
implementation <- function(name) if (name == "generate") minhubpy:::generate.minhub_model else getExportedValue("minhubpy", name)

# Valid values of the arguments of an exported function that have no default.
right_arguments <- function(name, f) {
  needed <- setdiff(has_no_default(f), "...")
  expect_identical(setdiff(needed, names(REQUIRED)), character(), info = paste0(name, "(): add its argument to REQUIRED"))
  right <- lapply(REQUIRED[needed], function(make) make())
  for (small in intersect(c("vocab_size", "n_embd", "n_head", "n_layer", "max_new_tokens"), names(formals(f)))) right[[small]] <- 4
  if (name == "generate") right$x <- a_model()
  if ("targets" %in% names(formals(f)) && "contexts" %in% needed) right$targets <- "be"
  if (name %in% c("text_similarity", "text_search")) right[] <- list(diag(2))
  if (name %in% c("text_projection", "text_topics")) right$x <- diag(2)
  if (name == "text_topics") right$topics <- 2
  if (name == "linear_probe") right$x <- matrix(as.double(1:16), 8L)
  if (name == "choose_for_coding") right[[1L]] <- data.frame(margin = c(0.1, 0.5, 0.9))
  if (name == "tuned_lens") right$steps <- 1
  encoder <- switch(name,
    masked_tokens = , masked_logprobs = , pseudo_logprobs = a_masked_model(), classify_texts = a_classifier(), rerank = a_cross_encoder(),
    answer_questions = a_question_model()
  )
  if (!is.null(encoder)) right$model <- encoder
  if (name == "masked_tokens") right$texts <- "the [MASK]"
  right
}

test_that("exported functions answer wrong arguments with errors of the package", {
  needs_extra("serve")
  all <- exported()
  expect_true(length(all) > 15L)
  for (name in all) {
    f <- implementation(name)
    expect_identical(defects(name, f, right_arguments(name, f)), character())
  }
})

# The number 2 in classes of R that give it another meaning.
OTHER_NUMBERS <- list(
  Date = as.Date(2, origin = "1970-01-01"), POSIXct = as.POSIXct(2, origin = "1970-01-01"), difftime = as.difftime(2, units = "secs"),
  roman = utils::as.roman(2), hexmode = as.hexmode(2L), units = structure(2, class = "units", units = "m")
)

test_that("where a number is right, numbers of other classes are rejected by name and integers of bit64 converted", {
  needs_extra("serve")
  accepting <- character()
  for (name in exported()) {
    f <- implementation(name)
    right <- right_arguments(name, f)
    for (argument in setdiff(names(formals(f)), "...")) {
      call <- right
      message_for <- function(value) {
        call[argument] <- list(value)
        outcome <- error_of(f, call)
        if (!is.null(outcome)) conditionMessage(outcome)
      }
      if (!is.null(message_for(2))) next
      shown <- paste0(name, "(", argument, ")")
      accepting <- c(accepting, shown)
      for (class in names(OTHER_NUMBERS)) {
        expect_match(message_for(OTHER_NUMBERS[[class]]) %||% "no error", paste0("<", class, ">"), fixed = TRUE, info = paste(shown, class))
      }
      for (value in list(as_integer64(2), I(2), structure(2, class = c("haven_labelled", "vctrs_vctr", "double")))) {
        expect_null(message_for(value), info = paste(shown, class(value)[[1L]]))
      }
    }
  }
  expect_true(all(c("generate(max_new_tokens)", "generate(seed)", "next_tokens(n)", "text_embeddings(layer)") %in% accepting))
})

test_that("plots answer wrong arguments with errors of the package", {
  needs_python()
  model <- a_model()
  losses <- structure(
    data.frame(step = 0:1, tokens = 0:1, seconds = 0:1, train_loss = c(NA, 1), held_out_loss = c(2, 1)),
    class = c("minhub_losses", "data.frame")
  )
  bot <- minhubpy:::as_chat(list2env(list(exchanges = list())))
  plotted <- list(
    next_tokens(model, "To"), attention_weights(model, "To"), losses, activations(model, "To"), head_scores(model, 4, 1),
    logit_attribution(model, "To", "o"), logit_lens(model, "To"), tuned_lens(model, "To", steps = 1),
    activation_patching(model, "To", "Do", c("e", "i"), kinds = "resid"),
    label_agreement(1:2, 2:1, bootstrap = 0), minimal_pairs(model, data.frame(sentence_good = "a", sentence_bad = "b")),
    structure(list(tokens = data.frame(token = "a", id = 1L, prob = 0.5, logprob = log(0.5)),
                   top = data.frame(position = 1L, token = "b", id = 2L, prob = 0.3, logprob = log(0.3))), class = "minhub_reply")
  )
  grDevices::pdf(NULL)
  on.exit(grDevices::dev.off())
  for (x in plotted) {
    f <- utils::getS3method("plot", class(x)[[1L]], envir = asNamespace("minhubpy"))
    expect_identical(defects(paste0("plot.", class(x)[[1L]]), f, list(x), setdiff(names(formals(f)), c("x", "..."))), character())
  }
  plot(plotted[[1L]], main = quote(alpha^2))
  refused <- function(call, message) expect_error(call, message, fixed = TRUE, class = "minhubpy_error")
  refused(plot(plotted[[1L]], main = list()), "main must be text or an expression, not a list of length 0")
  refused(plot(plotted[[1L]], col = "zz"), 'col must be a color, such as "#0072B2" or "steelblue", not "zz"')
  expect_length(bot, 0L)
  refused(bot[list()], "turns must be selected by number, not by a list of length 0")
})

test_that("methods of tokenizers and models answer wrong arguments with errors of the package", {
  needs_python()
  tok <- a_tokenizer()
  model <- a_random_model()
  right <- list(sequence = "To", input = "To", ids = 1L, sequences = list(1L), tokens = "T", path = tempfile("saved "), messages = "To", max_length = 5)
  for (name in minhubpy:::TOKENIZER_METHODS) {
    f <- minhubpy:::`$.minhub_tokenizer`(if (name == "apply_chat_template") tokenizer_of(a_chat_model()) else tok, name)
    expect_identical(defects(paste0("tok$", name), f, right[intersect(names(right), names(formals(f)))]), character())
    tok$no_padding()$no_truncation()
  }
  for (name in c("parameter", "load_state_dict", "to")) {
    f <- minhubpy:::`$.minhub_model`(model, name)
    expect_identical(defects(paste0("model$", name), f, list()), character())
  }
  expect_identical(defects("model", function(idx) model(idx), list()), character())
  expect_identical(defects("model[[]]", function(i) model[[i]], list()), character())
})

test_that("relative paths are in R's working directory, not in the worker's", {
  needs_extra("serve")
  # The worker started in the folder of the tests, and calls above had wrong paths in other folders.
  expect_false(any(file.exists(c("zz", "[", "a", "NA", "-1"))))
  folder <- tempfile("working ")
  dir.create(folder)
  here <- setwd(folder)
  on.exit(setwd(here))
  server <- minhub_serve(a_model(), cache_dir = "prefixes")
  on.exit(server$stop(), add = TRUE, after = FALSE)
  expect_identical(dir(folder), "prefixes")
  expect_false(file.exists(file.path(here, "prefixes")))
})

test_that("a failed write leaves no incomplete file", {
  needs_python()
  folder <- tempfile("folder ")
  dir.create(file.path(folder, "tokenizer.json"), recursive = TRUE)
  tok <- a_tokenizer()
  expect_error(tok$save(file.path(folder, "tokenizer.json")), class = "minhubpy_error")
  expect_identical(list.files(folder, all.files = TRUE, no.. = TRUE), "tokenizer.json")
})

test_that("a sequence longer than the context is an error before it is sent to Python", {
  needs_python()
  model <- a_random_model()
  for (idx in list(rep(1L, 17L), matrix(1L, 2L, 17L), list(rep(1L, 17L), 1L))) expect_refused(model(idx), "a sequence must have at most 16 tokens, the model's context, not 17")
  expect_refused(attention_weights(model, rep(1L, 17L)), "a sequence must have at most 16 tokens, the model's context, not 17")
})
