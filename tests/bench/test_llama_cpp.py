"""llama.cpp as a peer, with programs that print what the real ones print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kaminari.bench import decode, running
from kaminari.bench.decoders import LEAST_LLAMA_STEPS, LLAMA, Decoder, LlamaDecoder, OwnDecoder
from kaminari.bench.llama_cpp import LlamaCpp, PeerError, find_programs
from kaminari.bench.options import Options
from kaminari.bench.recorder import Recorder
from kaminari.bench.result import OURS
from tests.bench.harness import LIMITS, bench_of

BENCH = [{"model_size": 4000, "samples_ns": [2_000_000_000, 1_000_000_000]}]
# as many rows as it is asked for, and for each of them a second of steps
BATCHED = """while [ "$1" != -npl ]; do shift; done; echo "{\\"pl\\": $2, \\"t_tg\\": $2}\""""


def program(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/calls"\n{body}\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """The folder of a build, whose programs note how they were called."""
    folder = tmp_path / "build" / "bin"
    folder.mkdir(parents=True)
    program(folder, "llama-bench", f"echo 'a warning'; echo '{json.dumps(BENCH)}'")
    program(folder, "llama-batched-bench", f"echo 'main: loaded'; {BATCHED}")
    program(folder, "llama-server", "true")
    return tmp_path


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_its_programs_are_asked_for_equal_work(build: Path, gguf: Path) -> None:
    peer = LlamaCpp(build, gguf, 2, on_cpu=True)
    assert peer.weight_bytes == 4000
    assert peer.prefill(512, 2) == [2.0, 1.0]
    assert peer.decode(64, 10, 3) == 0.3
    calls = (build / "build" / "bin" / "calls").read_text().splitlines()
    assert calls[1] == f"-m {gguf} -t 2 -ngl 0 -p 512 -n 0 -r 2 -o json"
    # every row holds the prompt and its own tokens
    assert "-c 222 -npp 64 -ntg 10 -pps -npl 3" in calls[2]
    line = peer.server_line(8123, 4, 100)
    assert line[0].endswith("llama-server")
    assert " ".join(line[1:]).startswith(f"-m {gguf} -t 2 -ngl 0 --host 127.0.0.1 --port 8123 -np 4 -c 400")


def test_it_takes_turns_in_decode(
    build: Path, gguf: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(tiny_checkpoint, Options(rounds=3, tokens=10, batches=(1, 3), contexts=(128,)))
    bench.llama_cpp = LlamaCpp(build, gguf, 1, on_cpu=True)
    order = []
    for decoder in (OwnDecoder, LlamaDecoder):

        def noted(own: Decoder, count: int, steps: Any = decoder.steps) -> list[float]:
            order.append(own.name)
            return list(steps(own, count))

        monkeypatch.setattr(decoder, "steps", noted)
    decode.run(bench)
    # a warm-up of ours alone, and then turns, of which another one begins each
    rounds = [OURS, OURS, LLAMA, LLAMA, OURS, OURS, LLAMA]
    assert order == [*rounds, *rounds]
    theirs = {
        figure.case["batch"]: figure
        for figure in bench.recorder.figures(LIMITS)
        if figure.entrant == LLAMA and figure.case["context"] == 128
    }
    assert set(theirs) == {1, 3}
    for rows, figure in theirs.items():
        assert (figure.seconds.median, figure.seconds.count) == (rows / 10, 3)
        # its floor is that of its own bytes
        assert figure.floor is not None
        assert figure.floor > 4000 / 1e10
    calls = (build / "build" / "bin" / "calls").read_text().splitlines()
    assert sum("-npl" in call for call in calls) == 6
    assert bench.recorder._done == bench.recorder._total


def test_a_short_turn_is_still_long_enough_to_be_told(build: Path, gguf: Path, tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, Options(rounds=1, tokens=2, batches=(2,), contexts=(128,)))
    bench.llama_cpp = LlamaCpp(build, gguf, 1, on_cpu=True)
    decode.run(bench)
    (theirs,) = (figure for figure in bench.recorder.figures(LIMITS) if figure.entrant == LLAMA)
    assert theirs.seconds.median == 2 / LEAST_LLAMA_STEPS


def test_another_number_of_bytes_is_told(build: Path, gguf: Path, tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, Options())
    recorder = Recorder(lambda text, done, total: None)
    running._compare_bytes(LlamaCpp(build, gguf, 1, on_cpu=True), bench.subject, recorder)
    assert len(recorder.notes) == 2
    assert "another number of bytes" in recorder.notes[1]


def test_what_is_missing_is_named(build: Path, gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="no such folder"):
        find_programs(tmp_path / "nowhere")
    (build / "build" / "bin" / "llama-server").unlink()
    with pytest.raises(PeerError, match=r"holds no llama-server; build them \(see docs/benchmarks.md\)"):
        LlamaCpp(build, gguf, 1, on_cpu=True)


def test_a_model_file_is_needed(build: Path, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="--gguf FILE"):
        LlamaCpp(build, None, 1, on_cpu=True)
    with pytest.raises(PeerError, match="no such GGUF file"):
        LlamaCpp(build, tmp_path / "none.gguf", 1, on_cpu=True)


def test_a_program_that_fails_is_told_with_its_last_words(build: Path, gguf: Path) -> None:
    program(build / "build" / "bin", "llama-bench", "echo 'error: unknown model' >&2; exit 3")
    with pytest.raises(PeerError, match="llama-bench failed with code 3: error: unknown model"):
        LlamaCpp(build, gguf, 1, on_cpu=True).prefill(8, 1)


def test_a_run_whose_lines_were_lost_is_made_again(build: Path, gguf: Path) -> None:
    folder = build / "build" / "bin"
    seldom = f'[ "$(wc -l < "{folder}/calls")" = 3 ] || exit 0'
    program(folder, "llama-batched-bench", f"{seldom}; {BATCHED}")
    assert LlamaCpp(build, gguf, 1, on_cpu=True).decode(64, 10, 3) == 0.3
    assert len((folder / "calls").read_text().splitlines()) == 3


@pytest.mark.parametrize("printed", ["main: no room", json.dumps({"pl": 1, "t_tg": 2.0})])
def test_a_batch_that_was_left_out_is_noticed(build: Path, gguf: Path, printed: str) -> None:
    program(build / "build" / "bin", "llama-batched-bench", f"echo '{printed}'")
    with pytest.raises(PeerError, match="left out the batch of 8"):
        LlamaCpp(build, gguf, 1, on_cpu=True).decode(64, 10, 8)


def test_output_that_is_none_is_told(build: Path, gguf: Path) -> None:
    program(build / "build" / "bin", "llama-bench", "echo 'usage: ...'")
    with pytest.raises(PeerError, match="llama-bench printed no result"):
        LlamaCpp(build, gguf, 1, on_cpu=True).prefill(8, 1)
