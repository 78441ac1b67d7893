## ----setup, include = FALSE---------------------------------------------------
ready <- minhubpy:::is_ready()
torch_ready <- ready && requireNamespace("torch", quietly = TRUE) &&
  !inherits(try(torch::torch_tensor(1), silent = TRUE), "try-error")
knitr::opts_chunk$set(collapse = TRUE, comment = "#>", eval = ready, fig.width = 7, fig.height = 4, dpi = 96)
options(minhubpy.quiet = FALSE, digits = 4, width = 80)

## ----no-python, eval = !ready, echo = FALSE, results = "asis"-----------------
#  cat("*No Python with minhub_py was found where this page was made, so the code below was not run.*")

## ----first--------------------------------------------------------------------
library(minhubpy)
model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
set.seed(1)
cat(generate(model, "ROMEO:", max_new_tokens = 200))

## ----model--------------------------------------------------------------------
model

## ----install, eval = FALSE----------------------------------------------------
#  minhub_install("path/to/minhub_py")

## ----tokens-------------------------------------------------------------------
tok <- tokenizer_from_pretrained("minhub/shakespeare-gpt2")
ids <- tok$encode("O Romeo!")$ids
ids
tok$decode(ids)

## ----vocabulary---------------------------------------------------------------
tail(tok$get_vocab(), 4)
tok$token_to_id(c("R", "r", "ü"))

## ----unknown, warning = TRUE--------------------------------------------------
tok$decode(tok$encode("Grüße, Romeo")$ids)

## ----logits-------------------------------------------------------------------
logits <- model(ids)
dim(logits) # texts, positions, vocabulary

## ----softmax------------------------------------------------------------------
last <- logits[1, length(ids), ]
prob <- exp(last) / sum(exp(last))
tok$decode(which.max(prob) - 1) # ids count from 0
max(prob)

## ----next---------------------------------------------------------------------
likely <- next_tokens(model, "O Romeo, Romeo! wherefore art tho", n = 3)
likely

## ----next-plot, fig.height = 3.4, fig.alt = "Bars: the probabilities of the ten likeliest tokens after 'O my love', a comma on top"----
plot(next_tokens(model, "O my love"))

## ----score--------------------------------------------------------------------
surprise <- token_logprobs(model, "Romeo and Juliet went to the supermarket")
head(surprise, 4)

## ----score-bars, fig.alt = "Bars: the surprise in bits of each letter of 'Romeo and Juliet went to the supermarket'"----
plot(surprise)

## ----score-text, fig.height = 4.2, fig.alt = "A text whose letters have a darker ground the more surprising they are"----
verse <- "ROMEO:
But, soft! what light through yonder window breaks?
It is the east, and Juliet is the sun.

JULIET:
The train to Mantua leaves at half past six;
please switch your telephone off in the quiet zone."
plot(token_logprobs(model, verse), main = "Two lines by Shakespeare, two not")

## ----in-words, fig.height = 3.4, fig.alt = "Bars: the mean surprise is largest at the first letter of a word"----
prompts <- rep("JULIET:\n", 8)
written <- generate(model, prompts, max_new_tokens = 240, seed = 1:8)
scored <- token_logprobs(model, written)
is_letter <- grepl("[[:alpha:]']", scored$token)
# Counts from 0 after each character that is no letter.
place <- ave(seq_along(is_letter), cumsum(!is_letter), FUN = seq_along) - 1
bits <- tapply(-scored$logprob / log(2), pmin(place, 6), mean)
bits <- bits[as.character(1:6)]
par(mar = c(4.5, 4.5, 1, 1), las = 1)
barplot(
  bits, names.arg = c(1:5, "6 and later"), col = "#0072B2", border = NA,
  xlab = "position in the word", ylab = "bits"
)

## ----perplexity---------------------------------------------------------------
texts <- c(
  verse = "Shall I compare thee to a summer's day?",
  prose = "Please remember to update the software.",
  noise = "xq zzkv, jwpf! vvq; bxz kq wd qq xj zk?"
)
models <- paste0("minhub/shakespeare-", c("gpt2", "gptneo", "lstm"))
sapply(models, function(name) perplexity(from_pretrained(name), texts))

## ----batch--------------------------------------------------------------------
openings <- c(
  romeo = "ROMEO:\nO, ", juliet = "JULIET:\nGood night",
  king = "KING RICHARD III:\nA horse! "
)
generate(model, openings, max_new_tokens = 30, temperature = 0)

## ----chance-------------------------------------------------------------------
for (temperature in c(0, 0.7, 1.5)) {
  text <- generate(
    model, "The king is ", max_new_tokens = 45,
    temperature = temperature, seed = 4
  )
  cat(format(temperature, nsmall = 1), " ", encodeString(text), "\n")
}

## ----ends---------------------------------------------------------------------
model$config$eos_token_id
tok$decode(0)
cat(generate(model, "ROMEO:\n", max_new_tokens = 200, stop = "\n", seed = 1))

## ----seeds--------------------------------------------------------------------
set.seed(42)
one <- generate(model, "Now is the ", max_new_tokens = 20)
set.seed(42)
two <- generate(model, "Now is the ", max_new_tokens = 20)
three <- generate(model, "Now is the ", max_new_tokens = 20, seed = 11)
c(one == two, one == three)

## ----seed-each----------------------------------------------------------------
generate(model, rep("Now is the ", 3), max_new_tokens = 20, seed = 1:3)

## ----own----------------------------------------------------------------------
small <- gpt2(
  vocab_size = 65, n_embd = 32, n_head = 2, n_layer = 2, n_positions = 64,
  seed = 1
)
small
head(small$parameters(), 3)
dim(small$parameter("wte.weight"))

## ----train-text---------------------------------------------------------------
text <- generate(
  model, rep("KING:\n", 16), max_new_tokens = 400, temperature = 0.8,
  seed = 1:16
)

## ----train--------------------------------------------------------------------
run <- minhub_train(
  text, family = "lstm", layers = 1, width = 64, context = 32, batch = 16,
  steps = 200, learning_rate = 0.01, evaluate_every = 20, seed = 1
)
run

## ----losses-------------------------------------------------------------------
tail(run$losses[c("step", "train_loss", "held_out_loss", "learning_rate")], 3)

## ----train-plot, fig.height = 3.4, fig.alt = "Two curves that fall: the loss on held-out text and on the text that trains, with a point at the lowest"----
plot(run)

## ----trained------------------------------------------------------------------
cat(generate(run, "KING:", max_new_tokens = 60, temperature = 0.8, seed = 1))

## ----compare------------------------------------------------------------------
larger <- minhub_train(
  text, family = "gpt2", layers = 1, width = 32, context = 32, batch = 16,
  steps = 200, learning_rate = 0.01, evaluate_every = 20, seed = 1
)
columns <- c("run", "parameters", "best_step", "nats_per_character")
minhub_compare(lstm = run, gpt2 = larger)[columns]

## ----errors, error = TRUE-----------------------------------------------------
model(c(1, 2, 65))
generate(model, NA)
tryCatch(
  gpt2_from_pretrained("minhub/no-such-model"),
  minhubpy_error = function(e) class(e)
)

## ----restart, eval = ready && !minhubpy:::is_hosted()-------------------------
minhub_stop()
generate(model, "ROMEO:", max_new_tokens = 10, temperature = 0)

## ----torch, eval = torch_ready------------------------------------------------
#  idx <- torch::torch_tensor(matrix(ids + 1L, nrow = 1))
#  model(idx)$shape

## ----torch-module, eval = torch_ready-----------------------------------------
#  module <- as_torch_module(model)
#  loss <- torch::nnf_cross_entropy(module(idx)[1, 1:7, ], idx[1, 2:8])
#  loss$backward()
#  loss$item()

## ----no-torch, eval = ready && !torch_ready, echo = FALSE, results = "asis"----
cat("*R torch was not installed where this page was made, so these two were not run.*")

