# The package indexes of minhub_install(): the installer asks each one for a package before anything is built or downloaded.

INDEX_SECONDS <- 15L # until an index has to answer
DEFAULT_INDEX <- "https://pypi.org/simple"
SMALL_PACKAGE <- "filelock" # a dependency of minhub_py

# Options of pip and uv that select indexes, and connection options of all commands of pip.
MAIN_OPTIONS <- c("-i", "--index-url", "--default-index")
EXTRA_OPTIONS <- c("--extra-index-url", "--index")
CONNECTION_OPTIONS <- c("--proxy", "--cert", "--client-cert", "--trusted-host", "--keyring-provider")

# An error if an index cannot be reached, or if no index has the packages. `torch_index`: PyTorch's index, or NULL, and
# `torch_setting`, the argument that selects it.
check_indexes <- function(installer, new, pip_args, torch_index, torch_setting) {
  configuration <- if (installer$name == "pip") pip_configuration(new) else if (!is_uv_configured()) pip_configuration(installer$pythons)
  if (excludes_indexes(installer, pip_args, configuration)) return(invisible())
  indexes <- selected_indexes(installer, pip_args, configuration)
  has_links <- any(grepl("^(-f|--find-links)", pip_args), grepl("[.]find-links=", configuration), nzchar(Sys.getenv("UV_FIND_LINKS")))
  optional <- has_links && installer$name == "pip" # which warns, and uses the folder
  has_package <- vapply(seq_len(nrow(indexes)), function(i) {
    index_has(installer, new, pip_args, indexes$url[[i]], indexes$setting[[i]], SMALL_PACKAGE, optional)
  }, NA)
  if (!any(has_package) && !has_links) {
    fail(
      "no package index has ", SMALL_PACKAGE, ", which minhub_py requires: ", paste0(without_password(indexes$url), " (", indexes$setting, ")", collapse = ", "),
      ". Correct the address, which usually ends with /simple", files_to_copy()
    )
  }
  if (is.null(torch_index)) return(invisible())
  if (!index_has(installer, new, pip_args, torch_index, torch_setting, "torch", optional) && !has_links) {
    fail("the package index ", without_password(torch_index), " (", torch_setting, ") has no torch: ", OTHER_TORCH, files_to_copy())
  }
}

OTHER_TORCH <- "set torch_index = \"https://...\" to a mirror, or torch = \"cuda\" for the build on the package index"

# Whether an index has a package. An error if it cannot be reached, unless it is optional.
index_has <- function(installer, new, pip_args, url, setting, package, optional) {
  answer <- installer$query(new, url, package, pip_args)
  if (is_problem(answer) && optional) return(FALSE)
  if (!is_problem(answer)) return(answer)
  advice <- if (package == "torch") {
    OTHER_TORCH
  } else if (url == DEFAULT_INDEX) {
    "set a proxy (HTTPS_PROXY=http://...) or a mirror, minhub_install(pip_args = c(\"--index-url\", \"https://...\"))"
  } else {
    "correct or remove this setting"
  }
  fail("the package index ", without_password(url), " (", setting, ") cannot be reached: ", answer, ". Nothing was installed: ", advice, files_to_copy())
}

# Whether a setting excludes all indexes.
excludes_indexes <- function(installer, pip_args, configuration) {
  yes <- "(1|true|yes|on)"
  "--no-index" %in% pip_args || any(grepl(paste0("[.]no-index='?", yes, "'?$"), configuration, ignore.case = TRUE)) ||
    (installer$name == "uv" && grepl(paste0("^", yes, "$"), Sys.getenv("UV_NO_INDEX"), ignore.case = TRUE))
}

# A data frame of the indexes of an installation, and the setting that selects each.
selected_indexes <- function(installer, pip_args, configuration) {
  given <- option_values(pip_args, c(MAIN_OPTIONS, EXTRA_OPTIONS))$values
  found <- data.frame(option = names(given), url = unname(given), setting = rep("pip_args", length(given)))
  add <- function(option, value, setting) {
    urls <- Filter(nzchar, strsplit(value, "(\\\\n|[[:space:]])+")[[1L]])
    urls <- sub("^[A-Za-z0-9_.-]+=", "", urls) # a named index of uv
    found <<- rbind(found, data.frame(option = rep(option, length(urls)), url = urls, setting = rep(setting, length(urls))))
  }
  if (installer$name == "uv") {
    for (name in c("UV_DEFAULT_INDEX", "UV_INDEX_URL")) add("-i", Sys.getenv(name), name)
    for (name in c("UV_INDEX", "UV_EXTRA_INDEX_URL")) add("--index", Sys.getenv(name), name)
  }
  for (option in c("index-url", "extra-index-url")) {
    for (line in grep(paste0("[.]", option, "="), configuration, value = TRUE)) {
      add(paste0("--", option), gsub("^[^=]*='?|'$", "", line), paste(option, "of pip's configuration"))
    }
  }
  main <- utils::head(found[found$option %in% MAIN_OPTIONS, ], 1L)
  # uv's configuration file may select others.
  if (!nrow(main) && !(installer$name == "uv" && nzchar(Sys.getenv("UV_CONFIG_FILE")))) {
    main <- data.frame(option = "-i", url = DEFAULT_INDEX, setting = "the default")
  }
  indexes <- rbind(main, found[found$option %in% EXTRA_OPTIONS, ])
  indexes[!duplicated(indexes$url), c("url", "setting")]
}

# The values of options with these names, "--name value" or "--name=value", and the rest of the arguments.
option_values <- function(arguments, options) {
  values <- character()
  rest <- logical(length(arguments))
  i <- 1L
  while (i <= length(arguments)) {
    name <- sub("=.*$", "", arguments[[i]])
    joined <- grepl("=", arguments[[i]], fixed = TRUE)
    known <- name %in% options
    rest[[i]] <- !known
    if (known) {
      value <- if (joined) sub("^[^=]*=", "", arguments[[i]]) else if (i < length(arguments)) arguments[[i + 1L]] else ""
      values <- c(values, stats::setNames(value, name))
      i <- i + !joined
    }
    i <- i + 1L
  }
  list(values = values, rest = arguments[rest])
}

# pip's answer whether an index has a package: TRUE, FALSE or a problem. `pip index versions` reads the index's page only.
query_by_pip <- function(new, url, package, pip_args) {
  # Another additional index would hide that this one has no answer.
  before <- Sys.getenv("PIP_EXTRA_INDEX_URL", unset = NA, names = TRUE)
  on.exit(set_environment(before))
  Sys.setenv(PIP_EXTRA_INDEX_URL = url)
  connection <- option_values(pip_args, CONNECTION_OPTIONS)$values
  output <- installer_output(new, c(
    "-m", "pip", "-v", "-v", "index", "versions", "--disable-pip-version-check", "--timeout", INDEX_SECONDS, "--retries", "0",
    shQuote(rbind(names(connection), connection)), "--index-url", shQuote(url), package
  ))
  if (is_problem(output)) return(output)
  failed <- grep("^ *(Could not fetch URL .* - skipping|WARNING: The repository located at .*)$", output, value = TRUE)
  failed <- sub("^ *Could not fetch URL [^ ]+ (.*) - skipping$|^ *WARNING: ", "\\1", failed)
  failed <- failed[!grepl("^404 ", failed)]
  if (length(failed)) return(new_problem(reason_of(failed[[1L]])))
  if (is.null(attr(output, "status"))) return(TRUE)
  if (any(grepl("No matching distribution", output))) FALSE else new_problem(error_line(output) %||% "pip prints nothing")
}

# uv's answer whether an index has a package: TRUE, FALSE or a problem.
query_by_uv <- function(uv, new, url, package, pip_args) {
  variables <- c(UV_INDEX_VARIABLES, "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES")
  before <- Sys.getenv(variables, unset = NA, names = TRUE)
  on.exit(set_environment(before))
  Sys.unsetenv(variables)
  Sys.setenv(UV_HTTP_TIMEOUT = INDEX_SECONDS, UV_HTTP_RETRIES = 0)
  others <- option_values(pip_args, c(MAIN_OPTIONS, EXTRA_OPTIONS))$rest
  output <- installer_output(uv, c(
    "pip", "install", "--python", shQuote(new), "--dry-run", "--no-deps", "--default-index", shQuote(url), shQuote(others), package
  ))
  if (is_problem(output)) return(output)
  if (is.null(attr(output, "status"))) return(TRUE)
  if (any(grepl("(No solution found|not found in the package registry)", output)) && !any(grepl("40[13]", output))) return(FALSE)
  reasons <- sub("^ *(cause|Caused by|error): *", "", grep("^ *(cause|Caused by|error):", output, value = TRUE))
  new_problem(if (length(reasons)) reasons[[length(reasons)]] else error_line(output) %||% "uv prints nothing")
}

# The output of an installer, or a problem if it does not end.
installer_output <- function(program, arguments) {
  seconds <- 4L * INDEX_SECONDS
  output <- suppressWarnings(run_program(program, arguments, stdout = TRUE, stderr = TRUE, timeout = seconds))
  if (identical(attr(output, "status"), 124L)) new_problem("no answer in ", seconds, " seconds") else output
}

# The cause in a message of pip: "connection error: ...Max retries exceeded with url: ... (Caused by NewConnectionError('<...>: CAUSE'))"
reason_of <- function(text) {
  cause <- sub("^.*\\(Caused by (.*)\\)$", "\\1", text)
  cause <- sub("^[A-Za-z]+\\('<[^>]*>: (.*)'\\)$", "\\1", cause)
  substr(cause, 1L, 200L)
}

# The index in pip's configuration, which includes environment variables: "index-url = https://...", or NULL.
configured_index <- function(pythons) {
  found <- grep("[.](extra-index-url|index-url|no-index)=", pip_configuration(pythons), value = TRUE)
  if (length(found)) without_password(sub("^[^.]*[.]([a-z-]+)='?(.*?)'?$", "\\1 = \\2", found[[1L]], perl = TRUE))
}

# A URL without its user and password.
without_password <- function(url) gsub("//[^/@]*@", "//", url)
