## ----setup, include = FALSE---------------------------------------------------
ready <- minhubpy:::is_ready()
mixed <- ready && requireNamespace("lme4", quietly = TRUE)
knitr::opts_chunk$set(collapse = TRUE, comment = "#>", eval = ready, fig.width = 7, fig.height = 3.8, dpi = 96)
options(minhubpy.quiet = TRUE, digits = 3, width = 80)

## ----no-python, eval = !ready, echo = FALSE, results = "asis"-----------------
#  cat("*No Python with minhub_py was found where this page was made, so the code below was not run.*")

## ----words--------------------------------------------------------------------
library(minhubpy)
sentences <- c(
  "My lord, the king is dead.",
  "My lord, the king is green.",
  "I will not speak with him, for he is mad.",
  "I will not speak with oxen, for he is mad.",
  "Good night, good night! The day is done.",
  "Good night, good night! The wig is done.",
  "What news from the duke, my friend?",
  "What jazz from the duke, my friend?"
)
words <- strsplit(sentences, " ")
study <- data.frame(
  item = rep(seq_along(words), lengths(words)),
  position = sequence(lengths(words)),
  word = unlist(words)
)
head(study)

## ----surprisal----------------------------------------------------------------
model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
study <- word_logprobs(model, study, by = "item")
study[study$item <= 2, ]

## ----bars, fig.alt = "Bars of the surprisal of each word of two sentences, which differ in their last word"----
pair <- study[study$item %in% 3:4, ]
bits <- tapply(pair$surprisal, list(pair$item, pair$position), sum)
bits[is.na(bits)] <- 0
par(mar = c(3.5, 4, 2, 0.5), las = 1)
at <- barplot(
  bits, beside = TRUE, col = c("#0072B2", "#D55E00"), border = NA,
  ylim = c(0, 30), ylab = "surprisal (bits)", names.arg = rep("", ncol(bits))
)
both <- paste(words[[3]], words[[4]], sep = "\n")
labels <- ifelse(words[[3]] == words[[4]], words[[3]], both)
line <- ifelse(grepl("\n", labels), 1.4, 0.4)
mtext(labels, side = 1, at = colMeans(at), line = line, cex = 0.9)
legend(
  "topleft", c("… speak with him, …", "… speak with oxen, …"),
  fill = c("#0072B2", "#D55E00"), border = NA, bty = "n"
)

## ----data---------------------------------------------------------------------
head(reading_times, 3)

## ----text---------------------------------------------------------------------
text <- unique(reading_times[c("item", "position", "word")])
text <- word_logprobs(model, text, by = "item")
nrow(text)

## ----spillover----------------------------------------------------------------
text$length <- nchar(text$word)
previous <- function(x) ifelse(text$position == 1, NA, c(NA, head(x, -1)))
text$previous_surprisal <- previous(text$surprisal)
text$previous_length <- previous(text$length)
times <- merge(reading_times, text)
times <- times[!is.na(times$surprisal) & !is.na(times$previous_surprisal), ]
nrow(times)

## ----lme4, eval = mixed-------------------------------------------------------
#  library(lme4)
#  fit <- lmer(
#    log(rt) ~ surprisal + previous_surprisal + length + previous_length +
#      (1 | subject) + (1 | item),
#    data = times
#  )
#  estimates <- coef(summary(fit))
#  estimates
#  VarCorr(fit)

## ----lm, eval = ready && !mixed, echo = !mixed--------------------------------
fit <- lm(
  log(rt) ~ surprisal + previous_surprisal + length + previous_length +
    subject + item,
  data = times
)
effects <- c("surprisal", "previous_surprisal", "length", "previous_length")
estimates <- coef(summary(fit))[effects, ]
estimates

## ----no-lme4, eval = ready && !mixed, echo = FALSE, results = "asis"----------
cat(
  "*The package lme4 was not installed where this page was made, so the model above was not run. The linear model has the",
  "same predictors, with subjects and items as fixed effects.*"
)

## ----slopes, echo = FALSE-----------------------------------------------------
per_bit <- estimates["surprisal", 1]
error <- estimates["surprisal", 2]
spillover <- estimates["previous_surprisal", 1]

## ----fit, fig.alt = "Mean log reading time of each word, less the other effects, over its surprisal, with the fitted line"----
rest <- residuals(fit) + per_bit * times$surprisal
each <- aggregate(
  cbind(rest, surprisal = times$surprisal),
  times[c("item", "position", "word")], mean
)
par(mar = c(4, 4.5, 1, 1), las = 1)
plot(
  rest ~ surprisal, each, pch = 16, col = "#0072B2", bty = "n",
  xlab = "surprisal (bits)", ylab = "log reading time, rest"
)
abline(0, per_bit, col = "#D55E00", lwd = 2)
odd <- head(order(each$surprisal, decreasing = TRUE), 3)
text(each$surprisal[odd], each$rest[odd], each$word[odd], pos = 2)

## ----targets------------------------------------------------------------------
ends <- data.frame(
  context = "My lord, the king is", target = c("dead.", "come.", "green.")
)
target_logprobs(model, ends)[c("target", "surprisal", "entropy")]

## ----difference---------------------------------------------------------------
target_logprobs(model, "My lord, the king is", "dead.") -
  target_logprobs(model, "My lord, the king is", "green.")

## ----next, fig.height = 3, fig.alt = "Bars of the likeliest next letters after two beginnings"----
contexts <- c(king = "My lord, the k", duke = "My lord, the d")
likely <- next_tokens(model, contexts, n = 5)
plot(likely)

## ----matrix-------------------------------------------------------------------
all <- logprob_matrix(model, "My lord")
dim(all)
range(rowSums(exp(all))[-1])

## ----punctuation--------------------------------------------------------------
words <- c("the", "king", "is", "dead.")
word_logprobs(model, words)
word_logprobs(model, words, ignore_regex = "^[[:punct:]]$")

