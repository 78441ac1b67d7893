## ----setup, include = FALSE---------------------------------------------------
ready <- minhubpy:::is_ready()
knitr::opts_chunk$set(
  collapse = TRUE, comment = "#>", eval = ready, fig.width = 7,
  fig.height = 4, dpi = 96
)
options(minhubpy.quiet = FALSE, digits = 3, width = 80)
works <- function(expression) {
  !inherits(try(expression, silent = TRUE), "try-error")
}
serves <- ready && works({
  suppressMessages(minhubpy::minhub_serve(
    minhubpy::gpt2_from_pretrained("minhub/shakespeare-gpt2")
  ))$stop()
})

## ----no-python, eval = !ready, echo = FALSE, results = "asis"-----------------
#  cat("*No Python with minhub_py was found where this page was made, so the code below was not run.*")

## ----chat, message = FALSE----------------------------------------------------
library(minhubpy)
model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
bot <- minhub_chat(model, system = "A play.", max_new_tokens = 60, seed = 1)
reply <- bot$say("Good morrow, my lord!")
reply

## ----turns--------------------------------------------------------------------
invisible(bot$say("What news from the duke?"))
bot
as.data.frame(bot)[c("turn", "role", "tokens", "logprob")]
summary(bot)

## ----reply, fig.height = 5, fig.alt = "A bar for each token of a reply, with its probability and the alternatives"----
reply$tokens[1:3, ]
plot(reply, most = 12)

## ----schema, eval = FALSE-----------------------------------------------------
#  bot <- minhub_chat(from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct"))
#  reply <- bot$say("Name a city and its country.", schema = list(
#    type = "object",
#    properties = list(
#      city = list(type = "string"), country = list(type = "string")
#    ),
#    required = list("city", "country")
#  ))
#  reply$data$city

## ----serve, eval = serves, message = FALSE------------------------------------
server <- minhub_serve(model, name = "bard")
server
models <- readLines(paste0(server$address, "/v1/models"), warn = FALSE)
substr(models, 1, 50)

## ----no-server, eval = ready && !serves, echo = FALSE, results = "asis"-------
#  cat("*The Python packages of the server were not installed where this page was made, so this code was not run.*")

## ----ellmer, eval = FALSE-----------------------------------------------------
#  chat <- server$chat(system_prompt = "Answer in verse.")
#  chat$chat("Who are you?")

## ----stop, eval = serves------------------------------------------------------
server$stop()
server

## ----gguf, eval = FALSE-------------------------------------------------------
#  model <- from_pretrained("model.gguf")
#  repository <- "bartowski/SmolLM2-135M-Instruct-GGUF"
#  file <- "SmolLM2-135M-Instruct-Q4_K_M.gguf"
#  model <- from_pretrained(paste0(repository, ":", file))
#  bot <- minhub_chat(model)

## ----models-------------------------------------------------------------------
models <- minhub_models()
models[models$source == "built-in", c("model", "bytes", "complete")]

## ----delete, eval = FALSE-----------------------------------------------------
#  minhub_download("HuggingFaceTB/SmolLM2-135M-Instruct")
#  minhub_delete("HuggingFaceTB/SmolLM2-135M-Instruct")

