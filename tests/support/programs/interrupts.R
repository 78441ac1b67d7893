# Calls of every kind until 600 interrupts have arrived. Then creates the first file in the arguments, and waits for the
# second one, after which no interrupt is sent.

model <- gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 16, seed = 1)$eval()
large <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
tok <- tokenizer_from_pretrained("minhub/shakespeare-gpt2")
calls <- list(
  function() model(0:3), function() model(matrix(0:9, 500, 10, byrow = TRUE)),
  function() generate(large, "ROMEO:", 8, temperature = 0),
  function() generate(large, "To be", 8, temperature = 0, stream = function(piece) piece),
  function() tok$encode("To be, or not to be")$ids, function() tok$decode(20:40),
  function() token_logprobs(large, "or not to be"), function() message_of(model(99)),
  function() next_tokens(large, "ROMEO", 3), function() model$parameters()
)
right <- lapply(calls, function(call) call())
first <- pid()
# A call that only an interrupt ends, and that has no output.
say(suppressWarnings(suspendInterrupts(tryCatch(
  allowInterrupts({ say("long"); generate(large, "ROMEO:", 1e7) }), interrupt = function(c) "interrupted"
))))
interrupts <- wrong <- 0L
problems <- character()
say("ready")
# An interrupt between two calls is handled in the next call.
suspendInterrupts({
  while (interrupts < 600L) tryCatch(
    {
      which <- sample.int(length(calls), 1L)
      made <- allowInterrupts(calls[[which]]())
      say("done")
      if (!identical(made, right[[which]])) wrong <- wrong + 1L
    },
    interrupt = function(condition) interrupts <<- interrupts + 1L,
    error = function(condition) problems <<- c(problems, conditionMessage(condition))
  )
  file.create(commandArgs(TRUE)[[1L]])
  say("done") # if the sender waits for a call
  # Sys.sleep() allows interrupts.
  while (!file.exists(commandArgs(TRUE)[[2L]])) tryCatch(Sys.sleep(0.01), interrupt = function(condition) NULL)
  tryCatch(Sys.sleep(0.1), interrupt = function(condition) NULL) # the last may have come late
})
right_at_the_end <- all(mapply(function(call, value) identical(call(), value), calls, right))
say(interrupts, wrong, right_at_the_end, identical(pid(), first), "|", unique(problems))
left <- setdiff(list.files(minhubpy:::session$link$folder), "log")
say(length(left))
