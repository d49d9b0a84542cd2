"""`file:` addresses: inside the media folder only, and nothing is learned of what lies outside."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from kaminari.config import MediaSettings, Settings
from kaminari.engine.conversation import PicturePart
from kaminari.engine.errors import RequestError
from kaminari.openai_api.media_folder import MediaFolder
from tests.cases.loading import FILES
from tests.openai_api.fake_engine import FakeEngine
from tests.openai_api.harness import CHAT, client_of, error_of, make_app

PICTURE = (FILES / "digit_1.png").read_bytes()
OUTSIDE = "names no picture inside the media folder"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A media folder `media` with pictures, beside a folder `media-secret` with one that nobody may read."""
    (tmp_path / "media" / "sub").mkdir(parents=True)
    (tmp_path / "media-secret").mkdir()
    (tmp_path / "media" / "a b.png").write_bytes(PICTURE)
    (tmp_path / "media" / "sub" / "c.png").write_bytes(PICTURE)
    (tmp_path / "media" / "empty.png").touch()
    (tmp_path / "media-secret" / "s.png").write_bytes(PICTURE)
    (tmp_path / "media" / "inside.png").symlink_to(tmp_path / "media" / "a b.png")
    (tmp_path / "media" / "outside.png").symlink_to(tmp_path / "media-secret" / "s.png")
    (tmp_path / "media" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "media" / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "media/a%20b.png",
        "media/sub/c.png",
        "media/sub/../sub/c.png",
        "media/inside.png",
        "media/up/media/sub/c.png",
    ],
)
@pytest.mark.parametrize("prefix", ["file://", "file://localhost", "FILE://", "file:"])
def test_inside(root: Path, name: str, prefix: str) -> None:
    assert MediaFolder(root / "media", 10_000).read(f"{prefix}{quote(str(root))}/{name}") == PICTURE


@pytest.mark.parametrize(
    "name",
    [
        "media-secret/s.png",
        "media/../media-secret/s.png",
        "media/%2e%2e/media-secret/s.png",
        "media/..%2fmedia-secret/s.png",
        "media/outside.png",
        "media/up/media-secret/s.png",
        "media/sub",
        "media/pipe",
        "media/nothing.png",
        "media/a%20b.png/x",
        "media/a%20b.png%00.png",
        "media/a%20b.png?x",
        "media/" + "x" * 5000,
    ],
)
def test_outside_missing_and_strange_are_one_and_the_same(root: Path, name: str) -> None:
    with pytest.raises(RequestError, match=OUTSIDE) as error:
        MediaFolder(root / "media", 10_000).read(f"file://{quote(str(root))}/{name}")
    assert str(root) not in error.value.message


@pytest.mark.parametrize(
    "url", ["file:", "file://", "file:media/a.png", "file:a.png", "file:///", "file://host/a"]
)
def test_addresses_without_an_absolute_path(root: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "media")
    (root / "media" / "a.png").write_bytes(PICTURE)
    with pytest.raises(RequestError, match=OUTSIDE):
        MediaFolder(root / "media", 10_000).read(url)


def test_sizes(root: Path) -> None:
    url = f"file://{quote(str(root))}/media/"
    assert MediaFolder(root / "media", len(PICTURE)).read(f"{url}sub/c.png") == PICTURE
    with pytest.raises(RequestError, match="larger"):
        MediaFolder(root / "media", len(PICTURE) - 1).read(f"{url}sub/c.png")
    with pytest.raises(RequestError, match="empty"):
        MediaFolder(root / "media", 10_000).read(f"{url}empty.png")


async def test_over_http_it_is_off_by_default_and_names_the_part(root: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": f"file://{quote(str(root))}/media/sub/c.png"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]}
    engine = FakeEngine()
    async with client_of(make_app(engine)[0]) as client:
        refused = await client.post(CHAT, json=body)
    assert refused.status_code == 400
    assert error_of(refused)["param"] == "messages[0].content[1].image_url.url"
    assert engine.conversations == []
    settings = Settings(media=MediaSettings(folder=root / "media"))
    async with client_of(make_app(engine, settings)[0]) as client:
        assert (await client.post(CHAT, json=body)).status_code == 200
        (picture,) = [
            part for part in engine.conversations[0].messages[0].parts if isinstance(part, PicturePart)
        ]
        assert picture.source == PICTURE
        part["image_url"] = {"url": "file:///etc/hostname"}
        refused = await client.post(CHAT, json=body)
    assert refused.status_code == 400
    error = error_of(refused)
    assert (error["param"], error["code"]) == ("messages[0].content[1].image_url.url", "invalid_image_url")
