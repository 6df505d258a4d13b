"""Runs each layer alone on the reference's input to it, so that an error is found where it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from step_batch import Row, batch_of
from torch import Tensor

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kv_cache import KVCache


def one_row(ids: Tensor, layout: Mapping[str, Any]) -> ForwardBatch:
    """A whole prompt [T] in fragmented blocks and slot 3."""
    blocks, needed = layout["block"]["count"], -(-len(ids) // layout["block"]["tokens"])
    table = (torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(0))[:needed] + 1).tolist()
    return batch_of([Row(ids.tolist(), 0, len(ids), slot=3, table=table)])


def teacher_forced(model: Any, layout: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """What every layer gives for the reference's input to it, by the reference's names; float32.

    ``selections`` holds the published selections, ``logits`` what the head makes of the reference's last stream.
    """
    found: dict[str, Any] = {}
    hooks = []
    for index, layer in enumerate(model.layers):

        def keep(names: tuple[str, str], index: int = index) -> Any:
            def hook(module: Any, inputs: Any, output: Any) -> None:
                found[f"{names[0]}_{index}"], found[f"{names[1]}_{index}"] = inputs[0], output

            return hook

        hooks.append(layer.attention.register_forward_hook(keep(("attn_in", "attn_out"))))
        hooks.append(layer.ffn.register_forward_hook(keep(("moe_in", "moe_out"))))
        hooks.append(layer.attention_mix.register_forward_hook(keep(("attn_mix_in", "attn_mix"))))
    with torch.no_grad():
        step = model.begin(one_row(torch.from_numpy(reference["ids"]), layout), KVCache(layout, torch.device("cpu")))
        x, pre = model.first_streams(step.batch.input_ids)
        for index, layer in enumerate(model.layers):
            found[f"stream_{index}"], found[f"ffn_pre_{index}"] = layer(x, pre, step)
            x = torch.from_numpy(reference[f"stream_{index}"]).to(x.dtype)
            pre = torch.from_numpy(reference[f"ffn_pre_{index}"])
        found["logits"] = model.logits(x, pre)
    for hook in hooks:
        hook.remove()
    found = {name: value.float() if isinstance(value, Tensor) else value for name, value in found.items()}
    found["selections"] = step.selections
    return found
