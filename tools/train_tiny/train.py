"""``train``: the backbone, on the next token and on the attention that its indexers should predict."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from network import Backbone, Layer
from optimizer import Optimizer
from rows import Rows, load_tokens, whole_rows
from saved import restore, resume, save
from tables import read_tables
from torch import Tensor, nn
from training import Loop, add_common_arguments, checked_sizes

_BIAS_RATE = 1e-3
"""By how much a gate's bias moves in a step against the load of its expert."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    add_common_arguments(parser, steps=5600, lr=2.5e-3)
    parser.add_argument("--dropout", type=float, default=0.2, help="of sublayer outputs; Engram rows twice that")


def run(arguments: argparse.Namespace) -> None:
    """Train, or go on training, and leave the checkpoint under ``backbone`` of the work folder."""
    sizes = checked_sizes(arguments)
    device = training_device(arguments.seed)
    folder = arguments.work / "backbone"
    tables = read_tables(arguments.work)
    model = Backbone(sizes, tables.token_map, tables.hashes, arguments.dropout)
    if arguments.start:
        restore(model, resume(folder, "train", arguments.start))
    model.to(device)

    def step(ids: Tensor) -> Tensor:
        loss, index_loss = losses(model, ids)
        torch.autograd.backward(loss + index_loss)
        balance(model.layers)
        return torch.stack([loss, index_loss])

    optimizer = Optimizer(dict(model.named_parameters()), arguments.lr, arguments.weight_decay)
    loop = Loop(
        ("loss", "index_loss"), step, optimizer, evaluation(model, arguments), lambda step: save(folder, [model], step)
    )
    rows = Rows(load_tokens(arguments.work, "train"), arguments.length, arguments.batch, arguments.seed)
    loop.run(arguments, rows, arguments.work / "backbone-curve.jsonl")


def training_device(seed: int) -> torch.device:
    """The GPU if there is one, with seeds and precisions set."""
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    if torch.cuda.is_available():
        return torch.device("cuda")
    print("no GPU: this runs on the CPU, where training the shipped model takes hours", file=sys.stderr)
    return torch.device("cpu")


def evaluation(model: Backbone, arguments: argparse.Namespace) -> Callable[[], dict[str, float]]:
    """Losses on the calibration split."""
    tokens = load_tokens(arguments.work, "calibration")
    held_out = torch.from_numpy(whole_rows(tokens, arguments.length, arguments.batch)[: arguments.held_out])

    def evaluate() -> dict[str, float]:
        device = model.head.weight.device
        model.eval()
        # With gradients enabled, so that nothing is compiled a second time.
        found = torch.stack([torch.stack(losses(model, rows.to(device))).detach() for rows in held_out]).mean(0)
        model.train()
        return {"held_out_loss": found[0].item(), "held_out_index_loss": found[1].item()}

    return evaluate


def losses(model: Backbone, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Nats per token of ids [B, T + 1], and the mean divergence of the indexers."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
        logits, _, index_losses = model(ids[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    return loss, torch.stack(index_losses).mean()


@torch.no_grad()
def balance(layers: nn.ModuleList) -> None:
    """Move each gate's bias towards equal loads of its experts, as the released models were trained."""
    for layer in layers:
        assert isinstance(layer, Layer)
        gate = layer.ffn.gate
        gate.bias.add_(torch.sign(gate.load.mean() - gate.load), alpha=_BIAS_RATE)
