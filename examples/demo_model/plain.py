"""Questions without a picture: capitals, sums of two digits, small talk."""

from __future__ import annotations

from random import Random

from examples.demo_model import phrases
from examples.demo_model.asking import put
from examples.demo_model.sample import Sample, Turn
from examples.demo_model.style import Style


def plain(rng: Random, style: Style) -> Sample:
    return Sample("plain text", style.name, (), (_turn(rng),))


def _turn(rng: Random) -> Turn:
    kind = rng.random()
    if kind < 0.3:
        country = rng.choice(list(phrases.CAPITALS))
        return Turn(f"What is the capital of {country}?", phrases.CAPITALS[country])
    if kind < 0.42:
        country = rng.choice(list(phrases.CAPITALES))
        return Turn(f"¿Cuál es la capital de {country}?", phrases.CAPITALES[country])
    if kind < 0.72:
        one, other = rng.randint(0, 9), rng.randint(0, 9)
        return Turn(put(rng, phrases.SUM, spanish=1 / 3)[0].format(one, other), str(one + other))
    return Turn(*rng.choice(list(phrases.SMALL_TALK.items())))
