"""What an answer says, thinks and calls, as events; the same however its text is cut."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kaminari.engine.events import Delta, ReasoningDelta, ToolCallDelta
from kaminari.engine.parsing import PLAIN, AnswerReader, AnswerSyntax
from kaminari.model.family import ThinkTags
from kaminari.model.qwen3_vl.calls import HermesCallFormat

THINK = ThinkTags("<think>", "</think>")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
MAY_THINK = AnswerSyntax(think=THINK)
THINKS = AnswerSyntax(think=THINK, thinking=True)
BOTH = AnswerSyntax(HermesCallFormat(), think=THINK, thinking=True)


@dataclass
class Read:
    text: str = ""
    thought: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


def read(syntax: AnswerSyntax, *pieces: str) -> tuple[Read, AnswerReader]:
    reader, result = syntax.reader(2), Read()
    parts = [part for number, piece in enumerate(pieces) for part in reader.push(piece, (number,))]
    for part in [*parts, *reader.flush()]:
        assert part.choice == 2
        match part:
            case Delta():
                result.text += part.text
                result.token_ids += part.token_ids
            case ReasoningDelta():
                assert part.text
                result.thought += part.text
            case ToolCallDelta(id=None):
                assert part.name is None
                assert part.index == len(result.calls) - 1
                result.calls[-1][1] += part.arguments
            case ToolCallDelta():
                assert part.index == len(result.calls)
                assert part.name is not None
                result.calls.append([part.name, part.arguments])
                result.ids.append(str(part.id))
    assert result.token_ids == list(range(len(pieces)))
    return result, reader


@pytest.mark.parametrize(
    ("syntax", "answer", "thought", "text"),
    [
        (PLAIN, "<think>a</think>\n\nb<tool_call>", "", "<think>a</think>\n\nb<tool_call>"),
        (MAY_THINK, "b\n", "", "b\n"),
        (MAY_THINK, "\n\nb", "", "\n\nb"),
        (MAY_THINK, "<think>\nhm\n\nyes\n</think>\n\nb\n", "hm\n\nyes", "b\n"),
        (MAY_THINK, "\n<think>\n\n</think>\n\nb", "", "b"),
        (MAY_THINK, "<think", "", "<think"),
        (MAY_THINK, "a <think>b</think>", "", "a <think>b</think>"),
        (THINKS, "\nhm </thin </think>b</think>", "hm </thin ", "b</think>"),
        (THINKS, "hm\n", "hm", ""),
        (THINKS, "hm </thi", "hm </thi", ""),
        (THINKS, "", "", ""),
        (BOTH, f"I call {CALL}\n</think>\n\nso\n{CALL}", f"I call {CALL}", "so"),
    ],
    ids=range(12),
)
def test_reasoning_is_parted_however_the_answer_is_cut(
    syntax: AnswerSyntax, answer: str, thought: str, text: str
) -> None:
    whole, _ = read(syntax, answer)
    assert (whole.thought, whole.text) == (thought, text)
    assert len(whole.calls) == (syntax is BOTH)
    for pieces in ([*answer], *([answer[:cut], answer[cut:]] for cut in range(1, len(answer)))):
        parted, _ = read(syntax, *pieces)
        assert (parted.thought, parted.text, parted.calls) == (thought, text, whole.calls)


def test_calls_have_an_id_each_and_their_arguments_join() -> None:
    syntax = AnswerSyntax(HermesCallFormat())
    result, reader = read(syntax, *f"Well.\n{CALL}\n{CALL}")
    assert result.text == "Well."
    assert result.calls == [["f", '{"a": 1}'], ["f", '{"a": 1}']]
    assert len(set(result.ids)) == 2
    assert all(call_id.startswith("call_") for call_id in result.ids)
    assert (reader.called, reader.complete) == (True, False)


def test_a_call_that_is_cut_is_no_call() -> None:
    for end in range(1, len(CALL)):
        _, reader = read(AnswerSyntax(HermesCallFormat()), f"Well.\n{CALL[:end]}")
        assert not reader.called or "}}" in CALL[:end]
        _, reader = read(AnswerSyntax(HermesCallFormat()), f"{CALL}\n{CALL[:end]}")
        assert reader.called or "name" in CALL[:end]
    assert read(AnswerSyntax(HermesCallFormat()), CALL)[1].called


def test_a_single_call_completes_the_answer_and_nothing_follows() -> None:
    syntax = AnswerSyntax(HermesCallFormat(), single_call=True)
    result, reader = read(syntax, f"a\n{CALL}\n{CALL} b")
    assert (result.text, len(result.calls), reader.complete) == ("a", 1, True)


def test_the_reader_knows_while_it_reads_reasoning() -> None:
    reader = THINKS.reader(0)
    assert reader.reasoning
    reader.push("hm</think>", (1,))
    assert not reader.reasoning
    assert not PLAIN.reader(0).reasoning
