"""From a JSON Schema of strings to regular expressions of their text, for strings that stand without quotes.

The expressions are of Rust's `regex`; a text has to match all of them as a whole. What they cannot say is
refused, never loosened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kaminari.model.calls import UnspeakableArguments

MAX_LENGTH = 1 << 16

_DAYS = "(0[1-9]|1[0-9]|2[0-8])"
_DATE = rf"[0-9]{{4}}-((0[13578]|1[02])-({_DAYS}|29|30|31)|(0[469]|11)-({_DAYS}|29|30)|02-{_DAYS})"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,8}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [
        f"({_GROUP}:){{7}}{_GROUP}",
        *(f"({_GROUP}:){{{n}}}(:{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)),
        f":(:{_GROUP}){{1,7}}",
        "::",
    ]
)
_CLOCK = r"[0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S"
_CALENDAR = r"[0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D"
FORMATS = {
    "date-time": rf"{_DATE}T{_TIME}",
    "date": _DATE,
    "time": _TIME,
    "duration": rf"P(({_CALENDAR})(T({_CLOCK}))?|T({_CLOCK})|[0-9]+W)",
    "email": rf"[a-zA-Z0-9_+-]+(\.[a-zA-Z0-9_+-]+)*@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": rf"[a-zA-Z][a-zA-Z0-9+.-]*://{_HOST}(:[0-9]{{1,5}})?(/[a-zA-Z0-9._~!$&'()*+,;=:@%-]*)*"
    r"(\?[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?(#[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


def text_patterns(schema: Mapping[str, Any]) -> list[str]:
    """What a string of the schema matches; other keywords than those of strings do not count.

    Raises `UnspeakableArguments`.
    """
    patterns = []
    members = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
    if "enum" in schema or "const" in schema:
        patterns.append("|".join(re.escape(member) for member in members if isinstance(member, str)))
    if isinstance(pattern := schema.get("pattern"), str):
        patterns.append("|".join(map(_searching, _branches(pattern))))
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        if max(least, most or 0) > MAX_LENGTH:
            raise UnspeakableArguments(f"a string is longer than {MAX_LENGTH} characters")
        patterns.append(f"(?s:.{{{int(least)},{'' if most is None else int(most)}}})")
    if (name := schema.get("format")) in FORMATS:
        patterns.append(FORMATS[name])
    return patterns


def _searching(branch: str) -> str:
    """One alternative of a pattern, which may match anywhere in a text, as one that matches all of it."""
    from_start, to_end = branch.startswith("^"), _ends_with_anchor(branch)
    inner = branch[int(from_start) : len(branch) - int(to_end)]
    if any(mark in "^$" for _, mark in _marks(inner)):
        raise UnspeakableArguments("a `pattern` has an anchor inside, which is not supported in calls")
    anything = "(?s:.*)"
    return f"{'' if from_start else anything}(?:{inner}){'' if to_end else anything}"


def _branches(pattern: str) -> list[str]:
    """The alternatives at the top level of a pattern."""
    branches, depth, start = [], 0, 0
    for place, mark in _marks(pattern):
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if mark == "|" and depth == 0:
            branches.append(pattern[start:place])
            start = place + 1
    return [*branches, pattern[start:]]


def _marks(pattern: str) -> Iterator[tuple[int, str]]:
    """Characters with their places, without those that are escaped or in a class."""
    in_class, skip = False, False
    for place, char in enumerate(pattern):
        if skip:
            skip = False
        elif char == "\\":
            skip = True
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            yield place, char


def _ends_with_anchor(branch: str) -> bool:
    last = list(_marks(branch))[-1:]
    return last == [(len(branch) - 1, "$")]
