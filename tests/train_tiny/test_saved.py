"""Training checkpoints: what was saved comes back, in files that can be sent one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import saved
import torch
from drafter import Drafter
from network import Backbone, named_parameters
from safetensors import safe_open
from torch import nn
from training_form import sizes_of, tables_of

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.specs.presets import preset_folder


def parts(seed: int) -> list[nn.Module]:
    """Backbone and drafter of tiny-v41 with biases that are not zero."""
    torch.manual_seed(seed)
    folder = preset_folder("tiny-v41")
    sizes, tables = sizes_of(folder), tables_of(folder)
    models: list[nn.Module] = [Backbone(sizes, tables.token_map, tables.hashes), Drafter(sizes)]
    for model in models:
        for name, buffer in model.named_buffers():
            if name.endswith("gate.bias"):
                buffer.normal_()
    return models


def test_round_trip(tmp_path: Path) -> None:
    """Both models out of one folder, gate biases too; a drafter alone reads its own."""
    first, second = parts(0), parts(1)
    saved.save(tmp_path, first, 7)
    values = saved.load(tmp_path)
    assert values.keys() == {name for model in first for name, _ in named_parameters(model)}
    assert {tensor.dtype for tensor in values.values()} == {torch.float32}
    for old, new in zip(first, second, strict=True):
        assert any(not torch.equal(a, b) for a, b in zip(old.parameters(), new.parameters(), strict=True))
        saved.restore(new, values)
        for (name, a), (_, b) in zip(named_parameters(old), named_parameters(new), strict=True):
            assert torch.equal(a, b), name


def test_files_stay_below_the_limit_and_old_ones_go(tmp_path: Path) -> None:
    """tiny-v41 in float32 fills several files of 15 MiB; an expert tensor is never divided."""
    models = parts(0)
    saved.save(tmp_path, models, 7)
    files = sorted(tmp_path.glob("weights-*.safetensors"))
    assert len(files) >= 2
    header = 100 << 10
    assert all(file.stat().st_size < (15 << 20) + header for file in files)
    names: list[str] = []
    for file in files:
        with safe_open(file, "pt") as opened:
            names += opened.keys()
    assert len(names) == len(set(names))
    saved.save(tmp_path, [models[1].mtp[0].hc_attn], 7)  # type: ignore[union-attr, index]
    assert [file.name for file in tmp_path.iterdir()] == ["weights-0.safetensors"]


def test_of_two_gate_biases_the_text_one_is_read(tmp_path: Path) -> None:
    models = parts(0)
    saved.save(tmp_path, models, 7)
    values = saved.load(tmp_path)
    name = "layers.0.ffn.gate.bias"
    assert torch.equal(values[name], values[f"{name}_vl"])
    values[f"{name}_vl"] = values[name] + 1
    saved.restore(models[0], values)
    assert torch.equal(dict(models[0].named_buffers())[name], values[name])


def test_a_missing_parameter_is_named(tmp_path: Path) -> None:
    models = parts(0)
    saved.save(tmp_path, models, 7)
    values = saved.load(tmp_path)
    del values["layers.3.ffn.experts.7.w2"]
    with pytest.raises(InputError) as caught:
        saved.restore(models[0], values)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "DI445"
    assert diagnostic.message == "the training checkpoint has no parameter 'layers.3.ffn.experts.7.w2' [128, 64]"
    saved.restore(models[1], values)
