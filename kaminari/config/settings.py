"""Every setting of kaminari, typed and described: the one place where a name, its unit and its default stand.

Frozen; unknown names and impossible combinations do not construct. Building `Settings` never looks at the
environment: `kaminari.config.loading` does that, and nothing else. Imports no torch and nothing of the rest.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from kaminari.config.quantization import (
    NoQuantization,
    PackFolder,
    Quantization,
    StandardPack,
    standard_place,
)
from kaminari.config.source import Demo, ModelSource
from kaminari.config.units import (
    ApiKeys,
    AutoContext,
    AutoCount,
    AutoDepth,
    AutoSlots,
    Bytes,
    Count,
    Duration,
    Host,
    Name,
    Names,
    OptionalBytes,
    OptionalFolder,
    Origins,
    Port,
    RemoteHosts,
    Switch,
)

ENV_PREFIX = "KAMINARI_"
ENV_DELIMITER = "__"


class DtypeChoice(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class DeviceChoice(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class KernelChoice(StrEnum):
    """auto: our own C++ kernels where they can be built; aten: torch's alone."""

    AUTO = "auto"
    ATEN = "aten"


class CompileChoice(StrEnum):
    """auto: as measurements say, which is off wherever there are any."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class PictureMode(StrEnum):
    """native: the reference's own smart resize; letterbox: onto the aspect-closest grid of the budget."""

    NATIVE = "native"
    LETTERBOX = "letterbox"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Group(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class ModelSettings(Group):
    """Which model is served, and in which precision."""

    source: ModelSource = Field(
        default=Demo(),
        description='the model: "demo" (embedded), a checkpoint folder, or a hub id org/name[@revision]',
    )
    dtype: DtypeChoice = Field(
        default=DtypeChoice.AUTO,
        description="precision of the decoder; auto: bfloat16 where the device is fast at it, else float32",
    )
    vision_dtype: DtypeChoice = Field(
        default=DtypeChoice.AUTO, description="precision of the vision tower; auto: that of the decoder"
    )
    quantization: Quantization = Field(
        default=NoQuantization(),
        description="int8 or int4: from the model's pack, made by `kaminari quantize`; or a pack's folder; "
        "none: the checkpoint's own weights",
    )
    device: DeviceChoice = Field(
        default=DeviceChoice.AUTO, description="where the model runs; auto: cuda where there is one, else cpu"
    )
    kernels: KernelChoice = Field(
        default=KernelChoice.AUTO,
        description="kernels on a CPU; auto: our own, built once if there is a C++ compiler; aten: torch's",
    )
    compile: CompileChoice = Field(
        default=CompileChoice.AUTO,
        description="whether torch.compile makes the decode steps of plain weights; auto: off: on a CPU our "
        "own kernels are faster and on cuda nothing was measured yet",
    )
    served_name: Name | None = Field(
        default=None,
        description="the model's name in the API; by default kaminari-demo, the folder's name or the hub id",
    )
    aliases: Names = Field(default=(), description="other names that the API takes for the model")

    @property
    def name(self) -> str:
        """The name that the API serves the model under."""
        return self.served_name or self.source.name

    @property
    def pack_folder(self) -> Path | None:
        """Where the pack lies that is asked for; None where none is."""
        if isinstance(self.quantization, PackFolder):
            return self.quantization.path
        if isinstance(self.quantization, StandardPack):
            return standard_place(self.source, self.quantization.format)
        return None


class EngineSettings(Group):
    """How many requests run at once, and what they may take.

    A `prefill_chunk` larger than the context is allowed: a chunk never holds more than the prompt.
    """

    slots: AutoSlots = Field(
        default="auto",
        description="requests that run at once; auto: what fits the memory, at most 8, and "
        "up to 16 where they are small",
    )
    context: AutoContext = Field(
        default="auto",
        description="tokens per slot, prompt and answer together; auto: what the model allows, at most 8192",
    )
    prefill_chunk: AutoCount = Field(
        default="auto",
        description="most prompt tokens in one step; smaller keeps running streams smoother; auto: 512, and "
        "128 for a tiny model on a CPU",
    )
    memory_limit: OptionalBytes = Field(
        default=None,
        description="most memory that weights and cache may take on the device; none: what is free there",
    )
    queue_size: Count = Field(
        default=64, description="requests that may wait; past that a request is refused with 503"
    )
    max_choices: Count = Field(
        default=8, description="most choices (n) of one request; never more than there are slots"
    )
    threads: AutoCount = Field(
        default="auto",
        description="CPU threads of the engine; auto: one per physical core, and one for a tiny model",
    )
    pipeline_depth: AutoDepth = Field(
        default="auto",
        description="steps in flight; at 2 the host works while the device does; auto: 2 on cuda, and on a "
        "CPU where the engine's threads leave a core to the host",
    )
    stall_after: Duration = Field(
        default=timedelta(seconds=120),
        description="work that waits this long without a finished step makes /health report a stall",
    )

    @model_validator(mode="after")
    def _choices_fit_slots(self) -> EngineSettings:
        asked = "max_choices" in self.model_fields_set
        if asked and self.slots != "auto" and self.max_choices > self.slots:
            raise ValueError(
                f"max_choices ({self.max_choices}) is above slots ({self.slots}): "
                "each choice of a request takes a slot"
            )
        return self


class BudgetSettings(Group):
    """Tokens that one picture may take, by the `detail` of its part."""

    low: Count = Field(default=256, description='most tokens of a picture with detail "low"')
    auto: Count = Field(default=1024, description='most tokens of a picture with detail "auto" or none')
    high: Count = Field(default=4096, description='most tokens of a picture with detail "high"')

    @model_validator(mode="after")
    def _ordered(self) -> BudgetSettings:
        if not self.low <= self.auto <= self.high:
            raise ValueError(
                f"budgets must be ordered low <= auto <= high, not {self.low}, {self.auto}, {self.high}"
            )
        return self


class PictureSettings(Group):
    """How pictures are read and fitted."""

    mode: PictureMode = Field(
        default=PictureMode.NATIVE,
        description="native: the model's own resize; letterbox: few fixed shapes, as small cards like it",
    )
    budgets: BudgetSettings = Field(default=BudgetSettings(), description="tokens per picture, by detail")
    max_pixels: Count = Field(
        default=80_000_000, description="most pixels of a picture, read from its header before it is decoded"
    )
    max_count: Count = Field(default=32, description="most pictures in one request")
    workers: AutoCount = Field(
        default="auto", description="threads that decode and resize; auto: one per core, at most 8"
    )


class ServerSettings(Group):
    """The HTTP server."""

    host: Host = Field(default="127.0.0.1", description="address to listen on")
    port: Port = Field(default=8000, description="port to listen on; 0: any free one")
    max_body: Bytes = Field(default=ByteSize(64 * 2**20), description="largest request body")
    grace: Duration = Field(
        default=timedelta(seconds=10),
        description="time for running requests to finish when the server stops",
    )
    log_level: LogLevel = Field(default=LogLevel.INFO, description="least severe message that is logged")
    send_timeout: Duration = Field(
        default=timedelta(seconds=60),
        description="a client that takes or sends nothing for this long is dropped",
    )
    keep_alive: Duration = Field(
        default=timedelta(seconds=15),
        description="how often a stream gets a comment that keeps proxies awake",
    )
    api_keys: ApiKeys = Field(default=(), description="keys that clients must send one of; none: no key")
    cors_origins: Origins = Field(
        default=(), description="origins whose web pages may call the API; none: no CORS headers"
    )


class MediaSettings(Group):
    """Pictures that a request names by address instead of holding them. All of it is off by default."""

    folder: OptionalFolder = Field(
        default=None,
        description="file: addresses may name pictures inside this folder; none: no file: address",
    )
    allowed_hosts: RemoteHosts = Field(
        default=(),
        description="hosts that pictures may be fetched from over http(s); none: nothing is fetched",
    )
    allow_private: Switch = Field(
        default=False, description="whether allowed hosts may lie at private and loopback addresses"
    )
    timeout: Duration = Field(
        default=timedelta(seconds=10), description="time for fetching one picture, redirects included"
    )
    max_size: Bytes = Field(
        default=ByteSize(32 * 2**20), description="largest picture that is fetched or read"
    )


class Settings(BaseSettings):
    """All settings. `Settings()` holds the defaults; see `kaminari.config.load_settings` for the rest."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        validate_default=True,
    )

    model: ModelSettings = Field(default=ModelSettings(), description="which model, in which precision")
    engine: EngineSettings = Field(default=EngineSettings(), description="slots, context, memory")
    pictures: PictureSettings = Field(default=PictureSettings(), description="how pictures are fitted")
    media: MediaSettings = Field(default=MediaSettings(), description="pictures named by address")
    server: ServerSettings = Field(default=ServerSettings(), description="the HTTP server")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what is given and nothing else.

        The loader reads the environment through pydantic-settings' own source, one variable at a time:
        left to itself that source accepts unknown names and stops at the first value it cannot decode.
        """
        return (init_settings,)
