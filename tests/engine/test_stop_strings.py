"""Stop strings against a plain search of the whole text, for any way of cutting it into pieces."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaminari.engine.stop_strings import StopMatcher

LETTERS = st.text(alphabet="ab", max_size=40)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=5).map(tuple)


def oracle(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """What is shown of a whole text, and its stop: the first to end, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: text.find(stop)], stop
    return text, None


def run(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        if stopped is not None:
            assert matcher.flush() == ""
            return shown, stopped
    return shown + matcher.flush(), None


def cut(text: str, borders: list[int]) -> list[str]:
    edges = [0, *sorted(min(border, len(text)) for border in borders), len(text)]
    return [text[low:high] for low, high in pairwise(edges)]


@settings(max_examples=500, deadline=None)
@given(LETTERS, STOPS, st.lists(st.integers(0, 40), max_size=12))
def test_any_cutting_shows_what_a_search_of_the_whole_shows(
    text: str, stops: tuple[str, ...], borders: list[int]
) -> None:
    expected = oracle(text, stops)
    assert run(cut(text, borders), stops) == expected
    assert run([text], stops) == expected
    assert run(list(text), stops) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=4).map(tuple), st.data())
def test_any_characters_do(text: str, stops: tuple[str, ...], data: st.DataObject) -> None:
    if stops:
        text += data.draw(st.sampled_from(stops)) + data.draw(st.text(max_size=5))
    assert run(cut(text, data.draw(st.lists(st.integers(0, 40), max_size=6))), stops) == oracle(text, stops)


@settings(max_examples=300, deadline=None)
@given(LETTERS, STOPS)
def test_only_what_could_become_a_stop_is_held_back(text: str, stops: tuple[str, ...]) -> None:
    matcher = StopMatcher(stops)
    shown, seen = "", ""
    for character in text:
        part, stopped = matcher.push(character)
        shown += part
        seen += character
        if stopped is not None:
            return
        beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        held = max((len(begin) for begin in beginnings if seen.endswith(begin)), default=0)
        assert shown == seen[: len(seen) - held]


def test_a_stop_across_pieces_is_never_shown() -> None:
    matcher = StopMatcher(("</answer>",))
    assert matcher.push("42</ans") == ("42", None)
    assert matcher.push("wer") == ("", None)
    assert matcher.push("> and more") == ("", "</answer>")


def test_what_was_held_back_is_not_lost() -> None:
    matcher = StopMatcher(("</answer>",))
    assert matcher.push("a </ans") == ("a ", None)
    assert matcher.push("!") == ("</ans!", None)
    assert matcher.push("<") == ("", None)
    assert matcher.flush() == "<"
    assert matcher.flush() == ""


@pytest.mark.parametrize(
    ("stops", "text", "shown", "stopped"),
    [
        (("abcd", "bc"), "xabcd", "xa", "bc"),  # inside another: ends first
        (("ab", "abc"), "xabc", "x", "ab"),  # begins another
        (("bc", "abc"), "xabc", "x", "abc"),  # ends another: the longest
        (("abc", "bc"), "xabc", "x", "abc"),  # whatever their order
        (("aa",), "aaa", "", "aa"),  # overlaps itself
        (("aab",), "aaaab", "aa", "aab"),
        (("a", "a"), "ba", "b", "a"),
        (("abab", "ba"), "abba", "ab", "ba"),
    ],
)
def test_stops_that_overlap(stops: tuple[str, ...], text: str, shown: str, stopped: str) -> None:
    assert run([text], stops) == run(list(text), stops) == (shown, stopped)


def test_after_a_stop_nothing_is_shown() -> None:
    matcher = StopMatcher(("\n",))
    assert matcher.push("one\ntwo") == ("one", "\n")
    assert matcher.push("three") == ("", "\n")
    assert matcher.flush() == ""


def test_without_stops_all_text_passes_at_once() -> None:
    matcher = StopMatcher(())
    assert matcher.push("anything</s>") == ("anything</s>", None)
    assert matcher.flush() == ""


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("a", ""))


@pytest.mark.parametrize("piece", [1, 4, 5000])
def test_hostile_stops_and_text_take_linear_time(piece: int) -> None:
    """16 stops of 1024 characters that all nearly match everywhere."""
    stops = (*("a" * (1023 - index) + "b" + "a" * index for index in range(15)), "a" * 511 + "b" * 513)
    text = ("a" * 1022 + "c") * 50 + ("a" * 600 + "b" * 512) * 50
    start = time.process_time()
    shown, stopped = run([text[at : at + piece] for at in range(0, len(text), piece)], stops)
    # Comparing every stop at every character takes minutes.
    assert time.process_time() - start < 5
    assert (shown, stopped) == (text, None)
