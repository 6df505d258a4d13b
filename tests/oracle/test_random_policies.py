"""Random models of the config schema under every policy, cache format, row layout and truncation.

What a model's widths do not allow is refused by name when it is planned. All else runs, and what must agree does.
"""

from __future__ import annotations

import random
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_run import PagedModel, compile_plan
from random_checkpoint import write_checkpoint
from random_config import RandomModel, draw_model, draw_prompt

from deepinfer_gen.diagnostics import InputError

POLICIES = ("released", "bf16", "float32", "float32_unquantized")
FORMATS = {
    "kv__main_format": ("auto", "nvfp4_g16", "bf16", "fp32"),
    "kv__index_format": ("auto", "mxfp4_g32", "bf16", "fp32"),
    "kv__swa_format": ("auto", "mxfp8_g32", "bf16", "fp32"),
}
WIDTHS = {"DI040", "DI053", "DI440"}
"""Refusals that only say that a width does not suit a format or a policy."""

TOKENS = 60


def draw_wide(rng: random.Random) -> RandomModel:
    """A model whose widths suit every format and policy, with any weight tile."""
    model = draw_model(rng)
    model.config["text_config"] |= {
        "head_dim": rng.choice([32, 64, 96]),
        "index_head_dim": rng.choice([32, 64]),
        "q_lora_rank": rng.choice([32, 64]),
        "o_lora_rank": 32,
        "qk_rope_head_dim": rng.choice([2, 8, 30]),
    }
    tiles = [[32, 32], [16, 64], [128, 128], [7, 33], [3, 1], [2**40, 2**40]]
    model.config["quantization_config"]["weight_block_size"] = rng.choice(tiles)
    return model


def draw_fields(rng: random.Random, policy: str) -> dict[str, Any]:
    formats = {} if policy == "float32_unquantized" else {key: rng.choice(names) for key, names in FORMATS.items()}
    return {"numerics__policy": policy, "block": rng.choice([2, 4, 16, 64]), **formats}


def chunks(rng: random.Random, total: int) -> list[int]:
    cuts = sorted({0, total, *rng.choices(range(total), k=5)})
    return [b - a for a, b in pairwise(cuts)]


def check_any_widths(folder: Path, number: int) -> None:
    rng = random.Random(f"any.{number}")
    model = draw_model(rng)
    ids = draw_prompt(rng, model, TOKENS)
    write_checkpoint(folder, model, number)
    for policy in POLICIES:
        fields = draw_fields(rng, policy)
        try:
            plan = compile_plan(folder, tokens=TOKENS, kv__row_layout=rng.choice(["interleaved", "split"]), **fields)
        except InputError as refused:
            codes = {d.code for d in refused.diagnostics}
        else:
            codes = set()
            assert PagedModel(plan, folder).logits(ids, chunks(rng, TOKENS)).isfinite().all()
        assert codes <= (set() if policy == "float32_unquantized" else WIDTHS)


@pytest.mark.parametrize("number", range(3))
def test_widths_are_refused_when_planned_or_run(number: int, tmp_path: Path) -> None:
    check_any_widths(tmp_path, number)


@pytest.mark.long
@pytest.mark.parametrize("number", range(3, 60))
def test_widths_are_refused_when_planned_or_run_for_many_models(number: int, tmp_path: Path) -> None:
    check_any_widths(tmp_path, number)


def check_agreement(folder: Path, number: int) -> None:
    """Row layouts agree to the bit; batch-invariant chunks too; compact, mask and their chunks closely in float32."""
    rng = random.Random(f"wide.{number}")
    model = draw_wide(rng)
    window = model.config["text_config"]["sliding_window"]
    ids, cut = draw_prompt(rng, model, TOKENS), chunks(rng, TOKENS)
    last = min(TOKENS, window + 1)
    write_checkpoint(folder, model, number)

    def logits(lengths: list[int], *, last: int | None = None, **fields: Any) -> torch.Tensor:
        return PagedModel(compile_plan(folder, tokens=TOKENS, **fields), folder).logits(ids, lengths, last)

    for policy in POLICIES:
        # From 8 tokens on a block holds four rows of any source: elements of any size begin at multiples of it.
        fields = draw_fields(rng, policy) | {"block": rng.choice([8, 16, 64])}
        apart = logits(cut, kv__row_layout="split", **fields)
        assert apart.isfinite().all()
        assert torch.equal(apart, logits(cut, kv__row_layout="interleaved", **fields)), (policy, fields)
    keep = {"yoco__keep_tokens": window + 1, "last": last, "block": 4}
    masked = logits([TOKENS], yoco__mode="mask", **keep)
    for mode, lengths in (("compact", [TOKENS]), ("compact", cut), ("mask", cut)):
        torch.testing.assert_close(logits(lengths, yoco__mode=mode, **keep), masked, rtol=0, atol=1e-4)
    invariant = {"numerics__policy": "released", "determinism__batch_invariant": True, "yoco__mode": "compact"} | keep
    assert torch.equal(logits([TOKENS], **invariant), logits(cut, **invariant))


@pytest.mark.parametrize("number", range(2))
def test_what_must_agree_agrees(number: int, tmp_path: Path) -> None:
    check_agreement(tmp_path, number)


@pytest.mark.long
@pytest.mark.parametrize("number", range(2, 40))
def test_what_must_agree_agrees_for_many_models(number: int, tmp_path: Path) -> None:
    check_agreement(tmp_path, number)


def test_truncation_may_begin_at_the_first_layer(tmp_path: Path) -> None:
    """Where layer 0 is the last KV source, all of it but its entries is dropped."""
    for number in count():
        model = draw_model(random.Random(f"first.{number}"))
        if model.config["text_config"]["kv_source_layer_ids"] == [0]:
            break
    rng, window = random.Random(0), model.config["text_config"]["sliding_window"]
    ids, last = draw_prompt(rng, model, TOKENS), min(TOKENS, window + 1)
    write_checkpoint(tmp_path, model, 0)
    found = []
    for mode in ("compact", "mask"):
        fields = {"yoco__mode": mode, "yoco__keep_tokens": window + 1}
        paged = PagedModel(compile_plan(tmp_path, tokens=TOKENS, block=4, **fields), tmp_path)
        found += [paged.logits(ids, lengths, last) for lengths in ([TOKENS], chunks(rng, TOKENS))]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-4)
