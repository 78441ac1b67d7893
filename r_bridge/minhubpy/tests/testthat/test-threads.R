# The number of threads of the worker.

# Of PyTorch in the worker, such as "2 threads".
threads <- function() {
  devices <- minhub_devices()
  sub(" thread.*", "", devices$detail[devices$device == "cpu"])
}

needs_cores <- function() skip_if_not(isTRUE(parallel::detectCores() > 1L), "one core: PyTorch starts one thread only")

test_that("the argument, then the option, then OMP_NUM_THREADS sets the threads of a worker", {
  needs_worker()
  needs_cores()
  before <- Sys.getenv(c("OMP_NUM_THREADS", "MKL_NUM_THREADS"), unset = NA, names = TRUE)
  old <- options(minhubpy.threads = NULL)
  on.exit({
    minhubpy:::set_environment(before)
    options(old)
    minhub_stop()
  })
  Sys.setenv(OMP_NUM_THREADS = "1")
  pid <- worker_pid()
  expect_identical(minhub_start(threads = 2)$threads, 2L)
  expect_false(worker_pid() == pid) # restarted
  expect_identical(threads(), "2")
  expect_identical(Sys.getenv("OMP_NUM_THREADS"), "1") # R's environment does not change
  minhub_stop()
  options(minhubpy.threads = 2)
  expect_identical(threads(), "2")
  expect_identical(minhub_start(threads = 1)$threads, 1L)
  minhub_stop()
  options(minhubpy.threads = NULL)
  expect_identical(threads(), "1")
  minhub_stop()
  expect_refused(minhub_start(threads = 0), "threads must be at least 1")
  options(minhubpy.threads = "many")
  expect_refused(minhub_devices(), "the option minhubpy.threads must be")
})

test_that("a forked child computes with one thread unless a number is set", {
  needs_worker()
  needs_cores()
  skip_on_os("windows")
  before <- Sys.getenv(c("OMP_NUM_THREADS", "MKL_NUM_THREADS"), unset = NA, names = TRUE)
  old <- options(minhubpy.threads = NULL)
  on.exit({
    minhubpy:::set_environment(before)
    options(old)
  })
  Sys.unsetenv("OMP_NUM_THREADS")
  child <- function() unlist(parallel::mclapply(1:2, function(index) threads(), mc.cores = 2))
  expect_identical(child(), c("1", "1"))
  options(minhubpy.threads = 2)
  expect_identical(child(), c("2", "2"))
  options(minhubpy.threads = NULL)
  Sys.setenv(OMP_NUM_THREADS = "2")
  expect_identical(child(), c("2", "2"))
})
