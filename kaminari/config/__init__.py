"""Typed settings. The bottom of the house: imports no torch and no other part of kaminari."""

from kaminari.config.loading import load_settings
from kaminari.config.problems import ConfigError, Problem
from kaminari.config.quantization import (
    NoQuantization,
    PackFolder,
    PackFormat,
    StandardPack,
    parse_quantization,
    standard_place,
)
from kaminari.config.settings import (
    BudgetSettings,
    CompileChoice,
    DeviceChoice,
    DtypeChoice,
    EngineSettings,
    KernelChoice,
    LogLevel,
    MediaSettings,
    ModelSettings,
    PictureMode,
    PictureSettings,
    ServerSettings,
    Settings,
)
from kaminari.config.source import Demo, Folder, Hub, ModelSource, parse_source

__all__ = [
    "BudgetSettings",
    "CompileChoice",
    "ConfigError",
    "Demo",
    "DeviceChoice",
    "DtypeChoice",
    "EngineSettings",
    "Folder",
    "Hub",
    "KernelChoice",
    "LogLevel",
    "MediaSettings",
    "ModelSettings",
    "ModelSource",
    "NoQuantization",
    "PackFolder",
    "PackFormat",
    "PictureMode",
    "PictureSettings",
    "Problem",
    "ServerSettings",
    "Settings",
    "StandardPack",
    "load_settings",
    "parse_quantization",
    "parse_source",
    "standard_place",
]
