"""Tables of what `benchmarks.hybrid` wrote: kaminari beside `transformers` in one model. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kaminari.bench.table import spell_seconds

Found = Mapping[str, Mapping[str, Any]]
SIDES = ("kaminari", "transformers")
PARTS = {
    "projections": "projections",
    "scan": "scan, with our convolution and gated norm",
    "convolution": "convolution",
    "norms": "norms, with our rotation",
    "attention": "attention",
    "rest": "rest",
    "vision": "the picture: vision tower",
}


def sides(found: Found) -> list[str]:
    """What was timed on both sides, with how many times kaminari's time the other took.

    Raises `KeyError` for a result that lacks what a section has.
    """
    lines = [_machine(found), "", "| | kaminari | transformers | ratio |", "|---|---|---|---|"]
    seen: set[str] = set()
    for result in found.values():
        for what, ours, theirs in _timed(result):
            if what not in seen:
                seen.add(what)
                times = f"{theirs / ours:.2f}x"
                lines.append(f"| {what} | {spell_seconds(ours)} | {spell_seconds(theirs)} | {times} |")
    if speeds := _speeds(found):
        lines += ["", speeds]
    return lines


def parts(found: Found) -> list[str]:
    """Where a picture and a prefill went, a column per side."""
    lines = [_machine(found), ""]
    for result in found.values():
        components = result["components"]
        unit = "CPU seconds" if result["options"]["cpu_time"] else "seconds"
        lines += [f"| {unit} of a prompt of {components['tokens']} tokens | {' | '.join(SIDES)} |"]
        lines += ["|" + "---|" * (1 + len(SIDES))]
        for part, about in PARTS.items():
            cells = (f"{components[side][part]:.2f}" if components[side][part] else "" for side in SIDES)
            lines.append(f"| {about} | {' | '.join(cells)} |")
    return lines


def _timed(result: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """(what, kaminari's seconds, the other's)"""
    if scan := result.get("scan"):
        seconds, tokens = scan["seconds"], scan["tokens"]
        ours = seconds.get("chunked, native", seconds["chunked"])
        yield f"scan of {tokens} tokens, one layer, in chunks", ours, seconds["transformers, chunked"]
        one = seconds["transformers, one token at a time"]
        yield f"the same beside its form of one token at a time, {tokens} tokens", ours, one
    for tokens, tier in result.get("prefill", {}).get("tiers", {}).items():
        ours = int(tokens) / tier["kaminari"]
        yield f"prefill of {tokens} tokens, logits of the last one", ours, int(tokens) / tier["transformers"]
        if "as_shipped" in tier:
            theirs = int(tokens) / tier["as_shipped"]
            yield f"prefill of {tokens} tokens, logits of every one in `transformers`", ours, theirs
    if decode := result.get("decode"):
        yield (
            "decode at batch 1 behind 512 tokens",
            decode["kaminari_ms"] / 1e3,
            decode["transformers_ms"] / 1e3,
        )
    if picture := result.get("picture"):
        what = f"a picture of {picture['tokens']} tokens"
        yield what, picture["kaminari_ms"] / 1e3, picture["transformers_ms"] / 1e3


def _speeds(found: Found) -> str:
    """The tiers of the first result that has several, held to their shortest and to their operations."""
    for result in found.values():
        prefill = result.get("prefill", {})
        tiers = prefill.get("tiers", {})
        if len(tiers) > 1:
            told = ", ".join(
                f"{tier['kaminari']:.0f} tokens/s over {tokens} ({tier['kaminari'] / tier['predicted']:.2f} "
                "of what its operations allow)"
                for tokens, tier in tiers.items()
            )
            share = prefill["longest_against_shortest"]
            return f"Prefill runs at {told}: the longest at {share:.2f} of the shortest."
    return ""


def _machine(found: Found) -> str:
    machines = {str(result["machine"]): result["machine"] for result in found.values()}
    options = next(iter(found.values()))["options"]
    threads = f"{options['threads']} {'thread' if options['threads'] == 1 else 'threads'}"
    return (
        "; ".join(
            f"{options['dtype']}, {each['cpu']}, {threads}, torch {each['torch']}, "
            f"transformers {each['transformers']}"
            for each in machines.values()
        )
        + " ("
        + ", ".join(f"`benchmarks/results/hybrid/{name}.json`" for name in found)
        + ")."
    )


TABLES: Mapping[str, Callable[[Found], list[str]]] = {"sides": sides, "parts": parts}
