#' Simulated reading times
#'
#' Word-by-word reading times of 24 simulated subjects and 32 sentences. **The data
#' were not measured**: they follow a known rule, so that the result of an analysis
#' can be verified. The sentences imitate the English of Shakespeare's plays and
#' were written for this package.
#'
#' The natural logarithm of the reading time in milliseconds is the sum of
#'
#' * 5.6 (270 ms);
#' * a random intercept of the subject (normal, standard deviation 0.15) and of the
#'   item, the sentence (normal, standard deviation 0.05);
#' * 0.012 per bit of the word's surprisal;
#' * 0.006 per bit of the previous word's surprisal, a *spillover* effect;
#' * 0.015 per character of the word, including punctuation;
#' * noise (normal, standard deviation 0.25).
#'
#' [word_logprobs()] computes the surprisals with the model
#' `"minhub/shakespeare-gpt2"`. The mean surprisal replaces the missing surprisals
#' of the first word of a sentence and of the word before it. The script
#' `data-raw/reading_times.R` of the source package simulates the data.
#'
#' @format A data frame with 6,696 rows and the columns
#' \describe{
#'   \item{subject}{the simulated subject, a factor with 24 levels}
#'   \item{item}{the sentence, a factor with 32 levels}
#'   \item{position}{the position of the word in its sentence, from 1}
#'   \item{word}{the word, including punctuation}
#'   \item{rt}{the simulated reading time, in milliseconds}
#' }
#' @source Simulated by the authors of the package. The data are in the public
#'   domain (CC0).
#' @seealso [word_logprobs()] computes the surprisals of the words.
#'   `vignette("words")` analyzes the reading times.
#' @examples
#' head(reading_times)
#' with(reading_times, tapply(rt, position, median))
"reading_times"
