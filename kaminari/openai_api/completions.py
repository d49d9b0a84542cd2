"""`POST /v1/completions`: text that goes on from text, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from kaminari.engine.answer import Choice
from kaminari.engine.events import Delta, FinishReason, TokenLogprobs
from kaminari.engine.parsing import Part
from kaminari.engine.prompt import PreparedPrompt
from kaminari.openai_api.completion import Json
from kaminari.openai_api.conversion import to_params
from kaminari.openai_api.engine_protocol import Engine
from kaminari.openai_api.errors import invalid
from kaminari.openai_api.generation import PreparedRequest
from kaminari.openai_api.logprobs import TextLogprobs
from kaminari.openai_api.media import Media
from kaminari.openai_api.models import require_name
from kaminari.openai_api.schemas.completions import CompletionRequest, Prompt
from kaminari.openai_api.schemas.parsing import parse


def prepare_completion(body: bytes, engine: Engine, _: Media, *, most_prompts: int) -> PreparedRequest:
    """All that is slow: run it by `Preparation`. Raises `ApiError` and `RequestError`."""
    request = parse(CompletionRequest, body)
    require_name(request.model, engine.info)
    params = to_params(request, engine.info)
    if len(request.prompt) > most_prompts:
        raise invalid(f"`prompt` must hold at most {most_prompts} prompts", param="prompt")
    several = len(request.prompt) > 1
    with engine.expecting() if request.stream else nullcontext():
        prompts = tuple(
            engine.prepare_text(prompt, f"prompt[{place}]" if several else "prompt")
            for place, prompt in enumerate(request.prompt)
        )
    echoes = [_text(prompt, engine) if request.echo else "" for prompt in request.prompt]
    return PreparedRequest(request, prompts, params, TextWording(request, prompts, echoes))


def _text(prompt: Prompt, engine: Engine) -> str:
    return prompt if isinstance(prompt, str) else engine.decode(prompt, "prompt")


class TextWording:
    """Choices hold text, whole or the next piece of it. The first n choices belong to the first prompt."""

    kind = "text_completion"
    chunk_kind = "text_completion"
    id_prefix = "cmpl"

    def __init__(
        self, request: CompletionRequest, prompts: Sequence[PreparedPrompt], echoes: Sequence[str]
    ) -> None:
        """`echoes` is what each prompt's answers begin with."""
        self._request = request
        self._prompts = prompts
        self._echoes = echoes
        self._logprobs = [TextLogprobs() for _ in range(request.n * len(prompts))]

    def about_prompt(self) -> Json:
        return {}

    def whole(self, index: int, choice: Choice) -> Json:
        text = self._echoes[index // self._request.n] + choice.text
        reason = None if choice.reason is None else choice.reason.value
        return self._choice(index, text, choice.logprobs) | {"finish_reason": reason} | self._prompt(index)

    def opening(self, index: int) -> Json | None:
        echo = self._echoes[index // self._request.n]
        about = self._prompt(index)
        return self._choice(index, echo) | about if echo or about else None

    def piece(self, part: Part, logprobs: Sequence[TokenLogprobs]) -> Json:
        # A prompt without a template has plain answers: there is no other kind of part.
        text = part.text if isinstance(part, Delta) else ""
        return self._choice(part.choice, text, logprobs)

    def end(self, index: int, reason: FinishReason, logprobs: Sequence[TokenLogprobs]) -> Json:
        return self._choice(index, "", logprobs) | {"finish_reason": reason.value}

    def _choice(self, index: int, text: str, logprobs: Sequence[TokenLogprobs] = ()) -> Json:
        asked = self._request.logprobs is not None and bool(logprobs)
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs[index].of(logprobs) if asked else None,
            "finish_reason": None,
        }

    def _prompt(self, index: int) -> Json:
        """vLLM's place for the prompt's ids, since each choice may have another prompt."""
        if not self._request.return_token_ids:
            return {}
        return {"prompt_token_ids": self._prompts[index // self._request.n].token_ids}
