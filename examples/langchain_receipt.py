"""LangChain: a receipt as text and as a pydantic model (`pip install langchain-openai` first)."""

from __future__ import annotations

import base64
from pathlib import Path

from client import API_KEY, BASE_URL
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, Field


class Receipt(BaseModel):
    """What a receipt says."""

    total: str = Field(pattern=r"^\d{1,3}\.\d{2}$")
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


model = OpenAI(base_url=BASE_URL, api_key=API_KEY).models.list().data[0].id
chat = ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, model=model, temperature=0)
file = Path(__file__).parent / "receipt.png"
url = "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode("ascii")


def ask(question: str) -> list[HumanMessage]:
    picture = {"type": "image_url", "image_url": {"url": url}}
    return [HumanMessage(content=[picture, {"type": "text", "text": question}])]


for chunk in chat.stream(ask("Read the text.")):
    print(chunk.content, end="", flush=True)
print()

# json_schema is enforced by the server; so is function_calling, the other method
structured = chat.with_structured_output(Receipt, method="json_schema")
print(structured.invoke(ask("Answer in JSON: total and date.")))
