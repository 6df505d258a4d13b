"""Silent wrong results in how sublayers are joined: coefficients that lag by one sublayer, and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from recorder import Recorder
from torch import Tensor

from deepinfer_gen.runtime.model.dspark import greedy

TINY = 2.0**-20
"""A factor that leaves squares far above the epsilon of 1e-20, and far below the usual 1e-6."""


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt() * weight.float()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_trap_2_a_sublayer_uses_the_pre_of_the_one_before(make_driver: Any) -> None:
    """A layer's attention uses what it is given, its FFN what the attention's site gives, and the FFN's site is what
    the next layer gets.
    """
    driver = make_driver()
    layer = driver.model.layers[0]
    step = driver.model.begin(driver.batch([(driver.add(range(3)), 3)]), driver.cache)
    seen: dict[str, Any] = {}
    parts = ("attention_mix", "attention", "ffn_mix", "ffn")
    hooks = [
        getattr(layer, name).register_forward_hook(lambda _, given, gave, name=name: seen.update({name: (given, gave)}))
        for name in parts
    ]
    x, pre = randn(3, 4, 128), randn(3, 4, seed=1).sigmoid()
    with torch.no_grad():
        streams, last = layer(x, pre, step)
    for hook in hooks:
        hook.remove()
    (u, _), y = seen["attention"]
    attention_pre, post, comb = seen["attention_mix"][1]
    close(u, norm(torch.einsum("tn,tnd->td", pre, x), layer.attn_norm))
    between = post.unsqueeze(2) * y.unsqueeze(1) + torch.einsum("tij,tid->tjd", comb, x)
    ((u,), y), (ffn_pre, post, comb) = seen["ffn"], seen["ffn_mix"][1]
    close(u, norm(torch.einsum("tn,tnd->td", attention_pre, between), layer.ffn_norm))
    close(streams, post.unsqueeze(2) * y.unsqueeze(1) + torch.einsum("tij,tid->tjd", comb, between))
    assert torch.equal(last, ffn_pre)
    assert (attention_pre - pre).abs().max() > 0.1
    assert (ffn_pre - attention_pre).abs().max() > 1e-3


def test_trap_2_the_head_uses_the_pre_of_the_last_ffn(
    make_driver: Any, oracle: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the first layer picks one of the equal streams; nowhere are they averaged."""
    driver = make_driver()
    model, given, gave = driver.model, [], []
    hooks = []
    for layer in model.layers:
        hooks.append(layer.register_forward_pre_hook(lambda _, arguments: given.append(arguments[1].clone())))
        hooks.append(layer.ffn_mix.register_forward_hook(lambda _, arguments, result: gave.append(result[0].clone())))
    recorder = Recorder(model.operators)
    monkeypatch.setattr(model, "operators", recorder)
    driver.prefill(driver.add(oracle["p3_ids"]))
    for hook in hooks:
        hook.remove()
    assert given[0].tolist() == [[1, 0, 0, 0]] * 3
    (((streams, pre), _),) = recorder.calls["hyper_collapse"]
    assert all(torch.equal(a, b) for a, b in zip([*given[1:], pre], gave, strict=True))
    (((hidden, _), _),) = recorder.calls["linear"]
    close(hidden, norm(torch.einsum("tn,tnd->td", pre, streams), model.norm))
    assert (hidden - norm(streams.mean(1), model.norm)).abs().max() > 0.01


def test_trap_3_the_first_index_of_comb_is_the_input_stream(model: Any) -> None:
    streams, comb = torch.tensor([[[1.0], [10.0]]]), torch.tensor([[[0.1, 0.9], [0.4, 0.6]]])
    found = model.operators.hyper_expand(torch.tensor([[100.0]]), streams, torch.tensor([[1.0, 2.0]]), comb)
    # 100 + 0.1 x 1 + 0.4 x 10, and 200 + 0.9 x 1 + 0.6 x 10.
    close(found, torch.tensor([[[104.1], [206.9]]]))


def test_trap_15_the_shared_expert_clamps_too(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs so large that most of its numbers are beyond the limit of 2."""
    ffn, recorder, u = model.layers[3].ffn, Recorder(model.operators), 20 * randn(5, 128)
    monkeypatch.setattr(ffn, "operators", recorder)
    with torch.inference_mode():
        out = ffn(u)
    ((_, routed),) = recorder.calls["moe_experts"]
    gate, up = (u @ weight.decode().t() for weight in (ffn.shared_w1, ffn.shared_w3))
    assert (up.abs() > 2).float().mean() > 0.5
    hidden = torch.nn.functional.silu(gate.clamp(max=2)) * up.clamp(-2, 2)
    close(out - routed, hidden @ ffn.shared_w2.decode().t())


def test_trap_12_every_norm_uses_the_configured_epsilon(
    make_drafting_driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of 1e-6 give what inputs of 1 give, wherever something is normalised."""
    driver = make_drafting_driver()
    model, recorder = driver.model, Recorder(driver.model.operators)
    step = model.begin(driver.batch([(driver.add(range(9)), 9)]), driver.cache)
    u, x, pre, latent = randn(9, 128), randn(9, 4, 128), randn(9, 4, seed=1).sigmoid(), randn(9, 64)
    source, plan, drafter = model.layers[6].attention, model.plan.layers[6], model.drafter
    monkeypatch.setattr(source.index_keys, "operators", recorder)
    main, keys = step.cache.block_rows(plan.main), step.cache.block_rows(plan.index_keys)

    def stored_key(size: float) -> Tensor:
        source.index_keys(latent * size, keys, step)
        stored: Tensor = recorder.calls["kv_scatter"][-1][0][3]
        return stored

    def draft_row(size: float) -> Tensor:
        """The last draft layer's row of the step's last token, from target features of this size."""
        drafter.observe(randn(9, 3 * 128) * size, step)
        ring, slot = step.cache.slot_rows(model.plan.draft.layers[-1].swa), step.batch.slot[0]
        return ring.grid[slot, 8].clone()

    def added(engram: Any, size: float) -> Tensor:
        """What an Engram adds; beside streams of 1e-6 it is the whole result."""
        streams = x * size
        return engram(streams, step.ngrams) - streams  # type: ignore[no-any-return]

    probes: dict[str, Callable[[float], Tensor]] = {
        "head": lambda size: model.logits(x * size, pre),
        "latent": lambda size: source.compressor(u * size, main, step),
        "index key": stored_key,
        "draft row": draft_row,
        "draft head": lambda size: drafter.refine(u.view(9, 1, 128).repeat(1, 5, 1) * size, torch.arange(9),
                                                  torch.arange(9), model.head, greedy).logits,
    }  # fmt: skip
    for layer in (*model.layers, *drafter.layers):
        mixes, attention = (layer.attention_mix, layer.ffn_mix), layer.attention
        for site, mix in zip(("attention", "ffn"), mixes, strict=True):
            probes[f"{layer.index} {site} mix"] = lambda size, mix=mix: torch.cat(
                [part.flatten() for part in mix(x * size)]
            )
        probes[f"{layer.index} input"] = lambda size, layer=layer: layer._attention_input(x * size, pre)
        probes[f"{layer.index} rows"] = lambda size, attention=attention: attention.encode_rows(u * size, step)
        if layer.engram:
            probes[f"{layer.index} engram"] = lambda size, engram=layer.engram: added(engram, size)
    with torch.inference_mode():
        for name, probe in probes.items():
            torch.testing.assert_close(probe(TINY), probe(1.0), rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
