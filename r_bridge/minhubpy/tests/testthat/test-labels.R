# Labels, agreement and corrected estimates in R. tests/analysis has the tests of Python's functions.

test_that("annotate_texts() labels texts, with NA for missing ones, and resumes", {
  model <- a_model()
  texts <- c(a = "O Romeo", b = NA, c = "Off with his head!")
  found <- annotate_texts(model, texts, c("good", "bad"), instruction = "Tone?")
  expect_identical(names(found), c("label", "prob", "margin", "prob_good", "prob_bad"))
  expect_identical(rownames(found), c("a", "b", "c"))
  expect_identical(is.na(found$prob), c(FALSE, TRUE, FALSE))
  expect_identical(levels(found$label), c("good", "bad"))
  expect_equal(found$prob_good + found$prob_bad, c(1, NA, 1))
  logprobs <- vapply(c(" good", " bad"), function(answer) {
    prompt <- paste0("Tone?\n\nText: O Romeo\nLabel:")
    target_logprobs(model, prompt, answer, sep = "")[[1L]]
  }, 0)
  expect_equal(found$prob_good[[1L]], exp(logprobs[[1L]]) / sum(exp(logprobs)), tolerance = 1e-4)
  file <- tempfile(fileext = ".rds")
  data <- data.frame(text = unname(texts))
  first <- annotate_texts(model, data, c(good = "praises", bad = "blames"), resume = file)
  expect_identical(annotate_texts(model, data, c(good = "praises", bad = "blames"), resume = file), first)
  expect_identical(names(first), c("text", "label", "prob", "margin", "prob_good", "prob_bad"))
  expect_refused(annotate_texts(model, "x", "good"), "labels must be at least two labels")
  models <- list(small = model, other = from_pretrained(BUILT_IN[[2L]]))
  several <- annotate_texts(models, data, c(good = "praises", bad = "blames"))
  expect_identical(levels(several$model), c("small", "other"))
  expect_equal(several[several$model == "small", -1], first, ignore_attr = TRUE)
  second <- annotate_texts(models$other, data, c(good = "praises", bad = "blames"))
  expect_equal(several[several$model == "other", -1], second, ignore_attr = TRUE)
  expect_false(identical(second$prob, first$prob))
  expect_warning(again <- annotate_texts(models, cbind(model = 1:3, data), c(good = "praises", bad = "blames")), "were replaced: model")
  expect_identical(again, several)
  expect_refused(annotate_texts(list(small = model, other = 3), data, c("good", "bad")), "model$other must be a model, as from_pretrained() returns, not 3")
  expect_output(print(do.call(label_agreement, split(several$label, several$model))), "Agreement of 2 raters")
  expect_refused(annotate_texts(unname(models), data, c("good", "bad")), "a list of models must have unique names")
  expect_refused(annotate_texts(models, data, c("good", "bad"), resume = file), "require one model")
  expect_refused(annotate_texts(model, "x", c("a", "b"), chat = TRUE), "no chat template")
})

test_that("label_agreement() has the published values", {
  needs_python()
  raters <- data.frame(
    a = c(1, 2, 3, 3, 2, 1, 4, 1, 2, NA, NA, NA), b = c(1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NA, 3),
    c = c(NA, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NA), d = c(1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NA)
  )
  value <- function(x, name) x$statistics$estimate[x$statistics$statistic == name]
  for (level in c("nominal", "ordinal", "interval", "ratio")) {
    expected <- c(nominal = .743421, ordinal = .815388, interval = .849107, ratio = .797403)[[level]]
    found <- label_agreement(raters, level = level, bootstrap = 0)
    expect_equal(value(found, "alpha"), expected, tolerance = 1e-6)
    expect_equal(value(found, "ac1"), 0.77544, tolerance = 1e-5) # as in irrCAC's help
    expect_identical("ac2" %in% found$statistics$statistic, level != "nominal")
  }
  two <- label_agreement(c("x", "y", "x", NA), model = c("x", "y", "y", "x"))
  expect_identical(two$confusion, matrix(c(1, 0, 1, 1), 2, dimnames = list("first rater" = c("x", "y"), model = c("x", "y"))))
  expect_output(print(two), "Agreement of 2 raters, 3 units")
  expect_identical(as.data.frame(two), two$statistics)
  shown <- strings(drawn(plot(two)))
  expect_identical(shown[1:7], c("y", "x", "x", "y", "model", "first rater", "1"))
  expect_identical(rownames(label_agreement(factor("b", c("b", "a")), factor("a", c("b", "a")))$confusion), c("b", "a"))
  expect_refused(label_agreement(1:3), "needs at least two raters")
  expect_error(plot(label_agreement(raters)), "a confusion matrix requires exactly two raters", class = "minhubpy_error")
})

test_that("corrected_estimate() has the values of ppi_py and HC3, and follows formulas", {
  needs_python()
  i <- 0:199
  y <- as.numeric((7919 * i) %% 11 < 5)
  data <- data.frame(i, llm = pmin(pmax(.15 + .6 * y + .2 * sin(i), 0), 1), human = ifelse(i < 40, y, NA))
  found <- corrected_estimate(human ~ cos(i), data, prediction = "llm", method = "ppi")
  expect_equal(unname(coef(found)), c(.434288, .012873), tolerance = 1e-4)
  expect_equal(unname(confint(found)["(Intercept)", ]), c(.339548, .529027), tolerance = 1e-5)
  expect_equal(unname(sqrt(diag(vcov(found)))), found$estimates$std_error)
  expect_identical(corrected_estimate(human == 1 ~ 1, data, "llm")$method, "ppi++")
  expect_output(print(found), "200 texts, 40 with a human label, method ppi")
  shown <- strings(drawn(plot(found)))
  expect_true(all(c("(Intercept)", "cos(i)", "ppi", "model's labels only") %in% shown))
  expect_match(shown, "95 % intervals; 40 of 200 texts with a human label", all = FALSE)
  expect_refused(corrected_estimate(~i, data, "llm"), "formula must have two sides")
  expect_refused(corrected_estimate(human ~ i, data, "other"), "no column other")
})

test_that("corrected_estimate() supports clusters and cross-fitting", {
  needs_python()
  set.seed(1)
  author <- rep(letters, each = 20)
  level <- rnorm(26)[match(author, letters)]
  truth <- level + rnorm(520)
  data <- data.frame(author, llm = 2 * truth + rnorm(520), human = ifelse(seq_len(520) %in% sample(520, 150), truth, NA))
  width <- function(...) corrected_estimate(human ~ 1, data, "llm", method = "dsl", ...)$estimates$std_error
  expect_gt(width(cluster = "author"), width())
  expect_identical(width(cluster = data$author), width(cluster = factor(data$author)))
  expect_lt(width(cross_fit = 5, splits = 3), width())
  expect_identical(width(cross_fit = 5, splits = 3), width(cross_fit = 5, splits = 3))
  expect_refused(corrected_estimate(human ~ 1, data, "llm", cluster = 1:3), "cluster must have one value for each of 520 rows")
  expect_refused(corrected_estimate(human ~ 1, data, "llm", cross_fit = 1), "cross_fit must be 0, or at least 2")
})

test_that("an interrupted annotation continues after its last complete part", {
  model <- a_model()
  texts <- paste0("text ", rep(letters, length.out = 300), rep(letters[1:12], each = 25))
  file <- tempfile(fileext = ".rds")
  label <- function(...) annotate_texts(model, texts, c("a", "b"), instruction = "x", template = "{text}", sep = "", ...)
  first <- label(resume = file)
  expect_same(label(), first)
  size <- file.size(file)
  bytes <- readBin(file, "raw", size)
  writeBin(bytes[seq_len(size - 100)], file) # as after a kill: the second part is incomplete
  expect_identical(label(resume = file), first)
  expect_identical(file.size(file), size)
  expect_false(identical(annotate_texts(model, texts[1:3], c("a", "b"), instruction = "x", template = "{text}"), first[1:3, ]))
})

test_that("choose_for_coding() adds probabilities and follows set.seed()", {
  needs_python()
  data <- data.frame(margin = c(seq(0, 1, length.out = 20), NA))
  set.seed(3)
  found <- choose_for_coding(data, 5)
  set.seed(3)
  expect_identical(choose_for_coding(data, 5), found)
  expect_identical(sum(found$selected), 5L)
  expect_equal(sum(found$probability), 5)
  expect_identical(found$probability[[21L]], 0)
  expect_refused(choose_for_coding(data, 21), "only 20 texts have a margin")
})

test_that("decide_texts() has a row per text and question, with NA for missing texts, and resumes", {
  model <- a_decider()
  questions <- list(
    tone = list(type = "choice", instructions = "What is the tone?", criteria = c(calm = "A polite message", angry = NA)),
    sad = list(type = "noul", instructions = "Is it sad?"),
    urgency = list(type = "score", instructions = "How urgent is it?", criteria = c("Can wait", "Today", "Now"))
  )
  texts <- c(a = "O Romeo", b = NA, c = "Off with his head!")
  found <- decide_texts(model, texts, questions, options = TRUE)
  columns <- c("text", "question", "type", "answer", "prob", "confidence", "score", "spread", "temperature")
  expect_identical(names(found)[1:9], columns)
  expect_identical(as.character(found$text), rep(c("a", "b", "c"), each = 3L))
  expect_identical(as.character(found$question), rep(names(questions), 3L))
  expect_identical(is.na(found$answer), rep(c(FALSE, TRUE, FALSE), each = 3L))
  expect_equal(found$prob_calm[c(1, 7)] + found$prob_angry[c(1, 7)], c(1, 1))
  expect_true(all(found$score[c(3, 9)] > 0 & found$score[c(3, 9)] < 2))
  expect_identical(found$score[1:2], c(NA_real_, NA_real_))
  alone <- decide_texts(model, texts[["c"]], questions["sad"])
  expect_same(alone$prob, found$prob[[8L]])
  file <- tempfile(fileext = ".rds")
  first <- decide_texts(model, unname(texts), questions, orders = 2, resume = file)
  expect_identical(decide_texts(model, unname(texts), questions, orders = 2, resume = file), first)
  expect_gt(first$spread[[1L]], 0)
  plain <- list(tone = list(type = "choice", criteria = c("calm", "angry")))
  expect_identical(nrow(decide_texts(model, character(), plain)), 0L)
  expect_refused(decide_texts(model, "x", list(plain)), "questions must be a named list")
  expect_refused(decide_texts(model, "x", list(q = list(type = "open"))), 'the type of question q must be one of')
  expect_refused(decide_texts(model, "x", list(q = list(type = "choice"))), "criteria")
  expect_refused(decide_texts(a_model(), "x", plain), "no chat template. Use annotate_texts()")
})

# Decisions about 300 texts by a model whose scores are three times too large, and hand-coded answers to the first 150.
some_decisions <- function() {
  set.seed(1)
  p <- runif(300, 0.02, 0.98)
  level <- rbinom(300, 2, p)
  party <- rep(c("a", "b"), 150)
  refund <- data.frame(
    text = 1:300, question = "refund", type = "noul", answer = "true", prob = NA_real_, confidence = NA_real_, score = NA_real_,
    spread = 0, temperature = 1, prob_true = plogis(3 * qlogis(p)), prob_false = plogis(-3 * qlogis(p)), prob_0 = NA, prob_1 = NA,
    prob_2 = NA, coded = as.character(runif(300) < p), party = party
  )
  urgency <- transform(refund,
    question = "urgency", type = "score", prob_true = NA, prob_false = NA, prob_0 = (1 - p)^2, prob_1 = 2 * p * (1 - p),
    prob_2 = p^2, score = 2 * p, coded = as.character(level)
  )
  data <- rbind(refund, urgency)[order(rep(1:300, 2), rep(1:2, each = 300)), ]
  data$coded[data$text > 150] <- NA
  data
}

test_that("calibrate_decisions() finds the temperatures, stores them, and plots reliability", {
  needs_python()
  data <- some_decisions()
  found <- calibrate_decisions(data, "coded")
  expect_identical(found$errors$type, c("noul", "score"))
  expect_identical(as.integer(found$errors$n), c(150L, 150L))
  expect_equal(unname(coef(found)), found$errors$temperature)
  expect_true(abs(coef(found)[["noul"]] - 3) < 0.8)
  expect_lt(found$errors$ece_after[[1L]], found$errors$ece_before[[1L]] / 2)
  expect_identical(found$decisions$text, data$text)
  row <- match(TRUE, data$question == "refund" & data$text > 150)
  logit <- qlogis(c(data$prob_true[[row]], found$decisions$prob_true[[row]]))
  expect_equal(logit[[1L]] / logit[[2L]], coef(found)[["noul"]], tolerance = 0.1)
  expect_equal(calibrate_decisions(data, data$coded)$errors, found$errors)
  logical <- transform(data[data$question == "refund", ], coded = as.logical(coded))
  expect_identical(calibrate_decisions(logical, "coded")$errors[1L, ], found$errors[1L, ])
  folder <- tempfile()
  dir.create(folder)
  calibrate_decisions(data, "coded", save = folder)
  expect_match(readLines(file.path(folder, "decision.json")), '"noul": ', all = FALSE)
  expect_output(print(found), "Calibration by temperature, cross-fitted")
  expect_identical(as.data.frame(found), found$errors)
  shown <- strings(drawn(plot(found)))
  expect_true(all(c("noul", "score", "before", "after", "share of right answers") %in% shown))
  isotonic <- calibrate_decisions(data, "coded", "isotonic")
  expect_identical(coef(isotonic), stats::setNames(numeric(), character()))
  expect_refused(calibrate_decisions(isotonic$decisions, "coded"), "the column temperature of the decision table is empty, as in the table of calibrated decisions: pass the table of decide_texts()")
  expect_refused(calibrate_decisions(data, "other"), "no column other")
  expect_refused(calibrate_decisions(data, 1:3), "truth must have one value for each of 600 rows")
  expect_refused(calibrate_decisions(data[1:9], data$coded), "call decide_texts() with options = TRUE")
})

test_that("corrected_estimate() accepts decisions", {
  needs_python()
  data <- some_decisions()
  refund <- data[data$question == "refund", ]
  expected <- corrected_estimate(coded == "TRUE" ~ party, refund, prediction = refund$prob_true)
  found <- corrected_estimate(coded == "TRUE" ~ party, data, question = "refund")
  expect_identical(found$estimates, expected$estimates)
  expect_identical(found$texts, 300L)
  expect_identical(found$coded, 150L)
  expect_identical(corrected_estimate(coded == "TRUE" ~ party, data, data$prob_true, question = "refund")$estimates, expected$estimates)
  score <- corrected_estimate(as.integer(coded) ~ 1, data, question = "urgency")
  expect_true(score$estimates$lower < 1 && score$estimates$upper > 1)
  expect_refused(corrected_estimate(coded == "TRUE" ~ 1, data), "several questions: set question to one of refund, urgency")
  expect_refused(corrected_estimate(coded == "TRUE" ~ 1, data, question = "mood"), 'must be one of')
  expect_refused(corrected_estimate(coded == "TRUE" ~ 1, refund[c("coded", "prob_true")]), "such as prob_true")
})
