"""Flags are the fields of the settings: no more, no fewer, and they win; what is wrong joins one report."""

from __future__ import annotations

import pytest

from kaminari.cli.flags import CommandParser, add_settings_flags, command_parser, parse_command
from kaminari.config import ConfigError, Folder, Hub, Settings
from kaminari.config.fields import setting_fields
from kaminari.config.loading import load_settings
from tests.config.test_fields import OTHER


def parser(*groups: str) -> CommandParser:
    made = command_parser("test", "A test.")
    made.add_argument("--image", action="append", default=[])
    made.add_argument("--quick", action="store_true")
    add_settings_flags(made, groups or None)
    return made


def settings_of(*line: str, environ: dict[str, str] | None = None) -> Settings:
    return parse_command(parser(), line, environ or {}).settings


def problems_of(
    *line: str, environ: dict[str, str] | None = None, groups: tuple[str, ...] = ()
) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_command(parser(*groups), line, environ or {})
    return {problem.name: f"{problem.value} | {problem.fix}" for problem in caught.value.problems}


def test_every_field_has_a_flag_and_every_flag_a_field() -> None:
    made = parser()
    assert made.fields == setting_fields()
    flags = {flag for flag in made.flags if flag not in ("-h", "--help", "--image", "--quick")}
    assert flags | {"MODEL"} == {field.flag for field in setting_fields()}


@pytest.mark.parametrize("field", setting_fields(), ids=lambda field: field.name)
def test_every_flag_sets_its_field_and_wins(field: object) -> None:
    value = OTHER[field.name]
    line = [value] if field.flag == "MODEL" else [field.flag, value]
    environ = {field.variable: field.expects.example}
    assert settings_of(*line, environ=environ) == load_settings({field.name: value}, environ={})
    if field.flag != "MODEL":
        assert settings_of(f"{field.flag}={value}") == settings_of(*line)


def test_help_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command(parser(), ["--help"], {"KAMINARI_NONSENSE": "1"})
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for field in setting_fields():
        assert f"[{field.variable}]" in text
        assert field.flag in text
        assert field.description in text


def test_the_model_may_stand_anywhere() -> None:
    for line in (["org/name", "--slots", "2"], ["--slots", "2", "org/name"], ["--slots=2", "--", "org/name"]):
        settings = settings_of(*line)
        assert settings.model.source == Hub("org/name")
        assert settings.engine.slots == 2
    assert settings_of("./here").model.source == Folder(
        load_settings({"model.source": "./here"}).model.source.path
    )


def test_the_last_of_two_wins() -> None:
    assert settings_of("--slots", "2", "--slots", "3").engine.slots == 3


def test_arguments_of_the_command_stay_its_own() -> None:
    command = parse_command(parser(), ["--image", "a.png", "--quick", "org/name", "--image", "b.png"], {})
    assert command.args.image == ["a.png", "b.png"]
    assert command.args.quick is True
    assert command.settings.model.source == Hub("org/name")


@pytest.mark.parametrize(
    ("line", "name", "fix"),
    [
        (["--prot", "99"], "--prot", "99 | did you mean --port?"),
        (["--prot=99"], "--prot", "99 | did you mean --port?"),
        (["--prot"], "--prot", "None | did you mean --port?"),
        (["--por", "99"], "--por", "99 | did you mean --port?"),
        (["--prefill_chunk", "9"], "--prefill_chunk", "9 | did you mean --prefill-chunk?"),
        (["--engine-slots", "9"], "--engine-slots", "9 | did you mean --slots?"),
        (["--imag", "x"], "--imag", "x | did you mean --image?"),
        (["--zzzz"], "--zzzz", "None | leave it out; --help lists every flag"),
        (["-z"], "-z", "None | leave it out; --help lists every flag"),
        (["--api-key", "hux"], "--api-key", "********"),
        (["--port"], "--port", "None | for example --port 8000"),
        (["--port", "--quick"], "--port", "None | for example --port 8000"),
        (["--port", "-1"], "--port", "-1 | for example --port 8000"),
        (["--port", ""], "--port", "'' | for example --port 8000"),
        (["--host="], "--host", "'' | for example --host 127.0.0.1"),
        (["org/name", "more"], "more", "None | leave it out"),
        (["nope"], "MODEL", "nope | for example Qwen/Qwen3-VL-2B-Instruct"),
        ([""], "MODEL", "'' | for example Qwen/Qwen3-VL-2B-Instruct"),
    ],
)
def test_what_is_wrong_with_one_flag(line: list[str], name: str, fix: str) -> None:
    problems = problems_of(*line)
    assert list(problems) == [name]
    assert fix in problems[name]


def test_flags_and_variables_share_one_report() -> None:
    problems = problems_of(
        "--prot",
        "99",
        "--slots",
        "--context",
        "3",
        "./here",
        "too-many",
        environ={"KAMINARI_MODEL__DTYPE": "f", "KAMINARI_PORT": "1"},
    )
    assert set(problems) == {
        "--prot",
        "--slots",
        "--context",
        "too-many",
        "KAMINARI_MODEL__DTYPE",
        "KAMINARI_PORT",
    }


def test_a_command_without_a_group_does_not_know_its_flags() -> None:
    assert "did you mean" not in problems_of("--port", "99", groups=("model", "engine"))["--port"]
    made = parse_command(parser("model", "engine"), ["--slots", "2"], {"KAMINARI_SERVER__PORT": "9"})
    assert made.settings.server.port == 9


def test_the_commands_own_arguments_fail_with_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command(parser(), ["--image"], {})
    assert caught.value.code == 2
    assert "--image" in capsys.readouterr().err
