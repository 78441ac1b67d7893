# Starts a worker repeatedly while interrupts arrive, until it receives "enough".

suspendInterrupts({
  repeat {
    say("starting")
    say(tryCatch(allowInterrupts({ minhubpy:::ask("nothing"); "done" }), interrupt = function(c) "interrupted"))
    if (receive() == "enough") break
    minhub_stop()
  }
  tryCatch(allowInterrupts(Sys.sleep(0.1)), interrupt = function(c) NULL) # the last may have come late
})
say(message_of(dim(gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, seed = 1)(1:3))))
say(pid())
receive()
