"""How many slots of how many tokens fit: arithmetic over bytes, and a refusal that says what would fit.

Reads no machine state and needs no torch; `kaminari.engine.memory` measures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kaminari.model.family import Footprint

AUTO_SLOTS = 8
SMALL_AUTO_SLOTS = 16
"""Where slots cost next to nothing; a decode step of so many rows is recorded."""
SMALL_CACHE = 256 * 2**20
"""Bytes that so many slots may take, all together."""
AUTO_CONTEXT = 8192
MIN_CONTEXT = 16
WORKING_SHARE = 10


class CapacityError(Exception):
    """A wish for slots or context that cannot be met; the message is one line that says what would fit."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """`slots` slots of `context` tokens each, and the bytes that weights, cache and tables take."""

    slots: int
    context: int
    weight_bytes: int
    cache_bytes: int
    table_bytes: int = 0


def usable_memory(available: int, limit: int | None) -> int:
    """Bytes that weights, cache and tables may take, of `available` bytes that are free now.

    A tenth of what is free is left for activations and library workspaces; a limit only lowers the rest.
    """
    usable = available - available // WORKING_SHARE
    return usable if limit is None else min(usable, limit)


def plan_capacity(
    footprint: Footprint,
    *,
    slots: int | Literal["auto"],
    context: int | Literal["auto"],
    max_context: int,
    memory: int,
    tables: int = 0,
) -> Capacity:
    """Settle slots and context for `memory` usable bytes (see `usable_memory`).

    `tables` is what each slot takes beside the cache, in bytes.

    An "auto" context is what the checkpoint allows, at most 8192 tokens; "auto" slots are as many as fit, at
    most 8, and up to 16 of those that take at most 256 MiB in all. A wish that is named is met exactly or
    refused. Raises `CapacityError`.
    """
    if context == "auto":
        tokens = min(max_context, AUTO_CONTEXT)
    elif context > max_context:
        raise CapacityError(
            f"a context of {context} tokens is more than this model's {max_context}; "
            f"ask for at most {max_context}"
        )
    else:
        tokens = context
    held = replace(footprint, cache_per_slot=footprint.cache_per_slot + tables)
    per_slot = slot_bytes(held, tokens)
    fitting = _fitting(memory - footprint.weights, per_slot)
    most = max(AUTO_SLOTS, min(SMALL_AUTO_SLOTS, _fitting(SMALL_CACHE, per_slot)))
    count = max(1, min(fitting, most)) if slots == "auto" else slots
    if count > fitting:
        raise CapacityError(_refusal(held, count, tokens, fitting, memory))
    cache = count * slot_bytes(footprint, tokens)
    return Capacity(count, tokens, footprint.weights, cache, count * tables)


def slot_bytes(footprint: Footprint, tokens: int) -> int:
    """Bytes that one slot of `tokens` tokens takes in the cache."""
    return footprint.cache_per_slot + tokens * footprint.cache_per_token


def format_bytes(count: int) -> str:
    """Spell a size in the binary unit that leaves one to four digits before the point, such as 4.2 GiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _fitting(room: int, per_slot: int) -> int:
    """Slots that fit into `room` bytes; without bound (as far as memory goes) where a slot takes none."""
    if room < 0:
        return 0
    return room // per_slot if per_slot else 1 << 30


def _refusal(footprint: Footprint, slots: int, tokens: int, fitting: int, memory: int) -> str:
    wish = "one slot" if slots == 1 else f"{slots} slots"
    per_slot = slot_bytes(footprint, tokens)
    needed = footprint.weights + slots * per_slot
    sizes = (
        f"weights {format_bytes(footprint.weights)} and {wish} of {tokens} tokens "
        f"{format_bytes(slots * per_slot)} need {format_bytes(needed)}, and {format_bytes(memory)} is usable"
    )
    return f"not enough memory for {wish}: {sizes}; {_what_fits(footprint, tokens, fitting, memory)}"


def _what_fits(footprint: Footprint, tokens: int, fitting: int, memory: int) -> str:
    if fitting:
        return f"{fitting} {'slot' if fitting == 1 else 'slots'} of {tokens} tokens would fit"
    room = memory - footprint.weights
    if room < 0:
        return "not even the weights fit: use a smaller model or a smaller dtype, or give it more memory"
    shorter = (room - footprint.cache_per_slot) // max(1, footprint.cache_per_token)
    if shorter >= MIN_CONTEXT:
        return f"one slot of {shorter} tokens would fit"
    return "no context would fit beside the weights: use a smaller model, or give it more memory"
