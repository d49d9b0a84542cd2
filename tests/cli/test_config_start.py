"""A bad start: one report, exit code 2, no traceback, and torch is never imported. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kaminari import __version__
from kaminari.cli import main as cli
from kaminari.cli.errors import CommandError

COMMANDS = ["serve", "chat", "config", "doctor"]
BAD = {
    "KAMINARI_ENGIN__SLOTS": "1",
    "KAMINARI_ENGINE__SLOTS": "many",
    "KAMINARI_PICTURES": '{"budgets": {"lo": 3}}',
}


@pytest.fixture(scope="module")
def poison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `torch` and `transformers` end the process that imports them."""
    folder = tmp_path_factory.mktemp("poison")
    for name in ("torch", "transformers"):
        (folder / f"{name}.py").write_text("import os\nos._exit(77)\n")
    return folder


def start(*line: str, poison: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.upper().startswith("KAMINARI_")}
    if poison is not None:
        clean["PYTHONPATH"] = str(poison)
    return subprocess.run(
        [sys.executable, "-m", "kaminari", *line],
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_poison_works(poison: Path) -> None:
    clean = os.environ | {"PYTHONPATH": str(poison)}
    assert subprocess.run([sys.executable, "-c", "import torch"], env=clean, check=False).returncode == 77


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_start_reports_everything_without_torch(command: str, poison: Path) -> None:
    done = start(command, "--slots", "lots", "--prt", "1", "--context", "2", poison=poison, **BAD)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    for name in (
        "KAMINARI_ENGIN__SLOTS",
        "KAMINARI_PICTURES, pictures.budgets.lo",
        "--slots",
        "--prt",
        "--context",
    ):
        assert f"\n  {name} = " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("kaminari cannot start: 5 settings are wrong\n")


@pytest.mark.parametrize(
    "line", [["--help"], ["--version"], ["config"], ["config", "--json"], *([c, "--help"] for c in COMMANDS)]
)
def test_what_needs_no_model_needs_no_torch(line: list[str], poison: Path) -> None:
    done = start(*line, poison=poison)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout


def test_version() -> None:
    assert start("--version").stdout == f"kaminari {__version__}\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["serv"], "did you mean serve?"),
        (["confg", "--json"], "did you mean config?"),
        (["--verson"], "did you mean --version?"),
        (["xyzzy"], f"there are {', '.join(cli.COMMANDS)}"),
        ([""], "there are serve"),
    ],
)
def test_unknown_commands(line: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(line) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    for name in COMMANDS:
        assert f"  {name} " in printed.err


@pytest.mark.parametrize(
    ("error", "exit_code", "text"),
    [
        (CommandError("no such model folder: x"), 1, "kaminari: no such model folder: x\n"),
        (CommandError("usage", exit_code=2), 2, "kaminari: usage\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_command_raises(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    exit_code: int,
    text: str,
) -> None:
    def run(argv: object) -> int:
        raise error

    monkeypatch.setattr("kaminari.cli.config.run", run)
    assert cli.main(["config"]) == exit_code
    assert capsys.readouterr().err == text


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("kaminari.cli.config.run", run)
    with pytest.raises(ZeroDivisionError):
        cli.main(["config"])


def test_a_reader_that_leaves_is_not_an_error_with_a_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kaminari", "config"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 1
