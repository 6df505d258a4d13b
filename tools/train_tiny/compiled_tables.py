"""Writes the file that ``tables`` reads: the Engram hashes of the compiler's plan and what token ids stand for."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tables import FILE, HASH_PARTS

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.token_map import engram_token_map
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

_HEAD_WORDS = ("def", "class", "async")


def write_tables(checkpoint: Path, work: Path) -> None:
    """``checkpoint`` is a folder with config.json and a tokenizer; raises ``InputError`` for every fault of them."""
    plan = _plan(checkpoint / "config.json")
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


def _plan(config: Path) -> ModelPlan:
    """The compiler's plan of a small engine for the model."""
    spec = {
        "engine": {"name": "training"},
        "model": "config.json",
        "hardware": "cpu",
        "limits": {"max_num_seqs": 1, "max_model_len": 1024},
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_bytes(config.read_bytes())
        path = Path(folder, "spec.yaml")
        path.write_text(json.dumps(spec), encoding="utf-8")
        return model_plan(derive(resolve(load_spec(path))))
