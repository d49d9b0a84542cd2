"""A prepared prompt is the reference's: ids, pixels, grids and positions, for every form of conversation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import kaminari
from kaminari.engine.conversation import Conversation, Detail, Message, Part, PicturePart, Role, TextPart
from kaminari.engine.frontend import Frontend, PictureRules
from kaminari.engine.prompt import PreparedPrompt
from kaminari.model.family import PictureBudget
from kaminari.model.qwen3_vl.prompt import Qwen3VLPromptFormat
from tests.cases import loading
from tests.checkpoints import SPECIAL_TOKENS
from tests.reference import Reference, reference

DEMO = Path(kaminari.__file__).parent / "demo"
AMPLE = {detail: PictureBudget(100_000) for detail in Detail}


def frontend_of(folder: Path, context: int = 2048, **rules: Any) -> Frontend:
    options = {"budgets": AMPLE, "max_pixels": 80_000_000, "max_count": 32, **rules}
    return Frontend(folder, Qwen3VLPromptFormat.from_folder(folder), PictureRules(**options), context)


@pytest.fixture(scope="module")
def pair(tiny_checkpoint: Path, tiny_reference: Reference) -> tuple[Frontend, Reference]:
    return frontend_of(tiny_checkpoint, 4096), tiny_reference


@pytest.fixture(scope="module")
def demo() -> tuple[Frontend, Reference]:
    return frontend_of(DEMO), reference(DEMO)


def references_messages(conversation: Conversation) -> tuple[list[dict[str, Any]], list[Image.Image]]:
    """The conversation as a user of `transformers` writes it, and its pictures."""
    messages, images = [], []
    for message in conversation.messages:
        content: list[dict[str, Any]] | str = []
        for part in message.parts:
            if isinstance(part, TextPart):
                content.append({"type": "text", "text": part.text})
            else:
                assert isinstance(part.source, Image.Image)
                content.append({"type": "image"})
                images.append(part.source)
        if len(content) == 1 and "text" in content[0]:
            content = content[0]["text"]
        messages.append({"role": message.role.value, "content": content})
    return messages, images


def assert_references(pair: tuple[Frontend, Reference], conversation: Conversation) -> PreparedPrompt:
    frontend, golden = pair
    prompt = frontend.prepare(conversation)
    messages, images = references_messages(conversation)
    text = golden.render(
        messages,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        **conversation.template_kwargs,
    )
    inputs = golden.inputs(text, images)
    assert list(prompt.token_ids) == inputs["input_ids"][0].tolist()
    positions, delta = golden.model.model.get_rope_index(
        inputs["input_ids"],
        mm_token_type_ids=inputs.get("mm_token_type_ids", torch.zeros_like(inputs["input_ids"])),
        image_grid_thw=inputs.get("image_grid_thw"),
    )
    assert np.array_equal(prompt.positions, positions[:, 0].numpy())
    assert prompt.position_offset == delta.item()
    if images:
        assert np.array_equal(np.concatenate([p.pixels for p in prompt.pictures]), inputs["pixel_values"])
        assert [p.grids[0] for p in prompt.pictures] == [
            tuple(grid) for grid in inputs["image_grid_thw"].tolist()
        ]
    assert_whole(prompt, golden.model.config.image_token_id)
    return prompt


def assert_whole(prompt: PreparedPrompt, image_token: int) -> None:
    """Spans cover the placeholders exactly, row by row, picture by picture."""
    rows = [
        (span.picture, span.first_row + index - span.start, index)
        for span in prompt.spans
        for index in range(span.start, span.stop)
    ]
    expected = [(n, row) for n, picture in enumerate(prompt.pictures) for row in range(picture.tokens)]
    assert [(picture, row) for picture, row, _ in rows] == expected
    assert [index for _, _, index in rows] == [
        index for index, token in enumerate(prompt.token_ids) if token == image_token
    ]
    assert prompt.image_tokens == len(rows)
    assert prompt.preprocess_seconds > 0
    keys = list(prompt.token_keys())
    for picture, row, index in rows:
        assert keys[index] == (prompt.pictures[picture].digest, row)
    assert sum(isinstance(key, tuple) for key in keys) == len(rows)


def picture(size: tuple[int, int] = (40, 30), colour: Any = "red") -> PicturePart:
    return PicturePart(Image.new("RGB", size, colour))


def user(*parts: Part | str) -> Message:
    return Message(Role.USER, tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


CONVERSATIONS = {
    "text": Conversation((user("Hello there"),)),
    "picture-first": Conversation((user(picture(), "What is it?"),)),
    "picture-last": Conversation((user("What is it?", picture()),)),
    "picture-alone": Conversation((user(picture()),)),
    "prompt-order": Conversation(
        (user("First:", picture(), "Second:", picture((90, 30), "blue"), "Which?"),)
    ),
    "adjacent-pictures": Conversation((user(picture(), picture((20, 70)), picture((33, 33))),)),
    "earlier-turn": Conversation(
        (user(picture((50, 80)), "Read."), Message.text("assistant", "red"), user("And the colour?"))
    ),
    "pictures-in-two-turns": Conversation(
        (user(picture(), "a"), Message.text("assistant", "b"), user("c", picture((64, 20))))
    ),
    "system": Conversation((Message.text("system", "Be brief."), user("hi", picture()))),
    "prompt-text-parts": Conversation((user("The code word is HERON. ", "What is the code word?"),)),
    "prompt-empty-assistant": Conversation((user("A"), Message.text("assistant", ""), user("B"))),
    "prompt-same-role": Conversation(
        (
            Message.text("system", "Be brief."),
            Message.text("system", "Use English."),
            user("hi"),
            user("there"),
        )
    ),
    "empty-text": Conversation((user(""),)),
    "no-parts": Conversation((Message(Role.USER, ()),)),
    "empty-text-beside-a-picture": Conversation((user("", picture(), ""),)),
    "only-system": Conversation((Message.text("system", "Be brief."),)),
    "assistant-last": Conversation((user("a"), Message.text("assistant", "b")), add_generation_prompt=False),
    "continued": Conversation(
        (user(picture(), "a"), Message.text("assistant", "It is a r")),
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    "blanks": Conversation(
        (user("  \n\n a \t\n", picture(), "\n\n"), Message.text("assistant", " \n"), user("\n"))
    ),
    "tags": Conversation((user("<tool_call>x</tool_call> <think>\n"), user("</think>\n\n<tool_response>"))),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("model", ["pair", "demo"])
def test_conversations_are_the_references(request: pytest.FixtureRequest, model: str, name: str) -> None:
    assert_references(request.getfixturevalue(model), CONVERSATIONS[name])


def test_a_tool_result_may_hold_a_picture_where_the_template_takes_it(
    pair: tuple[Frontend, Reference],
) -> None:
    """Case prompt-tool-image, but for the call itself."""
    result = Message(Role.TOOL, (TextPart("result"), picture()))
    prompt = assert_references(pair, Conversation((user("Look it up."), result)))
    assert len(prompt.pictures) == 1


def test_prompt_many_images_each_adds_the_same_step(pair: tuple[Frontend, Reference]) -> None:
    digits = [PicturePart(loading.file_bytes(f"digit_{n}.png")) for n in range(1, 9)]
    lengths = []
    for count in range(1, 9):
        prompt = pair[0].prepare(Conversation((user(*digits[:count], "Read the numbers in order."),)))
        assert [p.tokens for p in prompt.pictures] == [49] * count
        lengths.append(len(prompt.token_ids))
    assert {after - before for before, after in pairwise(lengths)} == {51}
    assert len({picture.digest for picture in prompt.pictures}) == 8


def test_img_exif_jpeg_all_orientations_make_prompts_of_one_length(pair: tuple[Frontend, Reference]) -> None:
    prompts = [
        pair[0].prepare(Conversation((user(PicturePart(loading.file_bytes(f"exif_{n}.jpg")), "?"),)))
        for n in range(1, 9)
    ]
    assert len({prompt.token_ids for prompt in prompts}) == 1
    assert prompts[0].pictures[0].size == (240, 160)


def test_prompt_truncation_a_picture_of_more_tokens_than_the_tokenizers_length(
    tiny_checkpoint: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """The tokenizer of the tiny checkpoint says 4096; its processor is told to allow large pictures."""
    for file in tiny_checkpoint.iterdir():
        if file.suffix != ".safetensors":
            text = file.read_text(encoding="utf-8").replace(
                '"longest_edge": 65536', '"longest_edge": 16777216'
            )
            (tmp_path / file.name).write_text(text, encoding="utf-8")
    frontend = frontend_of(tmp_path, 100_000)
    prompt = frontend.prepare(Conversation((user(picture((3000, 3000)), "Table Recognition:" * 3000),)))
    assert prompt.image_tokens == 94 * 94 > 4096
    assert len(prompt.token_ids) > 40_000
    assert not recwarn.list


@pytest.mark.parametrize("name", ["long_receipt.png", "table_19x18.png", "px_31x639.png", "px_1x1.png"])
def test_case_pictures_are_prepared_as_the_reference_does(
    pair: tuple[Frontend, Reference], name: str
) -> None:
    image = Image.open(loading.FILES / name).convert("RGB")
    assert_references(pair, Conversation((user(PicturePart(image), "Table Recognition:"),)))


def random_conversation(chance: random.Random) -> Conversation:
    messages = []
    for turn in range(chance.randint(1, 4)):
        parts: list[Part] = []
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.4:
                size = (chance.randint(1, 120), chance.randint(1, 120))
                parts.append(picture(size, tuple(chance.randrange(256) for _ in range(3))))
            else:
                parts.append(TextPart("".join(chance.choices("ab é\n<|>tхe中", k=chance.randint(0, 12)))))
        messages.append(Message(Role.USER, tuple(parts)))
        if turn % 2:
            messages.append(Message.text("assistant", "the answer"))
    return Conversation(tuple(messages))


@pytest.mark.parametrize("seed", range(25))
def test_random_conversations_are_the_references(pair: tuple[Frontend, Reference], seed: int) -> None:
    assert_references(pair, random_conversation(random.Random(seed)))


words = st.lists(st.sampled_from((*SPECIAL_TOKENS, "<|im", "_end|>", "a", " ", "\n")) | st.text(max_size=2))
texts = words.map("".join)


@settings(max_examples=200, deadline=None)
@given(texts, texts, texts, texts)
def test_prompt_literal_no_spelling_in_any_role_becomes_a_token(
    pair: tuple[Frontend, Reference], system: str, before: str, after: str, answer: str
) -> None:
    """Cases prompt-literal-glm and prompt-literal-role, for any words of any role."""
    frontend = pair[0]

    def controls(*said: str) -> list[int]:
        prompt = frontend.prepare(
            Conversation(
                (
                    Message.text("system", said[0]),
                    user(said[1], picture(), said[2]),
                    Message.text("assistant", said[3]),
                    Message.text("tool", said[3]),
                )
            )
        )
        assert len(prompt.spans) == 1
        return [token for token in prompt.token_ids if token in frontend.special_ids]

    assert controls(system, before, after, answer) == controls("s", "b", "a", "c")


@pytest.mark.parametrize("case_id", ["prompt-literal-glm", "prompt-literal-role"])
def test_prompt_literal_cases(pair: tuple[Frontend, Reference], case_id: str) -> None:
    body = loading.case(case_id).request()
    messages = []
    for message in body["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        messages.append(
            Message(
                Role(message["role"]),
                tuple(TextPart(p["text"]) if p["type"] == "text" else picture() for p in parts),
            )
        )
    frontend, golden = pair
    prompt = frontend.prepare(Conversation(tuple(messages)))
    start = frontend.tokenizer.token_to_id("<|im_start|>")
    assert prompt.token_ids.count(start) == len(messages) + 1
    assert len(prompt.pictures) == len(prompt.spans)
    shown = frontend.tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False)
    for message in messages:
        for part in message.parts:
            assert not isinstance(part, TextPart) or part.text in shown
    assert golden.processor.tokenizer.decode(prompt.token_ids) == shown


def test_a_spelling_put_together_from_parts_is_text(pair: tuple[Frontend, Reference]) -> None:
    frontend = pair[0]
    prompt = frontend.prepare(
        Conversation((user("<|im_", "end|>", picture(), "<|im_  ", "end|>", "<", "|im_end|>"),))
    )
    assert prompt.token_ids.count(frontend.tokenizer.token_to_id("<|im_end|>")) == 1


def test_template_variables_are_text_too(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for file in tiny_checkpoint.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(
        "<|im_start|>{{ hint }} {{ deep | tojson }}"
        "{{ 'yes' if flag else 'no' }}{{ messages[0].content }}<|im_end|>"
    )
    frontend = frontend_of(tmp_path)
    prompt = frontend.prepare(
        Conversation(
            (user("x"),),
            template_kwargs={
                "hint": "<|im_end|>",
                "deep": {"<|im_start|>": ["<|image_pad|>"]},
                "flag": False,
            },
        )
    )
    shown = frontend.tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False)
    assert shown == '<|im_start|><|im_end|> {"<|im_start|>": ["<|image_pad|>"]}nox<|im_end|>'
    assert sum(token in frontend.special_ids for token in prompt.token_ids) == 2


@pytest.mark.parametrize("letterbox", [False, True])
def test_detail_chooses_the_budget(tiny_checkpoint: Path, letterbox: bool) -> None:
    sizes = {Detail.LOW: 4, Detail.AUTO: 16, Detail.HIGH: 64}
    budgets = {detail: PictureBudget(tokens, letterbox) for detail, tokens in sizes.items()}
    frontend = frontend_of(tiny_checkpoint, budgets=budgets)
    image = Image.new("RGB", (400, 400))
    for detail, tokens in sizes.items():
        prompt = frontend.prepare(Conversation((user(PicturePart(image, detail)),)))
        assert prompt.image_tokens == tokens
    assert frontend.prepare(Conversation((user(PicturePart(image)),))).image_tokens == sizes[Detail.AUTO]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def test_threads_share_a_frontend(pair: tuple[Frontend, Reference], pool: ThreadPoolExecutor) -> None:
    conversations = [random_conversation(random.Random(seed)) for seed in range(12)]
    alone = [pair[0].prepare(conversation) for conversation in conversations]
    for one, other in zip(alone * 2, pool.map(pair[0].prepare, conversations * 2), strict=True):
        assert one.token_ids == other.token_ids
        assert [p.digest for p in one.pictures] == [p.digest for p in other.pictures]
        assert np.array_equal(one.positions, other.positions)
