"""`kaminari config`: the effective settings with their sources, and the same as JSON."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, SecretStr

from kaminari.cli.config import as_json, as_lines, effective_settings
from kaminari.cli.main import main
from kaminari.config.fields import setting_fields
from kaminari.config.loading import load_settings, load_with_origins
from kaminari.config.settings import Settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in setting_fields():
        monkeypatch.delenv(field.variable, raising=False)


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines}


def test_a_line_for_every_setting_with_its_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAMINARI_ENGINE__STALL_AFTER", "90s")
    monkeypatch.setenv("KAMINARI_SERVER", '{"port": 9}')
    monkeypatch.setenv("KAMINARI_ENGINE__CONTEXT", "100")
    assert main(["config", "org/name@v1", "--context", "200", "--memory-limit=5GiB"]) == 0
    found = rows(capsys)
    assert list(found) == [field.name for field in setting_fields()]
    assert found["model.source"] == ["org/name@v1", "flag", "MODEL"]
    assert found["engine.context"] == ["200", "flag", "--context"]
    assert found["engine.memory_limit"] == ["5GiB", "flag", "--memory-limit"]
    assert found["engine.stall_after"] == ["90s", "environment", "KAMINARI_ENGINE__STALL_AFTER"]
    assert found["server.port"] == ["9", "environment", "KAMINARI_SERVER"]
    assert found["server.host"] == ["127.0.0.1", "default"]
    assert found["model.served_name"] == ["unset", "default"]


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAMINARI_SERVER__GRACE", "3s")
    assert main(["config", "--slots", "3", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(found) == {field.name for field in setting_fields()}
    assert (found["engine.slots"]["value"], found["engine.slots"]["origin"]) == ("3", "flag")
    assert found["engine.slots"]["set_by"] == "--slots"
    assert found["server.grace"]["set_by"] == "KAMINARI_SERVER__GRACE"
    assert found["server.grace"]["value"] == "3s"
    assert found["server.port"]["set_by"] is None
    assert found["server.port"]["origin"] == "default"
    assert found["engine.memory_limit"]["value"] is None


def test_what_is_printed_reads_back() -> None:
    environ = {
        "KAMINARI_MODEL__SOURCE": "./somewhere",
        "KAMINARI_ENGINE__MEMORY_LIMIT": "800MB",
        "KAMINARI_SERVER__GRACE": "1500ms",
        "KAMINARI_PICTURES__MODE": "letterbox",
    }
    loaded = load_with_origins({}, environ)
    printed = {
        setting.field.name: setting.value
        for setting in effective_settings(loaded)
        if setting.value is not None and setting.field.name != "engine.max_choices"
    }
    assert load_settings(printed, environ={}) == loaded.settings


def test_secrets_are_masked_and_unset_ones_say_so() -> None:
    class Vault(BaseModel):
        key: SecretStr | None = None
        other: SecretStr | None = None

    class Guarded(Settings):
        vault: Vault = Vault()

    loaded = load_with_origins({}, {"KAMINARI_VAULT__KEY": "hush-hush"}, root=Guarded)
    settings = list(effective_settings(loaded))
    values = {setting.field.name: setting.value for setting in settings}
    assert values["vault.key"] == "********"
    assert values["vault.other"] is None
    assert "hush" not in as_lines(settings) + as_json(settings)


def test_problems_are_not_printed_as_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--slots", "none"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--slots = none" in printed.err
