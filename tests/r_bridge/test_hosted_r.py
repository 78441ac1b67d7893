"""R inside Python: RSession and `minhub r`, each in a separate process, with the real R."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs import needs
from pairs import with_variants
from paths import PROGRAMS

from minhub_py import from_pretrained, generate, tokenizer_from_pretrained
from r_bridge.host.library import PACKAGE, fingerprint
from r_bridge.probe import find_r

pytestmark = needs("R")
MODEL = "minhub/shakespeare-gpt2"
MINHUB = [sys.executable, "-m", "minhub_py.cli.main", "r"]
# R and Python must not inherit settings of the test process.
IN_THE_WAY = {"R_HOME", "PYTHONUNBUFFERED"}
PRELUDE = """
import os, signal, sys, threading, warnings
from pathlib import Path
import numpy as np
from r_bridge import RError, RSession, RWarning

def error(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("no error")
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One thread, as in conftest.py, and a shared cache with minhubpy, without bytecode: to compile
    it takes long.
    """
    cache = str(tmp_path_factory.mktemp("cache"))
    ours = {
        "OMP_NUM_THREADS": "1",
        "R_USER_CACHE_DIR": cache,
        "LC_ALL": "C.UTF-8",
        "R_PROFILE_USER": "",
        "R_COMPILE_PKGS": "FALSE",
    }
    return {name: value for name, value in os.environ.items() if name not in IN_THE_WAY} | ours


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Run a command or Python code. Fails on an error unless `check=False`."""

    def run(
        code: str | list[str], check: bool = True, stdin: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        command = code if isinstance(code, list) else [sys.executable, "-c", PRELUDE + code]
        result = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            env=environment | more,
            timeout=200,
            check=False,
        )
        assert result.returncode == 0 or not check, result.stdout + result.stderr
        return result

    return run


# RSession


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_values_are_converted_in_both_directions(run: Run, locale: str) -> None:
    code = """
r = RSession()
assert r.eval("1 + 1") == 2 and r.eval("NULL") is None
assert r.eval("c('é', NA, '日本')") == ["é", None, "日本"]
r["word"] = "żółw"
assert r["word"] == ["żółw"] and r.eval("nchar(word)") == 4
r["x"] = np.arange(6.0).reshape(2, 3)
assert r.eval("x[2, 1]") == 3 and np.array_equal(r["x"], np.arange(6.0).reshape(2, 3))
assert r["pi"] == np.pi
r["numbers"] = [1, None, 3]
assert r.eval("is.integer(numbers) && identical(is.na(numbers), c(FALSE, TRUE, FALSE))")
assert repr(error(r.__getitem__, "absent")) == "KeyError('absent')"
assert r.call("paste", "a", ["b", "c"], sep="-") == ["a-b", "a-c"]
assert r.call("stats::sd", [1, 2, 3][0:0] or np.array([1.0, 2.0, 3.0])) == 1
assert r.call("function(function_name, self) function_name + self", 1, self=2) == 3
assert r.call("base::identity", x={"a": None, "b": [1, "two"]})["b"][1] == ["two"]
with RSession() as same:
    assert same["word"] == ["żółw"]
assert os.environ["LC_ALL"] == sys.argv[1]
"""
    run([sys.executable, "-c", PRELUDE + code, locale], LC_ALL=locale)


def test_r_conditions_become_python_exceptions_and_warnings(run: Run) -> None:
    run("""
r = RSession()
failed = error(r.eval, 'log("a")')
assert type(failed) is RError and failed.classes == ("simpleError", "error", "condition")
assert str(failed) == 'non-numeric argument to mathematical function (in log("a"))' and failed.call == 'log("a")'
assert "unexpected end of input" in error(r.eval, "1 +").message
own = 'stop(structure(class = c("mine", "error", "condition"), list(message = "é", call = NULL)))'
assert str(error(r.eval, own)) == "é" and error(r.eval, own).classes[0] == "mine"
assert error(r.call, "no_such_function").message == 'could not find function "no_such_function"'
assert "top level" in str(error(r.eval, 'invokeRestart("abort")'))
assert "no counterpart in Python" in str(error(r.eval, "globalenv()"))
assert "no counterpart in R" in str(error(r.__setitem__, "x", object()))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert r.eval('{ warning("one"); suppressWarnings(warning("none")); as.integer("x"); 5 }') == 5
assert [w.category for w in caught] == [RWarning, RWarning] and str(caught[0].message).startswith("one")
assert all(w.filename == "<string>" for w in caught)  # where the user called
r.eval("options(warn = 2)")
assert "converted from warning" in error(r.eval, 'as.integer("x")').message
assert r.eval("2") == 2
""")


def test_output_of_r_and_python_is_in_order(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.R"
    script.write_text("x <- 'é'; x\ninvisible(2)\nfunction(x)  x\n", encoding="utf-8")
    result = run(f"""
r = RSession()
print("one")
r.run("c(a = 2); invisible(3)")
print("four")
r.source("{script}")
print("five")
""")
    assert result.stdout == 'one\na \n2 \nfour\n[1] "é"\nfunction (x) \nx\nfive\n'


def test_deep_recursion_is_an_error_in_each_thread(run: Run) -> None:
    run("""
def recurse():
    for code in ("f <- function(n) f(n + 1); f(1)", "g <- function(n) sapply(1, function(i) g(n + 1)); g(1)"):
        seen.append(error(RSession().eval, code))
        assert RSession().eval("3") == 3

seen = []
for size in (1, 8, 64):  # the first starts R, in a thread that is not the main one
    threading.stack_size(size * 2**20)
    thread = threading.Thread(target=recurse)
    thread.start()
    thread.join()
recurse()
assert len(seen) == 8 and all(type(each) is RError for each in seen), seen
""")


def test_calls_from_threads_are_serialized(run: Run) -> None:
    run("""
r, seen = RSession(), []
def work(k):
    for i in range(100):
        seen.append((k * i, r.eval(f"x <- {k}; for (j in 1:100) sqrt(j); x * {i}")[0]))

threads = [threading.Thread(target=work, args=(k,)) for k in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(seen) == 500 and all(a == b for a, b in seen)
""")


def test_rpy2_uses_the_same_r(run: Run) -> None:
    run("""
r = RSession()
r["x"] = 20
import rpy2.rinterface
with warnings.catch_warnings():
    warnings.simplefilter("error")
    rpy2.rinterface.initr()
assert rpy2.rinterface.evalr("x + 1")[0] == 21 and r.eval("x + 2") == 22
""")
    result = run("import rpy2.rinterface\nrpy2.rinterface.initr()\nRSession()", check=False)
    assert "RuntimeError: rpy2 has already started R: create the RSession before" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("count", [2000, pytest.param(10000, marks=pytest.mark.soak)])
def test_many_calls_do_not_leak_memory(run: Run, count: int) -> None:
    run(f"""
import psutil
r = RSession()
r.run("library(minhubpy)")
def calls(count):
    for i in range(count):
        r.call("paste", "some text", ["a"] * 10, n=i)
    r.eval("for (i in 1:%d) minhubpy:::ask('nothing')" % count)
    r.eval("gc()")
    return psutil.Process().memory_info().rss
before = calls(2000)
assert calls({count}) - before < 10e6
""")


# minhubpy in this process


@pytest.mark.slow
def test_minhubpy_runs_without_a_worker(run: Run) -> None:
    code = f"""
import psutil
r = RSession()
r.run('library(minhubpy); model <- gpt2_from_pretrained("{MODEL}")')
print(r.eval('generate(model, "ROMEO:", max_new_tokens = 20, temperature = 0)')[0])
assert not psutil.Process().children()
failed = error(r.eval, 'gpt2_from_pretrained("minhub/no-such-model")')
assert "minhubpy_error" in failed.classes, failed.classes
"""
    model, tokenizer = from_pretrained(MODEL), tokenizer_from_pretrained(MODEL)
    [ids] = generate(model, [tokenizer.encode("ROMEO:").ids], 20, temperature=0)
    assert run(code).stdout == tokenizer.decode(ids) + "\n"


def test_python_exceptions_become_r_conditions(run: Run) -> None:
    run("""
from r_bridge.methods import METHODS

def bad(error):
    def method(caller):
        raise error
    return method

METHODS["error"] = bad(ZeroDivisionError("none"))
METHODS["unknown"] = lambda caller: object()
r = RSession()
r.run("library(minhubpy)")
for name in ("error", "unknown", "absent"):
    failed = error(r.call, "minhubpy:::ask", name)
    assert type(failed) is RError and "minhubpy_error" in failed.classes, (name, failed)
    assert r.eval(f"tryCatch(minhubpy:::ask('{name}'), minhubpy_error = function(e) 'caught')") == ["caught"]
assert r.call("minhubpy:::ask", "nothing") is None
""")


# Ctrl-C

READY = """
from r_bridge.methods import METHODS

def wait(caller):
    print("ready", flush=True)
    caller.cancelled.wait()
    caller.check()

METHODS["wait"] = wait
r = RSession()
r.run("library(minhubpy)")
before = signal.getsignal(signal.SIGINT)
"""


@pytest.mark.parametrize(
    "code",
    [
        "r.eval('cat(\"ready\\\\n\"); repeat {}')",
        "r.eval('cat(\"ready\\\\n\"); Sys.sleep(100)')",
        "r.run('cat(\"ready\\\\n\"); while (TRUE) sqrt(1:10)')",
        "r.call('minhubpy:::ask', 'wait')",
        "import time; print('ready', flush=True)\n    while True: time.sleep(0.1)",
    ],
)
def test_ctrl_c_interrupts_r_and_python_code(environment: dict[str, str], code: str) -> None:
    program = f"""{PRELUDE}{READY}
try:
    {code}
    print("went on")
except KeyboardInterrupt:
    print("stopped")
assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler
assert r.eval("1 + 1") == 2 and r.call("minhubpy:::ask", "nothing") is None
os.kill(os.getpid(), signal.SIGINT)
"""
    assert interrupted(environment, program) == ["stopped"]


def test_signal_handlers_are_restored(run: Run) -> None:
    run("""
def handled():
    lines = Path("/proc/self/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]  # SigQ counts other processes'

before, actions = handled(), [signal.getsignal(number) for number in signal.valid_signals()]
r = RSession()
r.run("invisible(1)")
assert handled() == before and actions == [signal.getsignal(number) for number in signal.valid_signals()]
signal.signal(signal.SIGINT, signal.SIG_IGN)
r.eval("for (i in 1:1000) { if (i == 10) tools::pskill(Sys.getpid(), 2L); sqrt(1:10) }")
""")


def test_r_code_may_catch_ctrl_c(environment: dict[str, str]) -> None:
    program = f"""{PRELUDE}{READY}
print(r.eval("tryCatch(minhubpy:::ask('wait'), interrupt = function(e) 'caught in R')")[0])
os.kill(os.getpid(), signal.SIGINT)
"""
    assert interrupted(environment, program) == ["caught in R"]


@pytest.mark.slow
def test_ctrl_c_stops_a_training_run_with_a_checkpoint(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(
        "To be, or not to be, that is the question.\n" * 60, encoding="utf-8"
    )
    # Where tabulate is installed PyTorch imports it at the end, and code that is made from text by
    # then, such as a namedtuple's, makes CPython forget that it was Ctrl-C.
    program = f"""{PRELUDE}{READY}
sys.modules["tabulate"] = None
r.run('options(minhubpy.quiet = TRUE)')
r["text"], r["out"] = {str(tmp_path / "text.txt")!r}, {str(tmp_path / "run")!r}
sizes = "layers = 1, width = 8, context = 8, batch = 2, seed = 1"
at_once = 'function(news) if (news$event == "evaluated") {{ cat("ready\\n"); flush(stdout()) }}'
try:
    r.run(f"minhub_train(text, out = out, steps = 1e7, {{sizes}}, evaluate_every = 1e6, progress = {{at_once}})")
    print("went on")
except KeyboardInterrupt:
    print("stopped")
assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler
[checkpoint] = Path({str(tmp_path / "run/checkpoints")!r}).iterdir()
step = int(checkpoint.name[5:])
r["steps"] = step + 3
losses = r.eval("minhub_resume(out, steps = steps)$losses")
assert (losses["step"][0], losses["step"][-1]) == (0, step + 3), losses
os.kill(os.getpid(), signal.SIGINT)
"""
    assert interrupted(environment, program) == ["stopped"]


def interrupted(environment: dict[str, str], program: str) -> list[str]:
    """A program's output after Ctrl-C, which is sent when the program is ready. A second one
    ends the program.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said, complaint = process.communicate(timeout=100)
    finally:
        process.kill()
    assert first == "ready\n", complaint
    assert process.returncode == -signal.SIGINT, complaint
    return said.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.soak)])
def test_interrupts_at_random_times(run: Run, count: int) -> None:
    """Each interrupts one operation; the program waits forever if one is lost."""
    result = run([sys.executable, str(PROGRAMS / "interrupts_in_session.py"), str(count)])
    assert 0 < int(result.stdout) < count  # some are caught by R code


# Exit


def test_r_is_shut_down_when_python_exits(run: Run, tmp_path: Path) -> None:
    result = run(f"""
r = RSession()
r.run('pdf("{tmp_path}/plot.pdf"); plot(1); cat(tempdir(), "")')
r.run('invisible(reg.finalizer(globalenv(), function(e) cat("finalized"), onexit = TRUE))')
""")
    folder, finalized = result.stdout.split()
    assert finalized == "finalized"
    assert not Path(folder).exists()
    assert (tmp_path / "plot.pdf").read_bytes().endswith(b"%%EOF\n")


def test_q_exits_python_with_its_status(run: Run) -> None:
    result = run(
        """
import atexit
atexit.register(print, "last")
r = RSession()
print("first", end=" ")
r.run("cat(tempdir(), ''); q(status = 7)")
print("never")
""",
        check=False,
    )
    first, folder, last = result.stdout.split()
    assert (result.returncode, first, last) == (7, "first", "last")
    assert not Path(folder).exists()


# Missing packages


def test_missing_r_or_rpy2_is_a_one_line_error(run: Run, tmp_path: Path) -> None:
    assert (
        complaint(run, PATH="/nonexistent")
        == "R is not installed: apt-get install r-base-core, or see https://www.r-project.org"
    )

    metadata = tmp_path / "rpy2_rinterface-3.5.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: rpy2-rinterface\nVersion: 3.5.0\n")
    r = find_r()
    assert r
    expected = (
        r"rpy2-rinterface 3.5.0 does not support R [\d.]+: .*pip install.*"
        rf" 'rpy2-rinterface{r.rpy2}'"
    )
    assert re.fullmatch(expected, complaint(run, PYTHONPATH=str(tmp_path)))

    program = tmp_path / "R"
    program.write_text(
        f'#!/bin/sh\nif [ "$2" = env ]; then echo R_HOME={tmp_path}; else exec {r.executable} "$@";'
        " fi\n"
    )
    program.chmod(0o755)
    said = complaint(run, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert said.startswith(f"{program} was built without its shared library")


def complaint(run: Run, **environment: str) -> str:
    """The only error line of `minhub r`."""
    result = run([*MINHUB, "-e", "1"], check=False, **environment)
    assert (result.returncode, result.stdout) == (1, "")
    return result.stderr.splitlines()[-1].removeprefix("Error: ")


def test_probe_prints_the_rpy2_requirement_for_pip(run: Run) -> None:
    r = find_r()
    assert r
    result = run([sys.executable, "-m", "r_bridge.probe"])
    assert (result.stdout, result.stderr) == (f"rpy2-rinterface{r.rpy2}\n", "")


# minhub r

SCRIPT = """
commandArgs(TRUE)
x <- c(a = 1, "é" = 2); x
invisible(3)
f <- function(n) { warning("careful"); n }
f(2)
message("to stderr")
if (length(commandArgs(TRUE)) > 2) quit(status = 5)
cat(readLines(file("stdin")), sep = "|")
interactive()
readline("no answer? ")
.Last <- function() cat("last\\n")
log("a")
"never"
"""


ARGUMENTS = [
    ["SCRIPT"],
    ["SCRIPT", "a b", "-e", "--file=x"],
    ["-e", "1 + 1", "-e", 'x <- "two  words"; x\nx', "-e", "commandArgs(TRUE)", "argument"],
    ["-e", "stop('no')", "-e", "1"],
    ["-e", "1 +"],
    ["-e", "f <- function() g(); g <- function() stop('deep'); f()"],
    ["-e", "options(warn = 1); warning('now'); 1:3"],
    ["-e", "q(status = 3)"],
    ["-"],
]


@pytest.mark.parametrize(
    "arguments", with_variants(ARGUMENTS, [["SCRIPT"], ["-e", "q(status = 3)"], ["-"]])
)
def test_minhub_r_matches_rscript(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    """Output, messages and exit status are identical."""
    script = tmp_path / "script.R"
    script.write_text(SCRIPT, encoding="utf-8")
    arguments = [str(script) if argument == "SCRIPT" else argument for argument in arguments]
    stdin = "1:2\nprint('é')\nstop('end')\n"
    expected, got = (
        run([*command, *arguments], check=False, stdin=stdin) for command in (["Rscript"], MINHUB)
    )
    assert (got.stdout, got.stderr, got.returncode) == (
        expected.stdout,
        expected.stderr,
        expected.returncode,
    )


@pytest.mark.slow
def test_minhub_r_provides_minhubpy(run: Run) -> None:
    result = run(
        [*MINHUB],
        stdin=f'library(minhubpy)\nmodel <- gpt2_from_pretrained("{MODEL}")\ndim(model(0:4))\n',
    )
    assert result.stdout == "[1]  1  5 65\n"
    assert run([*MINHUB, "no_such_file.R"], check=False).returncode == 2


def test_install_uses_the_user_library(run: Run, tmp_path: Path) -> None:
    library = tmp_path / "new" / "library"
    result = run([*MINHUB, "--install"], R_LIBS_USER=str(library))
    assert result.stdout.startswith(f"Installed {library}/minhubpy. ")
    seen = run(["Rscript", "-e", "cat(find.package('minhubpy'))"], R_LIBS_USER=str(library))
    assert seen.stdout == f"{library}/minhubpy"


def test_interactive_prompt(environment: dict[str, str]) -> None:
    """Input at a terminal, including Ctrl-C."""
    process, terminal = pty.fork()
    if process == 0:
        os.execve(sys.executable, MINHUB, environment | {"TERM": "dumb"})
    try:
        talk = Talk(terminal)
        assert "minhubpy" in talk.until("> ")
        assert "\n+ " in talk.say("x <-", "+ ")
        talk.say("41")
        assert "[1] 42" in talk.say("x + 1")
        assert "é" in talk.say('"é"')
        for wait in ("repeat {}", "Sys.sleep(100)", "minhubpy:::ask('warm_up'); repeat {}"):
            talk.say(f"cat('rea', 'dy', sep = ''); {wait}", "ready")
            talk.send("\x03")
            talk.until("> ")
        talk.send("half a line \x03")
        talk.until("> ")
        assert "generate" in talk.say('ls("package:minhubpy")')
        assert "Error" in talk.say("stop('it goes on')")
        assert "[1] 41" in talk.say("x")
        # Text is printed during generation if the input is only the call, and not if its value is
        # assigned.
        talk.say('model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")')
        call = 'generate(model, "ROMEO:", 30, temperature = 0)'
        assert talk.say(call).count("ROMEO:") == 2  # once as the echoed input
        assert talk.say(f"text <- {call}").count("ROMEO:") == 1
        assert "\n+ " in talk.say("text <-", "+ ")
        assert talk.say(call).count("ROMEO:") == 1
        assert "[1] 30" in talk.say("nchar(text)")
        talk.send("q(status = 6)\n")
        talk.rest()
    finally:
        os.close(terminal)
        _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 6


class Talk:
    """A terminal with a process."""

    def __init__(self, terminal: int) -> None:
        self.terminal = terminal
        self.heard = ""

    def pieces(self) -> Iterator[str]:
        while True:
            try:
                yield os.read(self.terminal, 10000).decode(errors="replace")
            except OSError:  # the other end is closed
                return

    def send(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def until(self, end: str) -> str:
        """The output up to `end`."""
        for piece in self.pieces():
            self.heard += piece
            if self.heard.endswith(end):
                output, self.heard = self.heard, ""
                return output
        raise AssertionError(f"it ended with {self.heard!r}")

    def say(self, line: str, end: str = "> ") -> str:
        self.send(f"{line}\n")
        return self.until(end)

    def rest(self) -> None:
        for _ in self.pieces():
            pass


def test_library_name_depends_on_the_package_content() -> None:
    assert (PACKAGE / "DESCRIPTION").is_file()
    assert re.fullmatch("[0-9a-f]{16}", fingerprint())
