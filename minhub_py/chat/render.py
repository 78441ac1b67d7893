"""The program of the process that renders chat templates. `sandbox.py` starts it; it imports only
jinja2.

A template is code from a repository. It can call the same functions as in transformers. This
process limits its resources: it cannot open files, start processes or allocate more than MEMORY,
and sandbox.py ends it after a timeout. These limits replace a list of forbidden operations: they
apply to `10 ** 10 ** 10` as to an endless loop.

Standard input has one request per line, standard output one response per line, both as JSON:

    {"template": …, "messages": […], "variables": {…}, "marks": [begin, end] of replies, optional}
                                                          ->   {"text": …}, {"rejected": …} or {"error": …}

Source: transformers' utils/chat_template_utils.py for the functions of templates.
"""

import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the package may be importable only by the path that the first line contains
    import jinja2
    import jinja2.parser

    from minhub_py.system.json_text import JsonObject

MEMORY = 2**29  # bytes, in addition to those at the start
MAX_LENGTH = 2**26  # characters of a rendered conversation


def limit_resources() -> None:
    """Limit the memory and prohibit opening files. Windows does not support these limits."""
    try:
        import resource
    except ImportError:
        return
    if sys.platform == "linux":  # other systems ignore this limit, or exceed it from the start
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # open files remain open


class Mapping:
    """The function `dict`, without access to the attributes of the class."""

    def __call__(self, *args: object, **kwargs: object) -> dict[str, object]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: object) -> None:
    raise RejectedError(message)


def make_environment(marks: list[str] | None = None) -> "jinja2.Environment":
    """Jinja's sandbox with the extensions, filters and functions that transformers provides.

    marks: the texts that `generation` writes before and after its content.
    """
    from datetime import datetime

    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """The tag {% generation %}, which marks replies for training. Renders its content, between
        `marks` if given.
        """

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: "jinja2.parser.Parser") -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            if marks is not None:
                call = self.call_method("_mark", [])
                return jinja2.nodes.CallBlock(call, [], [], body, lineno=line)
            return jinja2.nodes.Scope(body, lineno=line)

        def _mark(self, caller: Callable[[], str]) -> str:
            assert marks is not None
            return f"{marks[0]}{caller()}{marks[1]}"

    class Namespace(jinja2.utils.Namespace):
        """A namespace that rejects names with a leading underscore."""

        def __init__(*args: object, **kwargs: object) -> None:
            self, args = args[0], args[1:]  # `self` can also be a keyword
            attributes = dict(*args, **kwargs)
            for name in attributes:
                check_name(name)
            jinja2.utils.Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: object) -> None:
            check_name(name)
            super().__setitem__(name, value)

    def check_name(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=raise_exception,
        strftime_now=lambda form: datetime.now().strftime(form),
        dict=Mapping(),
        namespace=Namespace,
    )
    return environment


class RejectedError(Exception):
    """A template called raise_exception()."""


def render(compiled: "Callable[[str], jinja2.Template]", request: "JsonObject") -> dict[str, str]:
    """The response to a request, including exceptions of the template."""
    chunks, length = [], 0
    try:
        for chunk in compiled(request["template"]).generate(
            messages=request["messages"], **request["variables"]
        ):
            length += len(chunk)
            if length > MAX_LENGTH:
                return {"error": f"the text has more than {MAX_LENGTH:,} characters"}
            chunks.append(chunk)
        return {"text": "".join(chunks)}
    except RejectedError as error:
        return {"rejected": str(error)[:1000]}
    except MemoryError:
        return {"error": "rendering takes too much memory"}
    except RecursionError:
        return {"error": "infinite recursion"}
    except Exception as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        return {"error": f"{where}{type(error).__name__}: {error}"[:1000]}


def open_modules(compiled: "Callable[[str], jinja2.Template]") -> None:
    """Open the modules and the time zone that Python opens on first use: call every filter and
    test.
    """
    for template in ("{{ strftime_now('%c') }}", "{{ 1 / 0 }}", "{% if %}", "{{ lipsum(1) }}"):
        render(compiled, {"template": template, "messages": [], "variables": {}})
    environment = make_environment()
    context = environment.from_string("").new_context()
    for value in ("two <b>words</b> &amp;", [1, 2], {"a": 1}):
        for name in environment.filters:
            with suppress(Exception):  # some need arguments or another value
                environment.call_filter(name, value, context=context)
        for name in environment.tests:
            with suppress(Exception):
                environment.call_test(name, value, context=context)


def main() -> None:
    """Respond to requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    sys.path[:] = json.loads(sys.stdin.readline())
    compiled = lru_cache(16)(make_environment().from_string)
    marks = ["", ""]  # of the current request
    marked = lru_cache(16)(make_environment(marks).from_string)
    open_modules(compiled)
    limit_resources()
    for line in sys.stdin:
        request = json.loads(line)
        if "marks" in request:
            marks[:] = request["marks"]
        sys.stdout.write(
            json.dumps(render(marked if "marks" in request else compiled, request)) + "\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
