# Adapters, and training on data frames of examples.

test_that("an adapter of a model is trained, and its folder loads as a model", {
  needs_python()
  from <- "minhub/shakespeare-gpt2"
  run <- minhub_train(
    rep(VERSE, 4), from = from, lora = 2, steps = 4, batch = 2, context = 32, evaluate_every = 2, seed = 1,
    metrics = metrics <- tempfile(fileext = ".jsonl")
  )
  expect_length(grep('"held_out_loss"', readLines(metrics)), 3)
  expect_refused(minhub_train(VERSE, metrics = 1), "metrics must be")
  expect_identical(as.numeric(run$settings$lora$r), 2)
  expect_output(print(summary(run)), "lora = list(r = 2", fixed = TRUE)
  expect_true(all(diff(run$losses$held_out_loss) < 0))
  expect_true(any(basename(list.files(run$folder, recursive = TRUE)) == "adapter_config.json"))
  text <- function(model) generate(model, "To be", max_new_tokens = 5, temperature = 0, stream = FALSE)
  expect_identical(text(from_pretrained(run$folder)), text(run$model))
  expect_refused(minhub_train(VERSE, from = from, lora = "a"), "lora must be one number")
  expect_refused(minhub_train(VERSE, lora = 2), "lora", class = "ValueError")
})

test_that("an activated adapter changes only texts with its invocation", {
  needs_python()
  data <- data.frame(prompt = rep(c("late train Code:", "cold soup Code:"), 4), completion = rep(c(" bus", " food"), 4))
  teach <- function(invocation) {
    minhub_train(
      data, from = "minhub/shakespeare-gpt2", lora = list(r = 2, invocation = invocation), steps = 2, batch = 4,
      context = 48, learning_rate = 0.01, seed = 1
    )
  }
  run <- teach("Code:")
  scores <- lapply(c("To be, or not", "soup Code: food"), function(text) {
    list(token_logprobs(run$model, text)$logprob, token_logprobs(a_model(), text)$logprob)
  })
  expect_identical(scores[[1L]][[1L]], scores[[1L]][[2L]])
  expect_false(identical(scores[[2L]][[1L]], scores[[2L]][[2L]]))
  expect_refused(teach("Cost:"), "the prompt does not contain the invocation 'Cost:'", class = "ValueError")
})

test_that("a data frame teaches a model a task", {
  needs_python()
  from <- "minhub/shakespeare-gpt2"
  quick <- function(data, ...) {
    minhub_train(data, from = from, lora = 4, batch = 4, context = 48, steps = 4, evaluate_every = 2, seed = 1, learning_rate = 0.01, ...)
  }
  pairs <- data.frame(prompt = rep(c("red:", "one:", "up:"), 4), completion = rep(factor(c(" blue", " two", " down")), 4), id = 1:12)
  run <- quick(pairs, held_out = 0.25, quantize = "nf4")
  expect_identical(run$settings[c("objective", "held_out", "steps")], list(objective = "completion", held_out = 0.25, steps = 4L))
  expect_lt(run$best_loss, run$losses$held_out_loss[[1L]])
  expect_identical(dir(tempdir(), "^minhub-examples-"), character())
  epochs <- minhub_train(pairs, from = from, lora = 2, epochs = 0.5, context = 48, seed = 1, objective = "completion")
  expect_identical(epochs$settings[c("epochs", "steps")], list(epochs = 0.5, steps = 1L))
  text <- quick(data.frame(text = rep(VERSE[1:2], 3)))
  expect_identical(text$settings$objective, "text")
  preference <- quick(data.frame(prompt = pairs$prompt, chosen = pairs$completion, rejected = " no"), beta = 0.5)
  expect_equal(preference$losses$held_out_loss[[1L]], log(2), tolerance = 1e-6)
  expect_identical(preference$settings$beta, 0.5)
  kept <- quick(cbind(pairs, keep = TRUE))
  expect_equal(kept$losses$held_out_loss[[1L]], 0, tolerance = 1e-6)

  # The adapter's folder with its model, in R and in a server.
  adapted <- from_pretrained(from, adapter = run)
  expect_identical(adapted(1:5), from_pretrained(run$folder)(1:5))
  expect_false(identical(adapted(1:5), a_model()(1:5)))
  expect_refused(from_pretrained(from, adapter = tempfile("none")), "There is no folder", class = "FileNotFoundError")

  folder <- save_adapter(run, tempfile("adapter "))
  expect_identical(from_pretrained(from, adapter = folder)(1:5), adapted(1:5))
  expect_refused(save_adapter(a_model(), folder), "the model has no adapter", class = "ValueError")

  # Further adapters share the weights of the model.
  shared <- a_model()$adapter(run)
  expect_identical(shared(1:5), adapted(1:5))
  expect_identical(shared$adapter(NULL)(1:5), a_model()(1:5))
  file <- tempfile(fileext = ".rds")
  scores <- token_logprobs(shared, "To be", resume = file)
  expect_identical(token_logprobs(unserialize(serialize(shared, NULL)), "To be", resume = file), scores)
  expect_refused(token_logprobs(a_model(), "To be", resume = file), "belongs to another job")
  expect_identical(unserialize(serialize(shared, NULL))(1:5), adapted(1:5))
  expect_refused(a_model()$adapter(tempfile("none")), "There is no folder", class = "FileNotFoundError")
  expect_refused(intervene(a_model(), "final", "zero")$adapter(run), "interventions", class = "ValueError")
  expect_refused(word_logprobs(adapted, "To be", manifest = tempfile(fileext = ".json")), "manifest does not support adapter")

  expect_refused(quick(pairs[0, ]), "text is a data frame without rows: pass one example per row")
  expect_refused(quick(pairs["id"]), "text has the columns id: a data frame needs messages; prompt and completion; chosen")
  pairs$completion[[2L]] <- NA
  expect_refused(quick(pairs), "text, row 2: completion is missing", class = "ValueError")
  expect_refused(quick(data.frame(messages = I(list(1, 2)))), "messages, row 1 must be a data frame with the columns role and content")
  expect_refused(quick("no-such-file.jsonl"), "does not exist")
})

test_that("a data frame of conversations or of labels trains", {
  needs_python()
  folder <- tempfile("chat-base-")
  save_pretrained(a_model(), folder)
  template <- "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
  writeLines(template, file.path(folder, "chat_template.jinja"), sep = "")
  talk <- data.frame(role = c("user", "assistant"), content = c("red", "blue"))
  as_list <- list(list(role = "user", content = "one"), list(role = "assistant", content = "two"))
  chats <- data.frame(id = 1:8)
  chats$messages <- rep(list(talk, as_list), 4)
  run <- minhub_train(chats, from = folder, lora = 4, steps = 4, evaluate_every = 2, context = 48, seed = 1, learning_rate = 0.01)
  expect_identical(run$settings$objective, "chat")
  expect_lt(run$best_loss, run$losses$held_out_loss[[1L]])

  tok <- tokenizer_from_pretrained(BUILT_IN[[1L]])
  base <- tempfile("llama-")
  llama <- llama(vocab_size = a_model()$vocab_size, hidden_size = 16, intermediate_size = 32, num_hidden_layers = 1, num_attention_heads = 2,
                 num_key_value_heads = 2, pad_token_id = 0, seed = 1)
  save_pretrained(llama, base, tokenizer = tok)
  labels <- data.frame(text = rep(c("red", "blue"), 6), label = rep(c(2, 1), 6))
  run <- minhub_train(labels, from = base, steps = 20, context = 16, seed = 1, learning_rate = 0.01)
  expect_identical(run$settings$objective, "labels")
  expect_identical(unlist(run$model$config$id2label, use.names = FALSE), c("1", "2"))
  expect_output(print(run), "held-out loss  [0-9.]+ nats per label after step")
  labels$label <- labels$label + 0.5
  value <- minhub_train(labels, from = base, steps = 1, context = 16, seed = 1)
  expect_identical(value$model$config$problem_type, "regression")
  expect_output(print(value), "held-out loss  [0-9.]+ mean squared error after step")
  expect_output(print(summary(value)), "Losses, in mean squared error")
  expect_match(strings(drawn(plot(value))), "^lowest: [0-9.]+ mean squared error", all = FALSE)
  predicted <- classify_texts(value$model, c(a = "red", b = NA))
  expect_identical(names(predicted), "value")
  expect_identical(is.na(predicted$value), c(FALSE, TRUE))

  # Runs with different units are not sorted together.
  both <- minhub_compare(value, run, value)
  expect_identical(both$run, c("value", "value.1", "run"))
  expect_identical(both$unit, c("mean squared error", "mean squared error", "nats per label"))
  expect_identical(both$nats_per_character, rep(NA_real_, 3))
  expect_identical(summary(both)$behind_best, c(0, 0, 0))
  message <- "the losses of these runs have different units (mean squared error, nats per label): plot rows of one unit"
  expect_error(plot(both), message, fixed = TRUE, class = "minhubpy_error")
})

test_that("data frames have the common forms of rows, and other columns are noted", {
  needs_python()
  learn <- function(data, ...) {
    minhub_train(
      data, from = "minhub/shakespeare-gpt2", lora = 2, steps = 1, context = 64, seed = 1, evaluate_every = 1, ...
    )
  }
  turns <- list(data.frame(from = c("human", "gpt"), value = c("a", "b")))
  loss <- learn(data.frame(conversations = I(rep(turns, 4))))$losses$held_out_loss
  messages <- list(data.frame(role = c("user", "assistant"), content = c("a", "b"), weight = c(NA, 1)))
  expect_identical(learn(data.frame(messages = I(rep(messages, 4))))$losses$held_out_loss, loss)
  expect_identical(learn(data.frame(instruction = rep("a", 4), output = "b"))$losses$held_out_loss, loss)
  lists <- list(list(list(role = "user", content = "a"), list(role = "assistant", content = "b", weight = 0)))
  expect_refused(learn(data.frame(messages = I(rep(lists, 4)))), "no assistant message with weight 1", class = "ValueError")
  quiet <- options(minhubpy.quiet = FALSE)
  on.exit(options(quiet))
  noted <- testthat::capture_messages(learn(data.frame(text = rep("ab", 4), id = 1:4), progress = TRUE))
  expect_match(noted, "not used in training: id", all = FALSE)
})

test_that("missing labels are an error in data frames and in files", {
  needs_python()
  data <- data.frame(text = c("a", "b", "c", "d"), label = c("x", NA, "NA", "NA"))
  path <- tempfile(fileext = ".csv")
  on.exit(unlink(path))
  write.csv(data, path, row.names = FALSE)
  learn <- function(data, ...) {
    minhub_train(
      data, from = "minhub/shakespeare-gpt2", objective = "labels", steps = 1, context = 16, seed = 1,
      evaluate_every = 1, ...
    )
  }
  for (text in list(data, path)) expect_refused(learn(text), "row 2: label is missing", class = "ValueError")
  run <- learn(path, na = c("", "x"))
  expect_setequal(unlist(run$settings$na), c("", "x"))
})
