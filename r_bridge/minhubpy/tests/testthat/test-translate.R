# Translations and summaries: the texts of Python.

translation_reference <- function() {
  folder <- Sys.getenv("MINHUBPY_REFERENCE")
  skip_if(!nzchar(folder), "no results of Python")
  c(readRDS(file.path(folder, "translation.rds")), folder = folder)
}

test_that("texts have the translations and summaries of Python, and NA stays NA", {
  needs_python()
  all <- translation_reference()
  model <- from_pretrained(file.path(all$folder, "translation"))
  texts <- c(a = all$texts[[1L]], b = NA, c = all$texts[[2L]])
  found <- translate_texts(model, texts, source = "English", target = "deu")
  expect_identical(found, c(a = all$translations[[1L]], b = NA, c = all$translations[[2L]]))
  found <- translate_texts(model, data.frame(text = all$texts), "en", "German", beams = 2, max_new_tokens = 4)
  expect_identical(found, unlist(all$short))
  expect_identical(summarize_texts(model, texts, min_new_tokens = 5)[["c"]], all$summaries[[2L]])
  expect_identical(summarize_texts(model, NA_character_), NA_character_)
  file <- tempfile(fileext = ".rds")
  on.exit(unlink(file))
  for (i in 1:2) expect_identical(translate_texts(model, texts, "en", "de", resume = file)[["a"]], all$translations[[1L]])
})

test_that("errors state the text, the language and the next step", {
  needs_python()
  all <- translation_reference()
  model <- from_pretrained(file.path(all$folder, "translation"))
  expect_error(translate_texts(model, all$texts, "en"), "needs target")
  expect_error(translate_texts(model, all$texts, "en", "Klingon"), "no language 'Klingon': its codes are eng_Latn, deu_Latn")
  expect_error(translate_texts(model, c("a cat", " "), "en", "de"), "text 2 is empty")
  expect_error(summarize_texts(model, strrep("cat ", 200)), "text 1 has 202 tokens, and the model has 90 positions")
  expect_error(summarize_texts(a_model(), "a cat"), "summarize_texts() needs a model with an encoder and a decoder", fixed = TRUE)
  expect_error(translate_texts(model, "a cat", "en", "de", beams = 0), "beams must be")
  expect_error(translate_texts(model, "a cat", "en", "de", early_stopping = "always"), "early_stopping must be")
  expect_warning(translate_texts(model, strrep("the cat sat . ", 40), "en", "de"), "text 1 exceeded the positions")
})
