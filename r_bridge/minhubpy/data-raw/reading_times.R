# Simulates data/reading_times.rda: Rscript data-raw/reading_times.R, in the package's folder, with minhubpy installed.
# R/reading_times.R documents the data and repeats the rule of the simulation.

library(minhubpy)
sentences <- read.csv("inst/extdata/sentences.csv")
sentences <- sentences$sentence[sentences$english == "old"]
words <- strsplit(sentences, " ", fixed = TRUE)
study <- data.frame(item = rep(seq_along(words), lengths(words)), position = sequence(lengths(words)), word = unlist(words))

study$surprisal <- word_logprobs(gpt2_from_pretrained("minhub/shakespeare-gpt2"), study, by = "item")$surprisal
study$surprisal[is.na(study$surprisal)] <- mean(study$surprisal, na.rm = TRUE) # the first word of a sentence
study$length <- nchar(study$word)
before <- function(x) ifelse(study$position == 1L, mean(x), c(NA, x[-length(x)]))
study$previous <- before(study$surprisal)

set.seed(1)
subjects <- 24L
of_subject <- rnorm(subjects, sd = 0.15)
of_item <- rnorm(length(words), sd = 0.05)
rows <- merge(data.frame(subject = seq_len(subjects)), study)
rows <- rows[order(rows$subject, rows$item, rows$position), ]
log_rt <- 5.6 + of_subject[rows$subject] + of_item[rows$item] +
  0.012 * rows$surprisal + 0.006 * rows$previous + 0.015 * rows$length + rnorm(nrow(rows), sd = 0.25)

reading_times <- data.frame(
  subject = factor(rows$subject), item = factor(rows$item), position = rows$position, word = rows$word,
  rt = as.integer(round(exp(log_rt)))
)
save(reading_times, file = "data/reading_times.rda", compress = "xz", version = 2)
