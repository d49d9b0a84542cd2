"""The flat list of fields: names are unique, and every way to give a value leads to the field."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import BaseSettings

from kaminari.config.fields import setting_fields, setting_groups
from kaminari.config.loading import load_settings
from kaminari.config.settings import Settings

# a value of each field that is right and is not its default
OTHER = {
    "model.source": "org/name",
    "model.dtype": "float32",
    "model.vision_dtype": "bfloat16",
    "model.quantization": "int4",
    "model.device": "cpu",
    "model.kernels": "aten",
    "model.compile": "on",
    "model.served_name": "mine",
    "model.aliases": '["gpt-4o", "other"]',
    "engine.slots": "3",
    "engine.context": "4096",
    "engine.prefill_chunk": "128",
    "engine.memory_limit": "5GiB",
    "engine.queue_size": "9",
    "engine.max_choices": "2",
    "engine.threads": "2",
    "engine.pipeline_depth": "2",
    "engine.stall_after": "3m",
    "pictures.mode": "letterbox",
    "pictures.budgets.low": "100",
    "pictures.budgets.auto": "1000",
    "pictures.budgets.high": "5000",
    "pictures.max_pixels": "1000000",
    "pictures.max_count": "4",
    "pictures.workers": "2",
    "media.folder": "somewhere",
    "media.allowed_hosts": '["images.example.org"]',
    "media.allow_private": "true",
    "media.timeout": "3s",
    "media.max_size": "1MiB",
    "server.host": "0.0.0.0",
    "server.port": "9000",
    "server.max_body": "1MiB",
    "server.grace": "3s",
    "server.log_level": "debug",
    "server.send_timeout": "5s",
    "server.keep_alive": "5s",
    "server.api_keys": '["one", "two"]',
    "server.cors_origins": '["http://localhost:3000"]',
}


def value_of(settings: BaseModel, path: tuple[str, ...]) -> object:
    value: object = settings
    for part in path:
        value = getattr(value, part)
    return value


def test_the_table_of_this_test_holds_every_field() -> None:
    assert set(OTHER) == {field.name for field in setting_fields()}


def test_the_names_that_are_fixed() -> None:
    names = {field.variable for field in setting_fields()}
    assert names >= {
        "KAMINARI_MODEL__SOURCE",
        "KAMINARI_MODEL__DTYPE",
        "KAMINARI_MODEL__SERVED_NAME",
        "KAMINARI_ENGINE__SLOTS",
        "KAMINARI_ENGINE__CONTEXT",
        "KAMINARI_ENGINE__PREFILL_CHUNK",
        "KAMINARI_ENGINE__MEMORY_LIMIT",
        "KAMINARI_SERVER__HOST",
        "KAMINARI_SERVER__PORT",
        "KAMINARI_SERVER__API_KEYS",
        "KAMINARI_SERVER__CORS_ORIGINS",
        "KAMINARI_MODEL__ALIASES",
        "KAMINARI_MEDIA__ALLOWED_HOSTS",
        "KAMINARI_MEDIA__ALLOW_PRIVATE",
        "KAMINARI_MEDIA__FOLDER",
    }
    flags = {field.flag for field in setting_fields()}
    assert flags >= {"MODEL", "--host", "--port", "--dtype", "--device", "--slots", "--context"}
    assert flags >= {"--prefill-chunk", "--memory-limit", "--served-name", "--log-level"}


def test_names_variables_and_flags_are_unique() -> None:
    fields = setting_fields()
    for key in ("name", "variable", "flag"):
        values = [getattr(field, key) for field in fields]
        assert len(set(values)) == len(values), key


@pytest.mark.parametrize("field", setting_fields(), ids=lambda field: field.name)
@pytest.mark.parametrize("lower", [False, True], ids=["upper", "lower"])
def test_every_field_can_be_set_by_its_variable(field: object, lower: bool) -> None:
    name = field.variable.lower() if lower else field.variable
    changed = load_settings(environ={name: OTHER[field.name]})
    by_flag = load_settings({field.name: OTHER[field.name]}, environ={})
    assert value_of(changed, field.path) != field.default
    assert changed == by_flag


def test_the_default_of_a_field_is_that_of_the_settings() -> None:
    for field in setting_fields():
        assert field.default == value_of(Settings(), field.path)


def test_every_example_and_choice_is_right() -> None:
    for field in setting_fields():
        for text in (field.expects.example, *field.choices):
            load_settings({field.name: text}, environ={})


def test_groups() -> None:
    assert set(setting_groups()) == {
        ("model",),
        ("engine",),
        ("pictures",),
        ("pictures", "budgets"),
        ("media",),
        ("server",),
    }


def test_secrets_are_found_inside_unions_and_lists() -> None:
    class Vault(BaseModel):
        plain: str = "x"
        key: SecretStr = SecretStr("k")
        maybe: SecretStr | None = None
        keys: tuple[SecretStr, ...] = Field(default=())

    class Root(BaseSettings):
        vault: Vault = Vault()

    assert {field.name for field in setting_fields(Root) if field.secret} == {
        "vault.key",
        "vault.maybe",
        "vault.keys",
    }
