"""``export``: a training checkpoint and a model folder to a checkpoint in the released names and formats.

A training checkpoint (``saved.py``) holds a float32 tensor for each parameter that the model's config.json demands, in
its logical shape, backbone and drafter together. The result holds what else lies in the model folder (config, notices,
tokenizer), one shard and its index.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors
import torch
from confidence import FILE_NAME
from places import PRESET
from safetensors.torch import save
from saved import load
from torch import Tensor
from weight_formats import encode, represented

from deepinfer_gen.checkpoint_table import DemandedParameter, stored_tensors
from deepinfer_gen.codegen.tensors import demanded_parameters
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.durable import exchange, sync, write_tree
from deepinfer_gen.specs.model_config import MAX_CONFIG_BYTES, ModelConfig, read_model_config
from deepinfer_gen.specs.source_text import read_source

SHARD, INDEX = "model-00001-of-00001.safetensors", "model.safetensors.index.json"

_STORED_TYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``export``."""
    parser.add_argument("checkpoint", type=Path, help="training checkpoint: the folder that draft wrote")
    parser.add_argument("--model", type=Path, default=PRESET, help="folder of config.json and what lies beside it")
    parser.add_argument("-o", "--out", type=Path, help="folder to write or replace (default: the model folder)")


def run(arguments: argparse.Namespace) -> None:
    """Export and say what was written."""
    out = arguments.out or arguments.model
    export(arguments.checkpoint, arguments.model, out)
    print(f"{out}: {sum(path.stat().st_size for path in out.iterdir()):,} bytes")


def export(checkpoint: Path, model: Path, out: Path) -> None:
    """Write the folder ``out`` whole or not at all; one that is there already is replaced in one step.

    Raises ``InputError``: those of the config, DI430 (a checkpoint that cannot be read), DI431 (a parameter missing,
    unexpected or of another type or shape), DI432 (a number that is not finite, or not in its stored form), DI433
    (``out`` holds what this would lose).
    """
    config = read_config(model)
    tensors = released_tensors(config, read_parameters(checkpoint), checkpoint.name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(tensors, SHARD)}
    beside = {path.name: path.read_bytes() for path in sorted(model.iterdir()) if not _holds_weights(path.name)}
    weights = {SHARD: save(tensors, {"format": "pt"}), INDEX: json.dumps(index, separators=(",", ":")).encode()}
    _replace(out, beside | weights)


def read_config(model: Path) -> ModelConfig:
    """The configuration of a model folder."""
    path = model / "config.json"
    return read_model_config(read_source(path, str(path), MAX_CONFIG_BYTES, "the model config"), "")


def read_parameters(checkpoint: Path) -> dict[str, Tensor]:
    """All tensors of a training checkpoint, unchecked."""
    try:
        return load(checkpoint)
    except (OSError, safetensors.SafetensorError) as fault:
        message = f"the training checkpoint cannot be read: {fault}"
        raise InputError(Diagnostic("DI430", message, file=str(checkpoint), help="name what draft wrote")) from fault


def released_tensors(config: ModelConfig, parameters: Mapping[str, Tensor], file: str) -> dict[str, Tensor]:
    """The stored tensors of all parameters by released name, in the released order; ``file`` names their origin.

    Raises ``InputError`` with every fault (DI431, DI432).
    """
    demanded = list(demanded_parameters(config))
    rows, columns = config.weight_block_size
    faults = list(_faults(demanded, parameters, (rows, columns)))
    if faults:
        remedy = "export a checkpoint that was trained with this config.json"
        raise InputError(Diagnostic(code, message, file=file, help=remedy) for code, message in faults)
    tensors: dict[str, Tensor] = {}
    for parameter in demanded:
        stored = encode(parameter.storage, parameters[parameter.name], (rows, columns))
        for (name, spec), part in zip(stored_tensors(parameter, (rows, columns)), stored, strict=True):
            if part.shape != spec.shape:
                raise ValueError(f"'{name}' was encoded as {list(part.shape)}, its format is {spec}")
            tensors[name] = part.view(_STORED_TYPES[spec.dtype]).contiguous()
    return tensors


def _faults(
    demanded: list[DemandedParameter], parameters: Mapping[str, Tensor], tile: tuple[int, int]
) -> Iterator[tuple[str, str]]:
    for name in sorted(parameters.keys() - {parameter.name for parameter in demanded}):
        yield "DI431", f"'{name}' is no parameter of the model"
    for parameter in demanded:
        tensor = parameters.get(parameter.name)
        if tensor is None:
            yield "DI431", f"parameter '{parameter.name}' {list(parameter.shape)} is missing"
        elif tensor.dtype != torch.float32 or tensor.shape != parameter.shape:
            found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            yield "DI431", f"parameter '{parameter.name}' is {found}, expected float32 {list(parameter.shape)}"
        elif wrong := int((~tensor.isfinite()).sum()):
            yield "DI432", f"{wrong} of the numbers of parameter '{parameter.name}' are NaN or infinite"
        elif wrong := int((~represented(parameter.storage, tensor, tile).isfinite()).sum()):
            largest = f"{float(tensor.abs().max()):g}"
            message = f"{wrong} of the numbers of parameter '{parameter.name}' exceed {parameter.storage}"
            yield "DI432", f"{message}; the largest magnitude is {largest}"


def _holds_weights(name: str) -> bool:
    """Whether a file of a checkpoint is of its weights: others would be wrong beside new ones, temperatures too."""
    return name in (INDEX, FILE_NAME) or name.endswith(".safetensors")


def _replace(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Make ``folder`` hold exactly ``contents``; what it held before must be among their names, or be weights."""
    present = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    lost = [name for name in sorted(present) if name not in contents and not _holds_weights(name)]
    if lost or (folder.exists() and not folder.is_dir()):
        message = f"'{folder}' holds {lost[0]}, which the export would remove" if lost else f"'{folder}' is no folder"
        raise InputError(Diagnostic("DI433", message, file=str(folder), help="name another folder with --out"))
    fresh = folder.with_name(f".{folder.name}.new")
    if fresh.exists():  # left behind by an export that was interrupted
        shutil.rmtree(fresh)
    write_tree(fresh, contents)
    if not folder.exists():
        fresh.rename(folder)
    elif exchange(fresh, folder):
        shutil.rmtree(fresh)
    else:
        message = f"the file system cannot exchange '{folder}' with the new folder in one step"
        raise InputError(Diagnostic("DI433", message, file=str(folder), help=f"remove it, then rename {fresh}"))
    sync(folder.parent)
