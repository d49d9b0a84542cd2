"""Stop strings in a text that arrives in pieces: found at once, never shown, and nothing else held back.

The stop that ends first ends the answer; of several that end at the same character, the longest. This does
not depend on how the text was cut into pieces. Held back is only the longest end of the text with which a
stop string begins. Every character is looked at once (Aho and Corasick, "Efficient string matching", 1975),
so the time is linear in stops and text, whatever they hold. Nothing here knows of tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_ROOT = 0


class StopMatcher:
    """Watches the text of one choice for stop strings. Raises `ValueError` for an empty one."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._automaton = _Automaton(stops) if stops else None
        self._node = _ROOT
        self._held = ""
        self._stopped: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text; return what can be shown, and the stop string once one is complete.

        After a stop the answer is over: more text shows nothing.
        """
        if self._automaton is None:
            return text, None
        if self._stopped is not None:
            return "", self._stopped
        automaton, node = self._automaton, self._node
        for index, character in enumerate(text):
            node = automaton.step(node, character)
            length = automaton.match[node]
            if length:
                seen = self._held + text[: index + 1]
                shown, self._stopped = seen[:-length], seen[-length:]
                self._held = ""
                return shown, self._stopped
        self._node = node
        seen = self._held + text
        border = len(seen) - automaton.depth[node]
        self._held = seen[border:]
        return seen[:border], None

    def flush(self) -> str:
        """End the answer; return what was held back."""
        held, self._held, self._node = self._held, "", _ROOT
        return held


class _Automaton:
    """Nodes are the prefixes of the stop strings; the text's node is its longest end that is one of them.

    children:  (node, character) -> the node of the prefix that is longer by that character
    fallback:  per node, the longest proper end of its prefix that is a node
    depth:     per node, the length of its prefix
    match:     per node, the length of the longest stop string that ends there, or 0
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.children: dict[tuple[int, str], int] = {}
        self.fallback = [_ROOT]
        self.depth = [0]
        self.match = [0]
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, node: int, character: str) -> int:
        """Return the node of the text that is longer by one character."""
        children, fallback = self.children, self.fallback
        while (child := children.get((node, character))) is None:
            if node == _ROOT:
                return _ROOT
            node = fallback[node]
        return child

    def _insert(self, stop: str) -> None:
        node = _ROOT
        for character in stop:
            child = self.children.get((node, character))
            if child is None:
                child = len(self.depth)
                self.children[node, character] = child
                self.fallback.append(_ROOT)
                self.depth.append(self.depth[node] + 1)
                self.match.append(0)
            node = child
        self.match[node] = len(stop)

    def _link(self) -> None:
        """Set fallbacks and inherited matches, shallow nodes first."""
        edges: list[list[tuple[str, int]]] = [[] for _ in self.depth]
        for (parent, character), child in self.children.items():
            edges[parent].append((character, child))
        queue = deque([_ROOT])
        while queue:
            parent = queue.popleft()
            for character, child in edges[parent]:
                queue.append(child)
                if parent != _ROOT:
                    self.fallback[child] = self.step(self.fallback[parent], character)
                self.match[child] = self.match[child] or self.match[self.fallback[child]]
