#' Reading times of sentences, simulated
#'
#' Word-by-word reading times of 24 simulated subjects, who read 32 sentences.
#' **No person was measured**: the times follow a known rule, so that an analysis
#' can be checked against it. The sentences imitate the English of Shakespeare's
#' plays and were written for this package.
#'
#' The natural logarithm of the reading time in milliseconds is the sum of
#'
#' * 5.6 (270 ms);
#' * an intercept of the subject, normal with a standard deviation of 0.15, and
#'   one of the item (the sentence), with a standard deviation of 0.05;
#' * 0.012 for each bit of the word's surprisal;
#' * 0.006 for each bit of the previous word's surprisal, a *spillover* effect;
#' * 0.015 for each character of the word, punctuation included;
#' * noise, normal with a standard deviation of 0.25.
#'
#' The surprisals come from [word_logprobs()] with the model
#' `"minhub/shakespeare-gpt2"`. Where a surprisal is unknown, for the first word
#' of a sentence and for the word before it, the mean of the others is used. The
#' script `data-raw/reading_times.R` of the source package makes the data.
#'
#' @format A data frame with 6,696 rows and the columns
#' \describe{
#'   \item{subject}{the simulated subject, a factor with 24 levels}
#'   \item{item}{the sentence, a factor with 32 levels}
#'   \item{position}{the position of the word in its sentence, from 1}
#'   \item{word}{the word, with its punctuation}
#'   \item{rt}{the simulated reading time, in milliseconds}
#' }
#' @source Simulated by the authors of the package. The data are in the public
#'   domain (CC0).
#' @seealso [word_logprobs()] adds surprisals to the words;
#'   `vignette("words")` fits the reading times.
#' @examples
#' head(reading_times)
#' with(reading_times, tapply(rt, position, median))
"reading_times"
