"""The Python door: the engine in this process, without a server (run it with kaminari installed)."""

from __future__ import annotations

from pictures import receipt

from kaminari import Conversation, Engine, SamplingParams, collect

picture = receipt("CITY CAFE", "2026-05-02", [("Coffee", "2.50"), ("Cake", "3.25")], "5.75")

with Engine.load() as engine:
    print(f"{engine.info.model} on {engine.info.device}, {engine.info.dtype}, {engine.info.slots} slots")

    # whole answers
    for question in ("What is the total?", "Which store is it?"):
        prompt = engine.prepare(Conversation.ask(question, picture))
        answer = collect(engine.submit(prompt, SamplingParams(temperature=0)))
        cost = f"{answer.usage.prompt_tokens} + {answer.usage.completion_tokens} tokens"
        print(f"{question} {answer.text} ({cost})")

    # in pieces: a stream is an iterator of events, blocking or async
    prompt = engine.prepare(Conversation.ask("Read the text.", picture))
    for event in engine.submit(prompt, SamplingParams(temperature=0)):
        print(getattr(event, "text", ""), end="", flush=True)
    print()
