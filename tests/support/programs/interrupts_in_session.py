"""Ctrl-C at random times in an RSession: each interrupts one call, and none is lost. Argument:
their number.
"""

import queue
import random
import signal
import sys
import threading
import time

from r_bridge import RSession

count = int(sys.argv[1])
random.seed(1)
r = RSession()
r.run('library(minhubpy); model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")')
text = 'generate(model, "ROMEO:", max_new_tokens = 10, temperature = 0)'
right = r.eval(text)
codes = [
    text,
    "Sys.sleep(0.01)",
    "sum(sapply(1:1000, sqrt))",
    "dim(model(1:3))",
    "minhubpy:::ask('nothing')",
    "tryCatch(Sys.sleep(0.01), interrupt = function(e) 'in R')",
    "gc()[1]",
]
main = threading.main_thread().ident or 0
# in C: an interrupt does not leave its lock acquired
requests: "queue.SimpleQueue[None]" = queue.SimpleQueue()


def interrupt() -> None:
    """Send one interrupt for each request."""
    for _ in range(count):
        requests.get()
        time.sleep(random.random() * 0.008)
        # which the system may give to any thread that is in no handler
        signal.pthread_kill(main, signal.SIGINT)


thread = threading.Thread(target=interrupt, daemon=True)
thread.start()
in_r = 0
for _ in range(count):
    try:
        requests.put(None)
        while (value := r.eval(random.choice(codes))) is None or list(value) != ["in R"]:
            pass
        in_r += 1
    except KeyboardInterrupt:
        pass
thread.join()
assert r.eval(text) == right
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(in_r)
