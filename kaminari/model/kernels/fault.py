"""How a kernel that failed its trial is spoken of in reports."""

from __future__ import annotations


def spell_fault(fault: Exception) -> str:
    """The first line of an exception, without its full stop; its type where it says nothing."""
    return (str(fault).strip().splitlines() or [type(fault).__name__])[0].rstrip(".")
