# Argument checks. Each function returns the value to send to Python, or raises an error.

# Classes that describe values but do not change their meaning.
DESCRIPTIVE <- c(
  "AsIs", "noquote", "table", "labelled", "haven_labelled", "haven_labelled_spss", "vctrs_vctr", "integer", "double", "numeric",
  "character", "logical"
)

# Values without a class: converts integers of the package bit64, and drops classes that only describe. Strings are text
# in every class. Keeps other classes, such as dates, times and units, whose numbers have another meaning; checks reject
# them with describe().
plain <- function(x, what = deparse(substitute(x))) {
  if (!is.object(x) || is.factor(x) || !is.atomic(x)) return(x)
  if (inherits(x, "integer64")) return(from_integer64(x, what))
  if (is.character(x) || all(class(x) %in% DESCRIPTIVE)) unclass(x) else x
}

# Integers of the package bit64, which are stored in the memory of doubles, as integers or doubles. Does not need bit64:
# without it, for example after readRDS(), R would read the memory as other numbers.
from_integer64 <- function(x, what) {
  halves <- readBin(writeBin(as.vector(unclass(x)), raw()), "integer", 2L * length(x))
  halves <- matrix(as.double(halves), 2L)[if (.Platform$endian == "little") 1:2 else 2:1, , drop = FALSE]
  low <- ifelse(is.na(halves[1L, ]), 2^31, halves[1L, ] %% 2^32) # R reads the smallest integer as NA
  missing <- is.na(halves[2L, ]) & low == 0
  values <- ifelse(missing, NA, ifelse(is.na(halves[2L, ]), -2^31, halves[2L, ]) * 2^32 + low)
  large <- !is.na(values) & abs(values) >= 2^53
  if (any(large)) fail(what, " must contain integers below 2^53, unlike position ", positions_of(large))
  if (all(abs(values) <= .Machine$integer.max, na.rm = TRUE)) values <- as.integer(values)
  attributes(values) <- attributes(x)[setdiff(names(attributes(x)), "class")]
  values
}

is_plain_number <- function(x) is.numeric(x) && !is.object(x)

# A data frame's columns as plain values. Keeps dates and times, which formulas and groups support.
plain_columns <- function(data) {
  for (name in names(data)) if (inherits(data[[name]], "integer64")) data[[name]] <- plain(data[[name]], name)
  data
}

string <- function(x, what = deparse(substitute(x))) {
  texts(x, what, one = TRUE)
}

# Converts strings and factors to unnamed UTF-8 strings. Rejects invalid encodings and, unless `missing` is TRUE, NA.
texts <- function(x, what = deparse(substitute(x)), one = FALSE, missing = FALSE) {
  force(what) # deparses x before its value changes
  if (is_plain_list(x) && all(lengths(x) == 1L) && !any(vapply(x, is.list, NA))) {
    x <- if (length(x)) unlist(lapply(x, as_text), use.names = FALSE) else character()
  }
  x <- as_text(x)
  if (missing && is.logical(x) && length(x) && all(is.na(x))) x <- as.character(x) # NA without a type
  if (!is.character(x)) fail(what, " must be text, not ", describe(x))
  if (one && length(x) != 1L) fail(what, " must be one string, not ", describe(x))
  absent <- is.na(x)
  if (any(absent) && !missing) fail(what, " must not contain NA, as at position ", positions_of(absent), ": drop or replace it")
  x <- as.character(x)
  # In the C locale, R does not know the encoding, which is almost always UTF-8.
  if (!l10n_info()[["MBCS"]] && !l10n_info()[["Latin-1"]]) Encoding(x)[Encoding(x) == "unknown"] <- "UTF-8"
  in_utf8 <- Encoding(x) %in% c("UTF-8", "bytes") | (Encoding(x) == "unknown" & l10n_info()[["UTF-8"]])
  wrong <- in_utf8 & !absent & !validUTF8(x)
  if (any(wrong)) fail(what, " must be valid UTF-8, unlike position ", positions_of(wrong), ": convert it with iconv()")
  enc2utf8(x)
}

# The argument `texts` of a function: in that function, texts() is the argument's value if it is a function.
argument_texts <- function(x, missing = FALSE) texts(x, "texts", missing = missing)

# A factor or text of any class as strings.
as_text <- function(x) if (is.factor(x)) as.character(x) else plain(x)

number <- function(x, what = deparse(substitute(x)), min = -Inf, max = Inf, above = NULL, integer = FALSE) {
  force(what)
  x <- plain(x, what)
  if (!is_plain_number(x) || length(x) != 1L || is.na(x)) {
    fail(what, " must be one number, not ", describe(x))
  }
  if (integer && x != floor(x)) fail(what, " must be a whole number, not ", format(x))
  if (x < min || x > max || (!is.null(above) && x <= above)) {
    range <- c(
      if (!is.null(above)) paste("above", above) else if (is.finite(min)) paste("at least", min),
      if (is.finite(max)) paste("at most", format(max, scientific = FALSE))
    )
    fail(what, " must be ", paste(range, collapse = " and "), ", not ", format(x))
  }
  as.vector(x)
}

whole_number <- function(x, what = deparse(substitute(x)), min = 0, max = .Machine$integer.max) {
  as.integer(number(x, what, min = min, max = max, integer = TRUE))
}

flag <- function(x, what = deparse(substitute(x))) {
  force(what)
  x <- plain(x, what)
  if (!is.logical(x) || is.object(x) || length(x) != 1L || is.na(x)) fail(what, " must be TRUE or FALSE, not ", describe(x))
  as.vector(x)
}

# match.arg() with the errors of this package.
choice <- function(x, choices, what = deparse(substitute(x))) {
  force(what)
  x <- plain(x, what)
  if (identical(x, choices)) return(choices[[1L]])
  if (!is.character(x) || length(x) != 1L || !x %in% choices) {
    fail(what, " must be one of ", paste(dQuote(choices, FALSE), collapse = ", "), ", not ", describe(x))
  }
  as.vector(x)
}

# The title of a plot or of each panel: text or plotmath.
check_main <- function(main) {
  main <- plain(main)
  if (is.language(main)) return(as.expression(main))
  if (!is.atomic(main) || is.object(main) || !length(main)) fail("main must be text or an expression, not ", describe(main))
  texts(if (is.character(main)) main else format(main), "main")
}

check_color <- function(col) {
  plausible <- is.atomic(col) && length(col) > 0L && !is.factor(col) && !anyNA(col) && !(is.numeric(col) && any(col > .Machine$integer.max))
  valid <- plausible && tryCatch(is.matrix(grDevices::col2rgb(col)), error = function(e) FALSE)
  if (!valid) fail("col must be a color, such as \"#0072B2\" or \"steelblue\", not ", describe(col))
  as.vector(col)
}

# Whether x is a list without a class, unlike a data frame.
is_plain_list <- function(x) is.list(x) && !is.object(x)

optional <- function(x, check, ...) if (is.null(x)) NULL else check(x, ...)

# Token IDs as a vector, matrix or list of vectors. Python checks the range of the IDs (id_rows in arguments.py).
token_ids <- function(x, what = deparse(substitute(x))) {
  force(what)
  x <- plain(x, what)
  if (inherits(x, "minhub_encoding")) return(x$ids)
  if (is.object(x) || is.character(x) || is.logical(x) || !(is.numeric(x) || is.list(x))) {
    fail(what, " must be token IDs, not ", describe(x), ": encode text with tok$encode()")
  }
  if (length(x) == 0L) fail(what, " is empty: pass at least one token ID")
  if (is.list(x)) return(lapply(unname(x), token_ids, what = what))
  structure(as.vector(x), dim = dim(x))
}

# Prompts or texts as strings, or as a list of vectors of token IDs. `missing`: whether strings may be missing, which is
# the rule for texts with separate results: no texts have an empty result, and a text that is NA has the result NA, or no
# rows where a text has several.
texts_or_ids <- function(x, what = deparse(substitute(x)), missing = FALSE) {
  force(what)
  x <- plain(x, what)
  if (is.null(x) || (length(x) == 0L && !missing)) fail(what, " is empty: pass at least one text")
  is_na <- function(x) is.logical(x) && length(x) > 0L && all(is.na(x))
  is_string <- function(x) is.character(x) || is.factor(x) || (missing && is_na(x))
  if (is_string(x) || (is_plain_list(x) && all(vapply(x, is_string, NA)))) return(texts(x, what, missing = missing))
  if (inherits(x, "torch_tensor")) fail(what, " must not be an R torch tensor: pass as.integer(", what, ") - 1L")
  if (is.logical(x) || is.function(x) || (is.object(x) && !inherits(x, "minhub_encoding"))) {
    advice <- if (is.data.frame(x) && length(x)) paste0(": pass one column, such as x$", deparse(as.name(names(x)[1L]), backtick = TRUE))
    fail(what, " must be text or token IDs, not ", describe(x), advice)
  }
  ids <- token_ids(x, what)
  if (is.list(ids)) ids else if (is.matrix(ids)) asplit_rows(ids) else list(ids)
}

# The positions of the texts that are not missing. Token IDs are never missing.
present <- function(...) {
  absent <- lapply(list(...), function(texts) if (is.character(texts)) is.na(texts) else logical(length(texts)))
  which(!Reduce(`|`, absent))
}

# The names of the texts in an argument of texts_or_ids().
labels_of <- function(x) {
  if (is.matrix(x) && is.numeric(x)) rownames(x) else if (is.character(x) || is.factor(x) || is_plain_list(x)) names(x)
}

# The column `text` of a result: numbers, or for named texts a factor with the names as levels.
text_of_row <- function(number, labels) {
  if (is.null(labels)) return(number)
  unnamed <- is.na(labels) | !nzchar(labels)
  labels[unnamed] <- seq_along(labels)[unnamed]
  factor(number, seq_along(labels), make.unique(labels))
}

asplit_rows <- function(ids) lapply(seq_len(nrow(ids)), function(row) ids[row, ])

describe <- function(x) {
  if (is.null(x)) return("NULL")
  if (is.factor(x)) return("a factor")
  if (is.function(x) && !is.object(x)) return("a function")
  if (length(x) == 1L && is.atomic(x) && !is.object(x)) {
    if (is.na(x)) return("NA")
    shown <- encodeString(format(x))
    if (nchar(shown) > 60L) shown <- paste0(substr(shown, 1L, 57L), "...")
    return(if (is.character(x)) paste0('"', shown, '"') else shown)
  }
  if (is.character(x)) return(paste(length(x), "strings"))
  kind <- if (is.object(x)) paste0("<", class(x)[[1L]], ">") else typeof(x)
  paste0(if (grepl("^[aeiou]", kind)) "an " else "a ", kind, " of length ", length(x))
}

positions_of <- function(where) {
  positions <- which(where)
  paste0(paste(utils::head(positions, 5L), collapse = ", "), if (length(positions) > 5L) ", ...")
}
