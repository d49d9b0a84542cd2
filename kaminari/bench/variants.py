"""The model of a benchmark in other forms: from a pack, or compiled; each is loaded once and kept.

Forms stand side by side in memory, so that they can take turns. Nothing here measures.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from kaminari.bench.bench import Bench
from kaminari.bench.recorder import Recorder
from kaminari.bench.subject import LoadedSubject, load_subject
from kaminari.config import (
    CompileChoice,
    Demo,
    ModelSettings,
    NoQuantization,
    PackFolder,
    PackFormat,
    Settings,
    StandardPack,
    standard_place,
)
from kaminari.model.family import CheckpointError, find_family
from kaminari.model.packs.format import PACK_FILE, is_pack, read_header
from kaminari.model.packs.writing import Recipe, make_pack


@dataclass(frozen=True, slots=True)
class Form:
    """pack:  the format of its projections, or None for the model's own;  compiled:  as the setting"""

    pack: PackFormat | None = None
    compiled: bool = False


PLAIN = Form()


def plain(settings: Settings) -> Settings:
    """The settings of the form `PLAIN`."""
    return _with(settings, {"quantization": NoQuantization(), "compile": CompileChoice.OFF})


class Variants:
    """The forms of the model of a bench, which is `PLAIN`. Holds packs that it made until it is left."""

    def __init__(self, bench: Bench, given: Path | None) -> None:
        """given:  the folder of a pack that the form of its format runs from

        Raises `CheckpointError` where there is none.
        """
        if given is not None and not (given / PACK_FILE).is_file():
            raise CheckpointError(f"there is no pack in {given}")
        self._given = None if given is None else (read_header(given).format, PackFolder(given))
        self._bench = bench
        self._loaded = {PLAIN: bench}
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def of(self, form: Form) -> Bench:
        """A bench of the model in a form, without peers: those have it in one form only.

        Raises `CheckpointError` where there is no pack, or no kernel for one, and `CapacityError`.
        """
        if form not in self._loaded:
            self._recorder.starting(f"loading {_spell(form)}")
            options = replace(self._bench.options, hf=False, reading=False, llama_cpp=None)
            self._loaded[form] = replace(self._bench, subject=self._load(form), options=options)
        return self._loaded[form]

    def _load(self, form: Form) -> LoadedSubject:
        settings = self._bench.subject.settings
        if form.compiled:
            return load_subject(_with(settings, {"compile": CompileChoice.ON}))
        assert form.pack is not None
        return load_subject(_with(settings, {"quantization": self._pack(form.pack, settings.model)}))

    def _pack(self, format_: PackFormat, model: ModelSettings) -> StandardPack | PackFolder:
        """The pack that was given, else the one in the model's own place; for the demo one that is made."""
        if self._given is not None and self._given[0] is format_:
            return self._given[1]
        place = standard_place(model.source, format_)
        if not isinstance(model.source, Demo) or (place.is_dir() and is_pack(place)):
            return StandardPack(format_)
        self._recorder.starting(f"making an {format_} pack of the demo")
        scratch = Path(self._undo.enter_context(tempfile.TemporaryDirectory()))
        source = self._bench.subject.plan.folder
        family = find_family(source)
        recipe = Recipe(format_, head=True)
        make_pack(family.open(source), recipe, scratch / "pack", model=str(model.source), family=family.name)
        return PackFolder(scratch / "pack")

    @property
    def _recorder(self) -> Recorder:
        return self._bench.recorder


def _with(settings: Settings, fields: dict[str, object]) -> Settings:
    return settings.model_copy(update={"model": settings.model.model_copy(update=fields)})


def _spell(form: Form) -> str:
    return "the compiled model" if form.pack is None else f"the {form.pack} pack"
