"""Runs the reference over the prompts and records its trace. Holds nothing of kaminari's own model."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig

from kaminari.engine.chat_template import ChatTemplate
from kaminari.engine.picture_decoding import decode_picture
from kaminari.model.stages import LOGIT_ROWS, LOGITS, ReferenceModel, find_stages
from kaminari.model.tokenizer import load_tokenizer
from kaminari.verify.prompts import Prompt
from kaminari.verify.recording import recorded
from kaminari.verify.trace import Greedy, PromptTrace, Trace, checkpoint_digest

MOST_PIXELS = 80_000_000
NO_TOKEN = 2**31 - 1  # an id past every vocabulary: no token ends an answer early


def record_reference(
    folder: Path,
    prompts: Sequence[Prompt],
    dtype: torch.dtype,
    *,
    tokens: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Trace:
    """Load the reference, run every prompt through it, and let go of it.

    tokens:    length of each greedy answer
    progress:  told what is being done

    Raises `CheckpointError`, and `RequestError` for a prompt that cannot be made.
    """
    progress("loading the reference")
    reference = find_stages(folder).load_reference(folder, dtype)
    template = ChatTemplate(folder, load_tokenizer(folder))
    traces = []
    for prompt in prompts:
        progress(f"running the reference: {prompt.name}")
        traces.append(record_prompt(reference, template, prompt, tokens))
    # its modules hold one another: without this the weights would stay beside those that are loaded next
    del reference
    gc.collect()
    spelled = str(dtype).removeprefix("torch.")
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return Trace(checkpoint_digest(folder), spelled, versions, tuple(traces))


def record_prompt(
    reference: ReferenceModel, template: ChatTemplate, prompt: Prompt, tokens: int
) -> PromptTrace:
    """Run one prompt through the reference, whole, and then greedily on."""
    content: Any = [*({"type": "image"} for _ in prompt.pictures), {"type": "text", "text": prompt.question}]
    messages = [{"role": "user", "content": content if prompt.pictures else prompt.question}]
    text = template.render(messages, {}, add_generation_prompt=True, continue_final_message=False)
    images = [decode_picture(file, MOST_PIXELS) for file in prompt.pictures]
    inputs = reference.inputs(text, images)
    positions: list[Tensor] = []
    hook = reference.rotary.register_forward_pre_hook(lambda _, args: positions.append(args[1]))
    try:
        with torch.inference_mode(), recorded(reference.stages) as stages:
            reference.run(inputs)
    finally:
        hook.remove()
    length = inputs["input_ids"].shape[1]
    stages[LOGITS] = stages[LOGITS].last(LOGIT_ROWS)
    return PromptTrace(
        prompt=prompt,
        token_ids=inputs["input_ids"][0].clone(),
        positions=positions[0].reshape(-1, length).expand(3, -1).clone(),
        patches=reference.patches(inputs),
        stages=stages,
        greedy=_greedy(reference.model, inputs, tokens),
    )


def _greedy(model: Any, inputs: dict[str, Tensor], tokens: int) -> Greedy:
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=[NO_TOKEN],
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    with torch.inference_mode():
        output = model.generate(**inputs, generation_config=config)
    length = inputs["input_ids"].shape[1]
    tops = [logits[0].float().topk(2).values.tolist() for logits in output.logits]
    return Greedy(
        tuple(output.sequences[0, length:].tolist()), tuple(first - second for first, second in tops)
    )
