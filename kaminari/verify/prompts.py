"""What is asked while verifying: built-in prompts with pictures drawn on the spot, or a person's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from kaminari.engine.conversation import Conversation

STORY = (
    "A lighthouse keeper found a letter in a bottle. It said: 'The storm of 1871 took the bell, not the "
    "tower.' Say in one sentence what was lost, y dilo también en español."
)
ABOUT_PICTURES = "Describe what you see."


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question about pictures, which are whole encoded files."""

    name: str
    question: str
    pictures: tuple[bytes, ...] = ()

    def conversation(self) -> Conversation:
        return Conversation.ask(self.question, *self.pictures)


def built_in() -> tuple[Prompt, ...]:
    """Text alone; two small pictures of unlike shape; and one large enough to be sliced."""
    return (
        Prompt("text", STORY),
        Prompt("two pictures", "What differs between the two?", (_drawn(200, 140), _drawn(96, 260))),
        Prompt("large picture", "Describe the picture.", (_drawn(896, 640),)),
    )


def chosen(question: str | None, files: Sequence[str]) -> tuple[Prompt, ...]:
    """A person's own prompt; the built-in ones where neither words nor pictures are given. Raises OSError."""
    if question is None and not files:
        return built_in()
    pictures = tuple(Path(name).read_bytes() for name in files)
    return (Prompt("yours", question or ABOUT_PICTURES, pictures),)


def _drawn(width: int, height: int) -> bytes:
    """A PNG with colour in every direction, edges and a word, so that no two patches are alike."""
    across = Image.linear_gradient("L").rotate(90).resize((width, height))
    down = Image.linear_gradient("L").resize((width, height))
    round_ = Image.radial_gradient("L").resize((width, height))
    image = Image.merge("RGB", (across, down, round_))
    draw = ImageDraw.Draw(image)
    for step in range(1, 8):
        draw.line((width * step // 8, 0, width * (step - 1) // 8, height), fill="black", width=1 + step % 3)
    draw.ellipse((width // 5, height // 4, width // 2, height * 3 // 4), fill=(220, 30, 30))
    draw.text((width // 4, height // 3), "kaminari", fill="white", font=ImageFont.load_default(height // 8))
    file = BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()
