"""The bytes of a picture from its address, whatever its kind, and the two steps that fetching takes.

A request is prepared on a worker thread. Where it turns out to name remote pictures, the thread is given
back, they are fetched on the event loop, and it is prepared anew: a slow host holds no thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kaminari.config import Settings
from kaminari.engine.data_url import data_url_bytes
from kaminari.engine.errors import RequestError
from kaminari.openai_api.body import Place
from kaminari.openai_api.media_folder import MediaFolder
from kaminari.openai_api.remote_media import Fetched, RemoteMedia
from kaminari.openai_api.workers import Workers

ResultT = TypeVar("ResultT")

_SCHEME = re.compile(r"\s*([a-z]{1,5}):", re.IGNORECASE)


class NotFetched(Exception):
    """A request names remote pictures that are not here yet."""

    def __init__(self, urls: Iterable[str]) -> None:
        super().__init__("remote pictures are to be fetched first")
        self.urls = tuple(urls)


@dataclass(frozen=True, slots=True)
class Media:
    """Where pictures may come from beside data URLs.

    folder:   for file: addresses, or None
    remote:   whether http(s) addresses are fetched at all
    fetched:  what has been fetched by now
    """

    folder: MediaFolder | None = None
    remote: bool = False
    fetched: Fetched = field(default_factory=dict)

    def lacks(self, url: str) -> bool:
        """Whether an address must be fetched before `bytes_of` can answer."""
        return self.remote and _scheme(url) in ("http", "https") and url not in self.fetched

    def bytes_of(self, url: str) -> bytes:
        """The picture's file. Raises `RequestError`."""
        if _scheme(url) == "file" and self.folder is not None:
            return self.folder.read(url.strip())
        found = self.fetched.get(url)
        if isinstance(found, RequestError):
            raise found
        return data_url_bytes(url) if found is None else found


def _scheme(url: str) -> str:
    match = _SCHEME.match(url[:64])
    return "" if match is None else match[1].lower()


class Preparation:
    """Runs the slow half of requests on worker threads, with their pictures at hand."""

    def __init__(self, workers: Workers, settings: Settings) -> None:
        media = settings.media
        folder = None if media.folder is None else MediaFolder(media.folder, int(media.max_size))
        self._workers = workers
        self._max_count = settings.pictures.max_count
        self._media = Media(folder, remote=bool(media.allowed_hosts))
        self._remote = RemoteMedia(
            media, max_total=int(settings.server.max_body), max_requests=settings.engine.queue_size
        )

    async def run(self, job: Callable[[Media], ResultT], place: Place) -> ResultT:
        """Run a job as `Workers.run` does, a second time where its first raised `NotFetched`. What is fetched
        then takes its room in `place`.

        Raises what the job raises, `QueueFull`, and `RequestError` for too many addresses.
        """
        try:
            return await self._workers.run(lambda: job(self._media))
        except NotFetched as missing:
            urls = missing.urls
        if len(urls) > self._max_count:
            raise RequestError(
                f"a request may hold at most {self._max_count} pictures, this one has {len(urls)} "
                "that are to be fetched",
                field="messages",
            )
        fetched: Mapping[str, bytes | RequestError] = await self._remote.fetch(urls, place)
        complete = Media(self._media.folder, self._media.remote, fetched)
        return await self._workers.run(lambda: job(complete))
