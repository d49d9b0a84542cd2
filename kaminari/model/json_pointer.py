"""Follows the local references of a JSON document. Never opens another document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def resolve(ref: str, root: Mapping[str, Any]) -> Any:
    """What a reference such as `#/$defs/part` names, or None."""
    if not ref.startswith("#"):
        return None
    target: Any = root
    for step in ref[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or step not in target:
            return None
        target = target[step]
    return target
