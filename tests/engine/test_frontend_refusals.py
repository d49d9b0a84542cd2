"""What a frontend refuses, before anything is queued: each refusal names its field and its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import kaminari
from kaminari.engine import frontend as frontend_module
from kaminari.engine.conversation import Conversation, Detail, Message, Part, PicturePart, Role, TextPart
from kaminari.engine.errors import ContextLengthExceeded, RequestError
from kaminari.engine.frontend import Frontend, PictureRules
from kaminari.engine.tools import Tool, ToolUse
from kaminari.model.family import CheckpointError, PictureBudget
from kaminari.model.picture import Picture
from kaminari.model.qwen3_vl.prompt import Qwen3VLPromptFormat
from tests.cases import loading
from tests.patience import processor_time

DEMO = Path(kaminari.__file__).parent / "demo"
REJECTED = [fact.name for fact in loading.file_facts() if fact.expect == "reject"]


class ShortFormat(Qwen3VLPromptFormat):
    """A family that writes one placeholder too few."""

    def expand_marker(self, index: int, picture: Picture) -> tuple[list[int], list[bool]]:
        ids, flags = super().expand_marker(index, picture)
        return ids[1:], flags[1:]


def frontend_of(
    folder: Path, context: int = 2048, format_: type[Qwen3VLPromptFormat] = Qwen3VLPromptFormat
) -> Frontend:
    budgets = {detail: PictureBudget(64) for detail in Detail}
    rules = PictureRules(budgets=budgets, max_pixels=80_000_000, max_count=8)
    return Frontend(folder, format_.from_folder(folder), rules, context)


@pytest.fixture(scope="module")
def frontend() -> Frontend:
    return frontend_of(DEMO)


@pytest.fixture
def templated(tmp_path: Path) -> Callable[[str], Frontend]:
    """A frontend of the demo with another chat template."""

    def build(template: str) -> Frontend:
        return frontend_of(copy_demo(tmp_path / "model", template))

    return build


def copy_demo(folder: Path, template: str | None) -> Path:
    folder.mkdir()
    for file in DEMO.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def user(*parts: Part | str) -> Message:
    return Message(Role.USER, tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def picture(size: tuple[int, int] = (64, 64), field: str | None = None) -> PicturePart:
    return PicturePart(Image.new("RGB", size, "red"), field=field)


def refusal(frontend: Frontend, *messages: Message, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        frontend.prepare(Conversation(messages, **options))
    return error.value


@pytest.mark.parametrize("name", REJECTED, ids=[f"img-truncated:{name}" for name in REJECTED])
def test_a_bad_picture_is_refused_with_its_part(frontend: Frontend, name: str) -> None:
    part = PicturePart(loading.file_bytes(name), field="messages[0].content[0]")
    with processor_time(1):
        error = refusal(frontend, user(part, "Read it."))
    assert (error.field, error.code) == ("messages[0].content[0]", "image_parse_error")


def test_img_truncated_wedges_a_bad_picture_leaves_the_frontend_as_it_was(frontend: Frontend) -> None:
    good = Conversation((user(picture(), "Colour?"),))
    before = frontend.prepare(good).token_ids
    for name in ("cut_half.jpg", "noise.jpg", "empty.png", "login_page.jpg", "pdf_page.png"):
        refusal(frontend, user(PicturePart(loading.file_bytes(name))))
        assert frontend.prepare(good).token_ids == before


def test_img_ratio_is_refused_with_its_part_and_number(frontend: Frontend) -> None:
    part = PicturePart(loading.file_bytes("px_5x1005.png"))
    error = refusal(frontend, user("a"), user("b", part))
    assert error.field == "messages[1].content[1]"
    assert "201:1" in error.message


def test_a_part_without_a_field_is_named_by_its_place(frontend: Frontend) -> None:
    error = refusal(frontend, user(picture()), user("x", picture(), PicturePart(b"")))
    assert error.field == "messages[1].content[2]"


def test_too_many_pictures(frontend: Frontend) -> None:
    frontend.prepare(Conversation((user(*[picture()] * 8),)))
    error = refusal(frontend, user(*[picture()] * 5), user(*[picture()] * 4))
    assert error.field == "messages"
    assert "at most 8 pictures, this one has 9" in error.message


def test_the_context_border_is_exact() -> None:
    conversation = Conversation((user(picture(), "What color is it?"),))
    tokens = len(frontend_of(DEMO).prepare(conversation).token_ids)
    assert len(frontend_of(DEMO, tokens + 1).prepare(conversation).token_ids) == tokens
    with pytest.raises(ContextLengthExceeded) as error:
        frontend_of(DEMO, tokens).prepare(conversation)
    assert (error.value.tokens, error.value.limit) == (tokens, tokens)
    assert error.value.code == "context_length_exceeded"
    assert "at least" not in error.value.message


def test_lim_overflow_a_huge_text_is_refused_in_time(frontend: Frontend) -> None:
    text = loading.case("lim-overflow").request()["messages"][0]["content"]
    for messages in ((user(text),), tuple(user(text[:50_000]) for _ in range(200)), (user(text, picture()),)):
        with processor_time(2):
            error = refusal(frontend, *messages)
        assert isinstance(error, ContextLengthExceeded)
        assert error.tokens > error.limit == 2048
        assert f"at least {error.tokens}" in error.message


def test_pictures_past_the_context_are_not_decoded(
    monkeypatch: pytest.MonkeyPatch, frontend: Frontend
) -> None:
    decoded = []
    real = frontend_module.decode_picture
    monkeypatch.setattr(frontend_module, "decode_picture", lambda *args: decoded.append(1) or real(*args))
    small = frontend_of(DEMO, context=130)
    error = refusal(small, user(*[picture((256, 256))] * 8))
    assert isinstance(error, ContextLengthExceeded)
    assert len(decoded) == 3


def test_a_prompt_that_tools_make_too_long_says_so() -> None:
    words = user("What color is it?")
    tool = Tool("find", {"type": "function", "function": {"name": "find", "description": "x"}})
    plain, tools = Conversation((words,)), Conversation((words,), tools=(tool,))
    tokens = len(frontend_of(DEMO).prepare(tools).token_ids)
    huge = replace(tool, definition={**tool.definition, "text": "x" * 100_000})
    for context, conversation in ((tokens, tools), (2048, replace(tools, tools=(huge,)))):
        with pytest.raises(ContextLengthExceeded, match="send fewer tools or shorter ones") as error:
            frontend_of(DEMO, context).prepare(conversation)
        assert error.value.field == "messages"
    unused = replace(tools, tool_choice=ToolUse.NONE)
    for conversation in (plain, unused):
        with pytest.raises(ContextLengthExceeded) as error:
            frontend_of(DEMO, 5).prepare(conversation)
        assert "tools" not in error.value.message


def test_a_text_that_is_too_long_is_refused_before_a_picture_is_decoded(frontend: Frontend) -> None:
    error = refusal(frontend, user(PicturePart(b"not a picture"), "word " * 10_000))
    assert isinstance(error, ContextLengthExceeded)


def test_an_empty_conversation(frontend: Frontend) -> None:
    error = refusal(frontend)
    assert (error.field, error.message) == ("messages", "messages must hold at least one message")


@pytest.mark.parametrize(
    ("messages", "options", "field"),
    [
        ((user("a"),), {"add_generation_prompt": True}, "continue_final_message"),
        ((user("a", picture()),), {}, "messages"),
        ((user(" \n"),), {}, "messages"),
        ((user(),), {}, "messages"),
    ],
    ids=["with-generation-prompt", "ends-with-a-picture", "blank", "empty"],
)
def test_a_message_that_cannot_be_continued(
    frontend: Frontend, messages: tuple[Message, ...], options: dict[str, bool], field: str
) -> None:
    options = {"add_generation_prompt": False, **options}
    assert refusal(frontend, *messages, continue_final_message=True, **options).field == field


def test_a_template_that_changes_the_final_message(templated: Callable[[str], Frontend]) -> None:
    frontend = templated("{{ messages[-1].content[:3] }}")
    error = refusal(frontend, user("secret words"), add_generation_prompt=False, continue_final_message=True)
    assert error.field == "messages"
    assert "cannot be continued" in error.message
    assert "secret" not in error.message


@pytest.mark.parametrize(
    "name",
    ["messages", "tokenize", "chat_template", "tools", "add_generation_prompt", "conversation", "self"],
)
def test_template_variables_must_not_reach_the_renderer(frontend: Frontend, name: str) -> None:
    error = refusal(frontend, user("a"), template_kwargs={name: "x"})
    assert error.field == "chat_template_kwargs"
    assert name in error.message


def test_a_templates_refusal_is_passed_on(templated: Callable[[str], Frontend]) -> None:
    frontend = templated(
        "{% if messages[0].role != 'user' %}{{ raise_exception('Conversation must start with a user turn') }}"
        "{% endif %}{{ messages[0].content }}"
    )
    error = refusal(frontend, Message.text("system", "x"))
    assert error.field == "messages"
    assert "must start with a user turn" in error.message


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content.x.y }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
    ],
    ids=["type", "undefined", "arithmetic", "sandbox", "endless"],
)
def test_a_fault_inside_a_template_is_the_requests(
    templated: Callable[[str], Frontend], template: str
) -> None:
    error = refusal(templated(template), user("secret words"))
    assert error.field == "messages"
    assert "chat template" in error.message
    assert "secret" not in error.message


def test_a_template_that_makes_nothing(templated: Callable[[str], Frontend]) -> None:
    assert "empty prompt" in refusal(templated("{# nothing #}"), user("a")).message


def test_pictures_that_the_template_drops_are_named_by_role(
    tiny_checkpoint: Path, frontend: Frontend
) -> None:
    tiny = frontend_of(tiny_checkpoint)
    error = refusal(tiny, Message(Role.SYSTEM, (TextPart("a"), picture())), user("b"))
    assert error.field == "messages"
    assert "0 picture markers for 1 pictures in system messages" in error.message
    frontend.prepare(Conversation((Message(Role.SYSTEM, (TextPart("a"), picture())), user("b"))))


def test_a_marker_that_the_template_writes_on_its_own_is_refused(
    templated: Callable[[str], Frontend],
) -> None:
    assert "1 picture markers for 0 pictures" in refusal(templated("<|image_pad|>"), user("a")).message


@pytest.mark.parametrize("where", ["text", "variable"])
def test_a_lone_surrogate_is_refused(templated: Callable[[str], Frontend], where: str) -> None:
    frontend = templated("{{ messages[0].content }}{{ hint }}")
    text, hint = ("a\ud800", "b") if where == "text" else ("a", "b\udfff")
    error = refusal(frontend, user(text), template_kwargs={"hint": hint})
    assert "surrogate" in error.message


def test_one_count_a_format_that_disagrees_with_its_pictures_is_a_fault() -> None:
    broken = frontend_of(DEMO, format_=ShortFormat)
    with pytest.raises(RuntimeError, match="picture 0 has 4 rows and 3 placeholders"):
        broken.prepare(Conversation((user(picture()),)))


def test_a_folder_without_a_template(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no chat template"):
        frontend_of(copy_demo(tmp_path / "model", None))


@pytest.mark.parametrize("template", ["{% if %}", "{{ messages", "{% no_such_tag %}"])
def test_a_template_that_cannot_be_read(templated: Callable[[str], Frontend], template: str) -> None:
    with pytest.raises(CheckpointError, match="chat template"):
        templated(template)


@pytest.mark.parametrize("place", ["json", "tokenizer", "named"])
def test_templates_are_found_where_checkpoints_keep_them(tmp_path: Path, place: str) -> None:
    folder = copy_demo(tmp_path / "model", None)
    template = "<|im_start|>{{ messages[0].content }}"
    if place == "json":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    else:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        named = [{"name": "default", "template": template}, {"name": "other", "template": "x"}]
        config["chat_template"] = named if place == "named" else template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    frontend = frontend_of(folder)
    prompt = frontend.prepare(Conversation((user("hi"),)))
    assert frontend.tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False) == "<|im_start|>hi"


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_garbled_template_file(tmp_path: Path, content: str) -> None:
    folder = copy_demo(tmp_path / "model", None)
    (folder / "chat_template.json").write_text(content)
    with pytest.raises(CheckpointError, match="chat template"):
        frontend_of(folder)


def test_a_marker_that_is_no_control_token_is_refused(tmp_path: Path) -> None:
    format_ = Qwen3VLPromptFormat.from_folder(DEMO)
    format_.marker = "<picture>"
    rules = PictureRules({detail: PictureBudget(4) for detail in Detail}, 100, 1)
    with pytest.raises(CheckpointError, match="<picture> is not a control token"):
        Frontend(DEMO, format_, rules, 64)


@pytest.mark.parametrize("depth", [33, 2000])
def test_template_arguments_may_not_be_deep(frontend: Frontend, depth: int) -> None:
    value: Any = "x"
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    conversation = Conversation((Message.text("user", "hi"),), template_kwargs={"a": value})
    with pytest.raises(RequestError) as caught:
        frontend.prepare(conversation)
    assert caught.value.field == "chat_template_kwargs"
