library(testthat)
library(minhubpy)

test_check("minhubpy")
