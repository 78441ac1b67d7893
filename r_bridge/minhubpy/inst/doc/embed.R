## ----setup, include = FALSE---------------------------------------------------
ready <- minhubpy:::is_ready()
knitr::opts_chunk$set(collapse = TRUE, comment = "#>", eval = ready, fig.width = 7, fig.height = 4, dpi = 96)
options(minhubpy.quiet = FALSE, digits = 3, width = 80)

## ----no-python, eval = !ready, echo = FALSE, results = "asis"-----------------
#  cat("*No Python with minhub_py was found where this page was made, so the code below was not run.*")

## ----data---------------------------------------------------------------------
library(minhubpy)
file <- system.file("extdata", "sentences.csv", package = "minhubpy")
sentences <- read.csv(file)
table(sentences$english)
sentences$sentence[c(1, 2, 33, 34)]

## ----embed--------------------------------------------------------------------
model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
vectors <- text_embeddings(model, sentences$sentence)
dim(vectors)

## ----missing------------------------------------------------------------------
text_embeddings(model, c(greeting = "Good morrow!", nothing = NA))[, 1:4]

## ----pca, fig.height = 4.6----------------------------------------------------
old <- sentences$english == "old"
blue <- "#0072B2"
vermillion <- "#D55E00"
components <- prcomp(vectors)$x
par(mar = c(4, 4, 1, 1), las = 1, bty = "n")
plot(components[, 1:2], pch = 16, col = ifelse(old, blue, vermillion), asp = 1)
legend(
  "topleft", c("Shakespeare's English", "today's"),
  pch = 16, col = c(blue, vermillion), bty = "n"
)

## ----classifier---------------------------------------------------------------
accuracy <- function(vectors, is_old, components = 8) {
  x <- prcomp(vectors, rank. = components)$x
  set.seed(1)
  fold <- sample(rep_len(1:8, length(is_old)))
  right <- unlist(lapply(1:8, function(held_out) {
    seen <- fold != held_out
    fit <- lm.fit(cbind(1, x[seen, ]), ifelse(is_old[seen], 1, -1))
    (cbind(1, x[!seen, ]) %*% fit$coefficients > 0) == is_old[!seen]
  }))
  mean(right)
}
accuracy(vectors, old)

## ----layers, fig.height = 3.6-------------------------------------------------
layer <- 0:model$config$n_layer
right <- vapply(layer, function(i) {
  accuracy(text_embeddings(model, sentences$sentence, layer = i), old)
}, 0)
par(mar = c(4, 4, 1, 1), las = 1, bty = "n")
plot(
  layer, 100 * right, type = "b", pch = 16, col = blue, lwd = 2,
  ylim = c(50, 100), ylab = "% right"
)
abline(h = 50, lty = 2, col = "grey60")
text(0, 52, "guessing", adj = c(0, 0.5), col = "grey40", cex = 0.8)

## ----nearest------------------------------------------------------------------
best <- layer[which.max(right)]
vectors <- text_embeddings(model, sentences$sentence, layer = best)
centred <- scale(vectors, scale = FALSE)
centred <- centred / sqrt(rowSums(centred^2))
alike <- drop(centred %*% centred[1, ])
nearest <- order(alike, decreasing = TRUE)[1:5]
data.frame(alike = alike[nearest], sentence = sentences$sentence[nearest])

## ----attention, fig.height = 5.4----------------------------------------------
attention <- attention_weights(model, "Good madam, weep no more")
attention
plot(attention)

## ----head, fig.width = 6, fig.height = 6--------------------------------------
plot(attention, layer = 4, head = 4)

## ----lens, fig.height = 4-----------------------------------------------------
found <- logit_lens(model, "Good madam, weep no more")
plot(found, start = 12, most = 13)

## ----lens-data----------------------------------------------------------------
head(found[found$position == 15 & found$rank == 1, ])

