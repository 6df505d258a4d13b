"""Weights and cache rows that training multiplies with are those that the product stores, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import straight_through
import torch
from drafter import Drafter
from export import read_config
from hypothesis import given
from hypothesis import strategies as st
from network import Backbone, named_parameters
from sizes import Sizes
from storage import storage_of, stored_weights
from torch import Tensor, nn
from training_form import sizes_of, tables_of
from weight_formats import represented

from deepinfer_gen.codegen.tensors import demanded_parameters
from deepinfer_gen.runtime import block_formats
from deepinfer_gen.specs.presets import preset_folder

Rounding = Callable[[Tensor], Tensor]


def _block(name: str) -> Rounding:
    """Quantise and dequantise with the runtime's functions."""
    quantize, dequantize = getattr(block_formats, f"quantize_{name}"), getattr(block_formats, f"dequantize_{name}")

    def rounded(x: Tensor) -> Tensor:
        values: Tensor = dequantize(*quantize(x))
        return values

    return rounded


CACHES: dict[str, tuple[Rounding, Rounding, int]] = {
    "mxfp8": (straight_through.mxfp8_values, _block("mxfp8"), 32),
    "mxfp4": (straight_through.mxfp4_values, _block("mxfp4"), 32),
    "nvfp4": (straight_through.nvfp4_values, _block("nvfp4"), 16),
}
"""The rounding of groups in training, that of the runtime, and the size of a group."""
PASSED: dict[str, Rounding] = {
    "mxfp8": straight_through.mxfp8,
    "mxfp4": straight_through.mxfp4,
    "nvfp4": straight_through.nvfp4,
}
"""With the gradient passed through: x + (rounded - x), exact as the two are near, but for the sign of a zero."""
WEIGHTS: dict[str, tuple[Rounding, int]] = {
    "fp8": (straight_through.fp8_values, 32 * 32),
    "mxfp4": (straight_through.mxfp4_values, 32),
    "mxfp8": (straight_through.mxfp8_values, 32),
}


def same_bits(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


def edge_rows(size: int) -> Tensor:
    """Rows [N, size]: zeros of both signs, denormals, exact ties of every element code, largest magnitudes at and
    beside the borders of scales, one large number beside small ones.
    """
    plain = torch.zeros(size)
    codes4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes8 = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    rows = [plain, -plain, plain + 2.0**-140, plain - 2.0**-149]
    for codes, largest in ((codes4, 6.0), (codes8, 448.0)):
        ties = torch.cat([codes, (codes[1:] + codes[:-1]) / 2, -codes, -(codes[1:] + codes[:-1]) / 2])
        for exponent in (-30, -3, 0, 5, 100):
            scaled = torch.full((-(-len(ties) // (size - 1)) * (size - 1),), 0.0)
            scaled[: len(ties)] = ties * 2.0**exponent
            top = torch.full((len(scaled) // (size - 1), 1), largest * 2.0**exponent)
            rows += torch.cat([top, scaled.view(-1, size - 1)], 1).unbind()
        for border in (largest, largest / 4, 2.0 * largest, largest * 2.0**-126, 1e-4, largest * 2.0**-9):
            near = torch.tensor(border)
            for amax in (near, near.nextafter(torch.tensor(0.0)), near.nextafter(torch.tensor(math.inf))):
                row = torch.linspace(-1, 1, size) * amax
                row[0] = amax
                rows.append(row)
    lonely = torch.linspace(-1e-3, 1e-3, size)
    lonely[size // 2] = 3e4
    return torch.stack([*rows, lonely])


@pytest.mark.parametrize("name", CACHES)
def test_cache_rows_at_the_edges(name: str) -> None:
    training, runtime, size = CACHES[name]
    rows = edge_rows(size)
    assert same_bits(training(rows), runtime(rows))


@given(st.integers(0, 2**32), st.floats(-30, 4), st.floats(0, 3), st.sampled_from(sorted(CACHES)))
def test_cache_rows_at_random(seed: int, exponent: float, spread: float, name: str) -> None:
    """Groups of one size and of many; [2, 3, 64] as attention has them."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 2 ** (exponent + spread * torch.randn(2, 3, 64, generator=generator).clamp(-2, 2))
    x = torch.randn(2, 3, 64, generator=generator) * sizes
    training, runtime, size = CACHES[name]
    assert same_bits(training(x.view(-1, size)), runtime(x).view(-1, size))
    assert torch.equal(PASSED[name](x), runtime(x))


@pytest.mark.parametrize("name", CACHES)
def test_cache_rows_of_bfloat16(name: str) -> None:
    """Under autocast rows are bfloat16: rounded as floats, the result is bfloat16 again."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = PASSED[name](x)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, CACHES[name][1](x.float()).bfloat16())


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_at_the_edges(name: str) -> None:
    """A tile of a dense weight is one row of 1,024 elements."""
    training, size = WEIGHTS[name]
    rows = edge_rows(size)
    shaped = rows.view(-1, 32, 32) if name == "fp8" else rows
    expected = torch.stack([represented(name, group) for group in shaped]).view_as(rows)
    assert same_bits(training(rows), expected)


@given(st.integers(0, 2**32), st.floats(-40, 20), st.floats(0, 12), st.sampled_from(sorted(WEIGHTS)))
def test_weights_at_random(seed: int, exponent: float, spread: float, name: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(64, 96, generator=generator)
    w = w * 2 ** (exponent + spread * torch.randn(64, 96, generator=generator))
    model = _Stack({_NAMED[name]: w})
    (values,) = [v for part in stored_weights(model)["layers.0"].values() for v in part.values()]
    assert torch.equal(values.detach(), represented(name, w))


_NAMED = {"fp8": "attn.wq_a", "mxfp4": "ffn.experts.w1", "mxfp8": "engram.embed"}


class _Stack(nn.Module):
    """``layers.0`` with parameters of the given dotted names."""

    def __init__(self, named: dict[str, Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Module()])
        for name, tensor in named.items():
            place: nn.Module = self.layers[0]
            *path, last = name.split(".")
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            place.register_parameter(last, nn.Parameter(tensor.clone()))


def test_weights_of_every_kind_at_once() -> None:
    """Each comes back under its layer, part and name, in its shape; what is not quantised does not."""
    generator = torch.Generator().manual_seed(2)
    named = {
        "attn.wq_a": torch.randn(32, 64, generator=generator),
        "attn.indexer.wq_b": torch.randn(64, 32, generator=generator),
        "ffn.experts.w2": torch.randn(3, 64, 32, generator=generator),
        "ffn.shared_experts.w2": torch.randn(64, 32, generator=generator),
        "engram.embed": torch.randn(7, 64, generator=generator),
        "attn.compressor.wkv.weight": torch.randn(32, 32, generator=generator),
    }
    found = stored_weights(_Stack(named))
    assert set(found) == {"layers.0"}
    flat = {f"{part}.{name}": value for part, values in found["layers.0"].items() for name, value in values.items()}
    assert flat.keys() == named.keys() - {"attn.compressor.wkv.weight"}
    for name, value in flat.items():
        storage = storage_of(f"layers.0.{name}")
        assert storage is not None
        matrices = named[name].flatten(0, -2)
        assert torch.equal(value.detach(), represented(storage, matrices).view(value.shape)), name
        assert not torch.equal(value, named[name])


def test_the_gradient_passes_unchanged() -> None:
    """Of weights and of cache rows: as if nothing had been rounded."""
    for training in PASSED.values():
        x = torch.randn(3, 64, requires_grad=True)
        slope = torch.randn(3, 64)
        training(x).backward(slope)
        assert torch.equal(x.grad, slope)  # type: ignore[arg-type]
    model = _Stack({name: torch.randn(32, 64) for name in _NAMED.values()})
    parts = {f"{part}.{k}": v for part, vs in stored_weights(model)["layers.0"].items() for k, v in vs.items()}
    slopes = {name: torch.randn(32, 64) for name in parts}
    sum((parts[name] * slopes[name]).sum() for name in parts).backward()  # type: ignore[union-attr]
    for name, parameter in model.layers[0].named_parameters():
        assert torch.equal(parameter.grad, slopes[name])  # type: ignore[arg-type]


PRESETS = ("tiny-v41", "tiny-v41-code")


def _parts(preset: str) -> tuple[Sizes, list[nn.Module]]:
    folder = preset_folder(preset)
    sizes, tables = sizes_of(folder), tables_of(folder)
    return sizes, [Backbone(sizes, tables.token_map, tables.hashes), Drafter(sizes)]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_parameter_has_the_storage_of_the_checkpoint_table(preset: str) -> None:
    """Names, shapes and storages of the network are exactly those of the table, each once, drafter included."""
    _, parts = _parts(preset)
    trained = [(name, tuple(tensor.shape)) for part in parts for name, tensor in named_parameters(part)]
    demanded = list(demanded_parameters(read_config(preset_folder(preset))))
    assert sorted(trained) == sorted((p.name, p.shape) for p in demanded)
    # A stack of experts is one parameter in training.
    by_stack = {_stacked(p.name): p.storage for p in demanded}
    in_training = {name: storage_of(name) for part in parts for name, _ in part.named_parameters()}
    for name, storage in in_training.items():
        table = by_stack[_stacked(name.replace("hc_attn.", "hc_attn_").replace("hc_ffn.", "hc_ffn_"))]
        assert storage == (None if table in ("f32", "bf16") else table), name
    assert {"fp8", "mxfp4", "mxfp8", None} == set(in_training.values())


def _stacked(name: str) -> str:
    """``layers.0.ffn.experts.3.w1`` as ``layers.0.ffn.experts.w1``."""
    head, marker, tail = name.partition(".experts.")
    return f"{head}{marker}{tail.rsplit('.', 1)[-1]}" if marker else name
