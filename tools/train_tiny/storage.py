"""Which parameters are stored in narrow formats, and their values as stored, all of one format at once."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from fusion import fused
from straight_through import fp8_values, mxfp4_values, mxfp8_values
from torch import Tensor, nn

TILE = 32
_FP8 = re.compile(
    r"\.attn\.(wq_a|wq_b|wkv|wo_a|wo_b|indexer\.wq_b)$|\.shared_experts\.w[123]$|\.engram\.wkv$|\.main_proj$"
)
_FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "fp8": fused(fp8_values),
    "mxfp4": fused(mxfp4_values),
    "mxfp8": fused(mxfp8_values),
}


def storage_of(name: str) -> str | None:
    """The narrow format of a parameter of the network, None for bf16 and f32."""
    if re.search(r"\.ffn\.experts\.w[123]$", name):
        return "mxfp4"
    if name.endswith(".engram.embed"):
        return "mxfp8"
    return "fp8" if _FP8.search(name) else None


def stored_weights(model: nn.Module) -> dict[str, dict[str, dict[str, Tensor]]]:
    """By layer (``layers.3``), part (``attn``) and name inside it (``wq_a``): values as stored, with the gradients of
    the parameters.
    """
    found: dict[str, dict[str, dict[str, Tensor]]] = {}
    for storage, function in _FORMATS.items():
        chosen = [(name, p) for name, p in model.named_parameters() if storage_of(name) == storage]
        if not chosen:
            continue
        with torch.no_grad():
            groups = [_groups(p, storage) for _, p in chosen]
            values = torch.split(function(torch.cat(groups)), [len(g) for g in groups])
            errors = [_ungrouped(v, p, storage) - p for v, (_, p) in zip(values, chosen, strict=True)]
        for (name, parameter), error in zip(chosen, errors, strict=True):
            stack, number, part, *rest = name.split(".", 3)
            found.setdefault(f"{stack}.{number}", {}).setdefault(part, {})["".join(rest)] = parameter + error
    return found


def _groups(w: Tensor, storage: str) -> Tensor:
    """The elements that share a scale as the rows of a matrix."""
    if storage != "fp8":
        return w.reshape(-1, TILE)
    rows, columns = w.shape
    return w.view(rows // TILE, TILE, columns // TILE, TILE).transpose(1, 2).reshape(-1, TILE * TILE)


def _ungrouped(groups: Tensor, like: Tensor, storage: str) -> Tensor:
    if storage != "fp8":
        return groups.view(like.shape)
    rows, columns = like.shape
    return groups.view(rows // TILE, columns // TILE, TILE, TILE).transpose(1, 2).reshape(like.shape)
