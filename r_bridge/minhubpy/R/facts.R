# Reports facts about R with say(key, value). Loads R torch last, because an incompatible LibTorch may end the process,
# and prevents its download prompt and its self-test in another R process. `minhub doctor` runs this file in an R
# without this package (r_bridge/probe.py), so that it depends on base R only.
r_facts <- function(say) {
  version_of <- function(package) {
    version <- suppressWarnings(utils::packageDescription(package, fields = "Version"))
    if (!is.na(version)) say(package, version)
    !is.na(version)
  }
  say("version", paste(R.version$major, R.version$minor, sep = "."))
  say("home", R.home())
  version_of("minhubpy")
  if (!version_of("torch")) return(invisible())

  before <- Sys.getenv(c("TORCH_INSTALL", "TORCH_VERIFY_LOAD"), unset = NA, names = TRUE)
  on.exit({
    Sys.unsetenv(names(before)[is.na(before)])
    if (!all(is.na(before))) do.call(Sys.setenv, as.list(before[!is.na(before)]))
  })
  Sys.setenv(TORCH_INSTALL = "0", TORCH_VERIFY_LOAD = "FALSE")
  home <- Sys.getenv("TORCH_HOME")
  built <- file.path(if (nzchar(home)) home else system.file(package = "torch"), "build-version")
  if (file.exists(built)) say("libtorch", readLines(built, n = 1, warn = FALSE))
  works <- tryCatch(
    {
      if (!file.exists(built)) say("libtorch", getNamespace("torch")$torch_version)
      getNamespace("torch")$torch_tensor(1)
      "yes"
    },
    error = function(e) substr(gsub("[[:space:]]+", " ", conditionMessage(e)), 1, 300) # LibTorch appends its C++ stack
  )
  say("torch_works", works)
}
