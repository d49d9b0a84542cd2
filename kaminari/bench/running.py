"""Runs one suite from settings to a result. What was measured survives an interruption or a failing peer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import transformers

from kaminari.bench import decode, ladder, prefill, profiling, serve, startup, vision
from kaminari.bench.bench import Bench, Suite
from kaminari.bench.llama_cpp import LlamaCpp, PeerError
from kaminari.bench.load import LoadError
from kaminari.bench.machine import commit, describe_machine
from kaminari.bench.options import Options
from kaminari.bench.recorder import Recorder
from kaminari.bench.result import Limits, Result, Subject
from kaminari.bench.subject import (
    CasesError,
    LoadedSubject,
    allowed,
    describe,
    fit,
    load_subject,
    longest_context,
)
from kaminari.bench.variants import plain
from kaminari.config import PackFolder, Settings
from kaminari.engine.loading import Progress, plan_model

# bytes per step of two entrants are equal up to what a file format adds
EQUAL_BYTES = 0.03
VISION_CONTEXT = 64
LADDER_ROWS = max(rung.rows for rung in ladder.RUNGS.values())

IN_PROCESS: Mapping[str, Suite] = {
    "decode": decode.run,
    "prefill": prefill.run,
    "vision": vision.run,
    "ladder": ladder.run,
    "serve": serve.run,
}
PEERS: Mapping[str, frozenset[str]] = {
    "decode": frozenset({"hf", "llama.cpp", "reading"}),
    "prefill": frozenset({"hf", "llama.cpp"}),
    "vision": frozenset({"hf"}),
    "ladder": frozenset({"hf"}),
    "startup": frozenset({"hf"}),
    "serve": frozenset({"llama.cpp"}),
}


@dataclass(frozen=True, slots=True)
class Reporting:
    """loading: (bytes done, bytes in all);  measuring: (what, rounds done, rounds in all)"""

    loading: Progress
    measuring: Callable[[str, int, int], None]


@dataclass(slots=True)
class _Found:
    """What is known so far."""

    subject: Subject
    limits: Limits


def measure(suite: str, settings: Settings, options: Options, command: str, reporting: Reporting) -> Result:
    """Run a suite.

    Raises `CasesError` for cases that cannot be measured, what `load_model` raises, and `PeerError` or
    `LoadError` where a peer or a server failed before anything was measured.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options, settings = _settle(suite, settings, options)
    plan = plan_model(settings)
    found = _Found(describe(settings, plan), Limits())
    recorder = Recorder(reporting.measuring)
    complete = False
    try:
        with torch.inference_mode():
            if suite == "startup":
                found.limits = startup.run(settings, plan, options, recorder)
            else:
                _run_in_process(suite, settings, options, recorder, found, reporting)
        complete = True
    except KeyboardInterrupt:
        recorder.note("interrupted: what was measured until then is here")
    except (PeerError, LoadError) as error:
        if recorder.empty:
            raise
        recorder.note(f"ended early: {error}")
    return Result(
        suite=suite,
        command=command,
        commit=commit(),
        complete=complete,
        machine=describe_machine(),
        subject=found.subject,
        limits=found.limits,
        figures=recorder.figures(found.limits),
        shares=tuple(recorder.shares),
        notes=tuple(recorder.notes),
    )


def _run_in_process(
    suite: str,
    settings: Settings,
    options: Options,
    recorder: Recorder,
    found: _Found,
    reporting: Reporting,
) -> None:
    llama_cpp = None
    if options.llama_cpp is not None:
        on_cpu = found.subject.device == "cpu"
        llama_cpp = LlamaCpp(options.llama_cpp, options.gguf, found.subject.threads, on_cpu=on_cpu)
    subject = load_subject(settings, reporting.loading)
    bench = Bench(subject, options, recorder, llama_cpp)
    found.limits = bench.measure_limits()
    if llama_cpp is not None:
        _compare_bytes(llama_cpp, subject, recorder)
    try:
        IN_PROCESS[suite](bench)
    finally:
        # whoever else uses the machine may have used it before: a limit is the best of all
        found.limits = bench.measure_limits()
    if any(figure.beats_its_limit for figure in recorder.figures(found.limits)):
        recorder.note(
            "a figure is better than its limit: the machine was busy whenever its limits were measured, or a "
            "pack's products are of fewer bits than those of the limit"
        )
    if options.profile and suite == "decode":
        for batch in options.batches:
            recorder.starting(f"profile of batch {batch}")
            profiling.profile_decode(bench, batch, options.contexts[0])


def _compare_bytes(llama_cpp: LlamaCpp, subject: LoadedSubject, recorder: Recorder) -> None:
    """Say how many bytes each reads per step, and whether that is a fair comparison."""
    ours, theirs = subject.work.weight_bytes, llama_cpp.weight_bytes
    recorder.note(f"weights read per step: kaminari {ours / 1e9:.3f} GB, llama.cpp {theirs / 1e9:.3f} GB")
    if abs(theirs - ours) > EQUAL_BYTES * ours:
        recorder.note("llama.cpp reads another number of bytes: compare the ratios to the floor instead")


def _settle(suite: str, settings: Settings, options: Options) -> tuple[Options, Settings]:
    """Leave out default cases that the model has no room for, and make the settings fit the others."""
    if suite in ("startup", "serve"):
        return options, settings
    longest = longest_context(settings)
    if suite == "vision":
        return options, fit(settings, 1, min(longest, VISION_CONTEXT))
    if suite == "prefill":
        # a prompt leaves place for the token that it makes
        prompts = allowed(options.prompts, longest - 1, "prompts" in options.asked)
        slots, context = 1, max(prompts) + 1
        options = dataclasses.replace(options, prompts=prompts)
    else:
        contexts = allowed(options.contexts, longest, "contexts" in options.asked)
        slots = max(options.batches)
        if suite == "ladder":
            named = settings.model.quantization
            pack = named.path if isinstance(named, PackFolder) else None
            options = dataclasses.replace(options, pack=pack)
            settings, slots = plain(settings), LADDER_ROWS
        context = max(contexts)
        options = dataclasses.replace(options, contexts=contexts)
    return options, fit(settings, slots, context)


def check_peers(suite: str, options: Options) -> None:
    """Raise `CasesError` for a peer that a suite has no use for."""
    asked = {"hf"} if options.hf else set()
    asked |= {"reading"} if options.reading else set()
    asked |= {"llama.cpp"} if options.llama_cpp is not None else set()
    if strangers := asked - PEERS[suite]:
        known = " and ".join(sorted(PEERS[suite]))
        raise CasesError(f"{suite} has no peer {', '.join(sorted(strangers))}; it has {known}")
    if suite == "serve" and options.llama_cpp is not None and options.pictures_share:
        raise CasesError("llama.cpp takes part in serve with text alone: add --pictures-share 0")
    if options.profile and suite not in ("decode", "serve"):
        raise CasesError("--profile attributes the time of decode steps: use it with decode or serve")
