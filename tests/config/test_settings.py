"""The settings themselves: frozen, closed, described, and without impossible combinations."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import ValidationError

from kaminari.config import BudgetSettings, EngineSettings, Settings
from kaminari.config.fields import setting_fields


def test_defaults() -> None:
    settings = Settings()
    assert settings.engine.slots == settings.engine.context == settings.engine.threads == "auto"
    assert settings.engine.prefill_chunk == "auto"
    assert settings.engine.memory_limit is None
    assert settings.engine.queue_size == 64
    assert settings.engine.stall_after == timedelta(minutes=2)
    assert (
        settings.pictures.budgets.low,
        settings.pictures.budgets.auto,
        settings.pictures.budgets.high,
    ) == (
        256,
        1024,
        4096,
    )
    assert settings.server.host == "127.0.0.1"
    assert settings.server.port == 8000
    assert settings.server.max_body == 64 * 2**20


def test_building_settings_does_not_look_at_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAMINARI_ENGINE__SLOTS", "3")
    monkeypatch.setenv("KAMINARI_NONSENSE", "3")
    assert Settings() == Settings(engine=EngineSettings())
    assert Settings().engine.slots == "auto"


def test_frozen_at_every_level() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.engine = EngineSettings()
    with pytest.raises(ValidationError):
        settings.engine.slots = 3
    with pytest.raises(ValidationError):
        settings.pictures.budgets.low = 3


@pytest.mark.parametrize(
    "values", [{"nope": 1}, {"engine": {"slot": 1}}, {"pictures": {"budgets": {"middle": 3}}}, {"engine": 3}]
)
def test_unknown_names_do_not_construct(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**values)


@pytest.mark.parametrize("budgets", [(300, 200, 400), (1, 3, 2), (2, 1, 1)])
def test_budgets_out_of_order_do_not_construct(budgets: tuple[int, int, int]) -> None:
    low, auto, high = budgets
    with pytest.raises(ValidationError, match="low <= auto <= high"):
        BudgetSettings(low=low, auto=auto, high=high)


def test_equal_budgets_construct() -> None:
    assert BudgetSettings(low=64, auto=64, high=64).high == 64


def test_more_choices_than_slots_do_not_construct_where_both_are_named() -> None:
    with pytest.raises(ValidationError, match="takes a slot"):
        EngineSettings(slots=2, max_choices=3)
    assert EngineSettings(slots=2).max_choices == 8
    assert EngineSettings(max_choices=20).slots == "auto"
    assert EngineSettings(slots=3, max_choices=3).slots == 3


def test_a_chunk_may_be_larger_than_the_context() -> None:
    assert EngineSettings(context=16, prefill_chunk=512).context == 16


def test_every_field_says_what_it_is_and_what_it_expects() -> None:
    for field in setting_fields():
        assert len(field.description) > 10, field.name
        assert field.expects.text != "a valid value", field.name
        assert field.expects.example, field.name
