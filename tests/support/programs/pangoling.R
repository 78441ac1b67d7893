# Prints pangoling's results as JSON: Rscript pangoling.R CHECKPOINT ARGUMENTS (see tests/support/pangoling.py).

arguments <- commandArgs(TRUE)
options(pangoling.verbose = 0)
case <- jsonlite::fromJSON(arguments[[2L]])
model <- arguments[[1L]]
targets <- pangoling::masked_targets_pred(case$contexts, case$targets, case$after, model = model)
tokens <- as.data.frame(pangoling::masked_tokens_pred_tbl(case$sentences, model = model))
tokens$sentence <- match(tokens$masked_sentence, case$sentences)
result <- list(targets = unname(targets), tokens = tokens[c("sentence", "mask_n", "token", "pred")])
cat(jsonlite::toJSON(result, digits = 9, dataframe = "columns"), "\n")
