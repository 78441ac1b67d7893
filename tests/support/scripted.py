"""Models that write given replies, so that servers and chats can be tested with tool calls and
reasoning.
"""

from typing import Any

import torch
from tool_templates import TEMPLATES, chat_template

from minhub_py import gpt2
from minhub_py.chat.templates import ChatTemplate
from minhub_py.serve.engine import Engine
from minhub_py.serve.models import ServedModel

CONTEXT = 2048


class Script:
    """A model whose next token depends only on the position.

    model: a GPT-2.    replies: texts of the next replies, which end with the end token.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template, self.replies = template, list[str]()
        size = template.tokenizer.get_vocab_size()
        self.end = template.tokenizer.token_to_id("</s>")
        torch.manual_seed(0)
        self.model = gpt2(
            vocab_size=size,
            n_embd=256,
            n_layer=1,
            n_head=4,
            n_positions=CONTEXT,
            eos_token_id=self.end,
        )
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.fill_(1.0 if name.endswith("ln_f.weight") else 0.0)
            self.embeddings = torch.nn.functional.normalize(torch.randn(size, 256), dim=1)
            self.model.wte.weight.copy_(self.embeddings)

    def prepare(self, prompt_length: int) -> None:
        """Write the next reply after a prompt."""
        ids = self.template.tokenizer.encode(self.replies.pop(0), add_special_tokens=False).ids
        with torch.no_grad():
            self.model.wpe.weight[prompt_length - 1 :][: len(ids) + 1] = (
                100 * self.embeddings[[*ids, self.end]]
            )


def scripted_model(name: str) -> tuple[ServedModel, Script]:
    """A served model with a template of tool_templates.TEMPLATES."""
    template = chat_template(TEMPLATES[name])
    script = Script(template)
    engine = Engine(
        script.model, template.tokenizer, batch_size=4, max_length=CONTEXT, queue_size=8
    )
    submit = engine.submit

    def submit_scripted(*requests: Any) -> None:
        if script.replies:
            script.prepare(len(requests[0].ids))
        submit(*requests)

    engine.submit = submit_scripted  # type: ignore[method-assign]
    return (
        ServedModel(name.replace(" ", "-"), script.model, template.tokenizer, template, engine, 60),
        script,
    )
