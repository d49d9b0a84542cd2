"""Tasks at once: each is done once, few are begun ahead, faults are told in order, and no thread stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from kaminari.model.packs.side_by_side import NAME, side_by_side


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_task_is_done_once_on_another_thread(threads: int) -> None:
    on: dict[int, str] = {}
    with side_by_side(
        range(20), lambda task: on.update({task: threading.current_thread().name}), threads
    ) as over:
        assert sorted(over) == list(range(20))
    assert sorted(on) == list(range(20))
    assert all(name.startswith(NAME) for name in on.values())
    assert len(set(on.values())) <= threads


def test_no_tasks_are_over_at_once() -> None:
    with side_by_side([], lambda task: None, 2) as over:
        assert list(over) == []


def test_two_are_worked_on_at_once() -> None:
    together = threading.Barrier(2)
    with side_by_side(range(2), lambda task: together.wait(10), 2) as over:
        assert sorted(over) == [0, 1]


def test_tasks_are_drawn_as_they_are_needed() -> None:
    drawn: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(20):
            drawn.append(task)
            yield task

    taken = 0
    with side_by_side(tasks(), lambda task: None, 2) as over:
        for _ in over:
            taken += 1
            assert len(drawn) <= taken + 2
    assert taken == 20


def test_of_several_faults_the_first_in_order_is_raised() -> None:
    second_failed = threading.Event()

    def work(task: int) -> None:
        if task == 3:
            second_failed.wait(10)
            time.sleep(0.01)
            raise ValueError("of 3")
        if task == 4:
            second_failed.set()
            raise ValueError("of 4")

    begun: list[int] = []
    with (
        pytest.raises(ValueError, match="of 3"),
        side_by_side(range(50), lambda task: (begun.append(task), work(task)), 2) as over,
    ):
        list(over)
    assert max(begun) < 10


def test_leaving_the_block_waits_for_what_runs_and_drops_the_rest() -> None:
    done: list[int] = []

    def work(task: int) -> None:
        time.sleep(0.005)
        done.append(task)

    def interrupted() -> None:
        with side_by_side(range(50), work, 2) as over:
            next(over)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    told = len(done)
    time.sleep(0.03)
    assert len(done) == told < 10
