"""Every task by name, and the samples of an evaluation: which tasks in which styles, from which seeds.

A sample depends on nothing but its seed, its task and its style, so that more samples only add to fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from examples.demo_model import style as styles
from examples.demo_model.charts import chart
from examples.demo_model.lines import line
from examples.demo_model.plain import plain
from examples.demo_model.receipts import QUESTIONS, receipt, two_receipts
from examples.demo_model.sample import Sample
from examples.demo_model.shapes import follow_up, shape, two_pictures
from examples.demo_model.style import Style
from examples.demo_model.tables import table

TASKS: dict[str, Callable[[Random, Style], Sample]] = {
    "line": line,
    **{task: partial(receipt, task=task) for task in QUESTIONS},
    "shape": shape,
    "follow-up": follow_up,
    "two pictures": two_pictures,
    "plain text": plain,
}
# what only a training with `--harder` shows, and the shipped weights cannot do
HARDER_TASKS: dict[str, Callable[[Random, Style], Sample]] = {
    "items": partial(receipt, task="items"),
    "two receipts": two_receipts,
    "table": partial(table, task="table"),
    "cell": partial(table, task="cell"),
    "bar": partial(chart, task="bar"),
    "highest": partial(chart, task="highest"),
}
ALL_TASKS = {**TASKS, **HARDER_TASKS}
_TEXT = ("line", "receipt", "total")
EVALUATED: tuple[tuple[Style, tuple[str, ...]], ...] = (
    (styles.USUAL, tuple(ALL_TASKS)),
    (styles.OTHER_WORDS, _TEXT),
    (styles.OTHER_SIZES, _TEXT),
    (styles.OTHER_FONTS, _TEXT),
    (styles.FREE_TOTALS, ("receipt", "total", "price")),
    (styles.PILLOW_18, ("line", "receipt", "total", "price")),
    (styles.PHOTOGRAPHED, _TEXT),
    (styles.LONG, ("receipt", "total", "items")),
)


def draw_sample(task: str, style: Style, seed: str) -> Sample:
    """Draw one sample. Raises `KeyError` for an unknown task."""
    return ALL_TASKS[task](Random(seed), style)


def evaluation_samples(count: int, seed: int = 0, tasks: Iterable[str] = ALL_TASKS) -> list[Sample]:
    """Draw `count` samples of each of the tasks in each style that it is evaluated in.

    The seeds begin with "evaluation", which a training must not use. A style that has no font on this
    machine is left out. Raises `KeyError` for an unknown task.
    """
    wanted = set(tasks)
    if unknown := wanted - set(ALL_TASKS):
        raise KeyError(f"no such task: {', '.join(sorted(unknown))}")
    return [
        draw_sample(task, style, f"evaluation {seed} {style.name} {task} {number}")
        for style, its_tasks in EVALUATED
        if style.fonts
        for task in its_tasks
        if task in wanted
        for number in range(count)
    ]
