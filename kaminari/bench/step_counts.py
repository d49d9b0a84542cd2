"""Where a server's time goes while clients load it, as its own `/metrics` counts it.

A part of the engine's thread is the device's (`DEVICE_PARTS`) or the host's. What no part has is `elsewhere`:
HTTP, clients that share the machine's cores with the server, and waiting for a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kaminari.bench.load import LoadError

DEVICE_PARTS = ("forward", "sample", "collect")
"""Of the engine's step clock; with prompts and pictures, which run between the steps."""
ELSEWHERE = "elsewhere"
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


def between(before: StepCounts, after: StepCounts, wall: float) -> tuple[dict[str, float], float] | None:
    """Seconds of each part per decode step in `wall` seconds, and rows per step; None without a step.

    The parts add up to the wall time of a step.
    """
    steps = after.steps - before.steps
    if not steps:
        return None
    spent = {part: total - before.seconds.get(part, 0.0) for part, total in after.seconds.items()}
    spent[ELSEWHERE] = wall - sum(spent.values())
    return {part: seconds / steps for part, seconds in spent.items()}, (after.rows - before.rows) / steps


def host_values(parts: Mapping[str, float], rows: float) -> dict[str, float]:
    """What a step of so many rows took on the device and beside it."""
    device = sum(parts.get(part, 0.0) for part in DEVICE_PARTS)
    host = sum(parts.values()) - device
    return {
        "rows_per_step": rows,
        "device_seconds_per_step": device,
        "host_seconds_per_step": host,
        "host_seconds_per_row": host / rows,
    }
