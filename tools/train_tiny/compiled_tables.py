"""Writes the file that ``tables`` reads: the Engram hashes of the compiler's plan and what token ids stand for."""

from __future__ import annotations

from pathlib import Path

import torch
from engine_plan import plan_engine
from safetensors.torch import save_file
from tables import FILE, HASH_PARTS

from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.token_map import engram_token_map
from deepinfer_gen.runtime.tokenizer import Tokenizer

_HEAD_WORDS = ("def", "class", "async")


def write_tables(checkpoint: Path, work: Path) -> None:
    """``checkpoint`` is a folder with config.json and a tokenizer; raises ``InputError`` for every fault of them."""
    plan = model_plan(plan_engine(checkpoint, {"limits": {"max_num_seqs": 1, "max_model_len": 1024}}))
    constants, tokenizer = Constants.of(plan), Tokenizer(checkpoint)
    texts = [tokenizer.decode([token]) for token in range(constants.vocab_size)]
    tensors = {
        "token_map": torch.tensor(engram_token_map(checkpoint, constants), dtype=torch.int64),
        "begins_line": torch.tensor([text.startswith("\n") for text in texts]),
        "is_break": torch.tensor([bool(text) and not text.strip("\n") for text in texts]),
        "is_head": torch.tensor([text.strip() in _HEAD_WORDS for text in texts]),
    }
    for layer in plan.layers:
        if layer.engram is not None:
            orders = constants.engram_max_ngram_size - 1
            for part in HASH_PARTS:
                values = torch.tensor(getattr(layer.engram, part), dtype=torch.int64)
                tensors[f"layers.{layer.index}.{part}"] = (
                    values if part == "multipliers" else values.view(orders, -1).contiguous()
                )
    save_file(tensors, work / FILE)
