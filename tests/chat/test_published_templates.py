"""Published chat templates, such as models/templates in llama.cpp's repository. The module needs a
folder of them.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from needs import need
from test_templates import check_equal, reference  # noqa: F401  # a fixture
from test_tool_calls import check_round_trips
from tool_templates import chat_template

need("chat templates")
FILES = sorted(Path(os.environ["MINHUB_CHAT_TEMPLATES"]).glob("*.jinja"))


def test_templates_render_as_in_transformers(reference: Any) -> None:  # noqa: F811
    assert FILES
    counts = [check_equal(reference, file.read_text(encoding="utf-8")) for file in FILES]
    print(
        f"{len(FILES)} templates: {sum(equal for equal, _ in counts)} texts are equal, "
        f"{sum(rejected for _, rejected in counts)} rejected by both"
    )


@pytest.mark.parametrize("markers", [True, False])
def test_templates_parse_their_own_calls(markers: bool) -> None:
    failures, formats = [], {}
    for file in FILES:
        template = chat_template(file.read_text(encoding="utf-8"), markers=markers)
        tools = template.markup.tools
        formats[file.stem] = tools.kind if tools.native else "generic"
        try:
            check_round_trips(template, random.Random(3), 9)
        except (AssertionError, ValueError) as error:
            failures.append(f"{file.stem} ({formats[file.stem]}): {str(error)[:150]}")
    print(formats)
    print("\n".join(failures))
    assert len(failures) <= (5 if markers else 12), failures
