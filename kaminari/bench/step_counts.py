"""Where a server's time goes while clients load it, as its own `/metrics` counts it.

A part of a step is the device's (`DEVICE_PARTS`) or the host's. The host may work while the device does, so
the parts may add up to more than has passed; what a step takes beside the device is its wall time without the
device's parts. That holds everything: the host's own parts as far as the device waited for them, HTTP,
clients that share the machine's cores with the server, and waiting for a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kaminari.bench.load import LoadError

DEVICE_PARTS = ("forward", "sample", "collect")
"""Of the engine's step clock; with prompts and pictures, which run between the steps."""
SECONDS, STEPS, ROWS = "kaminari_step_seconds", "kaminari_decode_steps", "kaminari_decode_rows"
TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Totals since a server's start: seconds by part, decode steps, and the tokens that they drew."""

    seconds: Mapping[str, float]
    steps: float
    rows: float


def read_counts(url: str) -> StepCounts:
    """Ask a server of ours; `url` ends in `/v1`. Raises `LoadError` where it does not tell."""
    address = url.removesuffix("/v1") + "/metrics"
    try:
        answer = httpx.get(address, timeout=TIMEOUT, trust_env=False).raise_for_status()
        families = {each.name: each.samples for each in text_string_to_metric_families(answer.text)}
        return StepCounts(
            {sample.labels["part"]: sample.value for sample in families[SECONDS]},
            families[STEPS][0].value,
            families[ROWS][0].value,
        )
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise LoadError(f"the server's /metrics say nothing of its steps: {type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class Steps:
    """Means per decode step of a load: its wall time, seconds by part, and its rows."""

    wall: float
    parts: Mapping[str, float]
    rows: float

    @classmethod
    def between(cls, before: StepCounts, after: StepCounts, wall: float) -> Self | None:
        """Of the steps that `wall` seconds held; None where there was none."""
        steps = after.steps - before.steps
        if not steps:
            return None
        spent = {part: total - before.seconds.get(part, 0.0) for part, total in after.seconds.items()}
        parts = {part: seconds / steps for part, seconds in spent.items()}
        return cls(wall / steps, parts, (after.rows - before.rows) / steps)

    @property
    def values(self) -> dict[str, float]:
        """What a step took on the device and beside it."""
        device = sum(self.parts.get(part, 0.0) for part in DEVICE_PARTS)
        host = self.wall - device
        return {
            "rows_per_step": self.rows,
            "device_seconds_per_step": device,
            "host_seconds_per_step": host,
            "host_seconds_per_row": host / self.rows,
        }
