"""Draws its own receipt and asks for the total: the job that kaminari is for, in thirty lines."""

from __future__ import annotations

import random
import sys

from client import API_KEY, BASE_URL
from openai import OpenAI
from pictures import image_part, receipt

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 7
rng = random.Random(seed)
names = rng.sample(["Coffee", "Tea", "Bread", "Milk", "Soup", "Pizza", "Cheese", "Rice"], 3)
cents = [rng.randint(100, 999) for _ in names]
items = [(name, f"{price // 100}.{price % 100:02d}") for name, price in zip(names, cents, strict=True)]
total = f"{sum(cents) // 100}.{sum(cents) % 100:02d}"
picture = receipt("FRESH MART", "2026-03-14", items, total)

client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
model = client.models.list().data[0].id
for question in ("What is the total?", "What is the date?", "Read the text."):
    answer = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "user", "content": [image_part(picture), {"type": "text", "text": question}]},
        ],
        temperature=0,
    )
    print(f"{question}\n  {(answer.choices[0].message.content or '').replace(chr(10), chr(10) + '  ')}")
print(f"(drawn: {items}, total {total})")
