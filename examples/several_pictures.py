"""Several pictures in one turn: they keep their order among the text."""

from __future__ import annotations

from client import API_KEY, BASE_URL
from openai import OpenAI
from pictures import image_part, shape

client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
model = client.models.list().data[0].id
pictures = [image_part(shape("circle", (35, 70, 220))), image_part(shape("square", (245, 220, 30)))]

for question in ("Describe both images.", "Which color is the first one?", "Are they the same shape?"):
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": [*pictures, {"type": "text", "text": question}]}],
        temperature=0,
    )
    print(f"{question} {answer.choices[0].message.content}")
