"""The web page of `minhub serve` in Chromium: tabs, messages and screenshots."""

import os
from pathlib import Path
from typing import Any

import torch

from minhub_py import gpt2, save_pretrained
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer

MARKDOWN = """\
## A *plan* for the day

Some **bold**, *italic*, ~~struck~~ and `inline code`; a_snake_case, 2 * 3 * 4 and \\*no emphasis\\*.
A second line: [safe](https://example.org/a_(b) "title"), [unsafe](javascript:alert(1)), <b onclick="x()">no HTML</b>.

```python
def greet(name: str) -> str:
    return f"Hello, {name}!  # **not bold**"
```

1. First
   - nested **item**
   - another
2. Second

> A quote
> of two lines

| name | count |
| :--- | ----: |
| one \\| two | 12 |
| `three` | 3 |

---
<script>document.title = "taken"</script><img src="https://example.org/x.png">
![picture](https://example.org/y.png) See https://example.org/z.
"""


def reciter(path: Path, bpe_folder: Path, text: str) -> Path:
    """A model whose next token depends only on the position: after a prompt of one token it
    generates `text`.
    """
    bpe = read_tokenizer(bpe_folder)
    ids, size = bpe.encode(text).ids, bpe.get_vocab_size()
    end = size - 1
    torch.manual_seed(0)
    model = gpt2(
        vocab_size=size, n_embd=256, n_layer=1, n_head=4, n_positions=2048, eos_token_id=end
    )
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(torch.randn(size, 256), dim=1)
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("ln_f.weight") else 0.0)
        model.wte.weight.copy_(embeddings)
        model.wpe.weight[: len(ids) + 1] = 100 * embeddings[[*ids, end]]
    save_pretrained(model, path, bpe)
    (path / "chat_template.jinja").write_text(
        "{% if add_generation_prompt %}>{% endif %}", encoding="utf-8"
    )
    return path


def open_page(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#model option:nth-child(2)", state="attached")


def say(page: Any, text: str) -> None:
    page.locator("#prompt").fill(text)
    page.keyboard.press("Enter")


def messages(page: Any) -> list[str]:
    """The texts of the conversation after the end of the reply."""
    page.wait_for_selector("#stop", state="hidden")
    return page.locator("article .text").all_inner_texts()


def show(page: Any, name: str) -> None:
    if target := os.environ.get("MINHUB_SCREENSHOTS"):
        page.screenshot(path=f"{target}/{name}.png")
