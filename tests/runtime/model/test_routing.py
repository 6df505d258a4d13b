"""Routing weights of a random model, from its stored gate by the formula."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from paged_run import PagedModel, compile_plan
from random_checkpoint import write_checkpoint
from random_config import draw_model
from safetensors import safe_open


@pytest.mark.parametrize("per_token", [1, 2])
def test_one_chosen_expert_keeps_its_score_and_more_share(per_token: int, tmp_path: Path) -> None:
    drawn = draw_model(random.Random(1))
    text = drawn.config["text_config"]
    text |= {"n_routed_experts": 5, "num_experts_per_tok": per_token, "routed_scaling_factor": 2.5}
    write_checkpoint(tmp_path, drawn, 1)
    ffn = PagedModel(compile_plan(tmp_path, tokens=64, block=16), tmp_path).model.layers[0].ffn
    with safe_open(tmp_path / "model-00001-of-00003.safetensors", "pt") as shard:
        gate = shard.get_tensor("layers.0.ffn.gate.weight").float()
        bias = shard.get_tensor("layers.0.ffn.gate.bias")
    u = torch.randn(7, text["hidden_size"], generator=torch.Generator().manual_seed(2))
    chosen, weights = ffn.route(u)
    for row in range(7):
        scores = [float(torch.log1p(torch.exp(gate[e] @ u[row])) ** 0.5) for e in range(5)]
        best = sorted(range(5), key=lambda e: scores[e] + float(bias[e]), reverse=True)[:per_token]
        share = 1.0 if per_token == 1 else sum(scores[e] for e in best)
        found = dict(zip(chosen[row].tolist(), weights[row].tolist(), strict=True))
        assert found == pytest.approx({e: 2.5 * scores[e] / share for e in best}, rel=1e-5)
