"""Streaming: the text appears as it is made, and the last chunk says what it cost."""

from __future__ import annotations

from client import API_KEY, BASE_URL
from openai import OpenAI
from pictures import image_part, text_line

client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model,
    messages=[
        {
            "role": "user",
            "content": [image_part(text_line("TOTAL 12.34")), {"type": "text", "text": "Read the text."}],
        }
    ],
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:
        print(f"\n{chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} made")
