"""From a conversation to a prompt that is ready to run: pictures fitted, template rendered, text tokenized.

Worker threads call it; it holds no weights and touches no device. Whatever is wrong with a request is found
here and raised as a `RequestError` before anything is queued. Nothing is cut, dropped or replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kaminari.engine.answer_grammar import answer_grammar
from kaminari.engine.chat_template import ChatTemplate
from kaminari.engine.conversation import Conversation, Detail, Message, PicturePart, TextPart
from kaminari.engine.errors import ContextLengthExceeded, RequestError
from kaminari.engine.grammar import GrammarCompiler
from kaminari.engine.json_schema import check_size
from kaminari.engine.parsing import AnswerSyntax
from kaminari.engine.picture_decoding import decode_picture
from kaminari.engine.prompt import PictureSpan, PreparedPrompt
from kaminari.engine.template_messages import has_picture, template_message
from kaminari.engine.text_encoding import Control, Piece, TextEncoder, require_unicode
from kaminari.engine.text_prompts import TextPrompts
from kaminari.engine.tool_checks import check_tools, tool_text
from kaminari.engine.tools import NamedTool
from kaminari.model.family import CheckpointError, PictureBudget, PictureError, PromptFormat
from kaminari.model.picture import Picture
from kaminari.model.tokenizer import load_tokenizer

MAX_KWARGS_DEPTH = 32
BAD_PICTURE = "image_parse_error"
"""The code of a picture that cannot be read, which is OpenAI's."""


@dataclass(frozen=True, slots=True)
class PictureRules:
    """How many pictures a request may hold, how large, and how many tokens each may take.

    budgets:     one for every `Detail`
    max_pixels:  of one picture, as its header says
    max_count:   in one request
    """

    budgets: Mapping[Detail, PictureBudget]
    max_pixels: int
    max_count: int


class Frontend:
    """The prompt side of one checkpoint. Safe to share between threads.

    tokenizer:    decodes ids; reads control spellings as text
    special_ids:  ids of control tokens
    texts:        makes prompts of plain text and of ids, without a template
    """

    def __init__(self, folder: Path, prompt_format: PromptFormat, rules: PictureRules, context: int) -> None:
        """Load tokenizer and template of a checkpoint folder; `context` is tokens per slot.

        Raises `CheckpointError`.
        """
        reference = load_tokenizer(folder)
        self._template = ChatTemplate(folder, reference)
        self._encoder = TextEncoder(reference)
        self._format = prompt_format
        self._grammars = GrammarCompiler(self._encoder.tokenizer, prompt_format.end_token_ids)
        self._rules = rules
        self._context = context
        self.tokenizer = self._encoder.tokenizer
        self.special_ids = self._encoder.special_ids
        self.texts = TextPrompts(self._encoder, prompt_format, context)
        marker_id = self.tokenizer.token_to_id(prompt_format.marker)
        if marker_id is None or marker_id not in self.special_ids:
            raise CheckpointError(
                f"{prompt_format.marker} is not a control token of the tokenizer of {folder}"
            )
        self._marker = Control(marker_id)

    def prepare(self, conversation: Conversation) -> PreparedPrompt:
        """Make a prompt of a conversation. Raises `RequestError` (with the field that is at fault)."""
        started = time.perf_counter()
        self._check(conversation)
        pictures = self._pictures(conversation)
        rendered = self._render(conversation)
        syntax = self._syntax(conversation, rendered)
        grammar = answer_grammar(conversation, syntax, self._grammars)
        pieces = self._pieces(conversation, rendered, len(pictures))
        token_ids, placeholder = self._expand(pieces, pictures)
        if len(token_ids) >= self._context:
            tools = bool(conversation.offered_tools)
            raise ContextLengthExceeded(len(token_ids), self._context, tools=tools)
        positions, offset = self._format.positions(token_ids, placeholder, pictures)
        return PreparedPrompt(
            token_ids=tuple(token_ids),
            positions=positions,
            position_offset=offset,
            pictures=tuple(pictures),
            spans=_spans(placeholder, pictures),
            preprocess_seconds=time.perf_counter() - started,
            grammar=grammar,
            syntax=syntax,
        )

    def _check(self, conversation: Conversation) -> None:
        """Refuse what can be refused cheaply, before a picture is decoded or a text tokenized."""
        messages = conversation.messages
        if not messages:
            raise RequestError("messages must hold at least one message", field="messages")
        check_size(conversation.template_kwargs, "chat_template_kwargs", MAX_KWARGS_DEPTH)
        check_tools(conversation, self._format.call_format, self._template.mentions)
        if conversation.continue_final_message:
            if conversation.add_generation_prompt:
                raise RequestError(
                    "continue_final_message and add_generation_prompt exclude each other",
                    field="continue_final_message",
                )
            final = messages[-1].parts
            if not final or not isinstance(final[-1], TextPart) or not final[-1].text.strip():
                raise RequestError(
                    "continue_final_message needs a final message that ends with text", field="messages"
                )
        count = sum(isinstance(part, PicturePart) for message in messages for part in message.parts)
        if count > self._rules.max_count:
            raise RequestError(
                f"a request may hold at most {self._rules.max_count} pictures, this one has {count}",
                field="messages",
            )
        parts = (part for message in messages for part in message.parts)
        text = "".join(part.text for part in parts if isinstance(part, TextPart)) + tool_text(conversation)
        require_unicode(text, "messages")
        least = self._encoder.least_tokens(text, self._context)
        if least >= self._context:
            tools = bool(conversation.offered_tools)
            raise ContextLengthExceeded(least, self._context, at_least=True, tools=tools)

    def _pictures(self, conversation: Conversation) -> list[Picture]:
        """Decode and fit every picture, one after the other: only one is held decoded at a time."""
        pictures: list[Picture] = []
        tokens = 0
        for where, part in _picture_parts(conversation.messages):
            try:
                image = decode_picture(part.source, self._rules.max_pixels)
                picture = self._format.prepare_picture(image, self._rules.budgets[part.detail])
            except (RequestError, PictureError) as error:
                raise RequestError(str(error), field=where, code=BAD_PICTURE) from error
            pictures.append(picture)
            tokens += picture.tokens
            if tokens >= self._context:
                raise ContextLengthExceeded(tokens, self._context, at_least=True)
        return pictures

    def _render(self, conversation: Conversation) -> str:
        """The conversation through the chat template; what people wrote in it is escaped."""
        escape = self._encoder.escape
        tools = [tool.definition for tool in conversation.offered_tools]
        calls = self._format.call_format
        mapped = calls is not None and calls.mapped_arguments
        return self._template.render(
            [template_message(message, escape, mapped) for message in conversation.messages],
            escape.escape_all(conversation.template_kwargs),
            tools=escape.escape_all(tools),
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
        )

    def _syntax(self, conversation: Conversation, rendered: str) -> AnswerSyntax:
        """How the answers are to be read: which of calls and reasoning there may be."""
        tags = self._format.think_tags
        if tags is not None and not self._template.mentions(tags.open):
            tags = None
        end = rendered.rstrip()
        if tags is not None and end.endswith(tags.close):
            tags = None
        return AnswerSyntax(
            calls=self._format.call_format if conversation.offered_tools else None,
            tools={tool.name: tool.arguments for tool in conversation.offered_tools},
            single_call=not conversation.parallel_tool_calls
            or isinstance(conversation.tool_choice, NamedTool),
            think=tags,
            thinking=tags is not None and end.endswith(tags.open),
        )

    def _pieces(self, conversation: Conversation, rendered: str, pictures: int) -> list[Piece]:
        """Cut a rendered prompt at the control tokens; there is one marker per picture."""
        require_unicode(rendered, "messages")
        pieces = list(self._encoder.split(rendered))
        if not pieces:
            raise RequestError("the chat template makes an empty prompt of these messages", field="messages")
        markers = pieces.count(self._marker)
        if markers != pictures:
            roles = sorted({message.role.value for message in conversation.messages if has_picture(message)})
            raise RequestError(
                f"this model's chat template writes {markers} picture markers for {pictures} pictures in "
                f"{' and '.join(roles) or 'these'} messages; put pictures in user messages",
                field="messages",
            )
        return pieces

    def _expand(self, pieces: Sequence[Piece], pictures: Sequence[Picture]) -> tuple[list[int], list[bool]]:
        """Token ids, and which of them are placeholders."""
        token_ids: list[int] = []
        placeholder: list[bool] = []
        waiting = iter(enumerate(pictures))
        for piece in pieces:
            if piece == self._marker:
                index, picture = next(waiting)
                ids, flags = self._format.expand_marker(index, picture)
                if sum(flags) != picture.tokens or len(ids) != len(flags):
                    raise RuntimeError(
                        f"picture {index} has {picture.tokens} rows and {sum(flags)} placeholders"
                    )
            else:
                ids = self._encoder.encode_pieces([piece])
                flags = [False] * len(ids)
            token_ids += ids
            placeholder += flags
        return token_ids, placeholder


def _picture_parts(messages: Sequence[Message]) -> Iterator[tuple[str, PicturePart]]:
    for place, message in enumerate(messages):
        for index, part in enumerate(message.parts):
            if isinstance(part, PicturePart):
                yield part.field or f"messages[{place}].content[{index}]", part


def _spans(placeholder: Sequence[bool], pictures: Sequence[Picture]) -> tuple[PictureSpan, ...]:
    """Runs of placeholders, cut where a picture's rows end."""
    spans: list[PictureSpan] = []
    picture, row, start = 0, 0, None
    for index, flag in enumerate([*placeholder, False]):
        if start is not None and (not flag or row + index - start == pictures[picture].tokens):
            spans.append(PictureSpan(picture, start, index, row))
            row += index - start
            start = None
            if row == pictures[picture].tokens:
                picture, row = picture + 1, 0
        if flag and start is None:
            start = index
    return tuple(spans)
