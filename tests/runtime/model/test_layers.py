"""Each layer alone, fed with the reference's streams (teacher forced): an error is found where it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

LAYERS = range(10)
# float32 noise of one layer; values reach tens, the sublayers' outputs are of order one.
STREAM, SUBLAYER = 3e-5, 1e-5


@pytest.fixture(scope="module")
def forced(model: Any, engine: Any, layer_oracle: Mapping[str, Any]) -> dict[str, Any]:
    """What every layer gives for the reference's input to it, by the reference's names."""
    from deepinfer_gen.runtime.batch import ForwardBatch
    from deepinfer_gen.runtime.kv_cache import KVCache

    count = len(layer_oracle["ids"])
    batch = ForwardBatch(
        input_ids=torch.from_numpy(layer_oracle["ids"]),
        positions=torch.arange(count),
        row_of_token=torch.zeros(count, dtype=torch.int64),
        q_start=torch.tensor([0]),
        q_len=torch.tensor([count]),
        k_len=torch.tensor([count]),
        slot=torch.tensor([3]),
        block_table=torch.randperm(40, generator=torch.Generator().manual_seed(0)).view(1, -1) + 1,
        history=torch.full((1, 3), -1),
    )
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
        step = model.begin(batch, KVCache(engine.layout, torch.device("cpu")))
        x = model.embed[batch.input_ids].float().unsqueeze(1).repeat(1, 4, 1)
        pre = model.first_pre.expand(count, -1)
        for index, layer in enumerate(model.layers):
            found[f"stream_{index}"], found[f"ffn_pre_{index}"] = layer(x, pre, step)
            x = torch.from_numpy(layer_oracle[f"stream_{index}"])
            pre = torch.from_numpy(layer_oracle[f"ffn_pre_{index}"])
    for hook in hooks:
        hook.remove()
    found["selections"] = step.selections
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_streams(layer: int, forced: dict[str, Any], layer_oracle: Mapping[str, Any]) -> None:
    found, expected = forced[f"stream_{layer}"].numpy(), layer_oracle[f"stream_{layer}"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=STREAM)


@pytest.mark.parametrize("layer", LAYERS)
def test_sublayers(layer: int, forced: dict[str, Any], layer_oracle: Mapping[str, Any]) -> None:
    rows = layer_oracle["rows"]
    for name in ("attn_in", "attn_out", "moe_out"):
        found, expected = forced[f"{name}_{layer}"].numpy()[rows], layer_oracle[f"{name}_{layer}"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=SUBLAYER, err_msg=name)


@pytest.mark.parametrize("layer", LAYERS)
def test_hyper_connection_coefficients(layer: int, forced: dict[str, Any], layer_oracle: Mapping[str, Any]) -> None:
    np.testing.assert_allclose(forced[f"ffn_pre_{layer}"], layer_oracle[f"ffn_pre_{layer}"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(forced[f"attn_mix_{layer}"][0], layer_oracle[f"attn_pre_{layer}"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("layer", [2, 4, 6, 8])
def test_selections(layer: int, forced: dict[str, Any], layer_oracle: Mapping[str, Any]) -> None:
    np.testing.assert_array_equal(forced["selections"][layer].entries.numpy(), layer_oracle[f"sel_{layer}"])


def test_trap_46_the_reference_exercises_sparse_selection(layer_oracle: Mapping[str, Any]) -> None:
    """At the last token of 129 more entries are visible than are selected, and the candidates leave blocks out."""
    chosen = layer_oracle["sel_8"][-1]
    assert (layer_oracle["sel_6"][-1] >= 0).sum() == 24 < 129
    assert len(set(chosen // 8)) <= 6 < 129 // 8
