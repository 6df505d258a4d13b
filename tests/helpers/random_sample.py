"""One random model with its checkpoint and a prompt, loaded strictly and run at once and in chunks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from paged_run import PagedModel, compile_plan
from random_checkpoint import write_checkpoint
from random_config import RandomModel, draw_model, draw_prompt


@dataclass(frozen=True, slots=True)
class Sample:
    """``logits`` and ``chunked`` float32 [n, vocab_size]: of all ``ids``, in one step and in steps of ``chunks``."""

    folder: Path
    model: RandomModel
    ids: list[int]
    chunks: list[int]
    logits: NDArray[np.float32]
    chunked: NDArray[np.float32]

    @property
    def roles(self) -> str:
        """Per layer w (window only), F (KV source), I (index source) or r (reuse), the ratio, and e for an Engram."""
        text = self.model.config["text_config"]
        return " ".join(_role(text, layer) for layer in range(text["num_hidden_layers"]))


def make_sample(folder: Path, seed: int, number: int, *, longest: int = 200) -> Sample:
    """Sample ``number`` of ``seed`` with a prompt of half ``longest`` tokens or more, written to ``folder`` and run.

    Raises ``InputError`` where the product refuses what the schema allows.
    """
    rng = random.Random(f"{seed}.{number}")
    model = draw_model(rng)
    ids = draw_prompt(rng, model, rng.randint(longest // 2, longest))
    write_checkpoint(folder, model, rng.randrange(2**31))
    plan = compile_plan(folder, tokens=longest, block=rng.choice([4, 16, 32]))
    paged = PagedModel(plan, folder)
    chunks = _draw_chunks(rng, len(ids))
    logits, chunked = paged.logits(ids, [len(ids)]).numpy(), paged.logits(ids, chunks).numpy()
    return Sample(folder, model, ids, chunks, logits, chunked)


def _draw_chunks(rng: random.Random, total: int) -> list[int]:
    chunks: list[int] = []
    while sum(chunks) < total:
        chunks.append(min(rng.choice([1, 1, 2, 3, 7, 20, 50]), total - sum(chunks)))
    return chunks


def _role(text: dict[str, list[int]], layer: int) -> str:
    engram = "e" if layer in text["engram_layer_ids"] else ""
    ratio = text["compress_ratios"][layer]
    if not ratio:
        return f"w{engram}"
    kv, index = layer in text["kv_source_layer_ids"], layer in text["index_source_layer_ids"]
    return f"{'F' if kv else 'I' if index else 'r'}{ratio}{engram}"
