# Calls of every kind, with a pause after a thousand calls, and after a further number in the first argument.

model <- gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 16, seed = 1)$eval()
tok <- tokenizer_from_pretrained("minhub/shakespeare-gpt2")
calls <- function(n) for (i in seq_len(n)) {
  if (i %% 10 == 0) model(matrix(0:9, 40, 10, byrow = TRUE)) # a file carries these
  else if (i %% 100 == 1) gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, seed = i)
  else if (i %% 10 == 2) message_of(model(99))
  else if (i %% 10 == 3) tok$encode("To be, or not to be")$ids
  else if (i %% 10 == 4) generate(model, 1:3, 2)
  else minhubpy:::ask("nothing")
}
calls(1000)
invisible(gc())
say(pid()); receive()
calls(as.integer(commandArgs(TRUE)[1]))
invisible(gc())
say(pid()); receive()
