"""Loads an engine for a command: a progress bar while it goes, one clear line where it cannot be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from kaminari.cli.errors import CommandError
from kaminari.config import Settings

if TYPE_CHECKING:
    from kaminari.engine.engine import Engine


def load_engine(settings: Settings, console: Console) -> Engine:
    """Load the model that the settings name, with a progress bar in bytes. Raises `CommandError`."""
    from kaminari.engine.capacity import CapacityError
    from kaminari.engine.engine import Engine
    from kaminari.engine.placement import PlacementError
    from kaminari.model.family import CheckpointError

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"Loading {settings.model.name}", total=None)
        try:
            return Engine.load(settings, lambda done, total: bar.update(task, completed=done, total=total))
        except (CheckpointError, CapacityError, PlacementError) as error:
            raise CommandError(str(error)) from error
