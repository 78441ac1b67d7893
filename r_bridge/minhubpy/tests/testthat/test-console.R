# print(), format(), str(), summary() and `$` of every class.

small_run <- function() {
  the("small run", minhub_train(
    rep("To be, or not to be, that is the question.", 50), steps = 10, width = 8, layers = 1, context = 16, batch = 4,
    evaluate_every = 5, seed = 1, progress = FALSE
  ))
}

talk <- function() {
  the("talk", {
    bot <- minhub_chat(a_model(), system = "Be brief.", max_new_tokens = 8, seed = 1, stream = FALSE)
    bot$say("Good morrow!")
    bot$say("And you?", max_new_tokens = 4)
    bot
  })
}

with_members <- function() {
  list(
    model = a_model(), chat = talk(), reply = talk()$last, tokenizer = a_tokenizer(), encoding = a_tokenizer()$encode("To be"),
    class = tokenizer, run = small_run(), weights = a_model()$parameters, weight = a_model()$wte$weight, part = a_model()$h
  )
}

test_that("str() shows every object as one line, also in a list", {
  objects <- with_members()
  for (name in names(objects)) {
    object <- objects[[name]]
    if (name != "reply") expect_match(format(object)[[1L]], "^<.*>$", info = name)
    line <- utils::capture.output(utils::str(object))
    expect_length(line, 1L)
    expect_match(line, "^ <.*>", info = name)
    expect_identical(utils::capture.output(utils::str(list(object))), c("List of 1", paste0(" $ :", line)), info = name)
  }
  expect_output(str(talk()), "<chat with minhub/shakespeare-gpt2, 2 turns>", fixed = TRUE)
  expect_output(str(talk()$last), '<reply: 4 tokens, end "length">', fixed = TRUE)
})

test_that("an unknown member is an error that lists the members", {
  objects <- with_members()
  for (name in names(objects)) {
    object <- objects[[name]]
    expect_error(object$typo, "has no typo", class = "minhubpy_error", info = name)
  }
  bot <- talk()
  expect_refused(bot$typo, "a chat has no typo; it has last, system, model, say(), regenerate(), undo()")
  expect_refused(bot$regnerate, "a chat has no regnerate: did you mean regenerate?")
  expect_refused(bot[["typo"]], "a chat has no typo")
  expect_refused(bot[[1]], "the fields of a chat must be selected by name")
  reply <- bot$last
  expect_refused(reply$tokns, "a reply has no tokns: did you mean tokens?")
  expect_null(reply$data)
  run <- small_run()
  expect_refused(run$loses, "a run has no loses: did you mean losses?")
  model <- a_model()
  expect_refused(model$devce, "a model has no devce: did you mean device?")
  expect_refused(model$cuda, 'model$to("cuda") moves it')
  block <- model$h[[1L]]
  expect_error(block$atn, "did you mean attn?", fixed = TRUE)
})

test_that("summaries contain the statistics of chats, runs and tokenizers", {
  bot <- talk()
  said <- as.data.frame(bot)
  about <- summary(bot)
  expect_identical(about$replies, 2L)
  expect_identical(about$tokens, 12L)
  expect_equal(about$logprob, sum(said$logprob, na.rm = TRUE))
  expect_equal(about$perplexity, exp(-about$logprob / 12))
  shown <- utils::capture.output(print(about))
  expect_identical(shown[[1L]], format(bot))
  expect_match(shown, "2 (end: 2 length)", fixed = TRUE, all = FALSE)
  expect_match(paste(trimws(shown), collapse = " "), "max_new_tokens = 8, temperature = 0.7, top_p = 0.95", fixed = TRUE)
  expect_output(print(summary(minhub_chat(a_model()))), "0 turns")

  reply <- summary(bot$last)
  expect_identical(reply$tokens, 4L)
  expect_equal(reply$perplexity, exp(-mean(bot$last$tokens$logprob)))

  run <- small_run()
  losses <- summary(run$losses)
  expect_identical(c(losses$evaluations, losses$steps), c(3L, 10L))
  expect_identical(losses$best, min(run$losses$held_out_loss))
  expect_output(print(summary(run)), 'family = "lstm"', fixed = TRUE)
  both <- minhub_compare(a = run, b = run)
  expect_identical(summary(both)$behind_best, c(0, 0))

  model <- a_model()
  expect_identical(summary(model$parameters), summary(model)$parts)
  expect_equal(unclass(summary(model$wte$weight))[["Max."]], max(as.array(model$wte$weight)))
  expect_identical(sum(summary(model$h)$numel), sum(summary(model)$parts$parameters[3:8]))
  state <- model$state_dict()
  expect_identical(summary(state)$numel, model$parameters()$numel)
  expect_output(print(state), "state dict of 76 weights")

  letters <- summary(a_tokenizer()$encode("to be, to"))
  expect_identical(letters$count[letters$token == "t"], 2L)
  expect_identical(sum(letters$count), 9L)
  expect_identical(as.data.frame(a_tokenizer()$encode("To"))$token, c("T", "o"))
  expect_output(print(summary(a_tokenizer())), "vocabulary +65")
})

test_that("summaries of heads, layers and next tokens match their data", {
  attention <- attention_weights(a_model(), "To be, or")
  heads <- summary(attention)
  expect_identical(nrow(heads), length(unclass(attention)[, , 1, 1]))
  one <- unclass(attention)[4, 2, , ]
  row <- heads[heads$layer == 4 & heads$head == 2, ]
  expect_equal(row$to_first, mean(one[, 1]))
  expect_equal(row$to_self, mean(diag(one)))
  expect_equal(row$to_previous, mean(one[cbind(2:9, 1:8)]))
  expect_equal(row$entropy, mean(apply(one, 1, function(p) -sum(p[p > 0] * log2(p[p > 0])))))

  lens <- logit_lens(a_model(), "To be, or", n = 2)
  layers <- summary(lens)
  last <- max(lens$layer)
  expect_identical(layers$as_last_layer[layers$layer == last], 1)
  best <- lens[lens$layer == last & lens$rank == 1, ]
  text <- strsplit("To be, or", "")[[1L]]
  expect_equal(layers$as_text[layers$layer == last], mean(best$predicted[-9L] == text[-1L]))
  expect_equal(layers$prob[layers$layer == last], mean(best$prob))

  likely <- next_tokens(a_model(), c(a = "To b", b = "or no"), n = 2)
  about <- summary(likely)
  expect_identical(as.character(about$prompt), c("a", "b"))
  expect_identical(about$token, likely$token[c(1, 3)])
  expect_equal(about$together, c(sum(likely$prob[1:2]), sum(likely$prob[3:4])))
})

test_that("data frames of attention, replies and runs have one row per observation", {
  attention <- attention_weights(a_model(), "To be")
  long <- as.data.frame(attention)
  expect_identical(nrow(long), length(unclass(attention)))
  one <- long[long$layer == 4 & long$head == 2 & long$position == 3 & long$attended_position == 2, ]
  expect_identical(one$weight, unclass(attention)[4, 2, 3, 2])
  expect_identical(c(one$token, one$attended_token), c(" ", "o"))
  expect_identical(as.data.frame(talk()$last), talk()$last$tokens)
  expect_identical(class(as.data.frame(small_run())), "data.frame")
})

test_that("the result for a tibble is a tibble", {
  skip_if_not_installed("tibble")
  words <- tibble::tibble(item = c(1, 1, 2, 2), word = c("My", "lord", "My", "friend"))
  expect_s3_class(word_logprobs(a_model(), words, by = "item"), class(words), exact = TRUE)
  targets <- tibble::tibble(context = "My good", target = c("lord", "friend"))
  expect_s3_class(target_logprobs(a_model(), targets), class(targets), exact = TRUE)
  expect_identical(class(target_logprobs(a_model(), as.data.frame(targets))), "data.frame")
})

test_that("devices and the state of the installation print one line per entry", {
  needs_python()
  devices <- minhub_devices()
  expect_identical(sum(devices$picked), 1L)
  shown <- capture.output(print(devices))
  expect_match(shown, "^yes +cpu ", all = FALSE)
  expect_identical(shown[length(shown)], paste0("\"auto\" selects ", devices$device[devices$picked]))
  expect_named(summary(devices), c("device", "works", "dtypes", "picked"))
  needs_worker()
  checks <- minhub_doctor()
  expect_identical(length(format(checks)), nrow(checks))
  failed <- checks
  failed$fits[[2L]] <- FALSE
  class(failed) <- class(checks)
  expect_match(format(failed)[[2L]], "^NO  Python ")
  expect_match(capture.output(print(summary(failed))), checks$what[[2L]], all = FALSE)
})

test_that("members of state dicts and encodings are selected by name", {
  weights <- a_random_model()$state_dict()
  expect_identical(dim(weights[["wte.weight"]]), c(10L, 8L))
  expect_identical(nrow(summary(weights)), length(weights))
  expect_output(str(weights), paste("state dict of", length(weights), "weights"))
  encoding <- a_tokenizer()$encode("To")
  expect_identical(encoding[["ids"]], encoding$ids)
  expect_refused(encoding[[1]], "the fields of an encoding must be selected by name")
  expect_identical(a_tokenizer()[["get_vocab"]](), a_tokenizer()$get_vocab())
})
