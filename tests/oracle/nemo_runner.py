"""Runs nemo-automodel on checkpoint folders; started by ``second_opinion.py`` with the interpreter that has it.

For each folder it reads ``prompt.npz`` (``ids``) and writes ``nemo.npz``: ``logits`` [n, vocab] of all rows in float32
without cache quantisation; ``margin`` [n], how narrowly its choices (experts, blocks, entries, signs of Engram gates)
were decided in each row; ``choices``, how many refused something that could have been chosen. ``error`` is what it
refused the folder with.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.deepseek_v41 import attention
from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast


class _Chosen(NamedTuple):
    values: Tensor
    indices: Tensor


class Choices:
    """Stands in for ``topk`` and ``copysign``, whose results jump, and keeps the margin of each jump by row.

    A margin of ``topk`` is the distance between the last chosen and the first refused value, relative to the row's
    largest. Of equal values the older wins, as in this project's model; the order among equals is nobody's rule.
    A margin of ``copysign`` is the number whose sign is taken: the Engram's scalar product, which is near 1.
    """

    def __init__(self, rows: int) -> None:
        self.margin = torch.full((rows,), torch.inf)
        self.choices = 0
        self._copysign = torch.copysign

    def _decided(self, gap: Tensor) -> None:
        self.margin = torch.minimum(self.margin, gap.reshape(len(self.margin), -1).amin(1))

    def topk(
        self,
        values: Tensor,
        k: int,
        dim: int = -1,
        largest: bool = True,
        sorted: bool = True,
    ) -> _Chosen:
        """``torch.topk`` with a defined order among equals."""
        if dim not in (-1, values.dim() - 1) or not largest:
            raise NotImplementedError("only the largest along the last dimension")
        ordered, indices = torch.sort(values, dim=-1, descending=True, stable=True)
        if 0 < k < values.shape[-1]:
            last, refused = ordered[..., k - 1].reshape(-1), ordered[..., k].reshape(-1)
            finite = torch.isfinite(values)
            spread = torch.where(finite, values.abs(), 0).reshape(len(last), -1).amax(1).clamp_min(1e-30)
            chosen = torch.isfinite(last) & torch.isfinite(refused)
            self.choices += int(chosen.sum())
            # Exactly equal values are told apart by age on both sides.
            self._decided(torch.where(chosen & (last > refused), (last - refused) / spread, torch.inf))
        return _Chosen(ordered[..., :k], indices[..., :k])

    def copysign(self, magnitude: Tensor, sign: Tensor) -> Tensor:
        """``torch.copysign``."""
        self._decided(sign.abs())
        return self._copysign(magnitude, sign)


@contextmanager
def _choosing(choices: Choices) -> Iterator[None]:
    before = torch.topk, Tensor.topk, torch.copysign
    torch.topk, torch.copysign = choices.topk, choices.copysign
    Tensor.topk = lambda *arguments, **named: choices.topk(*arguments, **named)
    try:
        yield
    finally:
        torch.topk, Tensor.topk, torch.copysign = before


def load(folder: Path) -> Any:
    """The backbone in float32; every tensor of the checkpoint but the draft layers' must find its place."""
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = content["text_config"]
    shared = text["n_shared_experts"]
    # It refuses other numbers of shared experts in its configuration only; its layers take any.
    text |= {"n_shared_experts": 1, "dtype": "float32"}
    config = DeepseekV41Config(**content | {"dtype": "float32"})
    config.text_config.n_shared_experts = shared
    backend = BackendConfig(
        attn="eager", linear="torch", rms_norm="torch_fp32", rope_fusion=False, experts="torch", dispatcher="torch"
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = DeepseekV41ForCausalLM(config, backend=backend, tokenizer=tokenizer)
    stored: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        stored |= load_file(shard)
    model.load_state_dict(model.state_dict_adapter.from_hf(stored), strict=True)
    return model.eval().float()


def run(folder: Path) -> dict[str, Any]:
    """What ``nemo.npz`` holds."""
    with np.load(folder / "prompt.npz") as prompt:
        ids = torch.from_numpy(prompt["ids"].astype(np.int64)).unsqueeze(0)
    model, choices = load(folder), Choices(ids.shape[1])
    with torch.inference_mode(), _choosing(choices):
        logits = model(ids).logits[0]
    return {"logits": logits.numpy(), "margin": choices.margin.numpy(), "choices": choices.choices, "error": ""}


def main(folders: list[str]) -> None:
    """Run every folder; a refusal is an answer too."""
    torch.set_num_threads(1)
    attention.quantize_cache = lambda values, **_: values
    for name in folders:
        try:
            answer = run(Path(name))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        np.savez(Path(name) / "nemo.npz", **answer)


if __name__ == "__main__":
    main(sys.argv[1:])
