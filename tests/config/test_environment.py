"""Nothing in the environment is passed over: unknown names at every level, broken JSON, doubled names."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaminari.config import ConfigError, Settings, load_settings
from kaminari.config.environment import read_environment
from kaminari.config.fields import setting_fields, setting_groups, variable_name

VARIABLES = [field.variable for field in setting_fields()]
GROUPS = [variable_name(path) for path in setting_groups()]


def problems_of(environ: dict[str, str]) -> dict[str, str]:
    """Names of the problems of an environment, with the whole text of each."""
    with pytest.raises(ConfigError) as caught:
        load_settings(environ=environ)
    return {
        problem.name: f"{problem.value} | {problem.reason} | {problem.fix}"
        for problem in caught.value.problems
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KAMINARI_ENGIN__SLOTS", "KAMINARI_ENGINE__SLOTS"),
        ("KAMINARI_ENGINE__SLOT", "KAMINARI_ENGINE__SLOTS"),
        ("KAMINARI_ENGINE__SLOTS__X", "KAMINARI_ENGINE__SLOTS"),
        ("KAMINARI_ENGINE_SLOTS", "KAMINARI_ENGINE__SLOTS"),
        ("KAMINARI__ENGINE__SLOTS", "KAMINARI_ENGINE__SLOTS"),
        ("KAMINARI_SLOTS", "KAMINARI_ENGINE__SLOTS"),
        ("kaminari_slots", "KAMINARI_ENGINE__SLOTS"),
        ("KAMINARI_ENGINE__PORT", "KAMINARI_SERVER__PORT"),
        ("KAMINARI_ENGINE__PREFIL_CHUNK", "KAMINARI_ENGINE__PREFILL_CHUNK"),
        ("KAMINARI_MODEL__DTYP", "KAMINARI_MODEL__DTYPE"),
        ("KAMINARI_MODEL__SOURCE__PATH", "KAMINARI_MODEL__SOURCE"),
        ("KAMINARI_PICTURES__BUDGETS__HI", "KAMINARI_PICTURES__BUDGETS__HIGH"),
        ("KAMINARI_PICTURES__BUDGET__LOW", "KAMINARI_PICTURES__BUDGETS__LOW"),
        ("KAMINARI_PICTURE", "KAMINARI_PICTURES"),
    ],
)
def test_did_you_mean(name: str, meant: str) -> None:
    problems = problems_of({name: "1"})
    assert list(problems) == [name]
    assert f"did you mean {meant}?" in problems[name]


@pytest.mark.parametrize(
    "name",
    [
        "KAMINARI_",
        "KAMINARI___",
        "KAMINARI_ZZZZ",
        "KAMINARI_ENGINE__",
        "KAMINARI_QQQ__WWW__EEE",
        "kaminari_x",
    ],
)
def test_unknown_names_without_a_likely_meaning(name: str) -> None:
    assert list(problems_of({name: "1"})) == [name]


def test_other_peoples_variables_are_not_ours() -> None:
    environ = {"KAMINARI": "1", "MY_KAMINARI_ENGINE__SLOT": "1", "PATH": "/bin", "KAMINAR_X": "1"}
    assert load_settings(environ=environ) == Settings()


@settings(max_examples=300)
@given(
    st.sampled_from(VARIABLES),
    st.integers(0, 60),
    st.sampled_from(string.ascii_uppercase + "_"),
    st.sampled_from(["insert", "replace", "delete"]),
)
def test_a_name_with_one_slip_is_always_caught_and_usually_understood(
    name: str, at: int, letter: str, slip: str
) -> None:
    start = len("KAMINARI_")
    at = start + at % (len(name) - start)
    tail = name[at:] if slip == "insert" else name[at + 1 :]
    wrong = name[:at] + ("" if slip == "delete" else letter) + tail
    if wrong in VARIABLES or wrong in GROUPS:
        return
    problems = problems_of({wrong: "1"})
    assert list(problems) == [wrong]
    # a slip may land nearer to another name (LOW, AUTO), but one is always offered
    assert "did you mean KAMINARI_" in problems[wrong]


@given(
    st.dictionaries(
        st.text(string.ascii_letters + "_", min_size=1, max_size=20), st.text(max_size=8), max_size=5
    )
)
def test_every_unknown_name_is_in_the_report(names: dict[str, str]) -> None:
    environ = {f"KAMINARI_ZQ_{name}": value for name, value in names.items()}
    distinct = {name.upper() for name in environ}
    if not environ:
        return
    assert len(problems_of(environ)) >= len(distinct)


@given(
    st.sampled_from(setting_fields()),
    st.text(string.ascii_lowercase, min_size=1, max_size=6),
)
def test_unknown_keys_inside_json_are_caught_at_every_level(field: object, key: str) -> None:
    *groups, _ = field.path
    for depth in range(1, len(groups) + 1):
        siblings = {
            known.path[depth] for known in setting_fields() if known.path[:depth] == tuple(groups[:depth])
        }
        if key in siblings:
            continue
        tree: dict[str, object] = {key: 1}
        for group in reversed(groups[1:depth]):
            tree = {group: tree}
        top = variable_name((groups[0],))
        problems = problems_of({top: json.dumps(tree)})
        assert list(problems) == [f"{top}, {'.'.join(groups[:depth])}.{key}"]


def test_a_group_takes_json() -> None:
    settings_ = load_settings(environ={"KAMINARI_ENGINE": '{"slots": 4, "stall_after": "2m"}'})
    assert settings_.engine.slots == 4
    nested = load_settings(environ={"KAMINARI_PICTURES": '{"budgets": {"low": 9}, "mode": "letterbox"}'})
    assert nested.pictures.budgets.low == 9
    inner = load_settings(environ={"KAMINARI_PICTURES__BUDGETS": '{"low": 9, "high": 2000}'})
    assert (inner.pictures.budgets.low, inner.pictures.budgets.high) == (9, 2000)
    assert load_settings(environ={"KAMINARI_ENGINE": "{}"}) == Settings()
    assert load_settings(environ={"KAMINARI_ENGINE": '{"memory_limit": null}'}) == Settings()


def test_a_nested_variable_wins_over_json_above_it() -> None:
    environ = {
        "KAMINARI_PICTURES__BUDGETS__LOW": "7",
        "KAMINARI_PICTURES__BUDGETS": '{"low": 8, "auto": 900}',
        "KAMINARI_PICTURES": '{"budgets": {"low": 9, "auto": 901, "high": 3000}}',
    }
    budgets = load_settings(environ=environ).pictures.budgets
    assert (budgets.low, budgets.auto, budgets.high) == (7, 900, 3000)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "4",
        "null",
        "true",
        "[]",
        '"slots"',
        "{",
        '{"slots": 4',
        "{'slots': 4}",
        "slots=4",
        "[" * 100_000,
        '{"slots": 4, "slots": 5}',
    ],
)
def test_a_group_takes_nothing_but_an_object(value: str) -> None:
    problems = problems_of({"KAMINARI_ENGINE": value})
    assert list(problems) == ["KAMINARI_ENGINE"]
    assert "JSON" in problems["KAMINARI_ENGINE"]
    assert len(problems["KAMINARI_ENGINE"]) < 500


@pytest.mark.parametrize("value", ["3", "null", "[1]", '"x"'])
def test_a_group_inside_json_takes_nothing_but_an_object(value: str) -> None:
    problems = problems_of({"KAMINARI_PICTURES": f'{{"budgets": {value}}}'})
    assert list(problems) == ["KAMINARI_PICTURES, pictures.budgets"]


def test_a_bad_value_inside_json_names_its_place() -> None:
    problems = problems_of({"KAMINARI_PICTURES": '{"budgets": {"low": 0}, "mode": "letterbx"}'})
    assert set(problems) == {
        "KAMINARI_PICTURES, pictures.budgets.low",
        "KAMINARI_PICTURES, pictures.mode",
    }
    assert '"mode": "letterbox"' in problems["KAMINARI_PICTURES, pictures.mode"]


@pytest.mark.parametrize("value", ["true", "[4]", "{}", "null", "4.5"])
def test_json_of_a_wrong_kind_is_refused(value: str) -> None:
    problems = problems_of({"KAMINARI_ENGINE": f'{{"queue_size": {value}}}'})
    assert list(problems) == ["KAMINARI_ENGINE, engine.queue_size"]


def test_the_same_name_in_two_cases_is_refused() -> None:
    problems = problems_of({"KAMINARI_ENGINE__SLOTS": "3", "kaminari_engine__slots": "4"})
    assert list(problems) == ["KAMINARI_ENGINE__SLOTS, kaminari_engine__slots"]
    assert "keep KAMINARI_ENGINE__SLOTS" in next(iter(problems.values()))


@pytest.mark.parametrize("field", setting_fields(), ids=lambda field: field.name)
def test_an_empty_variable_is_refused(field: object) -> None:
    assert list(problems_of({field.variable: ""})) == [field.variable]


def test_an_origin_is_the_variable_as_it_was_spelled() -> None:
    reading = read_environment({"kaminari_engine__slots": "3", "KAMINARI_SERVER": '{"port": 1}'}, Settings)
    assert {path: item.origin.label for path, item in reading.given.items()} == {
        ("engine", "slots"): "kaminari_engine__slots",
        ("server", "port"): "KAMINARI_SERVER",
    }
