## ----setup, include = FALSE---------------------------------------------------
ready <- minhubpy:::is_ready()
mixed <- ready && requireNamespace("lme4", quietly = TRUE)
knitr::opts_chunk$set(collapse = TRUE, comment = "#>", eval = ready, fig.width = 7, fig.height = 3.8, dpi = 96)
options(minhubpy.quiet = TRUE, digits = 3)

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
labels <- ifelse(words[[3]] == words[[4]], words[[3]], paste(words[[3]], words[[4]], sep = "\n"))
mtext(labels, side = 1, at = colMeans(at), line = ifelse(grepl("\n", labels), 1.4, 0.4), cex = 0.9)
legend("topleft", c("… speak with him, …", "… speak with oxen, …"), fill = c("#0072B2", "#D55E00"), border = NA, bty = "n")

## ----readers------------------------------------------------------------------
set.seed(2)
seen <- study[!is.na(study$surprisal), ]
seen$letters <- nchar(seen$word)
times <- merge(data.frame(reader = factor(1:30), speed = rnorm(30, sd = 30)), seen)
times$rt <- with(times, 220 + speed + 4 * letters + 5 * surprisal + rnorm(nrow(times), sd = 45))
nrow(times)

## ----lm-----------------------------------------------------------------------
without <- lm(rt ~ reader + letters, times)
with <- lm(rt ~ reader + letters + surprisal, times)
summary(with)$coefficients[c("letters", "surprisal"), ]
anova(without, with)

## ----slope, echo = FALSE------------------------------------------------------
slope <- coef(with)[["surprisal"]]
interval <- confint(with)["surprisal", ]

## ----fit, fig.alt = "Mean reading time of each word over its surprisal, corrected for length and reader, with the fitted line"----
rest <- times$rt - predict(with) + slope * times$surprisal # what is left for surprisal to explain
mean_rest <- tapply(rest, paste(times$item, times$position), mean)
mean_bits <- tapply(times$surprisal, paste(times$item, times$position), mean)
mean_word <- tapply(times$word, paste(times$item, times$position), function(word) word[1])
par(mar = c(4, 4, 1, 1), las = 1)
plot(mean_bits, mean_rest, pch = 16, col = "#0072B2", xlab = "surprisal (bits)", ylab = "reading time, rest (ms)", bty = "n")
abline(0, slope, col = "#D55E00", lwd = 2)
odd <- order(mean_bits, decreasing = TRUE)[1:4]
text(mean_bits[odd], mean_rest[odd], mean_word[odd], pos = 2)

## ----lme4, eval = mixed-------------------------------------------------------
library(lme4)
fixef(lmer(rt ~ letters + surprisal + (1 | reader), times))

## ----no-lme4, eval = !mixed, echo = FALSE, results = "asis"-------------------
#  cat("*(lme4 is not installed where this page was made; it would be* `lmer(rt ~ letters + surprisal + (1 | reader), times)`*.)*")

## ----targets------------------------------------------------------------------
target_logprobs(model, contexts = "My lord, the king is", targets = c("dead.", "come.", "green."))

## ----next, fig.height = 3, fig.alt = "Bars of the likeliest next letters after two beginnings"----
likely <- next_tokens(model, c(king = "My lord, the k", duke = "My lord, the d"), n = 5)
plot(likely)

## ----matrix-------------------------------------------------------------------
all <- logprob_matrix(model, "My lord")
dim(all)
range(rowSums(exp(all))[-1])

## ----punctuation--------------------------------------------------------------
word_logprobs(model, c("the", "king", "is", "dead."))
word_logprobs(model, c("the", "king", "is", "dead."), ignore_regex = "^[[:punct:]]$")

