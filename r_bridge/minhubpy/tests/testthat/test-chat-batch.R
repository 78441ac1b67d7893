# Replies to several messages in one batch, and rendered chat templates.

test_that("replies of a batch are those of single chats", {
  model <- a_chat_model()
  prompts <- c(a = "Good morrow", b = NA, c = "What is thy name", d = "Go")
  say <- function(prompt, ...) minhub_chat(model, system = "be brief", seed = 3, max_new_tokens = 30)$say(prompt, ...)$text
  replies <- generate(model, prompts, chat = TRUE, system = "be brief", seed = 3, max_new_tokens = 30)
  expect_identical(replies, c(a = say("Good morrow"), b = NA, c = say("What is thy name"), d = say("Go")))
  # The settings of the call have precedence over the defaults of chats, also NULL and the default of generate().
  expect_identical(
    generate(model, "Go", chat = TRUE, system = "be brief", seed = 3, max_new_tokens = 30, temperature = 1, top_p = NULL),
    say("Go", temperature = 1, top_p = NULL)
  )
  expect_false(identical(replies[["d"]], generate(model, "Go", chat = TRUE, seed = 3, max_new_tokens = 30))) # no system prompt
})

test_that("a reply ends at the end token of the template or at the end of the context", {
  model <- a_chat_model()
  likely <- c("2" = 4) # the end token
  replies <- generate(model, c("Hi", "Ho"), chat = TRUE, seed = 1, logit_bias = likely)
  say <- function(prompt) minhub_chat(model, seed = 1, logit_bias = likely)$say(prompt)$text
  expect_identical(replies, c(say("Hi"), say("Ho")))
  expect_true(all(nchar(replies) < 100))
  never <- c("2" = -100)
  long <- strrep("a", model$config$n_positions - 40)
  reply <- generate(model, c("Hi", long), chat = TRUE, seed = 1, logit_bias = never)
  prompt <- tokenizer_of(model)$apply_chat_template(c("Hi", long))
  expect_identical(nchar(reply), pmin(512L, model$config$n_positions - nchar(prompt)))
  expect_refused(generate(model, strrep("a", 2000), chat = TRUE), "prompt 1 with the system prompt has 2019 tokens", class = "ValueError")
})

test_that("a batch of replies resumes, streams and reports wrong arguments", {
  model <- a_chat_model()
  file <- tempfile(fileext = ".rds")
  ask_all <- function(...) generate(model, rep(c("Go", "Stay"), 40), chat = TRUE, seed = 1, max_new_tokens = 4, ...)
  replies <- ask_all()
  expect_identical(ask_all(resume = file), replies)
  expect_identical(parts_in(file), 2L)
  keep_parts(file, 1)
  expect_identical(ask_all(resume = file), replies)
  expect_refused(ask_all(resume = file, system = "b"), "belongs to another job")
  unlink(file)
  pieces <- character()
  generate(model, "Go", chat = TRUE, seed = 1, max_new_tokens = 4, stream = function(piece) pieces <<- c(pieces, piece))
  expect_identical(paste(pieces, collapse = ""), replies[[1L]])
  shown <- paste(capture.output(generate(model, "Go", chat = TRUE, seed = 1, max_new_tokens = 4, stream = TRUE)), collapse = "\n")
  expect_identical(shown, replies[[1L]]) # without the prompt
  expect_identical(generate(model, NA, chat = TRUE), NA_character_)
  expect_refused(generate(model, 1:3, chat = TRUE), "chat requires text")
  expect_refused(generate(model, "Go", system = "be brief"), "system requires chat = TRUE")
  expect_refused(generate(model, "Go", chat = TRUE, beams = 2), "chat and beams exclude each other")
  expect_refused(generate(model, "Go", chat = NA), "chat must be TRUE or FALSE")
})

test_that("generate() points to chat once, and only for a model with a chat template", {
  model <- a_chat_model()
  session <- minhubpy:::session
  old <- options(minhubpy.quiet = FALSE)
  shown <- session$chat_hint
  on.exit({
    options(old)
    session$chat_hint <- shown
  })
  session$chat_hint <- FALSE
  hints <- function(...) {
    messages <- testthat::capture_messages(generate(..., max_new_tokens = 1, seed = 1))
    sum(grepl("chat = TRUE", messages))
  }
  expect_identical(hints(a_model(), "Go"), 0L)
  expect_identical(hints(model, "Go", chat = FALSE), 0L)
  expect_identical(hints(model, 1:3), 0L)
  expect_identical(hints(model, "Go", chat = TRUE), 0L)
  expect_identical(hints(model, "Go", tokenizer = a_tokenizer()), 0L)
  expect_identical(hints(model, "Go", tokenizer = tokenizer_of(model)), 0L) # without a request
  expect_identical(hints(model, "Go"), 1L)
  expect_identical(hints(model, "Go"), 0L)
  expect_match(testthat::capture_messages(generate(a_model(), "Go", chat = TRUE, max_new_tokens = 1)), "no chat template")
})

test_that("a tokenizer renders its chat template", {
  tok <- tokenizer_of(a_chat_model())
  expect_identical(tok$apply_chat_template("Go"), "user: Go!\nassistant: ")
  expect_identical(tok$apply_chat_template(c("Go", NA)), c("user: Go!\nassistant: ", NA))
  talk <- data.frame(role = c("system", "user", "assistant"), content = c("be", "Go", "No"))
  text <- "system: be!\nuser: Go!\nassistant: No!\n"
  expect_identical(tok$apply_chat_template(talk, add_generation_prompt = FALSE), text)
  listed <- lapply(1:3, function(row) list(role = talk$role[[row]], content = talk$content[[row]]))
  expect_identical(tok$apply_chat_template(listed, add_generation_prompt = FALSE), text)
  expect_identical(tok$apply_chat_template(talk), paste0(text, "assistant: "))
  expect_identical(tok$apply_chat_template("Go", tokenize = TRUE), tok$encode("user: Go!\nassistant: ")$ids)
  ids <- tok$apply_chat_template(c("Go", NA, "No"), tokenize = TRUE)
  expect_identical(ids, list(tok$encode("user: Go!\nassistant: ")$ids, integer(), tok$encode("user: No!\nassistant: ")$ids))
  expect_refused(a_tokenizer()$apply_chat_template("Go"), "the tokenizer has no chat template", class = "ValueError")
  expect_refused(tok$apply_chat_template(data.frame(text = "a")), "messages must have at least one row and the columns role and content")
  expect_refused(tok$apply_chat_template(list(role = "user", content = "a")), "put a single message into a list")
  expect_refused(tok$apply_chat_template(list(list(content = "a"))), "a message must be", class = "ValueError")
  expect_refused(tok$apply_chat_template(character()), "messages is empty")
})
