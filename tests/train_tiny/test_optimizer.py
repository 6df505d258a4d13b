"""Muon and AdamW against steps worked out here, and which parameter goes to which."""

from __future__ import annotations

import pytest
import torch
from drafter import Drafter
from network import Backbone
from optimizer import Muon, Optimizer, orthogonal
from storage import storage_of
from torch import Tensor, nn
from training import Schedule
from training_form import sizes_of, tables_of

from deepinfer_gen.specs.presets import preset_folder


@pytest.mark.parametrize("shape", [(3, 32, 48), (2, 64, 16), (1, 40, 40)])
def test_orthogonal_moves_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    """Wide, tall and square; the directions stay, so that the product with them is near the identity's."""
    stack = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 1e-3
    found = orthogonal(stack)
    assert found.dtype == torch.float32
    u, s, vh = torch.linalg.svd(stack, full_matrices=False)
    assert float((s[:, 0] / s[:, -1]).max()) > 2
    turned = torch.linalg.svdvals(found)
    assert 0.6 < float(turned.min()) < float(turned.max()) < 1.3
    aligned = torch.einsum("mnr,mnk,mrk->mr", u, found, vh)
    assert float(aligned.min()) > 0.6


def newton_schulz(matrix: Tensor) -> Tensor:
    """The five iterations on one matrix, plainly; in bfloat16, as they are specified."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.t() if tall else matrix).bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.t()
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.t() if tall else x).float()


def test_two_muon_steps_by_hand() -> None:
    """Momentum 0.95 with Nesterov's look ahead, length 0.2 sqrt(longer side), decay on the weight; stacks of a shape
    mix plain matrices with stacks of experts.
    """
    generator = torch.Generator().manual_seed(1)
    shapes = [(8, 12), (3, 8, 12), (12, 8)]
    parameters = [nn.Parameter(torch.randn(*shape, generator=generator)) for shape in shapes]
    expected = [p.detach().clone().view(-1, *p.shape[-2:]) for p in parameters]
    momenta = [torch.zeros_like(e) for e in expected]
    muon = Muon(parameters, torch.tensor(0.01), 0.1)
    for _ in range(2):
        for i, parameter in enumerate(parameters):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            gradients = parameter.grad.view_as(expected[i])
            for m in range(len(gradients)):
                momenta[i][m] = 0.95 * momenta[i][m] + 0.05 * gradients[m]
                step = newton_schulz(0.05 * gradients[m] + 0.95 * momenta[i][m])
                expected[i][m] = expected[i][m] * (1 - 0.01 * 0.1) - 0.01 * 0.2 * 12**0.5 * step
        muon.step()
    for parameter, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach().view_as(wanted), wanted, atol=3e-4, rtol=0)


def test_two_adamw_steps_by_hand() -> None:
    """Look-ups move three times as far and decay at a third, vectors do not decay; betas 0.9 and 0.95."""
    generator = torch.Generator().manual_seed(2)
    named = {
        "embed.weight": nn.Parameter(torch.randn(6, 4, generator=generator)),
        "layers.0.attn.attn_sink": nn.Parameter(torch.randn(4, generator=generator)),
    }
    expected = {name: p.detach().clone() for name, p in named.items()}
    optimizer = Optimizer(named, lr=0.01, weight_decay=0.3)
    optimizer.set_rate(0.5)
    first = {name: torch.zeros_like(p) for name, p in expected.items()}
    second = {name: torch.zeros_like(p) for name, p in expected.items()}
    for step in (1, 2):
        for name, parameter in named.items():
            gradient = torch.randn(parameter.shape, generator=generator) * 0.01  # below the cut
            parameter.grad = gradient.clone()
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.95 * second[name] + 0.05 * gradient**2
            rate, decay = (0.015, 0.1) if name == "embed.weight" else (0.005, 0.0)
            moved = (first[name] / (1 - 0.9**step)) / ((second[name] / (1 - 0.95**step)).sqrt() + 1e-10)
            expected[name] = expected[name] * (1 - rate * decay) - rate * moved
        optimizer.step()
    for name, parameter in named.items():
        torch.testing.assert_close(parameter.detach(), expected[name], atol=1e-6, rtol=1e-5)


def test_the_gradient_is_cut_at_a_norm_of_one() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = Optimizer({"norm.weight": parameter}, lr=1.0, weight_decay=0.0)
    parameter.grad = torch.tensor([30.0, 40.0])
    optimizer.step()
    assert torch.allclose(parameter.grad, torch.tensor([0.6, 0.8]))
    assert parameter.detach().tolist() == [0.0, 0.0]  # a rate that was never set is 0


def test_groups_of_the_shipped_model() -> None:
    """Muon has every narrow matrix and the projections around them, never a table that tokens look up; each
    parameter is in one group.
    """
    folder = preset_folder("tiny-v41-code")
    sizes, tables = sizes_of(folder), tables_of(folder)
    for model in (Backbone(sizes, tables.token_map, tables.hashes), Drafter(sizes)):
        named = dict(model.named_parameters())
        optimizer = Optimizer(named, lr=1.0, weight_decay=0.0)
        by_id = {id(p): name for name, p in named.items()}
        muon = {by_id[id(p)] for stack in optimizer.muon.stacks for p in stack}
        tables_group, others = ({by_id[id(p)] for p in group["params"]} for group in optimizer.adam.param_groups)
        assert len(muon) + len(tables_group) + len(others) == len(named)
        assert muon | tables_group | others == set(named)
        narrow = {name for name in named if storage_of(name) in ("fp8", "mxfp4")}
        assert narrow <= muon
        wide = {name for name in muon - narrow if not name.endswith((".compressor.wkv.weight", "wgate.weight"))}
        assert all(name.endswith(".indexer.wk.weight") for name in wide)
        looked_up = {"embed.weight", "layers.1.engram.embed", "layers.3.engram.embed"}
        assert tables_group == (looked_up if isinstance(model, Backbone) else {"mtp.2.markov_head.embed.weight"})
        # Every matrix that is left learns by AdamW on purpose.
        kinds = ("head.weight", ".gate.weight", ".weights_proj.weight", ".fn", ".q_weight", ".k_weight", ".proj.weight")
        assert all(named[name].dim() == 1 or name.endswith(kinds) for name in others)


def test_schedule_by_hand() -> None:
    """A rise over 100 steps from the start, level, and from 30 % of the whole run on straight to 0."""
    whole = Schedule(start=0, steps=1000)
    values = {0: 0.01, 49: 0.5, 99: 1.0, 100: 1.0, 299: 1.0, 300: 1.0, 650: 0.5, 930: 0.1, 1000: 0.0}
    assert {step: whole.at(step) for step in values} == pytest.approx(values)
    # A run that starts again rises anew and falls with the others.
    again = Schedule(start=600, steps=1000)
    assert [again.at(step) for step in (600, 609, 699, 930)] == pytest.approx([0.01, 0.1, 0.43, 0.1])
    assert again.at(1001) == 0.0
