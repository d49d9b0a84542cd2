"""The scheduler alone, driven by fakes: what is planned, in which order, and that no slot is lost."""

from __future__ import annotations

import random

import pytest

from kaminari.engine.scheduler import PATIENCE, DecodeRow, EncodePicture, Job, PrefillChunk, Scheduler
from kaminari.engine.slots import Owner, SlotPool


def works(scheduler: Scheduler, ticks: int) -> list[EncodePicture | PrefillChunk | None]:
    return [scheduler.plan().work for _ in range(ticks)]


def spans(items: list[EncodePicture | PrefillChunk | None]) -> list[tuple[int, int] | str | None]:
    """Chunks as (start, stop), pictures as their number."""
    return [
        (item.start, item.stop)
        if isinstance(item, PrefillChunk)
        else f"picture {item.picture}"
        if isinstance(item, EncodePicture)
        else None
        for item in items
    ]


def test_a_prompt_is_cut_into_unpadded_consecutive_chunks() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=10, max_tokens=1))
    items = works(scheduler, 4)
    assert spans(items) == [(0, 4), (4, 8), (8, 10), None]
    assert [item.last for item in items if isinstance(item, PrefillChunk)] == [False, False, True]


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8])
def test_chunks_cover_prompts_around_a_border(tokens: int) -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=tokens, max_tokens=1))
    covered = [index for chunk in works(scheduler, 4) if chunk for index in range(chunk.start, chunk.stop)]
    assert covered == list(range(tokens))


def test_forced_borders_end_a_chunk() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=10, max_tokens=1, borders=(3, 4, 9)))
    assert spans(works(scheduler, 6)) == [(0, 3), (3, 4), (4, 8), (8, 9), (9, 10), None]


def test_a_picture_is_encoded_before_the_chunk_that_needs_it_and_not_earlier() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=12, max_tokens=1, pictures=((2, 6), (9, 10))))
    expected = ["picture 0", (0, 4), (4, 8), "picture 1", (8, 12)]
    assert spans(works(scheduler, 5)) == expected


def test_two_pictures_in_one_chunk_take_a_tick_each() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=16)
    scheduler.add(Job(1, prompt_tokens=12, max_tokens=1, pictures=((1, 3), (5, 8))))
    assert spans(works(scheduler, 3)) == ["picture 0", "picture 1", (0, 12)]


def test_decoding_goes_on_while_others_prefill() -> None:
    scheduler = Scheduler(slots=2, prefill_chunk=2)
    scheduler.add(Job(1, prompt_tokens=2, max_tokens=10))
    assert not scheduler.plan().decode
    scheduler.add(Job(2, prompt_tokens=6, max_tokens=10, pictures=((0, 1),)))
    for tick in range(4):
        plan = scheduler.plan()
        assert plan.work is not None
        assert plan.decode == (DecodeRow(1, 0, 0, cached=2 + tick, index=1 + tick),)
    assert [row.job for row in scheduler.plan().decode] == [1, 2]


def test_a_stream_overtakes_what_nobody_watches_and_keeps_the_device_to_itself() -> None:
    scheduler = Scheduler(slots=2, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=12, max_tokens=2, watched=False))
    assert spans(works(scheduler, 1)) == [(0, 4)]
    scheduler.add(Job(2, prompt_tokens=8, max_tokens=4, pictures=((0, 2),)))
    assert spans(works(scheduler, 3)) == ["picture 0", (0, 4), (4, 8)]
    for _ in range(3):
        plan = scheduler.plan()
        assert plan.work is None
        assert [row.job for row in plan.decode] == [2]
    assert scheduler.end(2, 0)
    assert spans(works(scheduler, 2)) == [(4, 8), (8, 12)]
    assert [row.job for row in scheduler.plan().decode] == [1]


def test_what_nobody_watches_decodes_on_beside_a_stream() -> None:
    scheduler = Scheduler(slots=2, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=4, max_tokens=9, watched=False))
    scheduler.plan()
    scheduler.add(Job(2, prompt_tokens=4, max_tokens=9))
    scheduler.plan()
    assert [row.job for row in scheduler.plan().decode] == [1, 2]


def test_what_nobody_watches_runs_at_full_pace_where_there_is_no_stream() -> None:
    scheduler = Scheduler(slots=2, prefill_chunk=4)
    for job in (1, 2):
        scheduler.add(Job(job, prompt_tokens=8, max_tokens=4, watched=False))
    assert [work and work.job for work in works(scheduler, 5)] == [1, 1, 2, 2, None]


def test_nobody_gives_way_for_longer_than_patience_lasts() -> None:
    """Then it runs in order of arrival again, before streams that came later."""
    scheduler = Scheduler(slots=4, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=4, max_tokens=10 * PATIENCE))
    scheduler.plan()
    for job in (2, 3):
        scheduler.add(Job(job, prompt_tokens=8, max_tokens=4, watched=False))
    assert works(scheduler, PATIENCE) == [None] * PATIENCE
    scheduler.add(Job(4, prompt_tokens=8, max_tokens=4))
    assert [work and work.job for work in works(scheduler, 7)] == [2, 2, 3, 3, 4, 4, None]


def test_patience_counts_the_ticks_in_which_streams_went_first() -> None:
    scheduler = Scheduler(slots=2, prefill_chunk=1)
    scheduler.add(Job(1, prompt_tokens=2, max_tokens=4, watched=False))
    scheduler.add(Job(2, prompt_tokens=PATIENCE + 1, max_tokens=4))
    assert [work and work.job for work in works(scheduler, PATIENCE + 4)] == [2] * PATIENCE + [1, 1, 2, None]


def test_a_stream_that_is_expected_has_the_right_of_way_already() -> None:
    scheduler = Scheduler(slots=2, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=4, max_tokens=9, watched=False))
    scheduler.plan()
    scheduler.add(Job(2, prompt_tokens=8, max_tokens=9, watched=False))
    plan = scheduler.plan(expecting=True)
    assert plan.work is None
    assert [row.job for row in plan.decode] == [1]
    assert spans([scheduler.plan().work, scheduler.plan(expecting=True).work, scheduler.plan().work]) == [
        (0, 4),
        None,
        (4, 8),
    ]


def test_streams_run_while_another_is_expected() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=8, max_tokens=9))
    assert spans([scheduler.plan(expecting=True).work for _ in range(2)]) == [(0, 4), (4, 8)]


def test_nobody_gives_way_to_what_is_expected_for_longer_than_patience_lasts() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=8, max_tokens=9, watched=False))
    assert not any(scheduler.plan(expecting=True) for _ in range(PATIENCE))
    assert spans([scheduler.plan(expecting=True).work]) == [(0, 4)]


def test_nobody_gives_way_to_what_is_expected_while_others_wait() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=4)
    for job in (1, 2):
        scheduler.add(Job(job, prompt_tokens=4, max_tokens=9, watched=False))
    assert spans([scheduler.plan(expecting=True).work]) == [(0, 4)]


def test_nobody_gives_way_while_others_wait_for_a_slot() -> None:
    scheduler = Scheduler(slots=2, prefill_chunk=4)
    scheduler.add(Job(1, prompt_tokens=4, max_tokens=9))
    scheduler.plan()
    scheduler.add(Job(2, prompt_tokens=8, max_tokens=9, watched=False))
    assert scheduler.plan().work is None
    scheduler.add(Job(3, prompt_tokens=4, max_tokens=9))
    assert [work and work.job for work in works(scheduler, 3)] == [2, 2, None]


def test_no_more_than_max_tokens_are_scheduled() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=8)
    scheduler.add(Job(1, prompt_tokens=3, max_tokens=3))
    plans = [scheduler.plan() for _ in range(5)]
    assert [len(plan.decode) for plan in plans] == [0, 1, 1, 0, 0]
    assert not plans[-1]


def test_a_group_of_choices_is_claimed_at_once_and_in_order_of_arrival() -> None:
    scheduler = Scheduler(slots=3, prefill_chunk=8)
    scheduler.add(Job(1, prompt_tokens=2, max_tokens=5))
    scheduler.add(Job(2, prompt_tokens=2, max_tokens=5, choices=3))
    scheduler.add(Job(3, prompt_tokens=2, max_tokens=5))
    scheduler.plan()
    assert (scheduler.running, scheduler.waiting) == (1, 2), "job 3 must not overtake job 2"
    assert scheduler.end(1, 0)
    chunk = scheduler.plan().work
    assert isinstance(chunk, PrefillChunk)
    assert (chunk.job, len(chunk.slots), chunk.last) == (2, 3, True)
    assert [row.choice for row in scheduler.plan().decode] == [0, 1, 2]
    assert not scheduler.end(2, 1)
    assert [row.choice for row in scheduler.plan().decode] == [0, 2]
    assert scheduler.running == 2, "job 3 runs on the slot of the choice that ended"


def test_a_choice_that_ends_while_the_others_run_leaves_them_their_slots() -> None:
    scheduler = Scheduler(slots=3, prefill_chunk=8)
    scheduler.add(Job(1, prompt_tokens=2, max_tokens=9, choices=3))
    scheduler.plan()
    before = {row.choice: row.slot for row in scheduler.plan().decode}
    scheduler.end(1, 0)
    after = {row.choice: row.slot for row in scheduler.plan().decode}
    assert after == {choice: slot for choice, slot in before.items() if choice != 0}
    assert scheduler.drop(1) == tuple(before[choice] for choice in (1, 2))
    assert scheduler.slots.free == 3


def test_dropping_a_waiting_job_leaves_the_others() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=8)
    for job in (1, 2, 3):
        scheduler.add(Job(job, prompt_tokens=1, max_tokens=1))
    scheduler.plan()
    assert scheduler.drop(2) == ()
    assert scheduler.drop(99) == ()
    assert scheduler.waiting == 1
    assert scheduler.end(1, 0)
    work = scheduler.plan().work
    assert work is not None
    assert work.job == 3


@pytest.mark.parametrize(
    "job",
    [
        Job(1, prompt_tokens=0, max_tokens=1),
        Job(1, prompt_tokens=1, max_tokens=0),
        Job(1, prompt_tokens=1, max_tokens=1, choices=0),
        Job(1, prompt_tokens=1, max_tokens=1, choices=3),
    ],
)
def test_a_job_that_could_never_run_is_refused(job: Job) -> None:
    scheduler = Scheduler(slots=2, prefill_chunk=8)
    with pytest.raises(ValueError, match="job"):
        scheduler.add(job)
    assert scheduler.waiting == 0


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="slot"):
        SlotPool(0)
    with pytest.raises(ValueError, match="chunk"):
        Scheduler(slots=1, prefill_chunk=0)


def test_a_slot_is_released_by_its_owner_only_and_once() -> None:
    pool = SlotPool(2)
    claimed = pool.claim(7, 1)
    assert claimed is not None
    with pytest.raises(RuntimeError, match="held by"):
        pool.release(claimed[0], Owner(8, 0))
    pool.release(claimed[0], Owner(7, 0))
    with pytest.raises(RuntimeError, match="held by"):
        pool.release(claimed[0], Owner(7, 0))
    pool.check()


@pytest.mark.parametrize("seed", range(20))
def test_random_life_keeps_the_books(seed: int) -> None:
    """Random arrivals, ends and drops: rows keep their slots, counts add up, and nothing leaks."""
    rng = random.Random(seed)
    slots = rng.randint(1, 6)
    scheduler = Scheduler(slots, prefill_chunk=rng.randint(1, 9))
    jobs: dict[int, Job] = {}
    prefilled: dict[int, int] = {}
    encoded: dict[int, int] = {}
    drawn: dict[tuple[int, int], int] = {}
    home: dict[tuple[int, int], int] = {}
    arrivals = 60
    for tick in range(3000):
        if len(jobs) < arrivals and rng.random() < 0.3:
            tokens = rng.randint(1, 40)
            first = rng.randint(0, tokens - 1)
            pictures = ((first, rng.randint(first + 1, tokens)),) if rng.random() < 0.5 else ()
            watched = rng.random() < 0.6
            job = Job(tick, tokens, rng.randint(1, 12), rng.randint(1, slots), pictures, watched=watched)
            jobs[tick], prefilled[tick], encoded[tick] = job, 0, 0
            scheduler.add(job)
        watching = {job for job, _ in drawn if jobs[job].watched}
        plan = scheduler.plan()
        scheduler.check()
        if plan.work is not None and not jobs[plan.work.job].watched and watching:
            assert scheduler.waiting or tick - plan.work.job >= PATIENCE
        in_step = [row.slot for row in plan.decode]
        assert len(set(in_step)) == len(in_step)
        for row in plan.decode:
            key = (row.job, row.choice)
            assert drawn[key] == row.index < jobs[row.job].max_tokens
            assert row.cached == jobs[row.job].prompt_tokens + row.index - 1
            assert home[key] == row.slot
            drawn[key] += 1
        work = plan.work
        if isinstance(work, EncodePicture):
            assert encoded[work.job] == work.picture
            encoded[work.job] += 1
        elif isinstance(work, PrefillChunk):
            job = jobs[work.job]
            assert work.start == prefilled[work.job] < work.stop <= job.prompt_tokens
            assert work.stop - work.start <= scheduler.prefill_chunk
            assert encoded[work.job] == sum(start < work.stop for start, _ in job.pictures)
            prefilled[work.job] = work.stop
            if work.last:
                for choice, slot in enumerate(work.slots):
                    drawn[work.job, choice], home[work.job, choice] = 1, slot
        for key in [key for key, count in drawn.items() if count >= jobs[key[0]].max_tokens]:
            scheduler.end(*key)
            del drawn[key]
        if drawn and rng.random() < 0.1:
            key = rng.choice(sorted(drawn))
            scheduler.end(*key)
            del drawn[key]
        if jobs and rng.random() < 0.02:
            gone = rng.choice(sorted(jobs))
            scheduler.drop(gone)
            drawn = {key: count for key, count in drawn.items() if key[0] != gone}
        scheduler.check()
    assert len(jobs) == arrivals
    assert (scheduler.waiting, scheduler.running, scheduler.slots.free) == (0, 0, slots)
