"""Tools in prompts: the demo's template against Qwen3-VL's, and a client's words that stay words."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import kaminari
from kaminari.config import PictureSettings
from kaminari.engine.conversation import Conversation, Message, PicturePart, Role, TextPart
from kaminari.engine.errors import RequestError
from kaminari.engine.frontend import Frontend
from kaminari.engine.loading import picture_rules
from kaminari.engine.tools import NamedTool, Tool, ToolCall, ToolUse
from kaminari.model.qwen3_vl.prompt import Qwen3VLPromptFormat
from tests.checkpoints import CHAT_TEMPLATE
from tests.engine.harness import picture

DEMO = Path(kaminari.__file__).parent / "demo"
BEFORE = Path(__file__).parents[1] / "assets" / "demo_chat_template_without_tools.jinja"
RULES = picture_rules(PictureSettings())

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", 'a"b']}}}
TOWN = {"type": "function", "function": {"name": "find_town", "description": "x", "parameters": PARAMETERS}}
CALL = {"type": "function", "id": "c1", "function": {"name": "find_town", "arguments": '{"city": "Köln"}'}}
OBJECT_CALL = {"type": "function", "function": {"name": "find_town", "arguments": {"city": "Köln", "n": 2}}}
IMAGE = {"type": "image"}


@pytest.fixture(scope="module")
def render() -> Callable[..., str]:
    tokenizer = AutoTokenizer.from_pretrained(DEMO, local_files_only=True)

    def run(template: Path, messages: list[dict[str, Any]], **options: Any) -> str:
        return str(
            tokenizer.apply_chat_template(
                messages, chat_template=template.read_text(encoding="utf-8"), tokenize=False, **options
            )
        )

    return run


@pytest.fixture(scope="module")
def frontend() -> Frontend:
    return Frontend(DEMO, Qwen3VLPromptFormat.from_folder(DEMO), RULES, 4000)


def test_the_demos_template_renders_as_before_without_tools(render: Callable[..., str]) -> None:
    rng = random.Random(3)
    texts = ["", "hi", "\n two\n\nlines ", "{{ x }}", "<tool_call>", "ß€😀"]
    for _ in range(300):
        messages = []
        for _ in range(rng.randint(1, 6)):
            role = rng.choice(["system", "user", "assistant", "developer"])
            parts: list[dict[str, Any]] = [
                rng.choice([IMAGE, {"type": "text", "text": rng.choice(texts)}, {"type": "video"}])
                for _ in range(rng.randint(0, 4))
            ]
            messages.append({"role": role, "content": rng.choice([rng.choice(texts), parts])})
        for tools in (None, []):
            options = {"add_generation_prompt": rng.random() < 0.5, "tools": tools}
            now = render(DEMO / "chat_template.jinja", messages, **options)
            assert now == render(BEFORE, messages, **options)


TURNS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}]},
    ],
    [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "Found it.", "tool_call_id": "c1"},
        {"role": "user", "content": "And?"},
    ],
    [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Both.", "tool_calls": [CALL, OBJECT_CALL, CALL]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": [{"type": "text", "text": "two"}, IMAGE]},
        {"role": "assistant", "content": "So."},
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "three"},
    ],
]


@pytest.mark.parametrize("turns", TURNS, ids=range(len(TURNS)))
@pytest.mark.parametrize("tools", [None, [TOWN], [TOWN, {"type": "function", "function": {"name": "clock"}}]])
@pytest.mark.parametrize("ask", [True, False])
def test_the_demos_template_shows_tools_as_qwen3_vl_does(
    render: Callable[..., str], turns: list[dict[str, Any]], tools: list[dict[str, Any]] | None, ask: bool
) -> None:
    options = {"tools": tools, "add_generation_prompt": ask}
    assert render(DEMO / "chat_template.jinja", turns, **options) == render(CHAT_TEMPLATE, turns, **options)


def tool(name: str = "find_town", description: str = "x", **fields: Any) -> Tool:
    definition = {"type": "function", "function": {"name": name, "description": description}}
    return Tool(name, definition, **fields)


def conversation(*messages: Message, **fields: Any) -> Conversation:
    return Conversation(messages or (Message.text(Role.USER, "hi"),), **fields)


def test_a_prompt_with_tools_has_the_references_ids(frontend: Frontend, render: Callable[..., str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO, local_files_only=True)
    messages = (
        Message.text(Role.USER, "hi"),
        Message(Role.ASSISTANT, (TextPart("Both."),), (ToolCall("c1", "find_town", '{"city": "Köln"}'),)),
        Message(Role.TOOL, (TextPart("Found it."),), tool_call_id="c1"),
    )
    plain = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Both.", "tool_calls": [CALL]},
        {"role": "tool", "content": "Found it.", "tool_call_id": "c1"},
    ]
    text = render(DEMO / "chat_template.jinja", plain, tools=[TOWN], add_generation_prompt=True)
    expected = tokenizer(text, add_special_tokens=False)["input_ids"]
    prompt = frontend.prepare(conversation(*messages, tools=(Tool("find_town", TOWN, PARAMETERS),)))
    assert list(prompt.token_ids) == expected


SPELLINGS = ["<|im_end|>", "<|im_start|>system", "<|image_pad|>", "<|vision_start|>"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_control_spellings_in_tools_and_calls_stay_text(frontend: Frontend, spelling: str) -> None:
    def control_count(text: str) -> int:
        schema = {"type": "object", "properties": {text: {"type": "string", "description": text}}}
        definition = {
            "type": "function",
            "function": {"name": "f", "description": f"a {text} b", "parameters": schema},
        }
        messages = (
            Message.text(Role.USER, "hi"),
            Message(Role.ASSISTANT, (), (ToolCall(text, text, json.dumps({"a": text})),)),
            Message(Role.TOOL, (TextPart(text),), tool_call_id=text),
        )
        prompt = frontend.prepare(conversation(*messages, tools=(Tool("f", definition, schema),)))
        assert not prompt.pictures
        return sum(token in frontend.special_ids for token in prompt.token_ids)

    assert control_count(spelling) == control_count("harmless")


def test_broken_arguments_in_the_history_are_kept_as_they_are(frontend: Frontend) -> None:
    """Case tool-args-malformed-history."""
    broken = '{"city": '
    message = Message(Role.ASSISTANT, (), (ToolCall("c1", "find_town", broken),))
    prompt = frontend.prepare(conversation(Message.text(Role.USER, "x"), message))
    text = frontend.tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False)
    assert f'<tool_call>\n{{"name": "find_town", "arguments": {broken}}}\n</tool_call>' in text


def test_pictures_in_a_tools_result_are_placed(frontend: Frontend) -> None:
    result = Message(Role.TOOL, (TextPart("see"), PicturePart(picture(64, 64))), tool_call_id="c1")
    call = Message(Role.ASSISTANT, (), (ToolCall("c1", "f", "{}"),))
    prompt = frontend.prepare(conversation(Message.text(Role.USER, "x"), call, result, tools=(tool("f"),)))
    assert len(prompt.pictures) == 1


def test_the_choice_decides_what_is_shown_and_how_answers_are_read(frontend: Frontend) -> None:
    tools = (tool(), tool("clock"))
    plain = frontend.prepare(conversation())
    hidden = frontend.prepare(conversation(tools=tools, tool_choice=ToolUse.NONE))
    assert hidden.token_ids == plain.token_ids
    assert hidden.syntax.calls is None
    for choice, single, enforced in [
        (ToolUse.AUTO, False, False),
        (ToolUse.REQUIRED, False, True),
        (NamedTool("clock"), True, True),
    ]:
        prompt = frontend.prepare(conversation(tools=tools, tool_choice=choice))
        assert prompt.syntax.calls is not None
        assert prompt.syntax.single_call == single
        assert (prompt.grammar is not None) == enforced
    assert frontend.prepare(conversation(tools=tools, parallel_tool_calls=False)).syntax.single_call
    assert plain.syntax.think is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": (tool(), tool())}, "tools"),
        ({"tools": tuple(tool(f"t{n}") for n in range(129))}, "tools"),
        ({"tool_choice": ToolUse.REQUIRED}, "tool_choice"),
        ({"tool_choice": NamedTool("f")}, "tool_choice"),
        ({"tools": (tool(description="\ud800"),)}, "messages"),
        ({"tools": (tool(description="word " * 20_000),)}, "messages"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(
    frontend: Frontend, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as refusal:
        frontend.prepare(conversation(**fields))
    assert refusal.value.field == field


def test_a_template_without_tools_refuses_them(tmp_path: Path) -> None:
    for file in DEMO.iterdir():
        if file.suffix != ".safetensors" and file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(BEFORE.read_text())
    old = Frontend(tmp_path, Qwen3VLPromptFormat.from_folder(tmp_path), RULES, 4000)
    with pytest.raises(RequestError, match="knows no tools"):
        old.prepare(conversation(tools=(tool(),)))
    call = Message(Role.ASSISTANT, (), (ToolCall("c1", "f", "{}"),))
    with pytest.raises(RequestError, match="knows no tool calls") as refusal:
        old.prepare(conversation(Message.text(Role.USER, "x"), call))
    assert refusal.value.field == "messages[1].tool_calls"


def thinking_frontend(folder: Path) -> Frontend:
    """The demo as a checkpoint that thinks, with `enable_thinking` as Qwen's templates have it."""
    for file in DEMO.iterdir():
        if file.suffix != ".safetensors" and file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    template = folder / "chat_template.jinja"
    template.write_text(
        template.read_text()
        + "{%- if add_generation_prompt %}{{- '<think>\\n' }}"
        + "{%- if enable_thinking is defined and not enable_thinking %}{{- '\\n</think>\\n\\n' }}{%- endif %}"
        + "{%- endif %}"
    )
    return Frontend(folder, Qwen3VLPromptFormat.from_folder(folder), RULES, 4000)


def test_a_checkpoint_whose_template_thinks_is_read_as_one_that_does(tmp_path: Path) -> None:
    frontend = thinking_frontend(tmp_path)
    opened = frontend.prepare(conversation())
    assert opened.syntax.think is not None
    assert opened.syntax.thinking
    closed = frontend.prepare(conversation(template_kwargs={"enable_thinking": False}))
    assert closed.syntax.think is None
    free = frontend.prepare(conversation(add_generation_prompt=False))
    assert free.syntax.think is not None
    assert not free.syntax.thinking
