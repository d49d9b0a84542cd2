"""`/metrics`: valid exposition, figures that follow the requests, and a registry per application."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from kaminari.engine.events import ChoiceFinished, Delta, Failed, FinishReason
from kaminari.engine.step_clock import StepCounts
from tests.openai_api.fake_engine import TOKENS, FakeEngine, endless, finished, says
from tests.openai_api.harness import CHAT, HI, AsgiCall, client_of, make_app, until


async def scrape(app: object) -> dict[str, float]:
    """Samples by name, with their labels in order; histogram buckets left out."""
    async with client_of(app) as client:
        response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    samples = {}
    for family in text_string_to_metric_families(response.text):
        assert family.name.startswith("kaminari_")
        assert family.documentation
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                labels = ",".join(sample.labels.values())
                samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


async def test_figures_follow_the_requests() -> None:
    app, _ = make_app(FakeEngine())
    async with client_of(app) as client:
        await client.post(CHAT, json={"messages": HI, "n": 2})
        await client.post(CHAT, json={"messages": HI, "stream": True})
        await client.post(CHAT, json={"messages": HI, "nonsense": 1})
        await client.get("/nowhere/secret")
        await client.get("/v1/models/other")
    found = await scrape(app)
    assert found["kaminari_http_requests_total{/v1/chat/completions,200}"] == 2
    assert found["kaminari_http_requests_total{/v1/chat/completions,400}"] == 1
    assert found["kaminari_http_requests_total{other,404}"] == 1
    assert found["kaminari_http_requests_total{/v1/models/{id:path},404}"] == 1
    assert found["kaminari_completion_tokens_total"] == 3 * len(TOKENS)
    assert found["kaminari_inter_token_seconds_count"] == 3 * (len(TOKENS) - 1)
    assert found["kaminari_prompt_tokens_total"] == 10
    assert found["kaminari_image_tokens_total"] == 4
    assert found["kaminari_cached_tokens_total"] == 2
    assert found["kaminari_choices_finished_total{stop}"] == 3
    assert found["kaminari_time_to_first_token_seconds_sum"] == 2.0
    assert found["kaminari_preprocess_seconds_count"] == found["kaminari_queue_seconds_count"] == 2
    assert found["kaminari_request_failures_total"] == 0
    assert not [name for name in found if "secret" in name or "nonsense" in name]


async def test_where_the_engines_thread_spends_its_time() -> None:
    counts = StepCounts({"forward": 2.5, "write": 0.25}, steps=7, rows=12)
    engine = FakeEngine()
    status = replace(engine.status(), counts=counts)
    engine.status = lambda: status  # type: ignore[method-assign]
    found = await scrape(make_app(engine)[0])
    assert found["kaminari_step_seconds_total{forward}"] == 2.5
    assert found["kaminari_step_seconds_total{write}"] == 0.25
    assert (found["kaminari_decode_steps_total"], found["kaminari_decode_rows_total"]) == (7, 12)


async def test_the_engines_state_is_read_at_each_scrape() -> None:
    app, lifecycle = make_app(None)
    found = await scrape(app)
    assert found["kaminari_up"] == 0
    assert "kaminari_slots" not in found
    engine = FakeEngine(endless, pause=0.005)
    lifecycle.attach(engine)
    call = AsgiCall(app, b'{"messages": [{"role": "user", "content": "hi"}], "stream": true}')
    task = asyncio.create_task(call.run())
    await until(lambda: len(call.sent) > 5)
    found = await scrape(app)
    assert (found["kaminari_up"], found["kaminari_requests_running"]) == (1, 1)
    assert (found["kaminari_slots"], found["kaminari_slots_free"]) == (4, 4)
    assert found["kaminari_completion_tokens_total"] > 1
    call.gone.set()
    await task
    engine.stalled = True
    found = await scrape(app)
    assert (found["kaminari_up"], found["kaminari_requests_running"]) == (0, 0)


async def test_faults_are_counted() -> None:
    engine = FakeEngine(says([Delta(0, "x", (1,))], [Failed("broken")]))
    app, _ = make_app(engine)
    async with client_of(app) as client:
        await client.post(CHAT, json={"messages": HI})
        await client.post(CHAT, json={"messages": HI, "stream": True})
        engine.prepare_hook = lambda: {}["a fault"]
        await client.post(CHAT, json={"messages": HI})
    found = await scrape(app)
    assert found["kaminari_request_failures_total"] == 2
    assert found["kaminari_http_requests_total{/v1/chat/completions,500}"] == 2


async def test_tokens_that_arrive_together_share_the_time() -> None:
    ends = [ChoiceFinished(0, FinishReason.LENGTH), finished(6)]
    engine = FakeEngine(
        says([Delta(0, "a", (1, 2))], [Delta(0, "", ())], [Delta(0, "b", (3, 4, 5, 6)), *ends])
    )
    app, _ = make_app(engine)
    async with client_of(app) as client:
        await client.post(CHAT, json={"messages": HI})
    found = await scrape(app)
    assert found["kaminari_inter_token_seconds_count"] == 4
    assert found["kaminari_completion_tokens_total"] == 6
    assert found["kaminari_choices_finished_total{length}"] == 1


async def test_applications_do_not_share_a_registry() -> None:
    one, _ = make_app(FakeEngine())
    other, _ = make_app(FakeEngine())
    async with client_of(one) as client:
        await client.post(CHAT, json={"messages": HI})
    assert (await scrape(one))["kaminari_completion_tokens_total"] == len(TOKENS)
    assert (await scrape(other))["kaminari_completion_tokens_total"] == 0
