"""The network that training runs, with the weights of a released checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attention
import pytest
from compiled_tables import write_tables
from drafter import Drafter
from export import read_config
from network import Backbone
from safetensors.torch import load_file
from saved import restore
from sizes import Sizes, read_sizes
from tables import Tables, read_tables
from torch import Tensor, uint8
from weight_formats import decode

from deepinfer_gen.checkpoint_table import stored_tensors
from deepinfer_gen.codegen.tensors import demanded_parameters


def decoded_parameters(checkpoint: Path) -> dict[str, Tensor]:
    """Every parameter by name, as the numbers that its stored tensors stand for, float32."""
    config = read_config(checkpoint)
    stored = {name: t for file in checkpoint.glob("*.safetensors") for name, t in load_file(file).items()}
    tile = config.weight_block_size
    found: dict[str, Tensor] = {}
    for parameter in demanded_parameters(config):
        parts = [stored[name] for name, _ in stored_tensors(parameter, tile)]
        if parameter.storage in ("f32", "bf16"):
            found[parameter.name] = parts[0].float()
        else:
            found[parameter.name] = decode(parameter.storage, tuple(part.view(uint8) for part in parts), tile)
    return found


def network_of(checkpoint: Path) -> tuple[Backbone, Drafter]:
    """Both parts with the checkpoint's weights, for evaluation."""
    sizes, tables = read_sizes(checkpoint / "config.json"), tables_of(checkpoint)
    parts = Backbone(sizes, tables.token_map, tables.hashes), Drafter(sizes)
    values = decoded_parameters(checkpoint)
    for part in parts:
        restore(part, values)
        part.eval()
    return parts


def tables_of(checkpoint: Path) -> Tables:
    """What ``data`` writes for a checkpoint's tokenizer and config."""
    with TemporaryDirectory() as work:
        write_tables(checkpoint, Path(work))
        return read_tables(Path(work))


def sizes_of(checkpoint: Path) -> Sizes:
    return read_sizes(checkpoint / "config.json")


@contextmanager
def exact_caches() -> Iterator[None]:
    """Rows, entries, index queries and keys as they are computed, as an engine without quantisation has them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("mxfp8", "mxfp4", "nvfp4"):
            patch.setattr(attention, name, lambda x: x)
        yield
