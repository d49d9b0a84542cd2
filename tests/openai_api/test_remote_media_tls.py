"""Pictures over https: the certificate must be of the host's name, while the checked address is dialled."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kaminari.config import MediaSettings
from kaminari.engine.errors import RequestError
from kaminari.openai_api.remote_media import RemoteMedia
from tests.cases.loading import FILES
from tests.openai_api.picture_host import PictureHost, picture_host, redirects, room, sends

# a machine that only checks its device has no use for certificates
trustme = pytest.importorskip("trustme")

PICTURE = (FILES / "digit_1.png").read_bytes()
NAME = "pictures.test"
CA = trustme.CA()


def presenting(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def remote(*, trusts: trustme.CA | None = CA) -> RemoteMedia:
    """A fetcher that trusts one authority beside those of the world."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    settings = MediaSettings(allowed_hosts=[NAME], allow_private=True, timeout="10s")
    media = RemoteMedia(settings, max_total=10**7, max_requests=2, resolve=resolve)
    if trusts is not None:
        trusts.configure_trust(media._tls)
    return media


async def got(media: RemoteMedia, host: PictureHost) -> bytes | RequestError:
    (found,) = (await media.fetch([f"https://{NAME}:{host.port}/a.png"], room())).values()
    return found


async def test_a_certificate_of_the_hosts_name_passes_though_an_address_is_dialled() -> None:
    tls = presenting(CA.issue_cert(NAME))
    names: list[str | None] = []
    tls.sni_callback = lambda connection, name, context: names.append(name)
    async with picture_host(sends(PICTURE), tls=tls) as host:
        assert await got(remote(), host) == PICTURE
        assert f"host: {NAME}:{host.port}" in host.seen[0].lower().splitlines()
    assert names == [NAME]


YESTERDAY = datetime.now(UTC) - timedelta(days=1)


@pytest.mark.parametrize(
    "certificate",
    [
        CA.issue_cert("other.test"),
        CA.issue_cert("127.0.0.1"),
        CA.issue_cert(f"x.{NAME}"),
        CA.issue_cert("*.test.example"),
        CA.issue_cert(NAME, not_after=YESTERDAY),
        trustme.CA().issue_cert(NAME),
    ],
    ids=["another name", "the address", "a name below", "a wildcard", "expired", "another authority"],
)
async def test_any_other_certificate_is_refused_and_nothing_is_asked(certificate: trustme.LeafCert) -> None:
    async with picture_host(sends(PICTURE), tls=presenting(certificate)) as host:
        found = await got(remote(), host)
        assert isinstance(found, RequestError)
        assert found.message == "the picture's host failed to send it"
        assert host.seen == []


async def test_a_certificate_that_signs_itself_is_refused(tmp_path: Path) -> None:
    itself = tmp_path / "itself.pem"
    itself.write_bytes(CA.private_key_pem.bytes() + CA.cert_pem.bytes())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(itself)
    async with picture_host(sends(PICTURE), tls=tls) as host:
        assert isinstance(await got(remote(trusts=None), host), RequestError)
        assert host.seen == []


async def test_a_name_of_an_authority_that_only_others_trust_is_refused() -> None:
    async with picture_host(sends(PICTURE), tls=presenting(CA.issue_cert(NAME))) as host:
        assert isinstance(await got(remote(trusts=None), host), RequestError)
        assert host.seen == []


async def test_a_redirect_is_no_way_around_the_check() -> None:
    stranger = presenting(trustme.CA().issue_cert(NAME))
    async with picture_host(sends(PICTURE), tls=stranger) as inner:
        to = redirects(f"https://{NAME}:{inner.port}/b.png")
        async with picture_host(to, tls=presenting(CA.issue_cert(NAME))) as outer:
            assert isinstance(await got(remote(), outer), RequestError)
            assert len(outer.seen) == 1
        assert inner.seen == []
