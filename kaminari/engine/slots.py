"""Which slot belongs to whom, and which the device still works on: numbers only, no tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """The choice of a job that holds a slot."""

    job: int
    choice: int


class SlotPool:
    """Hands out slots, the one that was free for longest first (so that its contents live longest).

    A slot that is given back while an item in flight still reads or writes it is free once that has settled.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a slot pool needs at least one slot, not {slots}")
        self.slots = slots
        self._free = deque(range(slots))
        self._owners: dict[int, Owner] = {}
        self._in_flight = [0] * slots
        self._draining: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def claim(self, job: int, choices: int) -> tuple[int, ...] | None:
        """Claim a slot for every choice of a job, all or none; None where too few are free."""
        if choices > len(self._free):
            return None
        claimed = tuple(self._free.popleft() for _ in range(choices))
        for choice, slot in enumerate(claimed):
            self._owners[slot] = Owner(job, choice)
        return claimed

    def release(self, slot: int, owner: Owner) -> None:
        """Give a slot back. Raises `RuntimeError` where it is not the owner's."""
        if self._owners.get(slot) != owner:
            raise RuntimeError(f"slot {slot} is held by {self._owners.get(slot)}, not by {owner}")
        del self._owners[slot]
        if self._in_flight[slot]:
            self._draining.add(slot)
        else:
            self._free.append(slot)

    def launched(self, slots: Sequence[int]) -> None:
        """An item on these slots is in flight."""
        for slot in slots:
            self._in_flight[slot] += 1

    def settled(self, slots: Sequence[int]) -> None:
        """An item on these slots is over: those that were given back meanwhile are free."""
        for slot in slots:
            self._in_flight[slot] -= 1
            if slot in self._draining and not self._in_flight[slot]:
                self._draining.remove(slot)
                self._free.append(slot)

    def owners(self) -> Iterator[tuple[int, Owner]]:
        return iter(self._owners.items())

    def check(self) -> None:
        """Raise `RuntimeError` unless each slot is free, owned or draining, and no free one is in flight."""
        places = [*self._free, *self._owners, *self._draining]
        busy = {slot for slot, items in enumerate(self._in_flight) if items}
        if (
            sorted(places) != list(range(self.slots))
            or len(set(self._owners.values())) != len(self._owners)
            or min(self._in_flight) < 0
            or not self._draining <= busy
            or busy & set(self._free)
        ):
            raise RuntimeError(
                f"slots are inconsistent: free {list(self._free)}, owned {self._owners}, "
                f"draining {self._draining}, in flight {self._in_flight}"
            )
