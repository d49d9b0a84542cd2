"""Units in types: what is read, what is refused, and that what is printed reads back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ByteSize, TypeAdapter, ValidationError

from kaminari.config.units import (
    ApiKeys,
    AutoContext,
    AutoSlots,
    Bytes,
    Count,
    Duration,
    Host,
    Name,
    Names,
    OptionalBytes,
    OptionalFolder,
    Origins,
    Port,
    RemoteHosts,
    spell,
)


def read(kind: Any, value: Any) -> Any:
    return TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("10s", 10),
        (" 10 s ", 10),
        ("10", 10),
        (10, 10),
        ("2m", 120),
        ("2MIN", 120),
        ("1h", 3600),
        ("1.5h", 5400),
        ("PT5S", 5),
    ],
)
def test_durations(text: Any, seconds: float) -> None:
    assert read(Duration, text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-1s", "-1", "soon", "10 parsecs", "1e400", "s", "31d", "800h", True, None]
)
def test_durations_refused(text: Any) -> None:
    with pytest.raises(ValidationError):
        read(Duration, text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GiB", 5 * 2**30),
        ("5gib", 5 * 2**30),
        ("800MB", 800_000_000),
        ("1.5 GiB", 3 * 2**29),
        ("1024", 1024),
        (7, 7),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert read(Bytes, text) == size
    assert read(OptionalBytes, text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "0.5B", "5 frogs", "GiB", "inf", True, "none"])
def test_sizes_refused(text: Any) -> None:
    with pytest.raises(ValidationError):
        read(Bytes, text)


@pytest.mark.parametrize("text", ["none", " None ", "NONE", None])
def test_a_size_may_be_none_where_that_means_something(text: Any) -> None:
    assert read(OptionalBytes, text) is None


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (Port, [0, "0", 1, "65535"]),
        (Count, [1, "1", "1000000"]),
        (AutoSlots, ["auto", 1, "256"]),
        (AutoContext, ["auto", 16, "262144"]),
        (Host, ["127.0.0.1", "::1", "0.0.0.0", "localhost", "fe80::1%eth0", "my-host.example"]),
        (Name, ["a", " padded ", "Qwen/Qwen3-VL"]),
    ],
)
def test_values_in_range(kind: Any, good: list[Any]) -> None:
    for value in good:
        assert read(kind, value) is not None


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (Port, [-1, "65536", "http", "80.5", "", None, True]),
        (Count, [0, -1, "x", "1.5", "", None, True, "inf", "nan"]),
        (AutoSlots, [0, 257, "Auto!", "", "1.5", None, True]),
        (AutoContext, [15, "-16", "lots", "", None, False]),
        (Host, ["", " ", "a b", "http://localhost", "a\nb", None]),
        (Name, ["", "  ", "x" * 257, None, 3]),
    ],
)
def test_values_out_of_range(kind: Any, bad: list[Any]) -> None:
    for value in bad:
        with pytest.raises(ValidationError):
            read(kind, value)


@given(st.integers(min_value=1, max_value=2**50))
def test_a_printed_size_reads_back(size: int) -> None:
    assert read(Bytes, spell(ByteSize(size))) == size


@given(st.integers(min_value=1, max_value=30 * 24 * 3600 * 10**6))
def test_a_printed_duration_reads_back(microseconds: int) -> None:
    duration = timedelta(microseconds=microseconds)
    assert read(Duration, spell(duration)) == duration


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(seconds=120), "2m"),
        (timedelta(hours=1), "1h"),
        (timedelta(seconds=0.25), "0.25s"),
        (timedelta(seconds=90), "90s"),
        (ByteSize(2**26), "64MiB"),
        (ByteSize(800_000_000), "781250KiB"),
        (ByteSize(3), "3B"),
        ("auto", "auto"),
    ],
)
def test_spelling(value: Any, text: str) -> None:
    assert spell(value) == text


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Names, '["a", " b "]', ("a", "b")),
        (Origins, '["*", "https://ui.example.org:8443"]', ("*", "https://ui.example.org:8443")),
        (
            RemoteHosts,
            '["Images.Example.org.", "[::1]", "10.0.0.1"]',
            ("images.example.org", "::1", "10.0.0.1"),
        ),
        (RemoteHosts, "[]", ()),
    ],
)
def test_lists_read_json_and_print_back(kind: Any, text: str, value: tuple[str, ...]) -> None:
    assert read(kind, text) == value
    assert read(kind, spell(value)) == value
    assert read(kind, list(value)) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Names, "a,b"),
        (Names, '"a"'),
        (Names, '{"a": 1}'),
        (Names, '[""]'),
        (Names, "[1]"),
        (Names, "[" * 100_000),
        (ApiKeys, '[""]'),
        (ApiKeys, '["a b"]'),
        (ApiKeys, '["schlüssel"]'),
        (ApiKeys, "key"),
        (Origins, '["localhost:3000"]'),
        (Origins, '["http://localhost:3000/"]'),
        (Origins, '["http://*.example.org"]'),
        (RemoteHosts, '["*"]'),
        (RemoteHosts, '["*.example.org"]'),
        (RemoteHosts, '["http://example.org"]'),
        (RemoteHosts, '["example.org/x"]'),
        (RemoteHosts, '[""]'),
        (OptionalFolder, " "),
    ],
)
def test_lists_and_folders_that_cannot_be_meant(kind: Any, value: str) -> None:
    with pytest.raises(ValidationError):
        read(kind, value)


def test_keys_are_not_shown() -> None:
    assert "hush" not in repr(read(ApiKeys, '["hush"]'))
