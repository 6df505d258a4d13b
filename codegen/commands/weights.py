"""``weights CONFIG``: the tensors that a model config demands of a checkpoint."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_gen.codegen.commands.output import write_json, write_lines
from deepinfer_gen.codegen.text import columns, number_ranges, write_bytes
from deepinfer_gen.diagnostics import Diagnostic, InputError

if TYPE_CHECKING:
    from deepinfer_gen.checkpoint_table import DemandedTensor, TensorSpec
    from deepinfer_gen.specs.model_config import ModelConfig

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``weights``."""
    parser.add_argument("config", metavar="CONFIG", help="model preset, config.json, or a checkpoint folder")
    parser.add_argument("--all", action="store_true", help="one line per tensor instead of one per kind")
    parser.add_argument("--json", action="store_true", help="print every tensor and the totals as data")


def run(args: argparse.Namespace) -> int:
    """Print the tensors and their totals."""
    from deepinfer_gen.codegen.tensors import demanded_tensors

    tensors = list(demanded_tensors(_config(args.config)))
    total = sum(t.spec.nbytes for t in tensors)
    if args.json:
        listed = [
            {
                "name": t.name,
                "dtype": t.spec.dtype,
                "shape": list(t.spec.shape),
                "bytes": t.spec.nbytes,
                "group": t.group,
            }
            for t in tensors
        ]
        write_json({"tensors": listed, "count": len(tensors), "bytes": total})
        return 0
    rows = (
        [[t.name, "", t.spec.dtype, _shape(t), f"{t.spec.nbytes:,} B"] for t in tensors]
        if args.all
        else _folded(tensors)
    )
    write_lines(columns([["tensor", "count", "dtype", "shape", "bytes"], *rows], "<><<>", indent=""))
    write_lines(["", *_totals(tensors), f"{len(tensors):,} tensors, {total:,} bytes ({write_bytes(total)})"])
    return 0


def _config(argument: str) -> ModelConfig:
    from deepinfer_gen.specs.model_config import MAX_CONFIG_BYTES, read_model_config
    from deepinfer_gen.specs.presets import presets
    from deepinfer_gen.specs.source_text import read_source
    from deepinfer_gen.specs.validate import did_you_mean

    preset = argument if argument in presets() else ""
    path = presets()[preset] if preset else Path(argument)
    if path.is_dir():
        path /= "config.json"
    elif not path.exists() and path.name == argument and path.suffix != ".json":
        remedy = did_you_mean(argument, presets(), "there are these presets, or name a config.json")
        raise InputError(Diagnostic("DI265", f"'{argument}' is no model preset, file or folder", help=remedy))
    shown = f"{preset}/config.json" if preset else str(path)
    return read_model_config(read_source(path, shown, MAX_CONFIG_BYTES, "the model config"), preset)


def _folded(tensors: Iterable[DemandedTensor]) -> list[list[str]]:
    """One row per kind: tensors that differ only in the layer and expert numbers of their names."""
    kinds: dict[tuple[str, TensorSpec], list[DemandedTensor]] = {}
    for tensor in tensors:
        kinds.setdefault((_NUMBER.sub("#", tensor.name), tensor.spec), []).append(tensor)
    rows = []
    for alike in kinds.values():
        numbers = zip(*(map(int, _NUMBER.findall(t.name)) for t in alike), strict=True)
        ranges = [number_ranges(sorted(set(position))).replace(" ", "") for position in numbers]
        name = alike[0].name
        for found, shown in reversed(list(zip(_NUMBER.finditer(name), ranges, strict=True))):
            name = f"{name[: found.start()]}{shown}{name[found.end() :]}"
        rows.append(
            [name, f"{len(alike):,}", alike[0].spec.dtype, _shape(alike[0]), f"{sum(t.spec.nbytes for t in alike):,} B"]
        )
    return rows


def _totals(tensors: Iterable[DemandedTensor]) -> list[str]:
    groups: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        count, size = groups.get(tensor.group, (0, 0))
        groups[tensor.group] = (count + 1, size + tensor.spec.nbytes)
    rows = [[g.replace("_", " "), f"{c:,} tensors", f"{s:,} B", write_bytes(s)] for g, (c, s) in groups.items()]
    return columns(rows, "<>>>", indent="")


def _shape(tensor: DemandedTensor) -> str:
    return str(list(tensor.spec.shape))
