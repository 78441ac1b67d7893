"""Typed decisions: POST /v1/systemone, in the form of transformers' server (System One API)."""

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from minhub_py.analysis.decisions import decide
from minhub_py.analysis.questions import DecisionSettings, parse_questions
from minhub_py.serve.embeddings import respond_json, run_decoder, unless_disconnected
from minhub_py.serve.server import server_of
from minhub_py.serve.validation import invalid
from minhub_py.system.json_text import JsonObject

MAX_QUESTIONS = 64  # of a request, as in transformers


async def systemone(request: HTTPRequest) -> Response:
    """POST /v1/systemone: answers to typed questions about a state, without generation."""
    served, fields = await server_of(request).read_with_model(request, "decision")
    state, questions = fields.get("state"), fields.get("questions")
    fields.reject("assets")
    fields.finish()
    if not isinstance(state, str | dict | list) or not state:
        raise invalid("state must be text or JSON with content", "state")
    if isinstance(questions, dict) and len(questions) > MAX_QUESTIONS:
        raise invalid(
            f"questions can contain at most {MAX_QUESTIONS} questions, not {len(questions)}:"
            " ask the others in another request",
            "questions",
        )
    try:
        parse_questions(questions, DecisionSettings.of(served.tokenizer))
    except ValueError as error:
        raise invalid(str(error), "questions") from error
    served.check_characters(len(str(state)), "state")

    def answer(question: JsonObject) -> tuple[JsonObject, int]:
        result = decide(served.model, served.tokenizer, [state], question)
        return result.answers(), result.tokens

    async def work() -> Response:
        [(answers, tokens)] = await run_decoder(served, answer, [questions])
        usage = {"input_tokens": tokens, "output_tokens": 0}
        return await respond_json(
            served, lambda: {"model": served.name, "answers": answers, "usage": usage}
        )

    return await unless_disconnected(request, work())
