"""`kaminari smoke` over a real socket: against the demo, and against servers that answer wrongly."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kaminari.cli.main import main
from kaminari.config import EngineSettings, Settings
from kaminari.engine.conversation import Conversation, PicturePart, TextPart
from kaminari.engine.engine import Engine
from kaminari.engine.events import ChoiceFinished, Delta, Event, FinishReason
from kaminari.smoke.battery import ITEMS
from tests.openai_api.fake_engine import INFO, FakeEngine, finished
from tests.openai_api.harness import serving

RIGHT = {
    "What is the capital of France?": "Paris",
    "What is 3+4?": "7",
    "Read the text.": "TOTAL 12.34",
    "Describe both images.": "a red circle and a blue square",
    "What shape is it?": "a triangle",
    "What color is it?": "green",
    "¿Cuál es la capital de Francia?": "París",
    "¿De qué color es?": "azul",
}
SMALL = "--skip", "large"


class Parrot(FakeEngine):
    """Answers each question with a fixed line; the shape question in turn, as the battery asks it."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self._lines = dict(RIGHT)
        self._shapes = ["a red circle", "a red circle", "a blue square"]

    def _say(self, _: Any) -> Sequence[Sequence[Event]]:
        parts = self.conversations[-1].messages[-1].parts
        question = next(part.text for part in parts if isinstance(part, TextPart))
        line = self._shapes.pop(0) if question == "What shape and color?" else self._lines[question]
        return [[Delta(0, line, (1,)), ChoiceFinished(0, FinishReason.STOP), finished(1)]]

    def answer(self, question: str, line: str) -> Parrot:
        self._lines[question] = line
        return self


@pytest.fixture(scope="module")
def demo() -> Iterator[Engine]:
    with Engine.load(Settings(engine=EngineSettings(slots=2, threads=1))) as engine:
        yield engine


def outcome(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, dict[str, Any]]:
    code = main(["smoke", *line, "--json"])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, report


def test_the_demo_passes_what_its_page_lists(demo: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(demo) as running:
        code, report = outcome(capsys, running.url, *SMALL)
    assert [item["name"] for item in report["items"] if not item["passed"]] == []
    assert code == 0
    assert report["passed"] is True
    assert report["model"] == "kaminari-demo"
    assert [item["name"] for item in report["items"]] == [item.name for item in ITEMS if item.name != "large"]
    reading = next(item for item in report["items"] if item["name"] == "reading")
    assert reading["answers"] == ["TOTAL 12.34"]


def test_the_large_page_reaches_the_demo_and_is_too_hard_for_it(
    demo: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(demo) as running:
        code, report = outcome(capsys, running.url, "--only", "large")
    (item,) = report["items"]
    assert code == 1
    assert len(item["answers"]) == 1
    assert "does not say NORTH 4721" in item["problem"]


def test_a_table_of_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Parrot()) as running:
        assert main(["smoke", running.url, *SMALL]) == 0
    out = capsys.readouterr().out
    for item in ITEMS:
        assert (item.name in out) is (item.name != "large")
    assert "FAIL" not in out
    assert "7 of 7 items passed" in out


@pytest.mark.parametrize(
    ("question", "line", "name"),
    [
        ("What is 3+4?", "12", "text"),
        ("Read the text.", "TOTAL 12.43", "reading"),
        ("Describe both images.", "a blue square and a red circle", "two"),
        ("What color is it?", "red", "followup"),
        ("¿De qué color es?", "blue", "spanish"),
    ],
)
def test_a_wrong_answer_fails_its_item_and_no_other(
    question: str, line: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Parrot().answer(question, line)) as running:
        assert main(["smoke", running.url, *SMALL]) == 1
        assert f"6 of 7 items passed; failed: {name}\n" in capsys.readouterr().out


def test_a_server_that_answers_from_its_cache_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    stale = Parrot()
    stale._shapes = ["a red circle"] * 3
    with serving(stale) as running:
        code, report = outcome(capsys, running.url, *SMALL)
    assert code == 1
    assert [item["name"] for item in report["items"] if not item["passed"]] == ["cache"]


def test_what_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Parrot()
    with serving(engine) as running:
        outcome(capsys, running.url + "/v1/", "--only", "two,followup", "--skip=two", "--max-tokens", "9")
    assert [params.max_tokens for params in engine.params] == [9, 9]
    assert [params.temperature for params in engine.params] == [0, 0]
    first, second = engine.conversations
    assert shown(first) == [1]
    assert shown(second) == [1, 0, 0]


def shown(conversation: Conversation) -> list[int]:
    """Pictures of each message."""
    return [sum(isinstance(part, PicturePart) for part in message.parts) for message in conversation.messages]


def test_a_refused_request_fails_its_item_with_the_servers_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(FakeEngine(info=replace(INFO, model="other"))) as running:
        code, report = outcome(capsys, running.url, "--model", "mine", "--only", "text")
    assert code == 1
    assert "HTTP 404" in report["items"][0]["problem"]
    assert report["items"][0]["answers"] == []


@pytest.mark.parametrize("more", [(), ("--model", "m")])
def test_an_unreachable_server_is_one_line(more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound and never listening: nobody else can take the port
        taken.bind(("127.0.0.1", 0))
        code = main(["smoke", f"127.0.0.1:{taken.getsockname()[1]}", *more])
    out, err = capsys.readouterr()
    assert code == 1
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("kaminari: nothing answers at http://127.0.0.1:")


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [
        ([], "URL"),
        (["ftp://host"], "not an HTTP address"),
        (["host", "--only", "colours"], "no such item: 'colours'; there are text"),
        (["host", "--timeout", "0"], "above 0"),
        (["host", "--timeout", "soon"], "--timeout"),
        (["host", "--max-tokens", "0"], "at least 1"),
    ],
)
def test_a_wrong_line_is_exit_code_2(
    arguments: list[str], piece: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["smoke", *arguments])
    assert leaving.value.code == 2
    assert piece in capsys.readouterr().err


def test_no_item_left_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "host", "--only", "text", "--skip", "text"]) == 2
    assert capsys.readouterr().err == "kaminari: --only and --skip leave no item\n"


def test_the_battery_says_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["smoke", "--help"])
    assert leaving.value.code == 0
    out = capsys.readouterr().out
    assert all(item.name in out and item.shows in out for item in ITEMS)
    assert len({item.name for item in ITEMS}) == len(ITEMS)
