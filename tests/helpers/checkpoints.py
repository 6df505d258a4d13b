"""Checkpoint folders for tests: copied, taken apart and written again, well formed or not."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from spec_plan import spec_plan

from deepinfer_gen.checkpoint_table import TensorSpec
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.specs.presets import preset_folder

PIECE = 1 << 24
INDEX = "model.safetensors.index.json"
FIRST, SECOND, THIRD = (f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3))


@dataclass
class Stored:
    """One tensor of a shard."""

    dtype: str
    shape: list[int]
    data: bytes


def copy_checkpoint(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
    return target


def split_shard(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header as it stands, and the data."""
    return split_bytes(path.read_bytes())


def split_bytes(raw: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join_shard(path: Path, header: bytes, data: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def edit_index(folder: Path, change: Callable[[dict[str, str]], None]) -> None:
    content = json.loads((folder / INDEX).read_text())
    change(content["weight_map"])
    (folder / INDEX).write_text(json.dumps(content))


def edit_header(folder: Path, shard: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the header alone; the data stay, whether they fit it or not."""
    header, data = split_shard(folder / shard)
    change(header)
    join_shard(folder / shard, json.dumps(header).encode(), data)


def read_shard(path: Path) -> dict[str, Stored]:
    header, data = split_shard(path)
    header.pop("__metadata__", None)
    return {
        name: Stored(entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def write_shard(path: Path, tensors: Mapping[str, Stored]) -> None:
    header: dict[str, Any] = {}
    place = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [place, place + len(tensor.data)],
        }
        place += len(tensor.data)
    join_shard(path, json.dumps(header).encode(), b"".join(t.data for t in tensors.values()))


def edit_shard(folder: Path, shard: str, change: Callable[[dict[str, Stored]], object]) -> None:
    """Change tensors and lay the file out again, well formed."""
    tensors = read_shard(folder / shard)
    change(tensors)
    write_shard(folder / shard, tensors)


def write_random(folder: Path, specs: Mapping[str, TensorSpec], *, shards: int = 2, seed: int = 0) -> None:
    """A well-formed checkpoint of random bytes, its tensors dealt to ``shards`` files in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    mapping: dict[str, str] = {}
    for number in range(shards):
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        own = dict(list(specs.items())[number::shards])
        header: dict[str, Any] = {}
        place = 0
        for name, spec in own.items():
            end = place + spec.nbytes
            header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [place, end]}
            place = end
        join_shard(folder / shard, json.dumps(header).encode(), b"")
        with (folder / shard).open("ab") as file:
            for start in range(0, place, PIECE):
                file.write(random.bytes(min(PIECE, place - start)))
        mapping.update(dict.fromkeys(own, shard))
    total = sum(spec.nbytes for spec in specs.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": mapping}))


def plan_of(folder: Path, config: Mapping[str, Any] | None = None, *, ep: int = 1, nextn: int = 0) -> ModelPlan:
    """The compiler's model plan of a CPU engine for ``config``, the tiny preset if None; ``folder`` holds its spec."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    spec = {
        "engine": {"name": "case"},
        "model": "tiny-v41" if config is None else "config.json",
        "hardware": "cpu",
        "parallel": {"dp": ep, "ep": ep},
        "limits": {"max_num_seqs": 2, "max_model_len": 64},
        "speculative": {"nextn": nextn, "verify": "fixed"},
        "numerics": {"policy": "float32_unquantized"},
    }
    return model_plan(spec_plan(folder, spec))


def preset_config(name: str) -> dict[str, Any]:
    """The ``config.json`` of a preset, to be changed."""
    content: dict[str, Any] = json.loads((preset_folder(name) / "config.json").read_text())
    return content


def one_layer_config(**text: Any) -> dict[str, Any]:
    """One layer that is KV, index and candidate source, without Engram and drafts; ``text`` changes its keys."""
    config = preset_config("deepseek-v4.1-flash")
    config["image_token_id"] = 3
    config["text_config"].update(
        num_hidden_layers=1, num_nextn_predict_layers=0, compress_ratios=[1], kv_source_layer_ids=[0],
        index_source_layer_ids=[0], candidate_source_layer_id=0, engram_layer_ids=[], engram_num_embeddings=[],
        dspark_target_layer_ids=[0], dspark_noise_token_id=3,
    )  # fmt: skip
    config["text_config"].update(text)
    return config


SMALL: dict[str, Any] = {
    "vocab_size": 64, "engram_compressed_vocab_size": 32, "hidden_size": 32, "moe_intermediate_size": 32,
    "num_attention_heads": 2, "head_dim": 32, "qk_rope_head_dim": 16, "q_lora_rank": 16, "o_lora_rank": 16,
    "o_groups": 2, "index_n_heads": 2, "index_head_dim": 16, "n_routed_experts": 2, "num_experts_per_tok": 1,
}  # fmt: skip
"""Changes of ``one_layer_config`` that leave some 30 KB."""
