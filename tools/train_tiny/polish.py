"""``polish``: the trained backbone on rows that look like its use, so that greedy text leaves its loops."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from network import Backbone
from optimizer import Optimizer
from refusals import check_polished_rows
from rows import Rows, load_tokens
from saved import load_from, restore, resume, save
from tables import read_tables
from torch import Tensor
from train import balance, evaluation, training_device
from training import Loop, add_common_arguments, checked_sizes
from usage_rows import UsageRows, usage_losses


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    add_common_arguments(parser, steps=800, lr=5e-4)
    parser.add_argument("--dropout", type=float, default=0.2, help="of sublayer outputs; Engram rows twice that")
    parser.add_argument("--loop-weight", type=float, default=1.0, help="weight of the loss on loops")


def run(arguments: argparse.Namespace) -> None:
    """Read ``backbone`` of the work folder, or go on polishing, and leave the checkpoint under ``polished``."""
    sizes = checked_sizes(arguments)
    check_polished_rows(arguments.batch)
    folder = arguments.work / "polished"
    device = training_device(arguments.seed)
    tables = read_tables(arguments.work)
    model = Backbone(sizes, tables.token_map, tables.hashes, arguments.dropout)
    before = (
        resume(folder, "polish", arguments.start)
        if arguments.start
        else load_from(arguments.work / "backbone", "train")
    )
    restore(model, before)
    model.to(device)

    def step(rows: Tensor) -> Tensor:
        ids = rows[:, :-2]
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            logits, _, index_losses = model(ids[:, :-1])
        entropy = F.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], reduction="none")
        loss, loop_loss = usage_losses(entropy, rows[:, -2], rows[:, -1])
        index_loss = torch.stack(index_losses).mean()
        torch.autograd.backward(loss + arguments.loop_weight * loop_loss + index_loss)
        balance(model.layers)
        return torch.stack([loss, loop_loss, index_loss])

    optimizer = Optimizer(dict(model.named_parameters()), arguments.lr, arguments.weight_decay)
    plain = Rows(load_tokens(arguments.work, "train"), arguments.length, arguments.batch, arguments.seed + 1)
    rows = UsageRows(plain, tables)
    loop = Loop(
        ("loss", "loop_loss", "index_loss"),
        step,
        optimizer,
        evaluation(model, arguments),
        lambda step: save(folder, [model], step),
    )
    loop.run(arguments, rows, arguments.work / "polish-curve.jsonl")
