"""A picture from a file: `python examples/picture_from_file.py [FILE] [QUESTION]`."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from client import API_KEY, BASE_URL
from openai import OpenAI

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "receipt.png"
question = sys.argv[2] if len(sys.argv) > 2 else "Read the text."

# the server looks at the bytes, so the label does not have to be right
url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
answer = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url, "detail": "high"}},
                {"type": "text", "text": question},
            ],
        }
    ],
    temperature=0,
)
print(answer.choices[0].message.content)
