"""A quantization is none, a format or a folder, told apart by one string; and where standard packs lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaminari.config import (
    Demo,
    Folder,
    Hub,
    ModelSettings,
    NoQuantization,
    PackFolder,
    PackFormat,
    StandardPack,
    load_settings,
    parse_quantization,
    standard_place,
)
from kaminari.config.problems import ConfigError


def test_the_words() -> None:
    assert parse_quantization(" none ") == NoQuantization()
    assert parse_quantization("int8") == StandardPack(PackFormat.INT8)
    assert parse_quantization("int4") == StandardPack(PackFormat.INT4)


@pytest.mark.parametrize("text", ["./mine", "/no/such/pack", "~/packs/mine"])
def test_what_looks_like_a_path_is_a_folder_even_if_it_is_not_there(text: str) -> None:
    parsed = parse_quantization(text)
    assert isinstance(parsed, PackFolder)
    assert "~" not in str(parsed.path)


def test_a_bare_name_is_a_folder_only_where_one_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "int4").mkdir()
    assert parse_quantization("mine") == PackFolder(Path("mine"))
    assert parse_quantization("int4") == StandardPack(PackFormat.INT4)
    with pytest.raises(ValueError, match="nor the folder of a pack"):
        parse_quantization("other")


@pytest.mark.parametrize("text", ["", "int3", "INT4", "4", "q4_0", "true", "a\0b"])
def test_what_is_neither_is_reported_with_its_variable(text: str) -> None:
    with pytest.raises(ConfigError, match="KAMINARI_MODEL__QUANTIZATION"):
        load_settings(environ={"KAMINARI_MODEL__QUANTIZATION": text})


@pytest.mark.parametrize("text", ["none", "int8", "int4", "/packs/mine", "./mine"])
def test_it_reads_back_as_it_is_spelled(text: str) -> None:
    settings = load_settings({"model.quantization": text}, environ={})
    assert load_settings({"model.quantization": str(settings.model.quantization)}, environ={}) == settings


def test_where_packs_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    packs = tmp_path / "kaminari" / "packs"
    assert standard_place(Demo(), PackFormat.INT8) == packs / "kaminari-demo" / "int8"
    assert standard_place(Folder(Path("/models/mine")), PackFormat.INT4) == packs / "mine" / "int4"
    assert standard_place(Hub("org/name"), PackFormat.INT4) == packs / "org--name" / "int4"
    assert standard_place(Hub("org/name", "refs/pr/3"), PackFormat.INT4) == (
        packs / "org--name@refs--pr--3" / "int4"
    )
    assert ModelSettings().pack_folder is None
    assert ModelSettings(quantization=Path("here")).pack_folder == Path("here")
    asked = load_settings({"model.quantization": "int8", "model.served_name": "other"}, environ={})
    assert asked.model.pack_folder == packs / "kaminari-demo" / "int8"
