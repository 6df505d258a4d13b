"""Muon for matrices, AdamW for everything else, in operations that a CUDA graph can hold.

Muon steps along the momentum with its singular values set to one, by five Newton-Schulz iterations (Jordan et al.
2024), scaled so that an entry moves as far as an AdamW step would move it (Liu et al. 2025, "Muon is scalable").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

_MOMENTUM, _ADAM_BETAS = 0.95, (0.9, 0.95)
_ADAM_SIZED = 0.2
_MUON_PARTS = (
    ".wq_a", ".wq_b", ".wkv", ".wo_a", ".wo_b", ".w1", ".w2", ".w3", ".wkv.weight", ".wgate.weight", ".wk.weight",
    ".main_proj",
)  # fmt: skip
# A row of these is met by few tokens, so it moves farther each time.
_LOOK_UPS = ("embed.weight", "engram.embed")


class Muon:
    """Matrices [..., n, k], those of one shape in one stack."""

    def __init__(self, parameters: list[nn.Parameter], lr: Tensor, weight_decay: float) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        by_shape: dict[tuple[int, int], list[nn.Parameter]] = {}
        for parameter in parameters:
            by_shape.setdefault((parameter.shape[-2], parameter.shape[-1]), []).append(parameter)
        self.stacks = list(by_shape.values())
        self.momenta = [torch.zeros_like(_stacked(stack)) for stack in self.stacks]

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients."""
        for stack, momentum in zip(self.stacks, self.momenta, strict=True):
            gradient = _stacked([p.grad for p in stack if p.grad is not None])
            momentum.lerp_(gradient, 1 - _MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, _MOMENTUM))
            factor = self.lr * (_ADAM_SIZED * max(update.shape[-2:]) ** 0.5)
            parts = (update * factor).split([p.numel() // (p.shape[-2] * p.shape[-1]) for p in stack])
            for parameter, part in zip(stack, parts, strict=True):
                parameter.mul_(1 - self.lr * self.weight_decay).sub_(part.view_as(parameter))


def orthogonal(stack: Tensor) -> Tensor:
    """Each matrix of ``stack`` [M, n, k] with its singular values moved near one, in bfloat16."""
    x: Tensor = stack.to(torch.bfloat16)
    wide = x.shape[-1] >= x.shape[-2]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x if wide else x.mT).float()


class Optimizer:
    """Both parts, under one learning rate that ``set_rate`` scales."""

    def __init__(self, named: Mapping[str, nn.Parameter], lr: float, weight_decay: float) -> None:
        device = next(iter(named.values())).device
        matrices = {n: p for n, p in named.items() if n.endswith(_MUON_PARTS) and p.dim() >= 2}
        look_ups = {n: p for n, p in named.items() if n.endswith(_LOOK_UPS)}
        others = {n: p for n, p in named.items() if n not in matrices and n not in look_ups}
        self.peaks = {"muon": lr, "look_ups": 3 * lr, "others": lr}
        self.rates = {name: torch.zeros((), device=device) for name in self.peaks}
        self.muon = Muon(list(matrices.values()), self.rates["muon"], weight_decay)
        groups = [
            {"params": list(look_ups.values()), "lr": self.rates["look_ups"], "weight_decay": weight_decay / 3},
            {"params": list(others.values()), "lr": self.rates["others"], "weight_decay": 0.0},
        ]
        on_gpu = device.type == "cuda"
        self.adam = torch.optim.AdamW(
            [g for g in groups if g["params"]], betas=_ADAM_BETAS, eps=1e-10, capturable=on_gpu, fused=on_gpu or None
        )
        self.parameters = list(named.values())

    def set_rate(self, fraction: float) -> None:
        """Scale every learning rate to ``fraction`` of its peak."""
        for name, rate in self.rates.items():
            rate.fill_(self.peaks[name] * fraction)

    def step(self) -> None:
        """One update, with the gradient's norm cut at 1."""
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.muon.step()
        self.adam.step()


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1, *t.shape[-2:]) for t in tensors])
