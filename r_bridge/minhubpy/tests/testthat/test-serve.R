# The server in the background. tests/serve/test_apis.py tests the replies.

test_that("a server answers, prints its address and stops", {
  needs_extra("serve")
  server <- minhub_serve(a_model(), name = "bard")
  on.exit(server$stop())
  expect_s3_class(server, "minhub_server")
  expect_match(server$address, "^http://127\\.0\\.0\\.1:[0-9]+$")
  expect_output(print(server), paste("bard on", server$address), fixed = TRUE)
  get <- function(path) paste(readLines(url(paste0(server$address, path))), collapse = "")
  models <- suppressWarnings(get("/v1/models"))
  expect_match(models, "\"id\":\"bard\"", fixed = TRUE)
  # R remains available.
  expect_length(generate(a_model(), "ROMEO:", 3, seed = 1), 1L)
  server$stop()
  expect_error(suppressWarnings(get("/health")))
  expect_output(print(server), "stopped")
  server$stop() # a second call has no effect
})

test_that("a server stores prefixes in a folder", {
  needs_extra("serve")
  folder <- tempfile()
  server <- minhub_serve(a_model(), cache_dir = folder, cache_size = 1e6)
  on.exit(server$stop())
  expect_true(dir.exists(folder))
})

test_that("a server has the adapters of its model", {
  needs_extra("serve")
  run <- minhub_train(data.frame(text = c("a", "bc", "de")), from = BUILT_IN[[1L]], lora = 2, steps = 1, context = 8, seed = 1)
  server <- minhub_serve(a_model(), name = "bard", adapters = list(codes = run, same = run$folder))
  on.exit(server$stop())
  address <- url(paste0(server$address, "/v1/models"))
  models <- suppressWarnings(readLines(address))
  close(address)
  for (name in c("bard", "codes", "same")) expect_match(models, paste0("\"id\":\"", name, "\""), fixed = TRUE, all = FALSE)
  expect_refused(minhub_serve(a_model(), adapters = run$folder), "adapters must have unique names")
  expect_refused(minhub_serve(a_model(), adapters = c(minhub = "x")), "adapters must not have the name of the model")
  expect_refused(minhub_serve(run, adapters = list(a = run)), "has an adapter already", class = "ValueError")
})

test_that("wrong arguments of a server are errors", {
  needs_extra("serve")
  expect_refused(minhub_serve("gpt2"), "model")
  expect_refused(minhub_serve(a_model(), context = 1e6), "context = 1000000 exceeds the context length of minhub: at most 256")
  expect_refused(minhub_serve(a_model(), max_requests = 0), "max_requests")
  expect_refused(minhub_serve(a_random_model()), "tokenizer")
  expect_refused(minhub_serve(a_model(), cache_size = 0), "cache_size")
  file <- tempfile()
  file.create(file)
  expect_refused(minhub_serve(a_model(), cache_dir = file), "choose another folder")
  server <- minhub_serve(a_model())
  on.exit(server$stop())
  port <- as.integer(sub(".*:", "", server$address))
  expect_refused(minhub_serve(a_model(), port = port), "choose another with port")
  if (!requireNamespace("ellmer", quietly = TRUE)) expect_error(server$chat(), "requires the package ellmer")
})
