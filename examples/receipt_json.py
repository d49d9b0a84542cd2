"""A receipt as JSON: the server holds the answer to the schema, and `parse` makes an object of it."""

from __future__ import annotations

from client import API_KEY, BASE_URL
from openai import OpenAI
from pictures import image_part, receipt
from pydantic import BaseModel, ConfigDict, Field


class Receipt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    total: str = Field(pattern=r"^\d{1,3}\.\d{2}$")
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


items = [("Coffee", "3.40"), ("Bread", "2.15"), ("Cheese", "5.30")]
picture = receipt("FRESH MART", "2026-03-14", items, "10.85")
client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
answer = client.chat.completions.parse(
    model=client.models.list().data[0].id,
    messages=[
        {
            "role": "user",
            "content": [image_part(picture), {"type": "text", "text": "Answer in JSON: total and date."}],
        }
    ],
    response_format=Receipt,
    temperature=0,
)
print(answer.choices[0].message.content)
read = answer.choices[0].message.parsed
if read is not None:
    print(f"{read.total} on {read.date}")
