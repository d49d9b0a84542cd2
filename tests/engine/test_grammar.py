"""Grammars: what they allow, when they are finished, their bounds, and the mask that they become."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLParserLimits
from tokenizers import Tokenizer

from kaminari.engine.answer_format import AnswerFormat, ChoiceFormat, GrammarFormat, JsonFormat, RegexFormat
from kaminari.engine.constraints import NO_TOKEN, TOO_COSTLY, Constraint
from kaminari.engine.errors import RequestError
from kaminari.engine.grammar import MAX_BLANKS, MAX_TEXT, GrammarCompiler
from kaminari.engine.token_mask import token_mask
from kaminari.model.family import CheckpointError
from tests.checkpoints import build_tokenizer
from tests.engine.random_schemas import random_schema
from tests.patience import processor_time

CASES = json.loads((Path(__file__).parents[1] / "cases" / "files" / "schemas.json").read_text())
TOKENIZER: Tokenizer = build_tokenizer()
END = TOKENIZER.token_to_id("<|im_end|>")
VOCABULARY = TOKENIZER.get_vocab_size(with_added_tokens=True)
COMPILER = GrammarCompiler(TOKENIZER, {END})
CPU = torch.device("cpu")
PAIR = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def ids(text: str) -> list[int]:
    return [token for character in text for token in TOKENIZER.encode(character).ids]


def allowed(constraint: Constraint) -> set[int]:
    mask = token_mask([constraint], VOCABULARY, CPU)
    assert mask is not None
    return set(mask[0].nonzero().flatten().tolist())


def taken(form: AnswerFormat, text: str) -> tuple[int, Constraint]:
    """How many tokens of a text the grammar takes, and its state then."""
    constraint = COMPILER.compile(form).new()
    for count, token in enumerate(ids(text)):
        if token not in allowed(constraint):
            return count, constraint
        constraint.accept(token)
    return len(ids(text)), constraint


def matches(form: AnswerFormat, text: str) -> bool:
    """Whether the answer may be this text, and end there."""
    count, constraint = taken(form, text)
    return count == len(ids(text)) and (constraint.finished or END in allowed(constraint))


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (
            JsonFormat(PAIR),
            ['{"a":1,"b":"x"}', '{ "a" : -7,\n"b": "ß\\n" }'],
            ['{"a":1}', '{"a":1.5,"b":""}'],
        ),
        (JsonFormat({"enum": ["red", 3]}), ['"red"', "3"], ['"re"', "4"]),
        (JsonFormat(True), ["null", "[1,2]", '"x"'], ["nul", ""]),
        (RegexFormat("[0-9]{3}-(a|b)+"), ["123-ab", "000-b"], ["12-a", "123-", "123-abc"]),
        (RegexFormat('a/"b\\n'), ['a/"b\n'], ["a/"]),
        (ChoiceFormat(("red", "blue", "blueish")), ["red", "blue", "blueish"], ["re", "bluei"]),
        (ChoiceFormat(('a"b', "x\ny", "(.*)", " ", "日本")), ['a"b', "x\ny", "(.*)", " ", "日本"], ["(x)"]),
        (GrammarFormat('start: "a" b\nb: /[0-9]+/'), ["a1", "a42"], ["a", "b1"]),
        (GrammarFormat('root ::= "yes" | "no"'), ["yes", "no"], ["maybe"]),
    ],
    ids=str,
)
def test_a_grammar_takes_what_it_says_and_nothing_else(
    form: AnswerFormat, right: list[str], wrong: list[str]
) -> None:
    for text in right:
        assert matches(form, text), text
    for text in wrong:
        assert not matches(form, text), text


def test_every_ascii_character_can_be_part_of_a_choice() -> None:
    text = "".join(map(chr, range(1, 128)))
    for character in text:
        assert matches(ChoiceFormat((character, text)), character)


def test_a_finished_answer_is_known_at_once_and_an_open_one_is_not() -> None:
    count, constraint = taken(JsonFormat(PAIR), '{"a":1,"b":"x"')
    assert (count, constraint.finished) == (14, False)
    constraint.accept(ids("}")[0])
    assert constraint.finished
    assert not constraint.failed
    _, longer = taken(ChoiceFormat(("blue", "blueish")), "blue")
    assert not longer.finished
    assert END in allowed(longer)


@pytest.mark.parametrize("place", ["{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,"b":"x"'])
@pytest.mark.parametrize("blank", [" ", "\n"])
def test_blanks_between_tokens_are_bounded(place: str, blank: str) -> None:
    """Case so-whitespace."""
    count, _ = taken(JsonFormat(PAIR), place + blank * 50)
    assert count == len(ids(place)) + MAX_BLANKS


def test_a_rollback_forgets_tokens() -> None:
    _, constraint = taken(JsonFormat(PAIR), '{"a":')
    before = allowed(constraint)
    for token in ids('1,"b'):
        constraint.accept(token)
    constraint.rollback(4)
    assert allowed(constraint) == before
    assert not constraint.failed


def test_choices_of_one_grammar_do_not_see_one_another() -> None:
    grammar = COMPILER.compile(JsonFormat(PAIR))
    first, second = grammar.new(), grammar.new()
    fresh = allowed(second)
    for token in ids('{"a"'):
        first.accept(token)
    assert allowed(second) == fresh == allowed(grammar.new())
    assert allowed(first) != fresh


def test_a_forbidden_token_makes_it_fail_with_an_empty_mask() -> None:
    constraint = COMPILER.compile(JsonFormat(PAIR)).new()
    constraint.accept(ids("x")[0])
    assert constraint.failed
    assert not constraint.finished
    assert allowed(constraint) == set()


def test_a_grammar_past_the_librarys_bounds_is_called_too_costly() -> None:
    compiler = GrammarCompiler(TOKENIZER, {END})
    compiler._limits = LLParserLimits(max_items_in_row=60, verbose_errors=False)
    constraint = compiler.compile(GrammarFormat('start: e\ne: e e e | e e | "a" | "ab" | "b"')).new()
    for token in ids("a" * 100):
        if not allowed(constraint):
            break
        constraint.accept(token)
    assert constraint.failed
    assert constraint.complaint == TOO_COSTLY


def test_a_token_that_is_forbidden_is_no_matter_of_cost() -> None:
    constraint = COMPILER.compile(RegexFormat("a")).new()
    constraint.accept(ids("b")[0])
    assert not allowed(constraint)
    assert constraint.complaint == NO_TOKEN


def test_no_control_token_but_the_end_is_ever_allowed() -> None:
    special = {i for i, token in TOKENIZER.get_added_tokens_decoder().items() if token.special}
    rng = random.Random(0)
    for form in (JsonFormat({}), RegexFormat("(?s:.*)")):
        constraint = COMPILER.compile(form).new()
        for _ in range(60):
            tokens = allowed(constraint)
            assert tokens & special <= {END}
            if not tokens - {END}:
                break
            constraint.accept(rng.choice(sorted(tokens - {END})))


def test_the_mask_of_a_step_has_a_row_for_each_row() -> None:
    padded = VOCABULARY + 21
    constraint = COMPILER.compile(ChoiceFormat(("a",))).new()
    assert token_mask([None, None], padded, CPU) is None
    mask = token_mask([None, constraint], padded, CPU)
    assert mask is not None
    assert (mask.shape, mask.dtype) == ((2, padded), torch.bool)
    assert mask[0].all()
    assert mask[1].nonzero().flatten().tolist() == ids("a")


def hostile() -> list[tuple[str, AnswerFormat]]:
    names = [f"p{index}" for index in range(3000)]
    alternatives = [{"type": "string", "pattern": f"a{index}.*"} for index in range(20)]
    rules = "\n".join(f"r{n}: r{n + 1}" for n in range(4000))
    doubled = "\n".join(f"R{n}: R{n + 1} R{n + 1}" for n in range(300)) + '\nR{}: "a"'
    return [
        *((name, JsonFormat(schema)) for name, schema in CASES.items()),
        ("look-around", RegexFormat("(?<!q)+")),
        ("parentheses", RegexFormat("(" * 5000 + "a" + ")" * 5000)),
        ("counted", RegexFormat("((a{1,100}){1,100}){1,100}")),
        ("alternatives", RegexFormat("(" + "|".join("a" * n for n in range(350)) + ")*")),
        ("long", RegexFormat("a" * (MAX_TEXT + 1))),
        ("surrogate", RegexFormat("\ud800")),
        ("no choice", ChoiceFormat(())),
        ("many choices", ChoiceFormat(tuple(f"choice number {n}" for n in range(3000)))),
        ("not a grammar", GrammarFormat("((((")),
        ("nested grammar", GrammarFormat("root ::= " + "(" * 3000 + '"a"' + ")" * 3000)),
        ("no way out", GrammarFormat('start: start "a"')),
        ("wide object", JsonFormat({"properties": {name: {} for name in names}, "required": names})),
        ("intersections", JsonFormat({"allOf": [{"anyOf": alternatives}] * 12})),
        ("unsupported", JsonFormat({"not": {"type": "string"}})),
        ("overlap", JsonFormat({"oneOf": [{"type": "integer"}, {"type": "number"}]})),
        ("remote", JsonFormat({"$ref": "http://127.0.0.1/schema"})),
        ("backwards", JsonFormat({"type": "string", "minLength": 5, "maxLength": 2})),
        ("rule chain", GrammarFormat(f"start: r0\n{rules}\nr4000: /x/")),
        ("many rules", GrammarFormat(f"start: R0\n{doubled.format(300)}")),
        ("long grammar", GrammarFormat("start: /" + "a?" * 9000 + "/")),
        ("intersected", GrammarFormat("start: R\nR: " + " & ".join(f"/(.|x)*{n}/" for n in range(20)))),
        ("complements", GrammarFormat("start: R\nR: " + "~" * 50 + "/a/")),
        ("schema in a grammar", GrammarFormat('start: %json {"$ref": "#"}')),
        ("option in a grammar", GrammarFormat('%llguidance {"no_forcing": false}\nstart: /a/')),
        ("an operator in quotes", GrammarFormat('start: "' + "&" * 50 + '" /~{50}[%]json/')),
    ]


MUST_BE_REFUSED = {
    *("cycle_no_base", "cycle_required", "deep_300", "regex_nothing_to_repeat", "regex_parens", "false"),
    *("look-around", "parentheses", "long", "surrogate", "no choice", "not a grammar", "nested grammar"),
    *("no way out", "intersections", "unsupported", "overlap", "remote", "backwards"),
    *("rule chain", "many rules", "long grammar", "intersected", "complements"),
    *("schema in a grammar", "option in a grammar"),
}


@pytest.mark.parametrize(
    ("name", "form"), hostile(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_hostile_forms_compile_or_are_refused_within_a_second(name: str, form: AnswerFormat) -> None:
    """Case so-deep, and more of its kind."""
    refusal: RequestError | None = None
    with processor_time(1):
        try:
            COMPILER.compile(form).new()
        except RequestError as error:
            refusal = error
    assert (refusal is not None) == (name in MUST_BE_REFUSED)
    if refusal is not None:
        assert refusal.field == form.field
        assert len(refusal.message) < 300


def test_a_regex_that_grows_without_bound_ends_or_goes_on_but_never_hangs() -> None:
    constraint = COMPILER.compile(RegexFormat("(\\w{1,500}\\s){1,500}")).new()
    rng = random.Random(1)
    for _ in range(100):
        with processor_time(0.5):
            tokens = allowed(constraint) - {END}
        constraint.accept(rng.choice(sorted(tokens)))


def test_a_checkpoint_without_an_end_token_in_its_vocabulary_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="end token"):
        GrammarCompiler(TOKENIZER, {VOCABULARY})


def test_a_mask_is_all_that_is_legal_in_every_spelling() -> None:
    """Text without an alternative may come in any tokens, and a shown added token is one of them."""
    constraint = COMPILER.compile(ChoiceFormat(("<tool_call> the end",))).new()
    single = TOKENIZER.token_to_id("<tool_call>")
    assert {single, *ids("<")} <= allowed(constraint)
    constraint.accept(single)
    assert not constraint.failed


def test_so_spec() -> None:
    """Case so-spec: no token is forced on an answer; how its text is cut into tokens is all the same."""
    rng = random.Random(8)
    finished = 0
    for _ in range(60):
        grammar = COMPILER.compile(JsonFormat(random_schema(rng)))
        constraint, made = grammar.new(), list[int]()
        while len(made) < 400 and not constraint.finished:
            tokens = sorted(allowed(constraint) - {END}) or [END]
            made.append(rng.choice(tokens))
            constraint.accept(made[-1])
        text = TOKENIZER.decode(made)
        if not constraint.finished:
            continue
        finished += 1
        value = json.loads(text)
        for spelling in (TOKENIZER.encode(text).ids, ids(text)):
            assert json.loads(TOKENIZER.decode(spelling)) == value
            other = grammar.new()
            for token in spelling:
                assert token in allowed(other)
                other.accept(token)
            assert other.finished
    assert finished >= 50


def test_the_bytes_of_tokens_are_those_of_the_detokenizer() -> None:
    """A grammar sees the same text that is shown: every shown token matches its own text."""
    for token in range(VOCABULARY):
        text = TOKENIZER.decode([token], skip_special_tokens=True)
        if not text or "\ufffd" in text:
            continue
        constraint = COMPILER.compile(RegexFormat(re.escape(text))).new()
        assert token in allowed(constraint), (token, text)


def test_forms_of_any_json_value_may_be_handed_over() -> None:
    odd: list[Any] = [{"type": 5}, {"properties": 3}, {"enum": 7}, {"$defs": []}, {"pattern": []}]
    for schema in odd:
        try:
            COMPILER.compile(JsonFormat(schema))
        except RequestError as error:
            assert error.field == "response_format"  # noqa: PT017


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_mask_on_a_device_is_that_of_the_host() -> None:
    rows = [COMPILER.compile(form).new() for form in (JsonFormat(PAIR), ChoiceFormat(("a", "b")))]
    host = token_mask([rows[0], None, rows[1]], VOCABULARY + 5, CPU)
    device = token_mask([rows[0], None, rows[1]], VOCABULARY + 5, torch.device("cuda", 0))
    assert host is not None
    assert device is not None
    assert torch.equal(device.cpu(), host)
