"""Compiles what a request says of its answer's form into one grammar. Worker threads call it.

Bounds: the size and depth of what is compiled, the library's fuel for lexer and parser, and a second of time.
What is unsupported, unsatisfiable or past a bound is a `RequestError` that names the field. Nothing is
loosened: a keyword that the library cannot enforce is refused.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark
from tokenizers import Tokenizer

from kaminari.engine.answer_format import AnswerFormat, ChoiceFormat, GrammarFormat, JsonFormat, RegexFormat
from kaminari.engine.constraints import Grammar
from kaminari.engine.errors import RequestError
from kaminari.engine.grammar_bounds import check_grammar
from kaminari.engine.grammar_reasons import plain_reason
from kaminari.engine.json_schema import Schema, prepare_schema
from kaminari.engine.token_table import token_table
from kaminari.model.family import CheckpointError

MAX_SECONDS = 1.0
MAX_TEXT = 64 * 1024
MAX_BLANKS = 8
Part = dict[str, Any]
"""One grammar in llguidance's form, with the `name` by which rules refer to it."""

# A mask says what is legal and no more: without this, text that has no alternative may come in one spelling
# of tokens only.
_PLAIN_MASKS = '%llguidance {"no_forcing": true}'

_JSON_OPTIONS = {
    "whitespace_flexible": True,
    "whitespace_pattern": rf"[ \n]{{0,{MAX_BLANKS}}}",
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}


class GrammarCompiler:
    """Compiles for one tokenizer. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, end_token_ids: AbstractSet[int]) -> None:
        """Read the vocabulary (a second for a large one). Raises `CheckpointError`."""
        self._limits = LLParserLimits(verbose_errors=False)
        vocabulary = _Vocabulary(tokenizer, end_token_ids)
        try:
            self._tokenizer = LLTokenizer(
                TokenizerWrapper(vocabulary),
                n_vocab=len(vocabulary.tokens),
                eos_token=vocabulary.ends,
                slices=LLTokenizer.json_slices(),
            )
        except Exception as error:  # the library raises many kinds for what is one fault
            raise CheckpointError(f"the grammar library cannot read the tokenizer: {error}") from error

    def compile(self, form: AnswerFormat) -> Grammar:
        """Return the grammar of an answer's form. Raises `RequestError` that names the form's field."""
        return self.compile_rules(["start: @form"], [{"name": "form", **form_part(form)}], form.field)

    def compile_rules(self, rules: Sequence[str], parts: Sequence[Part], field: str) -> Grammar:
        """Return the grammar of `start` among Lark rules, which name the parts. Raises `RequestError`."""
        began = time.monotonic()
        start = {"lark_grammar": "\n".join([_PLAIN_MASKS, *rules, ""])}
        matcher = LLMatcher(
            self._tokenizer, json.dumps({"grammars": [start, *parts]}), log_level=0, limits=self._limits
        )
        # The first mask finds what only shows once the grammar runs: no first token, or too many states.
        allows = not matcher.is_error() and any(matcher.compute_bitmask()) and not matcher.is_error()
        if not allows:
            raise RequestError(
                f"{field} cannot be enforced: {plain_reason(str(matcher.get_error()))}", field=field
            )
        if time.monotonic() - began > MAX_SECONDS:
            raise RequestError(f"{field} takes too long to compile; make it simpler", field=field)
        return Grammar(matcher, field)


class _Vocabulary:
    """A tokenizer as llguidance reads one. Which added tokens are text is our table's to say: the library
    takes all that look like `<tool_call>` for control tokens.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, end_token_ids: AbstractSet[int]) -> None:
        table = token_table(tokenizer)
        self.ends = sorted(token for token in end_token_ids if token < len(table))
        if not self.ends:
            raise CheckpointError("no end token is in the vocabulary of the tokenizer")
        self.eos_token_id = self.ends[0]
        self.special_token_ids = [token for token, text in enumerate(table) if not text]
        self.tokens = [text or f"<|{token}|>".encode() for token, text in enumerate(table)]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def form_part(form: AnswerFormat) -> Part:
    """The form as one grammar of llguidance. Raises `RequestError`."""
    match form:
        case JsonFormat():
            return json_part(form.schema, form.field)
        case RegexFormat():
            _check_text(form.pattern, form.field)
            return _regex_part(form.pattern)
        case ChoiceFormat():
            if not form.choices:
                raise RequestError(f"{form.field} must hold at least one string", field=form.field)
            _check_text("|".join(form.choices), form.field)
            return _regex_part("|".join(map(re.escape, form.choices)))
        case GrammarFormat():
            _check_text(form.grammar, form.field)
            check_grammar(form.grammar, form.field)
            try:
                return {"lark_grammar": any_to_lark(form.grammar)}
            except Exception as error:  # the converter raises what its parsing ran into
                raise RequestError(
                    f"{form.field} is neither in Lark's nor in GBNF's notation", field=form.field
                ) from error


def json_part(schema: Schema, field: str) -> Part:
    """The values of a schema as one grammar. Raises `RequestError`."""
    return {"json_schema": {**prepare_schema(schema, field), "x-guidance": _JSON_OPTIONS}}


def quote(text: str) -> str:
    """A string of the rules' notation, which is JSON's."""
    return json.dumps(text, ensure_ascii=False)


def regex_literal(pattern: str) -> str:
    """A regular expression as the rules' notation has it."""
    return str(_regex_part(pattern)["lark_grammar"]).removeprefix("start: ")


def _regex_part(pattern: str) -> Part:
    parsed = json.loads(LLMatcher.grammar_from_regex(pattern))
    return {"lark_grammar": parsed["grammars"][0]["lark_grammar"]}


def _check_text(text: str, field: str) -> None:
    if len(text) > MAX_TEXT:
        raise RequestError(f"{field} is too long: at most {MAX_TEXT} characters", field=field)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{field} is not valid Unicode: it has a lone surrogate", field=field) from error
