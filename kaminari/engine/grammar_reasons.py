"""Why the grammar library refused a form, in words that a client can act on.

The library's own text names its options and repeats what the client sent. Here a reason is known, and then
said anew; or it is one of the plain sentences about regular expressions; or it is left out.
"""

from __future__ import annotations

import re
from typing import Final

NO_ANSWER = "no answer can satisfy it"
NO_REASON = "it uses something that is not supported"
_COSTLY = "it is too costly to follow; make it simpler"
_TYPES = "null, boolean, integer, number, string, array or object"
_KEYWORD = r"\$?\w{1,32}"

# what the library says -> what we say; \1 and \2 are keywords of JSON Schema or places in a grammar
_REASONS: Final = tuple(
    (re.compile(said, re.DOTALL), ours)
    for said, ours in (
        (r"NoExtensionBias", NO_ANSWER),
        (r"oneOf constraints are not supported", "the branches of `oneOf` overlap; use `anyOf`"),
        (r"(?:Invalid type:|type must be)", f"`type` must be {_TYPES}, or a list of these"),
        (rf"Expected array for '({_KEYWORD})'", r"`\1` must be an array"),
        (rf"Expected positive integer for '({_KEYWORD})'", r"`\1` must be a whole number, at least 0"),
        (r"^schema must be an object or boolean", "a schema in it must be an object, true or false"),
        (rf"^({_KEYWORD}) must be (an? \w+)", r"`\1` must be \2"),
        (r"Resource '", "`$ref` must refer to a place in the schema itself"),
        (r"Pointer '", "a `$ref` refers to a place that does not exist"),
        (
            rf"Unsatisfiable schema: ({_KEYWORD}) \(.*?\) is greater than ({_KEYWORD})",
            rf"{NO_ANSWER}: `\1` is greater than `\2`",
        ),
        (r"Unsatisfiable schema", NO_ANSWER),
        (r"invalid multiple of", "`multipleOf` must be above 0"),
        (
            r"min/maxProperties only supported",
            "`minProperties` and `maxProperties` need all of `properties` to be `required`",
        ),
        (r"look-?around", "look-around and anchors inside a pattern are not supported"),
        (r"^at (\d+)\(\d+\): unknown name", r"line \1 names a rule that does not exist"),
        (r"^at (\d+)\(\d+\): Unknown common regex", r"line \1 imports what does not exist"),
        (
            r"^at (\d+)\(\d+\): unknown special token",
            r"line \1 names a control token, which no answer may hold",
        ),
        (r"^at (\d+)\(\d+\): circular reference in token", r"the token in line \1 refers to itself"),
        (r"^(\d+)\(\d+\): lexer error", r"line \1 cannot be read"),
        (r"too (?:big|large|many|deep)|fuel|exceeds? (?:the )?(?:size|limit|maximum)", _COSTLY),
    )
)
_UNKNOWN = re.compile(r'Unimplemented keys: \[((?:"\w+"(?:, )?)+)\]')
_PLAIN = re.compile(r"[A-Za-z][A-Za-z<= ,/()0-9-]{3,120}")
_ABOUT_PATTERN = re.compile(r"^error: (.+)$", re.MULTILINE)


def plain_reason(said: str) -> str:
    """A clause that follows `cannot be enforced: `; `said` is the library's error."""
    if keywords := _UNKNOWN.match(said):
        names = keywords[1].replace('"', "`")
        return f"it uses {names}, which cannot be enforced here"
    about = _ABOUT_PATTERN.search(said)
    first = said.strip().partition("\n")[0]
    for pattern, ours in _REASONS:
        if found := pattern.search(about[1] if about else first):
            return found.expand(ours)
    if about and _PLAIN.fullmatch(about[1]):
        return f"a pattern is no regular expression: {about[1]}"
    return NO_REASON
