"""Engram with the released tables of 384 million rows, whose bytes a hash of the row number gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from float64_weights import product, vector
from released_scene import Parts
from synthetic_weights import hashed_rows

from deepinfer_gen.runtime.kernels.operators import ReferenceOperators
from deepinfer_gen.runtime.model.engram import Engram

TOKENS = 3
# Multipliers and the first and last of 24 primes, as the release has them.
RELEASED = {
    1: ((76632096046245, 4839876093313, 35959672319349, 73987337458391), 16000057, 16000463, 384_006_168),
    14: ((67716810739261, 51510806800915, 30921347202721, 82619226485591), 16000477, 16000889, 384_016_682),
}


class HashedTables:
    """The reference operators, with rows of a table that has no memory made when they are gathered."""

    def __init__(self, operators: ReferenceOperators) -> None:
        self.operators = operators
        self.gathered: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operators, name)

    def engram_gather(self, table: torch.Tensor, scale: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        assert table.is_meta
        assert scale.shape == (table.shape[0], 8)
        assert rows.min() >= 0
        assert rows.max() < table.shape[0]
        self.gathered.append(rows)
        made, place = rows.unique(return_inverse=True)
        return self.operators.engram_gather(*hashed_rows(made, table.shape[1], seed=table.shape[0]), place)


@pytest.fixture(scope="module", params=[1, 14])
def case(request: pytest.FixtureRequest, widths: Parts) -> tuple[int, Engram, HashedTables]:
    layer = widths.layer(request.param)
    operators = HashedTables(widths.operators)
    assert layer.engram is not None
    prefix = f"layers.{request.param}.engram"
    return request.param, Engram(widths.source, prefix, layer.engram, widths.constants, operators), operators


def test_trap_18_rows_of_64_bit_hashes(case: tuple[int, Engram, HashedTables]) -> None:
    """Against Python's integers; classes near 99,091 make products that no float64 and no 32 bits hold."""
    index, engram, _ = case
    multipliers, first, last, rows = RELEASED[index]
    random = torch.Generator().manual_seed(index)
    ngrams = torch.randint(99_092, (200, 4), generator=random)
    ngrams[0] = 99_091
    assert engram.table.shape == (rows, 256)
    primes, offsets = engram.primes.flatten().tolist(), engram.offsets.flatten().tolist()
    assert (primes[0], primes[-1], len(set(primes))) == (first, last, 24)
    assert offsets[-1] + primes[-1] == rows
    assert int(99_091 * max(multipliers)) > 2**62
    found = engram.rows(ngrams).tolist()
    for classes, got in zip(ngrams.tolist(), found, strict=True):
        rolling, expected = classes[0] * multipliers[0], []
        for order in range(1, 4):
            rolling ^= classes[order] * multipliers[order]
            column = (order - 1) * 8
            expected += [rolling % primes[column + head] + offsets[column + head] for head in range(8)]
        assert got == expected


@pytest.mark.long
def test_streams_after_an_engram(case: tuple[int, Engram, HashedTables], widths: Parts) -> None:
    """Gathered rows, keys, gates and the value, in float64; the wkv of 25,600 x 6144 included."""
    index, engram, operators = case
    random = torch.Generator().manual_seed(7)
    x = torch.randn((TOKENS, 4, 5120), generator=random)
    ngrams = torch.randint(99_092, (TOKENS, 4), generator=random)
    with torch.inference_mode():
        found = engram(x, ngrams)
    rows = operators.gathered[-1]
    assert torch.equal(rows, engram.rows(ngrams))

    codes, exponents = hashed_rows(rows.flatten(), 256, seed=engram.table.shape[0])
    values = codes.view(torch.float8_e4m3fn).double().numpy()
    gathered = values * np.repeat(2.0 ** (exponents.double().numpy() - 127), 32, 1)
    prefix = f"layers.{index}.engram"
    pair = product(gathered.reshape(TOKENS, 6144), widths.source, f"{prefix}.wkv")
    qw, kw = (vector(widths.source, f"{prefix}.{name}_weight") for name in "qk")
    for t in range(TOKENS):
        value = pair[t, 4 * 5120 :]
        for stream in range(4):
            state, key = x[t, stream].double().numpy(), pair[t, stream * 5120 : (stream + 1) * 5120]
            norms = np.sqrt((state**2).mean() * (key**2).mean())
            dot = (state * qw[stream] * kw[stream] * key).sum() / norms / np.sqrt(5120)
            gate = 1 / (1 + np.exp(-np.sign(dot) * np.sqrt(max(abs(dot), 1e-6))))
            np.testing.assert_allclose(found[t, stream].numpy(), state + gate * value, rtol=1e-4, atol=1e-4)
