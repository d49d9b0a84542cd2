"""Data URLs: every spelling that clients use, and a refusal with a reason for everything else."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaminari.engine.data_url import data_url_bytes
from kaminari.engine.errors import RequestError
from kaminari.engine.picture_decoding import decode_picture
from tests.cases import loading

MAX_PIXELS = 1_000_000
URLS = loading.data_urls()
OK = [name for name, entry in URLS.items() if entry["expect"] == "ok"]
REJECT = [name for name, entry in URLS.items() if entry["expect"] == "reject"]
EITHER = [name for name, entry in URLS.items() if entry["expect"] == "ok-or-reject"]


@pytest.mark.parametrize("name", OK, ids=[f"img-dataurl-params:{name}" for name in OK])
def test_every_accepted_spelling_gives_the_same_bytes(name: str) -> None:
    data = data_url_bytes(URLS[name]["url"])
    assert data == base64.b64decode(URLS["plain"]["url"].partition(",")[2])
    assert decode_picture(data, MAX_PIXELS).size == (32, 32)


@pytest.mark.parametrize("name", REJECT, ids=[f"img-base64-cut:{name}" for name in REJECT])
def test_every_refused_address_has_a_reason_that_echoes_nothing(name: str) -> None:
    url = URLS[name]["url"]
    with pytest.raises(RequestError) as refusal:
        decode_picture(data_url_bytes(url), MAX_PIXELS)
    assert "picture" in refusal.value.message
    payload = url.partition(",")[2]
    assert not payload or payload[:12] not in refusal.value.message


@pytest.mark.parametrize("name", EITHER)
def test_doubtful_spellings_are_read_right_or_refused(name: str) -> None:
    try:
        data = data_url_bytes(URLS[name]["url"])
    except RequestError:
        return
    assert decode_picture(data, MAX_PIXELS).getpixel((16, 16)) == decode_picture(
        data_url_bytes(URLS["plain"]["url"]), MAX_PIXELS
    ).getpixel((16, 16))


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://127.0.0.1:9/none.png", "http:"),
        ("HTTPS://example.com/a.png", "https:"),
        ("file:///etc/hostname", "file:"),
        ("ftp://127.0.0.1/a.png", "ftp:"),
        ("C:\\pictures\\a.png", "c:"),
        ("", "empty"),
        (" \n", "empty"),
        ("/home/me/a.png", "no scheme"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png,abc", "not marked as base64"),
        ("data:image/png;base64,%20%0A", "no data"),
        ("data:image/png;base64,AAAA=AAA", "valid base64"),
        ("data:image/png;base64,AAAAA", "valid base64"),
        ("data:image/png;base64,AA==AA==", "valid base64"),
        ("data:image/png;base64,AAA\u00e9", "not base64"),
    ],
)
def test_a_refusal_names_what_is_wrong(url: str, word: str) -> None:
    with pytest.raises(RequestError, match=word):
        data_url_bytes(url)


def test_img_fetch_fail_200_an_address_that_is_not_fetched_is_refused() -> None:
    body = loading.case("img-fetch-fail-200").request()
    with pytest.raises(RequestError, match=r"http: addresses are not supported.*data:image/png;base64"):
        data_url_bytes(body["messages"][0]["content"][0]["image_url"]["url"])


@given(st.binary(min_size=1, max_size=200), st.integers(1, 80))
def test_any_bytes_come_back_from_any_wrapping(data: bytes, width: int) -> None:
    payload = base64.b64encode(data).decode()
    lines = "\r\n".join(payload[start : start + width] for start in range(0, len(payload), width))
    assert data_url_bytes(f"data:application/x;a=b;base64,{lines}") == data
    assert data_url_bytes(f"data:;base64,{payload.rstrip('=')}") == data


@given(st.text(max_size=200))
def test_any_text_is_bytes_or_a_refusal(text: str) -> None:
    for url in (text, f"data:;base64,{text}"):
        with contextlib.suppress(RequestError):
            assert data_url_bytes(url)
