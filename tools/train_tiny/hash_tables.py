"""What compiler and tokenizer fix for the Engram layers, as a file for machines that have neither of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.token_map import engram_token_map
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve


def compiled_plan(model: str, **sections: dict[str, object]) -> ModelPlan:
    """The compiler's plan of a small CPU engine for ``model``, a preset; ``sections`` are further ones of the spec."""
    spec = {
        "engine": {"name": "training"},
        "model": model,
        "hardware": "cpu",
        "limits": {"max_num_seqs": 16, "max_model_len": 1024},
        **sections,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spec.yaml")
        path.write_text(json.dumps(spec), encoding="utf-8")
        return model_plan(derive(resolve(load_spec(path))))


def write(checkpoint: Path, model: str, file: Path) -> None:
    """``token_map`` [vocab_size] and ``layers.L.{multipliers,primes,offsets}`` int64 of a preset and its tokenizer."""
    plan = compiled_plan(model)
    constants = Constants.of(plan)
    orders = constants.engram_max_ngram_size - 1
    tensors = {"token_map": torch.tensor(engram_token_map(checkpoint, constants), dtype=torch.int64)}
    for layer in plan.layers:
        if layer.engram is not None:
            prefix = f"layers.{layer.index}"
            tensors[f"{prefix}.multipliers"] = torch.tensor(layer.engram.multipliers, dtype=torch.int64)
            for name in ("primes", "offsets"):
                values = torch.tensor(getattr(layer.engram, name), dtype=torch.int64)
                tensors[f"{prefix}.{name}"] = values.view(orders, -1).contiguous()
    save_file(tensors, file)
