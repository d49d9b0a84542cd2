"""Flags over environment over defaults; every problem at once; no secret in any report."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from kaminari.config import ConfigError, Settings, load_settings
from kaminari.config.environment import OriginKind
from kaminari.config.loading import load_with_origins
from kaminari.config.problems import Problem, shown


def test_nothing_given_is_the_defaults() -> None:
    assert load_settings(environ={}) == Settings()


def test_precedence_and_origins() -> None:
    environ = {
        "KAMINARI_ENGINE__SLOTS": "2",
        "KAMINARI_ENGINE__CONTEXT": "100",
        "KAMINARI_SERVER": '{"port": 1}',
    }
    loaded = load_with_origins({"engine.slots": "3"}, environ)
    assert loaded.settings.engine.slots == 3
    assert loaded.settings.engine.context == 100
    assert loaded.settings.engine.queue_size == 64
    origins = {name: loaded.origin(tuple(name.split("."))) for name in ("engine.slots", "engine.context")}
    assert (origins["engine.slots"].kind, origins["engine.slots"].label) == (OriginKind.FLAG, "--slots")
    assert origins["engine.context"].label == "KAMINARI_ENGINE__CONTEXT"
    assert loaded.origin(("server", "port")).label == "KAMINARI_SERVER"
    assert loaded.origin(("server", "host")).kind is OriginKind.DEFAULT


def test_the_process_environment_is_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAMINARI_ENGINE__SLOTS", "5")
    assert load_settings().engine.slots == 5
    assert load_settings({"engine.slots": 6}).engine.slots == 6


def test_a_flag_hides_a_bad_variable_value_but_not_a_bad_name() -> None:
    environ = {"KAMINARI_ENGINE__SLOTS": "many", "KAMINARI_ENGINE__SLOT": "1"}
    with pytest.raises(ConfigError) as caught:
        load_settings({"engine.slots": "3"}, environ)
    assert [problem.name for problem in caught.value.problems] == ["KAMINARI_ENGINE__SLOT"]


def test_every_problem_at_once() -> None:
    environ = {
        "KAMINARI_ENGIN__SLOTS": "4",
        "KAMINARI_ENGINE__SLOTS": "none",
        "KAMINARI_ENGINE__MEMORY_LIMIT": "5 frogs",
        "KAMINARI_MODEL": '{"dtype": "bfloat", "sorce": "demo"}',
        "KAMINARI_MODEL__SOURCE": "nope",
        "KAMINARI_PICTURES__BUDGETS__LOW": "9999",
        "KAMINARI_PICTURES__BUDGETS__HIGH": "5000",
        "KAMINARI_SERVER": "{",
        "KAMINARI_SERVER__GRACE": "soon",
    }
    with pytest.raises(ConfigError) as caught:
        load_settings({"server.port": "99999", "server.prt": "1"}, environ)
    problems = caught.value.problems
    assert {problem.name for problem in problems} == {
        "server.prt",
        "--port",
        "KAMINARI_ENGIN__SLOTS",
        "KAMINARI_ENGINE__SLOTS",
        "KAMINARI_ENGINE__MEMORY_LIMIT",
        "KAMINARI_MODEL, model.dtype",
        "KAMINARI_MODEL, model.sorce",
        "KAMINARI_MODEL__SOURCE",
        "KAMINARI_PICTURES__BUDGETS__HIGH, KAMINARI_PICTURES__BUDGETS__LOW",
        "KAMINARI_SERVER",
        "KAMINARI_SERVER__GRACE",
    }
    report = str(caught.value)
    assert report.startswith(f"kaminari cannot start: {len(problems)} settings are wrong")
    for problem in problems:
        assert problem.reason in report
        assert problem.fix in report
        assert f"{problem.name} = {problem.value}" in report
    assert "\x1b" not in report


def test_a_union_complains_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({"engine.slots": "0", "engine.context": "3"}, {})
    assert len(caught.value.problems) == 2


def test_a_combination_names_what_was_said() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(
            {"engine.slots": "2"}, {"KAMINARI_ENGINE__MAX_CHOICES": "5", "KAMINARI_ENGINE__THREADS": "1"}
        )
    (problem,) = caught.value.problems
    assert set(problem.name.split(", ")) == {"--slots", "KAMINARI_ENGINE__MAX_CHOICES"}
    assert "takes a slot" in problem.reason


def test_one_side_of_a_combination_is_named_alone() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({}, {"KAMINARI_PICTURES__BUDGETS__LOW": "2000", "KAMINARI_PICTURES__MAX_COUNT": "1"})
    (problem,) = caught.value.problems
    assert (problem.name, problem.value) == ("KAMINARI_PICTURES__BUDGETS__LOW", "2000")


def test_enums_guess_what_was_meant() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({"model.dtype": "bfloat", "server.log_level": "warn"}, {})
    fixes = {problem.name: problem.fix for problem in caught.value.problems}
    assert fixes == {
        "--dtype": "for example --dtype bfloat16",
        "--log-level": "for example --log-level warning",
    }


def test_values_are_shown_on_one_short_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert shown("") == "''"
    assert shown(" x") == "' x'"
    assert len(shown("x" * 10_000)) < 120
    assert shown("x", secret=True) == "********"
    assert "\x1b" not in shown("\x1b[31mred")


class Vault(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    password: SecretStr = Field(default=SecretStr("quiet"), min_length=4)
    pins: tuple[SecretStr, ...] = ()
    size: int = 3

    @field_validator("pins")
    @classmethod
    def _no_short_pins(cls, pins: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if any(len(pin.get_secret_value()) < 4 for pin in pins):
            raise ValueError("a pin has at least four digits")
        return pins


class Guarded(Settings):
    vault: Vault = Vault()


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"KAMINARI_VAULT__PASSWORD": "hux"}, "expected"),
        ({"KAMINARI_VAULT__PINS": "[hux"}, "JSON"),
        ({"KAMINARI_VAULT__PINS": '["hux"]'}, "four digits"),
        ({"KAMINARI_VAULT": '{"password": "hux"}'}, "expected"),
        ({"KAMINARI_VAULT": '{"password": "hux"'}, "JSON"),
        ({"KAMINARI_VAULT": '{"pasword": "hux"}'}, "no such"),
        ({"KAMINARI_VAULT": '{"pinns": ["hux"]}'}, "no such"),
        ({"KAMINARI_VAULT__PASWORD": "hux"}, "no such"),
        ({"KAMINARI_VAULT__PINS__X": "hux"}, "below"),
        ({"KAMINARI_VAULTS": '{"password": "hux"}'}, "no such"),
        ({"KAMINARI_SERVER__API_KYES": "hux"}, "no such"),
        ({"KAMINARI_HF_TOKEN": "hux"}, "no such"),
        ({"KAMINARI_SERVER": '{"api_keys": ["hux"'}, "JSON"),
        ({"KAMINARI_VAULT__PASSWORD": "hux", "kaminari_vault__password": "hux"}, "twice"),
    ],
)
def test_no_secret_in_a_report(environ: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_with_origins({}, environ, root=Guarded)
    assert reason in str(caught.value)
    assert "hux" not in str(caught.value)


def test_lists_take_json_and_read_back() -> None:
    loaded = load_with_origins({}, {"KAMINARI_VAULT__PINS": '["1234", "5678"]'}, root=Guarded)
    assert [pin.get_secret_value() for pin in loaded.settings.vault.pins] == ["1234", "5678"]


def test_problems_found_before_join_the_report() -> None:
    before = Problem("--x", None, "there is no such flag", "leave it out")
    with pytest.raises(ConfigError) as caught:
        load_with_origins({}, {"KAMINARI_X": "1"}, [before])
    assert [problem.name for problem in caught.value.problems] == ["--x", "KAMINARI_X"]
    assert re.search(r"^  --x$", str(caught.value), re.MULTILINE)


def test_config_imports_nothing_heavy_and_nothing_of_the_rest() -> None:
    code = (
        "import sys, kaminari.config\n"
        "bad = {'torch', 'transformers', 'numpy', 'PIL', 'starlette'} & set(sys.modules)\n"
        "rest = [m for m in sys.modules if m.startswith('kaminari.') and m[9:15] != 'config']\n"
        "sys.exit(repr((bad, rest)) if bad or rest else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_config_reads_the_environment() -> None:
    """The bench room hands it on to the processes that it starts, and reads no setting in it."""
    package = Path(sys.modules["kaminari"].__file__ or "").parent
    readers = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"os\.environ|getenv", path.read_text(encoding="utf-8"))
    ]
    handing_on = [str(Path("bench") / name) for name in ("profiling.py", "server_process.py", "startup.py")]
    config = [str(Path("config") / name) for name in ("folders.py", "loading.py")]
    assert sorted(readers) == sorted([*config, *handing_on])
