"""Training at work on the miniature: gradients, balance, falling losses, and runs that stop and start again."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import drafter
import numpy as np
import numpy.typing as npt
import pytest
import torch
import train
from drafter import Drafter
from experts import Gate
from miniature import LENGTH, miniature_tokens, write_miniature
from network import Backbone
from optimizer import Optimizer
from rows import Rows
from saved import load
from sizes import Sizes, read_sizes
from tables import Tables, read_tables
from torch import Tensor, nn
from training import Loop

from deepinfer_gen.diagnostics import InputError

BATCH = 8


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Model folder and working folder after ``data``."""
    return write_miniature(tmp_path_factory.mktemp("miniature"))


@pytest.fixture
def sizes(written: tuple[Path, Path]) -> Sizes:
    return read_sizes(written[0] / "config.json")


@pytest.fixture
def tables(written: tuple[Path, Path]) -> Tables:
    return read_tables(written[1])


@pytest.fixture
def ids() -> Tensor:
    return torch.from_numpy(Rows(miniature_tokens(300, seed=1), LENGTH, BATCH, seed=0).at(0))


def disturbed(model: nn.Module) -> nn.Module:
    """Away from the beginning, where zeros hide gradients behind them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_every_parameter_of_the_backbone_learns(sizes: Sizes, tables: Tables, ids: Tensor) -> None:
    """Indexers from their own loss alone, and nothing else from it."""
    torch.manual_seed(0)
    model = Backbone(sizes, tables.token_map, tables.hashes, dropout=0.1)
    disturbed(model)
    loss, index_loss = train.losses(model, ids)
    named = dict(model.named_parameters())
    by_loss = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
    by_index = torch.autograd.grad(index_loss, list(named.values()), allow_unused=True)
    for name, of_loss, of_index in zip(named, by_loss, by_index, strict=True):
        indexer = ".indexer." in name
        own, other = (of_index, of_loss) if indexer else (of_loss, of_index)
        assert own is not None, name
        assert bool(own.isfinite().all()), name
        assert float(own.abs().max()) > 0, name
        assert other is None or not other.any(), name
    # Of a stack of experts each one, of an Engram table more than a few rows.
    for name, gradient in zip(named, by_loss, strict=True):
        if ".ffn.experts." in name:
            assert all(bool(expert.any()) for expert in gradient), name
        if name.endswith("engram.embed"):
            assert int(gradient.any(1).sum()) > 50


def test_every_parameter_of_the_drafter_learns_and_none_of_the_backbone(
    sizes: Sizes, tables: Tables, ids: Tensor
) -> None:
    torch.manual_seed(0)
    backbone = Backbone(sizes, tables.token_map, tables.hashes).eval().requires_grad_(False)
    model = Drafter(sizes, dropout=0.1)
    disturbed(model)
    ids = ids[:, :-1]
    logits, features, _ = backbone(ids)
    anchors = torch.stack([torch.randperm(LENGTH - sizes.dspark_block_size - 1)[:12] + 1 for _ in range(BATCH)])
    blocks = model(ids, features, anchors, backbone.embed.weight, backbone.head.weight)
    total = drafter.losses(blocks, ids, logits, anchors).total
    torch.autograd.backward(total)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert float(parameter.grad.abs().max()) > 0, name
        if ".ffn.experts." in name:
            assert all(bool(expert.any()) for expert in parameter.grad), name
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_gates_move_towards_equal_loads(sizes: Sizes, tables: Tables, ids: Tensor) -> None:
    """The bias has no gradient: an expert with less than its share rises by 0.001, one with more falls.

    A share of one half, 2 of 4 experts, is exact in floats, so that equality is none of both.
    """
    model = Backbone(sizes, tables.token_map, tables.hashes)
    model(ids[:, :-1])
    gates = [module for module in model.modules() if isinstance(module, Gate)]
    before = [gate.bias.clone() for gate in gates]
    train.balance(model.layers)
    assert len(gates) == sizes.num_hidden_layers
    for gate, old in zip(gates, before, strict=True):
        assert float(gate.load.sum()) == pytest.approx(sizes.num_experts_per_tok, rel=1e-5)
        share = sizes.num_experts_per_tok / sizes.n_routed_experts
        moved = [1e-3 * ((load < share) - (load > share)) for load in gate.load.tolist()]
        assert any(moved)
        assert (gate.bias - old).tolist() == pytest.approx(moved, abs=1e-7)
        assert not gate.bias.requires_grad


def test_draft_losses_are_those_of_plain_loops() -> None:
    """Cross entropy with the text, one minus the overlap, and the confidence of greedy agreement; weights e^(-k/5)."""
    generator = torch.Generator().manual_seed(3)
    logits, target = (torch.randn(2, 3, 4, 7, generator=generator) for _ in range(2))
    target[0] = logits[0] + 0.1 * target[0]  # some agree, some do not
    confidence = torch.randn(2, 3, 4, generator=generator)
    truth = torch.randint(7, (2, 3, 4), generator=generator)
    entropy, variation, certainty, agreement = drafter.draft_losses(logits, confidence, target, truth)
    weights = np.exp(-np.arange(4) / 5)
    weights /= weights.sum()
    sums = np.zeros(3)
    agreed = np.zeros(4)
    for b in range(2):
        for a in range(3):
            for k in range(4):
                p, q = (softmax(x[b, a, k].numpy()) for x in (logits, target))
                agrees = float(p.argmax() == q.argmax())
                sure = 1 / (1 + np.exp(-float(confidence[b, a, k])))
                binary = -(agrees * np.log(sure) + (1 - agrees) * np.log(1 - sure))
                parts = -np.log(p[truth[b, a, k]]), 0.5 * np.abs(p - q).sum(), binary
                sums += weights[k] * np.array(parts) / 6
                agreed[k] += agrees / 6
    found = [entropy, variation, certainty]
    assert [float(part) for part in found] == pytest.approx(sums.tolist(), rel=1e-5)
    assert agreement.tolist() == pytest.approx(agreed.tolist())
    assert 0 < agreed.mean() < 1
    weighed = drafter.DraftLosses(*found, agreement).total
    assert float(weighed) == pytest.approx(0.1 * sums[0] + 0.9 * sums[1] + 1.0 * sums[2], rel=1e-5)


def softmax(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = np.exp(x.astype(np.float64) - x.max())
    return wide / wide.sum()


class Repeated:
    """The same rows at every step."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def at(self, step: int) -> npt.NDArray[np.int64]:
        return self.rows.numpy()


def test_five_steps_lower_the_loss_of_a_repeated_batch(
    sizes: Sizes, tables: Tables, ids: Tensor, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Backbone(sizes, tables.token_map, tables.hashes)
    optimizer = Optimizer(dict(model.named_parameters()), lr=0.2, weight_decay=0.0)
    saved: list[int] = []

    def step(rows: Tensor) -> Tensor:
        loss, index_loss = train.losses(model, rows)
        torch.autograd.backward(loss + index_loss)
        return torch.stack([loss, index_loss])

    loop = Loop(("loss", "index_loss"), step, optimizer, lambda: {"asked": 1.0}, saved.append)
    arguments = argparse.Namespace(start=0, steps=5, seconds=None, evaluate_every=1)
    loop.run(arguments, Repeated(ids), tmp_path / "curve.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    found = [line["loss"] for line in lines]
    assert found[-1] < found[0] - 0.1
    assert all(line["asked"] == 1.0 for line in lines)
    assert saved == [1, 2, 3, 4, 5]


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    weight, norm = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    saved: list[int] = []

    def step(rows: Tensor) -> Tensor:
        (weight.sum() + norm.sum()).backward()
        return torch.stack([weight.sum() * float("nan")])

    optimizer = Optimizer({"layers.0.attn.wq_a": weight, "norm.weight": norm}, lr=0.1, weight_decay=0.0)
    loop = Loop(("loss",), step, optimizer, dict, saved.append)
    arguments = argparse.Namespace(start=0, steps=5, seconds=None, evaluate_every=1)
    with pytest.raises(InputError, match=r"DI452.*loss are no numbers any more after step 1"):
        loop.run(arguments, Repeated(torch.zeros(1, 4, dtype=torch.int64)), tmp_path / "curve.jsonl")
    assert saved == []


def run(command: str, written: tuple[Path, Path], work: Path, *options: str) -> list[dict[str, Any]]:
    """A command on a few rows; the lines it added to its curve."""
    module = import_module(command)
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    flags = ["--work", str(work), "--config", str(written[0] / "config.json"), "--length", str(LENGTH), "--batch", "4"]
    flags += ["--held-out", "2", "--evaluate-every", "2"] + (["--anchors", "8"] if command == "draft" else [])
    curve = (
        work
        / {"train": "backbone-curve.jsonl", "polish": "polish-curve.jsonl", "draft": "drafter-curve.jsonl"}[command]
    )
    # A run from the beginning begins its curve anew.
    before = len(curve.read_text().splitlines()) if "--start" in options else 0
    module.run(parser.parse_args([*flags, *options]))
    return [json.loads(line) for line in curve.read_text().splitlines()[before:]]


@pytest.fixture
def work(written: tuple[Path, Path], tmp_path: Path) -> Path:
    """A fresh working folder after ``data``."""
    for file in written[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_run_starts_again_where_it_stopped(
    written: tuple[Path, Path], work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of time after three steps; the next run reads the weights, meets the fourth step's rows and goes on."""
    clock = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    # One look at the clock at the beginning, one before each step, one at each evaluation.
    lines = run("train", written, work, "--steps", "6", "--seconds", "4")
    assert [line["step"] for line in lines] == [2]
    assert "saved after step 3 of 6" in capsys.readouterr().out
    stopped = load(work / "backbone")
    asked: list[int] = []
    at = Rows.at
    monkeypatch.setattr(Rows, "at", lambda self, step: asked.append(step) or at(self, step))
    started: list[dict[str, Tensor]] = []
    restore = train.restore
    monkeypatch.setattr(train, "restore", lambda model, values: started.append(values) or restore(model, values))
    lines = run("train", written, work, "--steps", "6", "--start", "3")
    assert asked == [3, 4, 5]
    assert [line["step"] for line in lines] == [4, 6]
    assert all(torch.equal(started[0][name], stopped[name]) for name in stopped)
    after = load(work / "backbone")
    assert any(not torch.equal(after[name], stopped[name]) for name in stopped)
    assert lines[-1]["rate"] == 0.0


def test_one_seed_gives_the_same_run(written: tuple[Path, Path], work: Path, tmp_path: Path) -> None:
    first = run("train", written, work, "--steps", "2")
    weights = load(work / "backbone")
    second = run("train", written, work, "--steps", "2")
    assert [{**line, "seconds": 0} for line in first] == [{**line, "seconds": 0} for line in second]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in load(work / "backbone").items())
    other = run("train", written, work, "--steps", "2", "--seed", "1")
    assert other[-1]["loss"] != first[-1]["loss"]
