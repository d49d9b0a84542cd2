"""The ladder: every rung runs what it says, and those that a model has not are left out or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kaminari.bench import ladder, variants
from kaminari.bench.bench import Bench
from kaminari.bench.ladder import RUNGS
from kaminari.bench.options import Options
from kaminari.bench.result import OURS, Result
from kaminari.bench.subject import CasesError, LoadedSubject
from kaminari.bench.variants import PLAIN, Form, Variants
from kaminari.cli.main import main
from kaminari.config import CompileChoice, Demo, PackFormat, Settings
from kaminari.engine.loading import DEMO_FOLDER
from kaminari.model.compiled_layers import PartedLayer
from kaminari.model.family import CheckpointError
from tests.bench.harness import LIMITS, bench_of

OPTIONS = Options(rounds=2, tokens=2, contexts=(128,), hf=True)
INT8, INT4 = Form(PackFormat.INT8), Form(PackFormat.INT4)
TINY = ["--rounds", "1", "--tokens", "2", "--contexts", "100", "--threads", "1", "--dtype", "float32"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pack of the person who runs the tests counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Load what would be compiled without compiling it, which takes a minute; returns the settings."""
    asked: list[Settings] = []
    load = variants.load_subject

    def loaded(settings: Settings) -> LoadedSubject:
        if settings.model.compile is CompileChoice.ON:
            asked.append(settings)
            model = settings.model.model_copy(update={"compile": CompileChoice.OFF})
            settings = settings.model_copy(update={"model": model})
        return load(settings)

    monkeypatch.setattr(variants, "load_subject", loaded)
    return asked


def climbed(bench: Bench) -> list[str]:
    with torch.inference_mode():
        ladder.run(bench)
    return [str(figure.case["rung"]) for figure in bench.recorder.figures(LIMITS)]


def test_a_model_with_packs_climbs_every_rung(
    tiny_checkpoint: Path, uncompiled: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny_checkpoint), "--to", "int8"]) == 0
    assert main(["quantize", str(tiny_checkpoint), "--to", "int4", "--method", "rtn"]) == 0
    capsys.readouterr()
    bench = bench_of(tiny_checkpoint, OPTIONS, slots=8)
    assert climbed(bench) == list(RUNGS)
    assert len(uncompiled) == 1
    floors = {figure.case["rung"]: figure.floor for figure in bench.recorder.figures(LIMITS)}
    assert floors["int4"] < floors["int8"] < floors["captured"], "each rung's own bytes"
    assert floors["captured"] == floors["native"] == floors["eager"]
    entrants = {figure.entrant for figure in bench.recorder.figures(LIMITS)}
    assert entrants == {OURS, "hf, dynamic cache"}
    assert bench.recorder.notes == []


def test_rungs_that_a_model_has_not_are_left_out_with_the_reason(
    tiny_checkpoint: Path, uncompiled: list[Settings]
) -> None:
    bench = bench_of(tiny_checkpoint, OPTIONS, slots=8)
    assert climbed(bench) == [name for name in RUNGS if not name.startswith("int")]
    assert [note.split(":")[0] for note in bench.recorder.notes] == ["no rung int8", "no rung int4"]
    assert "make it with: kaminari quantize" in bench.recorder.notes[0]


@pytest.mark.usefixtures("uncompiled")
def test_without_its_peer_the_first_rung_is_left_out(tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, replace(OPTIONS, hf=False), slots=8)
    assert climbed(bench) == [name for name in RUNGS if name != "eager" and not name.startswith("int")]
    assert bench.recorder.notes[0] == "the rung eager is transformers: add --against hf"


def test_a_rung_that_was_asked_for_is_refused(tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, replace(OPTIONS, rungs=("native", "int4")), slots=8)
    with pytest.raises(CheckpointError, match="there is no int4 pack of"):
        climbed(bench)
    alone = bench_of(tiny_checkpoint, replace(OPTIONS, hf=False, rungs=("eager", "native")), slots=8)
    with pytest.raises(CasesError, match="eager is transformers"):
        climbed(alone)


def test_a_pack_that_is_named_is_its_formats_rung(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = tmp_path / "mine"
    line = ["quantize", str(tiny_checkpoint), "--to", "int4", "--method", "rtn", "-o", str(pack)]
    assert main(line) == 0
    capsys.readouterr()
    rungs = ["--rungs", "native,int4", "--json"]
    assert main(["bench", "ladder", str(tiny_checkpoint), *TINY, "--quantization", str(pack), *rungs]) == 0
    result = Result.model_validate_json(capsys.readouterr().out)
    assert [figure.case["rung"] for figure in result.figures] == ["native", "int4"]
    assert result.subject.quantization == "none", "the other rungs run the model's own weights"
    with Variants(bench_of(tiny_checkpoint, OPTIONS, slots=8), pack) as forms:
        own = forms.of(INT4).subject
        assert own.plan.pack is not None
        assert own.plan.pack.folder == pack
        assert forms.of(INT4).reference is None
        with pytest.raises(CheckpointError, match="there is no int8 pack of"):
            forms.of(INT8)


def test_a_named_pack_that_is_not_there_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "nowhere")
    line = [str(tiny_checkpoint), *TINY, "--rungs", "native,int4", "--quantization", nowhere]
    assert main(["bench", "ladder", *line]) == 1
    assert capsys.readouterr().err == f"kaminari: there is no pack in {nowhere}\n"


def test_the_demos_packs_are_made_for_the_run_and_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    make = variants.make_pack

    def watched(checkpoint: Any, recipe: Any, folder: Path, **more: Any) -> Any:
        made.append(folder)
        return make(checkpoint, recipe, folder, **more)

    monkeypatch.setattr(variants, "make_pack", watched)
    bench = bench_of(DEMO_FOLDER, OPTIONS, slots=1)
    model = bench.subject.settings.model.model_copy(update={"source": Demo()})
    settings = bench.subject.settings.model_copy(update={"model": model})
    bench = replace(bench, subject=replace(bench.subject, settings=settings))
    with Variants(bench, None) as forms:
        int4 = forms.of(INT4)
        assert forms.of(INT4) is int4, "it is loaded once"
        assert int4.subject.plan.pack is not None
        assert int4.subject.plan.pack.header.word == "int4-g64+head-int8"
        assert int4.subject.work.weight_bytes < 0.5 * bench.subject.work.weight_bytes
        assert forms.of(PLAIN) is bench
    assert len(made) == 1
    assert not made[0].parent.exists()


@pytest.mark.parametrize("name", ["compiled", "native"])
def test_only_the_compiled_rung_is_compiled(name: str, tiny_checkpoint: Path) -> None:
    form = RUNGS[name].form
    with Variants(bench_of(tiny_checkpoint, OPTIONS, slots=1), None) as forms:
        model: Any = forms.of(form).subject.loaded.model
        layers = [part for part in model.network.text.modules() if isinstance(part, PartedLayer)]
        assert layers
        assert all(layer.compiled is form.compiled for layer in layers)


def test_a_layer_that_does_not_compile_is_a_rung_less(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Variants, form: Form) -> Bench:
        if form.compiled:
            raise CheckpointError("the decoder's layers do not compile here")
        return bench

    monkeypatch.setattr(Variants, "of", broken)
    bench = bench_of(tiny_checkpoint, replace(OPTIONS, rounds=1), slots=8)
    assert "compiled" not in climbed(bench)
    assert bench.recorder.notes == ["no rung compiled: the decoder's layers do not compile here"]


def test_rungs_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "ladder", "--rungs", "native,flying"])
    assert ended.value.code == 2
    assert "no such rung: 'flying'; there are " + ", ".join(RUNGS) in capsys.readouterr().err


def test_the_json_of_a_ladder_names_its_rungs(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["bench", "ladder", str(tiny_checkpoint), *TINY, "--rungs", "captured,batched", "--json"]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert [figure["case"] for figure in found["figures"]] == [
        {"rung": "captured", "batch": 1, "context": 100},
        {"rung": "batched", "batch": 8, "context": 100},
    ]
