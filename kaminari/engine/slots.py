"""Which slot belongs to whom: numbers only, no tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """The choice of a job that holds a slot."""

    job: int
    choice: int


class SlotPool:
    """Hands out slots, the one that was free for longest first (so that its contents live longest)."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a slot pool needs at least one slot, not {slots}")
        self.slots = slots
        self._free = deque(range(slots))
        self._owners: dict[int, Owner] = {}

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
        self._free.append(slot)

    def owners(self) -> Iterator[tuple[int, Owner]]:
        return iter(self._owners.items())

    def check(self) -> None:
        """Raise `RuntimeError` unless every slot is either free or owned, once."""
        held = list(self._free) + list(self._owners)
        if sorted(held) != list(range(self.slots)) or len(set(self._owners.values())) != len(self._owners):
            raise RuntimeError(f"slots are inconsistent: free {list(self._free)}, owned {self._owners}")
