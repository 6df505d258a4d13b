"""``draft``: the drafter against the frozen backbone, with the losses of the DSpark paper."""

from __future__ import annotations

import argparse
import itertools

import torch
from argument_types import positive
from drafter import Drafter, losses
from network import Backbone
from optimizer import Optimizer
from refusals import check_anchors
from rows import Rows, load_tokens, whole_rows
from saved import load_from, restore, resume, save
from tables import read_tables
from torch import Tensor
from train import balance, training_device
from training import Loop, add_common_arguments, checked_sizes

_NAMES = ("cross_entropy", "total_variation", "confidence")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    add_common_arguments(parser, steps=7600, lr=2.5e-3)
    parser.add_argument("--dropout", type=float, default=0.1, help="of sublayer outputs")
    parser.add_argument("--anchors", type=positive, default=64, help="draft blocks of a row")


def run(arguments: argparse.Namespace) -> None:
    """Train, or go on training, and leave backbone and drafter under ``drafted`` of the work folder."""
    sizes = checked_sizes(arguments)
    check_anchors(sizes, arguments.length, arguments.anchors)
    device = training_device(arguments.seed)
    folder = arguments.work / "drafted"
    tables = read_tables(arguments.work)
    backbone = Backbone(sizes, tables.token_map, tables.hashes).eval().requires_grad_(False)
    restore(backbone, load_from(arguments.work / "polished", "polish"))
    model = Drafter(sizes, arguments.dropout)
    if arguments.start:
        restore(model, resume(folder, "draft", arguments.start))
    backbone.to(device)
    model.to(device)
    names = (*_NAMES, *(f"agreement_{k}" for k in range(sizes.dspark_block_size)))
    held_out = torch.from_numpy(
        whole_rows(load_tokens(arguments.work, "calibration"), arguments.length, arguments.batch)[: arguments.held_out]
    )

    def figures(ids: Tensor) -> tuple[Tensor, Tensor]:
        ids = ids[:, :-1]
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            with torch.no_grad():
                logits, features, _ = backbone(ids)
            places = ids.shape[1] - sizes.dspark_block_size - 1
            anchors = 1 + torch.rand(ids.shape[0], places, device=ids.device).topk(arguments.anchors).indices
            blocks = model(ids, features, anchors, backbone.embed.weight, backbone.head.weight)
        found = losses(blocks, ids, logits, anchors)
        parts = torch.stack([found.cross_entropy, found.total_variation, found.confidence]).detach()
        return found.total, torch.cat([parts, found.agreement.detach()])

    def step(ids: Tensor) -> Tensor:
        total, parts = figures(ids)
        torch.autograd.backward(total)
        balance(model.mtp)
        return parts

    def evaluate() -> dict[str, float]:
        model.eval()
        found = torch.stack([figures(rows.to(device))[1] for rows in held_out]).mean(0)
        model.train()
        values = dict(zip((f"held_out_{name}" for name in names), found.tolist(), strict=True))
        # A draft counts only if all before it agree; independence makes this a rough guide.
        agreement = itertools.accumulate(found[len(_NAMES) :].tolist(), lambda a, b: a * b)
        return {**values, "held_out_accepted": 1 + sum(agreement)}

    optimizer = Optimizer(dict(model.named_parameters()), arguments.lr, arguments.weight_decay)
    loop = Loop(names, step, optimizer, evaluate, lambda step: save(folder, [backbone, model], step))
    rows = Rows(load_tokens(arguments.work, "train"), arguments.length, arguments.batch, arguments.seed)
    loop.run(arguments, rows, arguments.work / "drafter-curve.jsonl")
