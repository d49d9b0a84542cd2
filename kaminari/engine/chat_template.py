"""Renders a conversation with the checkpoint's own chat template, in the reference's sandbox.

Takes messages whose text is already escaped (`control_text`) and returns text; knows nothing of tokens.
What a template refuses, and any error inside it, is the request's fault and says so.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerFast

from kaminari.engine.errors import RequestError
from kaminari.model.family import CheckpointError

MAX_REASON = 200


class ChatTemplate:
    """One checkpoint's template. Safe to share between threads."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        """Find the template and compile it. Raises `CheckpointError`."""
        self._source = _find_template(folder, tokenizer)
        self._apply = tokenizer.apply_chat_template
        # What the renderer itself takes: a request may set none of it through the template's variables.
        renderer = inspect.signature(type(tokenizer).apply_chat_template)
        self._reserved = {"messages", "conversations", *renderer.parameters}
        try:
            self._render([{"role": "user", "content": "a"}], {}, add_generation_prompt=True)
        except TemplateSyntaxError as error:
            raise CheckpointError(f"the chat template of {folder} cannot be read: {error.message}") from error
        except Exception:
            pass  # a template may refuse this trial, which only has to compile

    def mentions(self, name: str) -> bool:
        """Whether the template's own text has this name: one that it lacks is a thing it cannot show."""
        return name in self._source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        """Return the rendered conversation. Raises `RequestError`."""
        for name in variables:
            if not isinstance(name, str) or name in self._reserved:
                raise RequestError(
                    f"chat_template_kwargs must not set {name!r}", field="chat_template_kwargs"
                )
        try:
            return self._render(
                messages,
                variables,
                tools=list(tools) or None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
        except TemplateError as error:
            reason = " ".join((error.message or type(error).__name__).split())[:MAX_REASON]
            raise RequestError(
                f"the chat template refuses these messages: {reason}", field="messages"
            ) from error
        except Exception as error:  # a template is a program: it can fail in every way
            if continue_final_message and isinstance(error, ValueError):
                reason = "it does not keep the final message as it is, so that message cannot be continued"
            else:
                reason = f"{type(error).__name__} while rendering"
            raise RequestError(
                f"the chat template cannot take these messages: {reason}", field="messages"
            ) from error

    def _render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], **options: Any
    ) -> str:
        return str(
            self._apply(list(messages), chat_template=self._source, tokenize=False, **options, **variables)
        )


def _find_template(folder: Path, tokenizer: PreTrainedTokenizerFast) -> str:
    """The template that the reference's processor takes: a file of its own, or else the tokenizer's."""
    plain, wrapped = folder / "chat_template.jinja", folder / "chat_template.json"
    try:
        if plain.is_file():
            return plain.read_text(encoding="utf-8")
        if wrapped.is_file():
            return str(json.loads(wrapped.read_text(encoding="utf-8"))["chat_template"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read the chat template of {folder}: {error}") from error
    source = tokenizer.chat_template
    if isinstance(source, dict):
        source = source.get("default")
    if not isinstance(source, str):
        raise CheckpointError(f"the model folder has no chat template: {folder}")
    return source
