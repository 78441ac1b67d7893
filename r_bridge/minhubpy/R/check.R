# Argument checks. Each function returns the value to send to Python, or raises an error.

string <- function(x, what = deparse(substitute(x))) {
  texts(x, what, one = TRUE)
}

# Converts strings and factors to unnamed UTF-8 strings. Rejects NA and invalid encodings.
texts <- function(x, what = deparse(substitute(x)), one = FALSE) {
  force(what) # deparses x before its value changes
  if (is.factor(x)) x <- as.character(x)
  if (is_plain_list(x) && all(lengths(x) == 1L)) x <- unlist(x, use.names = FALSE)
  if (!is.character(x)) fail(what, " must be text, not ", describe(x))
  if (one && length(x) != 1L) fail(what, " must be one string, not ", describe(x))
  if (anyNA(x)) fail(what, " must not contain NA, as at position ", positions_of(is.na(x)), ": drop or replace it")
  x <- as.character(x)
  # In the C locale, R does not know the encoding, which is almost always UTF-8.
  if (!l10n_info()[["MBCS"]] && !l10n_info()[["Latin-1"]]) Encoding(x)[Encoding(x) == "unknown"] <- "UTF-8"
  in_utf8 <- Encoding(x) %in% c("UTF-8", "bytes") | (Encoding(x) == "unknown" & l10n_info()[["UTF-8"]])
  wrong <- in_utf8 & !validUTF8(x)
  if (any(wrong)) fail(what, " must be valid UTF-8, unlike position ", positions_of(wrong), ": convert it with iconv()")
  enc2utf8(x)
}

number <- function(x, what = deparse(substitute(x)), min = -Inf, max = Inf, above = NULL, integer = FALSE) {
  if (is.factor(x) || !is.numeric(x) || length(x) != 1L || is.na(x)) {
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
  if (!is.logical(x) || length(x) != 1L || is.na(x)) fail(what, " must be TRUE or FALSE, not ", describe(x))
  as.vector(x)
}

# match.arg() with the errors of this package.
choice <- function(x, choices, what = deparse(substitute(x))) {
  if (identical(x, choices)) return(choices[[1L]])
  if (!is.character(x) || length(x) != 1L || !x %in% choices) {
    fail(what, " must be one of ", paste(dQuote(choices, FALSE), collapse = ", "), ", not ", describe(x))
  }
  as.vector(x)
}

# The title of a plot or of each panel: text or plotmath.
check_main <- function(main) {
  if (is.language(main)) return(as.expression(main))
  if (!is.atomic(main) || !length(main)) fail("main must be text or an expression, not ", describe(main))
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
  if (inherits(x, "minhub_encoding")) return(x$ids)
  if (is.object(x) || is.character(x) || is.logical(x) || !(is.numeric(x) || is.list(x))) {
    fail(what, " must be token IDs, not ", describe(x), ": encode text with tok$encode()")
  }
  if (length(x) == 0L) fail(what, " is empty: pass at least one token ID")
  if (is.list(x)) return(lapply(unname(x), token_ids, what = what))
  structure(as.vector(x), dim = dim(x))
}

# Prompts or texts as strings, or as a list of vectors of token IDs.
texts_or_ids <- function(x, what = deparse(substitute(x))) {
  if (length(x) == 0L) fail(what, " is empty: pass at least one text")
  is_text <- is.character(x) || is.factor(x) || (is_plain_list(x) && all(vapply(x, is.character, NA)))
  if (is_text) return(texts(x, what))
  if (inherits(x, "torch_tensor")) fail(what, " must not be an R torch tensor: pass as.integer(", what, ") - 1L")
  if (is.logical(x) || is.function(x) || (is.object(x) && !inherits(x, "minhub_encoding"))) {
    advice <- if (is.data.frame(x) && length(x)) paste0(": pass one column, such as x$", deparse(as.name(names(x)[1L]), backtick = TRUE))
    fail(what, " must be text or token IDs, not ", describe(x), advice)
  }
  ids <- token_ids(x, what)
  if (is.list(ids)) ids else if (is.matrix(ids)) asplit_rows(ids) else list(ids)
}

# Replaces missing texts by "", which has no tokens.
na_as_empty <- function(x) {
  if (is.factor(x) || (is.logical(x) && all(is.na(x)))) x <- as.character(x)
  if (is.character(x)) x[is.na(x)] <- ""
  x
}

# Texts, including NA, or token IDs.
texts_with_missing <- function(x, what = "texts") {
  missing <- if (is.character(x) || is.factor(x) || is.logical(x)) is.na(x) else FALSE
  x <- texts_or_ids(na_as_empty(x), what)
  if (any(missing)) x[missing] <- NA_character_
  x
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
  if (length(x) == 1L && is.atomic(x)) {
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
