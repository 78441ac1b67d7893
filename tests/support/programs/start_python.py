"""Starts a Python program in a fork of fork_server.py: `python -IS start_python.py SOCKET PYTHON
ARGUMENTS...`.

It is the process that a test sees, with the fork's standard streams and exit status. It imports as
little as possible.
"""

import _socket
import os
import resource
import signal
import sys

address, python, *arguments = sys.argv[1:]


def forward(number, _frame):
    try:  # noqa: SIM105  # contextlib would be one more import
        connection.send(bytes([number]))
    except OSError:  # the fork has ended
        pass


def run_python():
    # Python ignores them, and its child would inherit that
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(python, [python, *arguments])


if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-m", "-c")):
    run_python()
try:
    for number in (0, 1, 2):
        os.fstat(number)
    folder = os.getcwd()
    if arguments[0] not in ("-m", "-c"):
        os.stat(arguments[0])
except OSError:  # a closed stream, a removed folder, a missing file
    run_python()
import json  # noqa: E402

# Python itself ignores signal.SIGPIPE and signal.SIGXFSZ.
ignored = [
    int(number)
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}
    if signal.getsignal(number) is signal.SIG_IGN
]
umask = os.umask(0)
os.umask(umask)
connection = _socket.socket(_socket.AF_UNIX)
connection.connect(address)
own = {
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGKILL,
    signal.SIGPIPE,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGXFSZ,
    *ignored,
}
blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in signal.valid_signals() - own:
    signal.signal(number, forward)
names = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
limits = [
    (number, resource.getrlimit(number))
    for number in (getattr(resource, f"RLIMIT_{name}") for name in names)
]
request = {
    "arguments": arguments,
    "environment": dict(os.environ),
    "folder": folder,
    "umask": umask,
    "ignored": ignored,
    "blocked": blocked,
    "limits": limits,
}
data = json.dumps(request).encode() + b"\n"
files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
sent = connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
if data[sent:]:  # the server may have replied and closed its end
    connection.sendall(data[sent:])
signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
answer = connection.recv(10)
if answer == b"real":
    for number in signal.valid_signals() - own:
        signal.signal(number, signal.SIG_DFL)
    run_python()
status = int(answer or 1)
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
os._exit(status)
