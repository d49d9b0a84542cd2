"""The openai SDK against kaminari: one question about one picture, then a follow-up."""

from __future__ import annotations

from client import API_KEY, BASE_URL
from openai import OpenAI
from pictures import image_part, shape

client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
model = client.models.list().data[0].id

messages: list = [
    {
        "role": "user",
        "content": [
            image_part(shape("circle", (220, 30, 30))),
            {"type": "text", "text": "What shape and color?"},
        ],
    }
]
answer = client.chat.completions.create(model=model, messages=messages, temperature=0)
print("What shape and color? ", answer.choices[0].message.content)

messages += [
    {"role": "assistant", "content": answer.choices[0].message.content},
    {"role": "user", "content": "What color is it?"},
]
answer = client.chat.completions.create(model=model, messages=messages, temperature=0)
print("What color is it?     ", answer.choices[0].message.content)
print("usage:", answer.usage.model_dump(exclude_none=True) if answer.usage else None)
