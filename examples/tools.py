"""Tools: the model calls a function, and its result goes back into the conversation.

`tool_choice` names the function, so that a grammar holds the answer to a call with arguments that fit; with
"auto" the model decides. The demo model was never taught to call and guesses its arguments: serve a real one.
"""

from __future__ import annotations

import json

from client import API_KEY, BASE_URL
from openai import OpenAI

WEATHER = {"Paris": "sunny, 21 degrees", "Rome": "rain, 14 degrees"}
TOOL: dict = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": list(WEATHER)}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
model = client.models.list().data[0].id
messages: list = [{"role": "user", "content": "What is the weather in Rome?"}]
answer = client.chat.completions.create(
    model=model,
    messages=messages,
    tools=[TOOL],
    tool_choice={"type": "function", "function": {"name": "get_weather"}},
    parallel_tool_calls=False,
    temperature=0,
)
messages.append(answer.choices[0].message)
for call in answer.choices[0].message.tool_calls or []:
    city = json.loads(call.function.arguments)["city"]
    print(f"{call.function.name}({city!r}) -> {WEATHER[city]}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER[city]})

answer = client.chat.completions.create(
    model=model, messages=messages, tools=[TOOL], tool_choice="none", temperature=0, max_completion_tokens=40
)
print("answer:", answer.choices[0].message.content)
