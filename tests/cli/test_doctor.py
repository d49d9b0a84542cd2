"""`kaminari doctor`: exit 0 where the model can be served, else one line that says why not."""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from kaminari.cli import machine
from kaminari.cli.main import main
from kaminari.config.fields import setting_fields
from kaminari.model.kernels.native.build import foreseen_word

CPU = ["--device", "cpu"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in setting_fields():
        monkeypatch.delenv(field.variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(autouse=True)
def _no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(repo: str, *, local_files_only: bool = False, **options: object) -> str:
        assert local_files_only, "doctor went to the network"
        raise LocalEntryNotFoundError(f"no copy of {repo}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


def facts(text: str) -> dict[str, str]:
    pairs = (line.strip().split("  ", 1) for line in text.splitlines() if line.startswith("  "))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def failure(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    """Run a doctor that must fail, and return its one line."""
    assert main(["doctor", *CPU, *line]) == 1
    printed = capsys.readouterr()
    assert "can be served" not in printed.out
    assert printed.err.startswith("kaminari: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_the_demo_can_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *CPU, "--dtype", "float32", "--slots", "2", "--context", "100"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    found = facts(printed.out)
    assert found["torch"].startswith(torch.__version__)
    assert "transformers" in found
    assert found["served as"] == "kaminari-demo, from demo"
    assert found["device"] == "cpu"
    assert found["dtype"] == "float32, vision float32"
    assert found["kernels"] == foreseen_word()
    assert found["context"].startswith("100 tokens a slot")
    assert found["slots"].startswith("2; memory for ")
    assert printed.out.splitlines()[-1] == "kaminari-demo can be served: 2 slots of 100 tokens"


def test_kernels_can_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *CPU, "--kernels", "aten"]) == 0
    assert facts(capsys.readouterr().out)["kernels"] == "aten (switched off)"


def test_the_numbers_are_those_of_the_checkpoint(
    capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path
) -> None:
    text = json.loads((tiny_checkpoint / "config.json").read_text())["text_config"]
    per_token = 2 * text["num_hidden_layers"] * text["num_key_value_heads"] * text["head_dim"] * 4
    line = [str(tiny_checkpoint), "--dtype", "float32", "--slots", "1", "--context", "64"]
    assert main(["doctor", *CPU, *line, "--memory-limit", "1GiB"]) == 0
    found = facts(capsys.readouterr().out)
    token, slot = found["cache"].split(", ")
    assert token == f"{machine.format_bytes(per_token)} a token"
    assert slot == f"{machine.format_bytes(64 * per_token)} a slot"
    assert found["memory limit"] == "1.0 GiB"
    assert found["in all"].endswith("of 1.0 GiB that may be used")
    assert found["served as"].startswith(f"{tiny_checkpoint.name}, from ")


def test_auto_says_what_it_chose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *CPU]) == 0
    chosen = facts(capsys.readouterr().out)["dtype"]
    native = machine.multiplies_bfloat16(torch.device("cpu"))
    assert chosen.startswith("bfloat16 (auto)" if native else "float32 (auto)")


def test_not_enough_memory(capsys: pytest.CaptureFixture[str]) -> None:
    line = failure(capsys, "--memory-limit", "1MB")
    assert "not enough memory for one slot" in line
    assert "not even the weights fit" in line


def test_more_slots_than_fit(capsys: pytest.CaptureFixture[str]) -> None:
    line = failure(capsys, "--memory-limit", "60MB", "--slots", "200", "--dtype", "bfloat16")
    assert "not enough memory for 200 slots" in line
    assert "tokens would fit" in line


def test_a_context_that_the_model_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is more than this model's" in failure(capsys, "--context", "10000000")


def test_no_such_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "nothing-here"
    assert f"no such model folder: {missing}" in failure(capsys, str(missing))


def test_a_folder_that_is_no_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "config.json" in failure(capsys, str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "unsupported model_type 'llama'" in failure(capsys, str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert "cannot read" in failure(capsys, str(tmp_path))


def test_a_truncated_checkpoint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_checkpoint: Path
) -> None:
    folder = tmp_path / "short"
    shutil.copytree(tiny_checkpoint, folder)
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert weights.name in failure(capsys, str(folder))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the device cuda was asked for" in failure(capsys, "--device", "cuda")


def test_a_hub_model_that_is_not_here_is_not_downloaded(capsys: pytest.CaptureFixture[str]) -> None:
    line = failure(capsys, "org/name@v1")
    assert "org/name@v1 is not on this machine yet" in line
    assert "kaminari serve org/name@v1" in line
    assert "--download" in line


def test_a_hub_model_that_is_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo, **options: str(tiny_checkpoint))
    assert main(["doctor", *CPU, "org/name@v1"]) == 0
    out = capsys.readouterr().out
    assert facts(out)["served as"] == "org/name, from org/name@v1"
    assert "org/name can be served" in out


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda device: False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    notes = " | ".join(machine.missing())
    for words in ("no CUDA device", "no bfloat16 instructions", "no C++ compiler", "kaminari[examples]"):
        assert words in notes


def test_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert machine.missing() == []


def test_a_card_without_the_hybrid_kernels_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "fla" else object())
    (note,) = machine.missing()
    assert "kaminari[fla]" in note


def test_a_broken_installation_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def broken(name: str, *args: object, **kwargs: object) -> object:
        if name == "kaminari.cli" and "machine" in (args[2] or ()):
            raise ImportError("libtorch.so:\n cannot open")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", broken)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "kaminari: the installation is broken: libtorch.so: cannot open\n"


def test_a_bad_setting_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--slots", "0"]) == 2
    assert "--slots = 0" in capsys.readouterr().err


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    found = facts(capsys.readouterr().out)
    assert torch.cuda.get_device_name(0) in found["cuda:0"]
    assert found["device"] == "cuda:0"
    assert found["dtype"] == "bfloat16 (auto), vision bfloat16"
    assert " for decode and " in found["kernels"]
    assert "products" not in found["kernels"]
