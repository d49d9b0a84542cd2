"""Log-probabilities: how sure the model is of each token, and what it would have said instead."""

from __future__ import annotations

import math

from client import API_KEY, BASE_URL
from openai import OpenAI
from pictures import image_part, text_line

client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
answer = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[
        {
            "role": "user",
            "content": [image_part(text_line("TOTAL 12.34")), {"type": "text", "text": "Read the text."}],
        }
    ],
    temperature=0,
    logprobs=True,
    top_logprobs=2,
)
print(answer.choices[0].message.content)
found = answer.choices[0].logprobs
for token in (found.content if found else None) or []:
    others = [other for other in token.top_logprobs if other.token != token.token]
    instead = ", ".join(f"{other.token!r} {math.exp(other.logprob):.4f}" for other in others)
    print(f"{token.token!r:8} {math.exp(token.logprob):.4f}   instead: {instead}")
