"""One random model with its checkpoint and a prompt, loaded strictly and run at once and in chunks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from paged_run import PagedModel, PagedRun, compile_plan
from random_checkpoint import write_checkpoint
from random_config import RandomModel, draw_model, draw_prompt


@dataclass(frozen=True, slots=True)
class Sample:
    """``whole`` and ``chunked``: the n prompt tokens in one step and in steps of ``chunks``.

    ``ids`` are those n, then the token that the last draft pass starts from and the choices of its ``nextn`` drafts.
    """

    folder: Path
    model: RandomModel
    ids: list[int]
    nextn: int
    chunks: list[int]
    whole: PagedRun
    chunked: PagedRun

    @property
    def rows(self) -> int:
        """Tokens of the prompt."""
        return len(self.ids) - 1 - self.nextn

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
    prompt = draw_prompt(rng, model, rng.randint(longest // 2, longest))
    write_checkpoint(folder, model, rng.randrange(2**31))
    block = rng.choice([4, 16, 32])
    chunks = _draw_chunks(rng, len(prompt))
    text = model.config["text_config"]
    nextn = rng.randint(1, text["dspark_block_size"]) if text["num_nextn_predict_layers"] else 0
    ids = prompt + [rng.randrange(model.tokenizer.tokens) for _ in range(1 + nextn)]
    # Room for a block of drafts behind the longest prompt.
    plan = compile_plan(folder, tokens=longest + text["dspark_block_size"], block=block, speculative__nextn=nextn)
    paged = PagedModel(plan, folder)
    return Sample(folder, model, ids, nextn, chunks, paged.run(ids, [len(prompt)]), paged.run(ids, chunks))


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
