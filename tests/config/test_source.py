"""A model source is the demo, a folder or a hub id, told apart by one string."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaminari.config import Demo, Folder, Hub, ModelSettings, parse_source


def test_demo() -> None:
    assert parse_source("demo") == parse_source(" demo ") == Demo()
    assert ModelSettings().name == "kaminari-demo"


def test_hub_ids() -> None:
    assert parse_source("Qwen/Qwen3-VL-2B-Instruct") == Hub("Qwen/Qwen3-VL-2B-Instruct")
    assert parse_source("org/name@refs/pr/3") == Hub("org/name", "refs/pr/3")
    assert parse_source("org/name@a--b") == Hub("org/name", "a--b")
    assert str(Hub("org/name", "abc")) == "org/name@abc"
    assert Hub("org/name", "abc").name == "org/name"


@pytest.mark.parametrize("text", ["./here", "../up", ".", "/no/such/folder", "~/models/mine"])
def test_what_looks_like_a_path_is_a_folder_even_if_it_is_not_there(text: str) -> None:
    source = parse_source(text)
    assert isinstance(source, Folder)
    assert "~" not in str(source.path)


def test_a_bare_name_is_a_folder_only_where_one_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert parse_source("models/mine") == Folder(Path("models/mine"))
    assert parse_source("models/other") == Hub("models/other")
    assert parse_source("models") == Folder(Path("models"))
    (tmp_path / "demo").mkdir()
    assert parse_source("demo") == Demo()
    assert parse_source("./demo") == Folder(Path("demo"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "nope",
        "a/b/c",
        "org/",
        "a/b/",
        "org/name@",
        "-org/name",
        "org/na me",
        "org//name",
        "a" * 300,
        "org/" + "n" * 5000,
        "hf://org/name",
        "org/na--me",
        "org/na..me",
        "org/name.git",
        "org/name.",
        "https://example.org/x",
    ],
)
def test_what_is_none_of_the_three_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        parse_source(text)


def test_a_source_reads_back_from_its_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for text in ("demo", "mine", "./not-there", "/abs/olute", "../up", "org/name", "org/name@v1"):
        source = parse_source(text)
        assert parse_source(str(source)) == source


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Folder(Path()).name == tmp_path.name
    assert Folder(Path("/models/mine/")).name == "mine"
    assert Folder(Path("/")).name == "model"
    assert ModelSettings(source=Hub("a/b"), served_name="other").name == "other"


def test_a_path_object_is_a_folder(tmp_path: Path) -> None:
    assert ModelSettings(source=tmp_path).source == Folder(tmp_path)


def test_an_unknown_home_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="home folder"):
        parse_source("~no-such-user-on-this-machine/x")
