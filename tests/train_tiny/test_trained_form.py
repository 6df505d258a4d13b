"""What training saves is what the export takes, and the weights that it multiplied with are those that are stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from drafter import Drafter
from export import PRESET, export, read_config, read_parameters, released_tensors
from network import Backbone, named_parameters
from saved import save
from storage import stored_weights
from torch import nn
from training_form import sizes_of, tables_of
from weight_formats import represented

from deepinfer_gen.codegen.tensors import demanded_parameters


@pytest.fixture(scope="module")
def models() -> list[nn.Module]:
    """Backbone and drafter as they are before the first step, with random weights."""
    torch.manual_seed(0)
    sizes, tables = sizes_of(PRESET), tables_of(PRESET)
    return [Backbone(sizes, tables.token_map, tables.hashes), Drafter(sizes)]


def test_saved_and_exported(models: list[nn.Module], tmp_path: Path) -> None:
    """Every parameter has its released name and shape; none is missing, none is left."""
    save(tmp_path / "drafted", models, 7)
    tensors = released_tensors(read_config(PRESET), read_parameters(tmp_path / "drafted"), "drafted")
    export(tmp_path / "drafted", PRESET, tmp_path / "out")
    shard = (tmp_path / "out" / "model-00001-of-00001.safetensors").stat().st_size
    assert shard > sum(tensor.nbytes for tensor in tensors.values())


def test_the_weights_in_training_are_the_stored_ones(models: list[nn.Module]) -> None:
    """But for the rounding of a weight plus its error, which passes the gradient on."""
    storages = {p.name: p.storage for p in demanded_parameters(read_config(PRESET))}
    compared = set()
    for model in models:
        parameters = dict(named_parameters(model))
        for layer, parts in stored_weights(model).items():
            for part, weights in parts.items():
                for name, values in weights.items():
                    stacked = [(f"{layer}.{part}.{name}".rstrip("."), values)]
                    if name.startswith("experts"):
                        role = name.removeprefix("experts").lstrip(".")
                        stacked = [(f"{layer}.{part}.experts.{e}.{role}", w) for e, w in enumerate(values)]
                    for full, found in stacked:
                        expected = represented(storages[full], parameters[full])
                        torch.testing.assert_close(found, expected, rtol=2**-22, atol=2**-24)
                        compared.add(full)
    assert compared == {name for name, storage in storages.items() if storage not in ("bf16", "f32")}
