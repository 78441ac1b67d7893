test_that("devices are listed with the one that is selected", {
  needs_python()
  devices <- minhub_devices()
  cpu <- devices[devices$device == "cpu", ]
  expect_true(cpu$works && grepl("float32", cpu$dtypes))
  expect_identical(sum(devices$picked), 1L)
  expect_output(print(devices), paste0("yes +cpu .*\"auto\" selects ", devices$device[devices$picked]))
  expect_output(print(devices["device"]), "device") # as a data frame
})

test_that("the report names this Python and the facts of this R", {
  needs_python()
  report <- minhub_doctor()
  python <- report[report$what == "this session's Python", ]
  expect_true(python$fits)
  expect_match(python$found, minhub_start()$python, fixed = TRUE)
  expect_match(report$found[report$what == "R"], as.character(getRversion()), fixed = TRUE)
  expect_output(print(report), "ok +torch")
})
