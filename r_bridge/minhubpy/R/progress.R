# Progress of long calls, in the console.

# A progress bar with the remaining time, in an interactive console only, for calls of more than half a second.
show_progress <- function() {
  if (quiet() || !interactive()) return(NULL)
  called <- seconds_now()
  start <- NULL
  file <- NULL
  function(event) {
    if (event$total == 0) { # Python waits and may state the reason
      if (nzchar(event$what)) note(event$what)
      return(invisible())
    }
    now <- seconds_now()
    if (is.null(start) && !nzchar(event$what) && now - called < 0.5) return(invisible())
    if (!identical(event$what, file) && event$done < event$total) {
      if (nzchar(event$what)) message("Downloading ", event$what, " (", megabytes(event$total), ")")
      start <<- list(time = now, done = event$done)
      file <<- event$what
    }
    if (!is.null(start)) {
      cat("\r", progress_line(event$done, event$total, now - start$time, start$done), sep = "")
      utils::flush.console()
      if (event$done >= event$total) {
        cat("\n")
        start <<- NULL
        file <<- NULL
      }
    }
  }
}

# A progress bar and the remaining time. `before` is the amount that was complete when the clock started.
progress_line <- function(done, total, seconds, before = 0) {
  bar <- strrep("=", floor(40 * done / total))
  remaining <- if (seconds >= 1 && done > before) round(seconds * (total - done) / (done - before))
  text <- if (is.null(remaining)) "" else paste(clock(remaining), "left")
  sprintf("|%-40s| %3.0f%%  %-16s", bar, floor(100 * done / total), text)
}

# Seconds as 0:07 or 2:05:00.
clock <- function(seconds) {
  parts <- c(seconds %/% 3600, seconds %/% 60 %% 60, seconds %% 60)
  if (parts[[1L]] > 0) sprintf("%d:%02d:%02d", parts[[1L]], parts[[2L]], parts[[3L]]) else sprintf("%d:%02d", parts[[2L]], parts[[3L]])
}

megabytes <- function(bytes) {
  if (bytes >= 1e9) sprintf("%.1f GB", bytes / 1e9) else if (bytes >= 1e6) sprintf("%.0f MB", bytes / 1e6) else sprintf("%.0f kB", bytes / 1e3)
}

# Training

# The function that receives events: it prints them, calls the user's function, or is NULL.
event_handler <- function(progress) {
  if (is.function(progress)) return(function(event) if (!is.null(event$event)) progress(event))
  show <- flag(progress, "progress")
  if (quiet()) return(NULL)
  if (!show) return(function(event) if (identical(event$event, "note")) note("Note: ", event$text))
  screen <- new.env(parent = emptyenv())
  screen$moves <- interactive() && !isTRUE(getOption("knitr.in.progress"))
  screen$shown <- 0L
  screen$printed <- seconds_now()
  screen$download <- show_progress()
  structure(function(event) show_event(screen, event), screen = screen)
}

end_status <- function(on_event) {
  screen <- attr(on_event, "screen")
  if (!is.null(screen)) move_line(screen, "")
}

show_event <- function(screen, event) {
  switch(if (is.null(event$event)) "download" else event$event,
    download = if (!is.null(screen$download)) screen$download(event),
    preparing = move_line(screen, event$what, sprintf(" the text: %.0f %%", 100 * event$done / max(event$total, 1))),
    begins = {
      say_line(screen, event$family, ", ", counted(event$parameters), " parameters, on ", event$device, ", ", event$dtype)
      say_line(
        screen, counted(event$train_tokens), " ", event$unit, " to train on, ", counted(event$held_out_tokens), " held out; ",
        counted_noun(event$steps, "step"), " of ", counted(event$batch), " x ", counted(event$context),
        "; losses in ", event$loss_unit
      )
      if (event$finished) {
        advice <- if (event$step == event$steps) c(": train further with minhub_resume(out, steps = ", 2 * event$steps, ")")
        return(say_line(screen, "already finished after step ", counted(event$step), advice))
      }
      if (event$step > 0L) say_line(screen, "continues after step ", counted(event$step))
    },
    estimated = {
      say_line(
        screen, "about ", event$time, " for ", counted_noun(event$steps, "step"), " of ",
        format(event$step_seconds, digits = 2), " s and ", counted_noun(event$evaluations, "evaluation")
      )
      if (nzchar(event$busy)) say_line(screen, event$busy)
      if (event$seconds >= 600) say_line(screen, "to reduce the time, reduce steps, batch, context or evaluate_tokens")
    },
    working = show_state(
      screen, if (event$task == "step") paste("step", counted(event$step + 1L)) else "evaluating",
      ": batch ", counted(event$batch), " of ", counted(event$batches)
    ),
    stepped = show_state(
      screen, "step ", counted(event$step), " of ", counted(event$steps), sprintf("  loss %.4f  ", event$loss),
      counted(event$tokens_per_second), " tokens/s  ", event$time_left, " left"
    ),
    evaluated = {
      measures <- intersect(names(MEASURES), names(event))
      if (!isTRUE(screen$headed)) {
        names <- paste(sprintf("%8s  ", toupper(MEASURES[measures])), collapse = "")
        say_line(screen, sprintf("%8s  %8s  %8s  %s%10s  %12s", "STEP", "TRAINING", "HELD OUT", names, "TOKENS/S", "TIME"))
      }
      screen$headed <- TRUE
      say_line(
        screen,
        sprintf(
          "%8s  %8s  %8.4f  %s%10s  %12s%s", counted(event$step), if (is.na(event$train_loss)) "" else sprintf("%.4f", event$train_loss),
          event$held_out_loss, paste(sprintf("%8.4f  ", unlist(event[measures])), collapse = ""), if (event$step > 0L) counted(event$tokens_per_second) else "", event$time,
          if (event$best) "" else "  not better"
        )
      )
    },
    sampled = say_line(screen, "\n", gsub("^\n+|\n+$", "", event$text), "\n"),
    note = say_line(screen, "Note: ", event$text)
  )
}

# Prints a run's state in the status line or, without a status line, at most once a minute.
show_state <- function(screen, ...) {
  if (screen$moves) move_line(screen, ...) else if (seconds_now() - screen$printed >= 60) say_line(screen, ...)
}

# Prints a permanent line in place of the status line.
say_line <- function(screen, ...) {
  move_line(screen, "")
  message(...)
  screen$printed <- seconds_now()
}

seconds_now <- function() proc.time()[["elapsed"]]

# Prints the status line, which the next line overwrites. A line wider than the console could not be overwritten.
move_line <- function(screen, ...) {
  if (!screen$moves) return(invisible())
  line <- strtrim(paste0(...), max(20L, getOption("width") - 1L))
  wide <- nchar(line, "width")
  if (wide == 0L && screen$shown == 0L) return(invisible())
  padding <- strrep(" ", max(0L, screen$shown - wide))
  message("\r", line, padding, if (wide == 0L) "\r", appendLF = FALSE)
  screen$shown <- wide
}

counted <- function(n) format(round(n), big.mark = ",", scientific = FALSE)

counted_noun <- function(n, noun) paste0(counted(n), " ", noun, if (n != 1) "s")
