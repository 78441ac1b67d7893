"""How long PyTorch's threads spin while they wait for each other.

PyTorch computes with OpenMP threads, by default one per core. In GNU's OpenMP, a thread that waits
spins 300,000 times, for several milliseconds, before it sleeps. If other programs use the cores, it
spins while the thread that it waits for is suspended, at each of the hundreds of parallel
operations of a training step: on two cores with 15 other processes, a step took 20 times as long.
1,000 iterations (up to 50 µs) are longer than the time between two operations of a step, so that
threads do not sleep on an idle machine.

Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
"""

import os
import sys

VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPIN_COUNT = 1000


def limit_spinning() -> None:
    """Limit the spinning of threads, unless the user sets it. No effect after the import of
    PyTorch.
    """
    if not is_limited() and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def is_limited() -> bool:
    """Whether an environment variable determines how threads wait."""
    return any(name in os.environ for name in VARIABLES)
