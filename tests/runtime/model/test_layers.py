"""Each layer alone, fed with the reference's streams (teacher forced): an error is found where it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from teacher_forcing import teacher_forced

LAYERS = range(10)
# float32 noise of one layer; values reach tens, the sublayers' outputs are of order one.
STREAM, SUBLAYER = 3e-5, 1e-5


@pytest.fixture(scope="module")
def forced(model: Any, engine: Any, layer_oracle: Mapping[str, Any]) -> dict[str, Any]:
    return teacher_forced(model, engine.layout, layer_oracle)


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
