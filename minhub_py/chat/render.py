"""The program that renders chat templates, in a process of its own. `sandbox.py` starts it; it imports jinja2 only.

A template is code from a repository. What it may call is what transformers lets it call; this process bounds the rest:
it can open no file, start no process and take no more than MEMORY, and sandbox.py ends it when it takes too long. So
there is no list of operations that must not grow: `10 ** 10 ** 10` meets the same limits as a loop without end.

One request a line on standard input, one answer a line on standard output, both JSON:

    {"template": …, "messages": […], "variables": {…}}   ->   {"text": …}, {"refused": …} or {"error": …}

Source: transformers' utils/chat_template_utils.py, for what a template may use.
"""

import json
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

MEMORY = 2**29  # bytes that this process may have beyond what it has at its start
LONGEST = 2**26  # characters of a rendered conversation


def limit_resources() -> None:
    """Let this process open no more files and take no more memory. Windows has no such limits."""
    try:
        import resource
    except ImportError:
        return
    if sys.platform == "linux":  # elsewhere addresses are not counted, or are used up from the start
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # those that are open stay so


def make_environment() -> Any:
    """Jinja's sandbox with what transformers gives to templates."""
    from datetime import datetime

    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag {% generation %}, which marks a reply for training: here its content is shown as it is."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Any) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    class Mapping:
        """`dict` without its attributes."""

        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

        def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args, **kwargs)

    class Namespace(jinja2.utils.Namespace):
        """A namespace without names that begin with an underscore."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            self, args = args[0], args[1:]  # `self` may be one of the names
            attributes = dict(*args, **kwargs)
            for name in attributes:
                check_name(name)
            jinja2.utils.Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            check_name(name)
            super().__setitem__(name, value)

    def check_name(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: object) -> None:
        raise RefusedError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=raise_exception,
        strftime_now=lambda form: datetime.now().strftime(form),
        dict=Mapping(),
        namespace=Namespace,
    )
    return environment


class RefusedError(Exception):
    """A template called raise_exception()."""


def render(compiled: Callable[[str], Any], request: dict[str, Any]) -> dict[str, str]:
    """The answer to a request."""
    pieces, length = [], 0
    for piece in compiled(request["template"]).generate(messages=request["messages"], **request["variables"]):
        length += len(piece)
        if length > LONGEST:
            return {"error": f"it writes more than {LONGEST:,} characters"}
        pieces.append(piece)
    return {"text": "".join(pieces)}


def answer(compiled: Callable[[str], Any], request: dict[str, Any]) -> dict[str, str]:
    """As `render`; whatever a template raises is an answer, too."""
    try:
        return render(compiled, request)
    except RefusedError as error:
        return {"refused": str(error)[:1000]}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except RecursionError:
        return {"error": "it calls itself without end"}
    except Exception as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        return {"error": f"{where}{type(error).__name__}: {error}"[:1000]}


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that has started this one
    sys.path[:] = json.loads(sys.stdin.readline())
    compiled = lru_cache(16)(make_environment().from_string)
    # What is opened at the first use, the time zone and modules, must be open before the limits are set.
    for first in ("{{ strftime_now('%c') | pprint }}", "{{ 1 / 0 }}", "{% if %}", "{{ lipsum(1) }}"):
        answer(compiled, {"template": first, "messages": [], "variables": {}})
    limit_resources()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(compiled, json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
