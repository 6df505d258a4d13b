"""Runs nemo-automodel on checkpoint folders; started by ``second_opinion.py`` with the interpreter that has it.

For each folder it reads ``prompt.npz`` (``ids``, ``nextn``, ``anchors``) and writes ``nemo.npz``: ``logits`` [n, vocab]
of all rows in float32 without cache quantisation; ``margin`` [n], how narrowly its choices (experts, blocks, entries,
signs of Engram gates) were decided in each row; ``choices``, how many refused something that could have been chosen.
Where ``nextn`` is not 0 the drafts behind the ``anchors`` first tokens: ``draft_logits`` [anchors, nextn, vocab],
``confidences`` [anchors, nextn], and their ``draft_margin`` [anchors]. ``error`` is what it refused the folder with.
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
from nemo_automodel.components.models.deepseek_v41 import attention, dspark
from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
from nemo_automodel.components.models.deepseek_v41.dspark import DeepseekV41DSparkBackbone, DeepseekV41DSparkModel
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
def choosing(choices: Choices) -> Iterator[None]:
    """Within it the functions of torch that choose are those of ``choices``."""
    before = torch.topk, Tensor.topk, torch.copysign
    quantizers = [module.quantize_cache for module in (attention, dspark)]
    torch.topk, torch.copysign = choices.topk, choices.copysign
    Tensor.topk = lambda *arguments, **named: choices.topk(*arguments, **named)
    for module in (attention, dspark):
        module.quantize_cache = _with_copysign(before[2], module.quantize_cache)
    try:
        yield
    finally:
        torch.topk, Tensor.topk, torch.copysign = before
        attention.quantize_cache, dspark.quantize_cache = quantizers


def _with_copysign(copysign: Any, quantize: Any) -> Any:
    """``quantize`` with torch's own ``copysign``: the signs of what a cache holds are no choices."""

    def quantized(values: Tensor, **named: Any) -> Tensor:
        kept, torch.copysign = torch.copysign, copysign
        try:
            return quantize(values, **named)
        finally:
            torch.copysign = kept

    return quantized


def load(folder: Path, *, drafts: bool) -> tuple[Any, Any]:
    """Backbone and drafter (None without ``drafts``) in float32; every tensor of the checkpoint finds its place."""
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
    parts: list[Any] = [DeepseekV41ForCausalLM(config, backend=backend, tokenizer=tokenizer), None]
    if drafts:
        parts[1] = DeepseekV41DSparkModel(config.text_config, backend, num_anchors=1, enable_confidence_head=True)
    stored: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        stored |= load_file(shard)
    for part in filter(None, parts):
        # The adapter empties the mapping that it is given.
        part.load_state_dict(part.state_dict_adapter.from_hf(dict(stored)), strict=True)
        part.eval().float()
    return parts[0], parts[1]


def without_cache_quantization() -> None:
    """From now on attention reads what was to be written into caches as it is."""
    for module in (attention, dspark):
        module.quantize_cache = lambda values, **_: values


def run(folder: Path) -> dict[str, Any]:
    """What ``nemo.npz`` holds."""
    with np.load(folder / "prompt.npz") as prompt:
        ids, nextn, anchors = (torch.from_numpy(prompt[name]) for name in ("ids", "nextn", "anchors"))
    count = len(ids) - 1 - int(nextn)
    model, drafter = load(folder, drafts=bool(nextn))
    choices, features = Choices(count), dict[int, Tensor]()
    with torch.inference_mode(), choosing(choices):
        for layer in model.config.text_config.dspark_target_layer_ids:
            # Of a target layer the drafter sees what its attention sees: its streams behind the Engram.
            model.model.layers[str(layer)].attn_hc.register_forward_pre_hook(_keep(features, layer))
        logits = model(ids[:count].unsqueeze(0)).logits[0]
    answer = {"logits": logits.numpy(), "margin": choices.margin.numpy(), "choices": choices.choices, "error": ""}
    if drafter is not None:
        seen = torch.cat([features[layer].mean(2) for layer in sorted(features)], 2)
        answer |= draft(drafter, seen, ids, anchors, int(nextn))
    return answer


def draft(drafter: Any, features: Tensor, ids: Tensor, anchors: Tensor, nextn: int) -> dict[str, Any]:
    """One block behind the first p tokens for each p of ``anchors``: from token p, the tokens after it being chosen."""
    block = drafter.config.dspark_block_size
    inputs = torch.full((len(anchors), block), drafter.config.dspark_noise_token_id)
    inputs[:, 0] = ids[anchors]
    # What stands before each draft; the drafts behind ``nextn`` are not compared.
    before = ids[(anchors.unsqueeze(1) + torch.arange(block)).clamp(max=len(ids) - 1)]
    places, every = anchors.unsqueeze(0), torch.ones(1, len(anchors), dtype=torch.bool)
    choices, states = Choices(inputs.numel()), dict[int, Tensor]()
    drafter.mtp[-1].norm.register_forward_pre_hook(_keep(states, 0))
    with torch.inference_mode(), choosing(choices):
        out = DeepseekV41DSparkBackbone.forward(
            drafter,
            drafter.embed_tokens(inputs.view(1, -1)),
            features,
            position_ids=drafter.build_position_ids(places, features.shape[1]),
            attention_mask=drafter.build_attention_mask(places, every, features.shape[1], torch.float32),
            previous_token_ids=before.reshape(1, -1),
        )
        logits = drafter.compute_logits(out.normalized_hidden_states) + out.transition_logits
        # Its own training normalises what the confidence head reads; the released weights expect the state itself.
        last = drafter.mtp[-1]
        confidences = last.confidence_head(states[0], last.markov_head.embed(before.reshape(1, -1)))
    return {
        "draft_logits": logits.view(*inputs.shape, -1)[:, :nextn].numpy(),
        "confidences": confidences.view(inputs.shape)[:, :nextn].numpy(),
        "draft_margin": choices.margin.view(inputs.shape).amin(1).numpy(),
    }


def _keep(kept: dict[int, Tensor], key: int) -> Any:
    def hook(_module: Any, inputs: tuple[Tensor, ...]) -> None:
        kept[key] = inputs[0].clone()

    return hook


def main(folders: list[str]) -> None:
    """Run every folder; a refusal is an answer too."""
    torch.set_num_threads(1)
    without_cache_quantization()
    for name in folders:
        try:
            answer = run(Path(name))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        np.savez(Path(name) / "nemo.npz", **answer)


if __name__ == "__main__":
    main(sys.argv[1:])
