"""Training checkpoints: float32 parameters under their released names, in files of at most 15 MiB."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from network import named_parameters
from refusals import foreign_checkpoint, no_checkpoint, other_start
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

_FILE_BYTES = 15 << 20
_STEP = "step"


def save(folder: Path, models: list[nn.Module], step: int) -> None:
    """Write the parameters of all ``models`` as they are after ``step`` steps."""
    save_parameters(folder, (pair for model in models for pair in named_parameters(model)), step)


def save_parameters(folder: Path, parameters: Iterable[tuple[str, Tensor]], step: int | None = None) -> None:
    """Write named parameters as ``weights-N.safetensors``, with their ``step``; what was there is replaced."""
    metadata = None if step is None else {_STEP: str(step)}
    files: list[dict[str, Tensor]] = [{}]
    room = _FILE_BYTES
    for name, tensor in parameters:
        if tensor.nbytes > room:
            files.append({})
            room = _FILE_BYTES
        files[-1][name] = tensor.detach().to("cpu", torch.float32).contiguous().clone()
        room -= tensor.nbytes
    # An interruption leaves a whole checkpoint: the old one, under its name or as .NAME.old, or the new one.
    fresh, old = (folder.with_name(f".{folder.name}.{state}") for state in ("new", "old"))
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    fresh.mkdir(parents=True)
    for number, tensors in enumerate(files):
        save_file(tensors, fresh / f"weights-{number}.safetensors", metadata)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path) -> dict[str, Tensor]:
    """All parameters of a checkpoint by name; ``OSError`` or ``SafetensorError`` if there is none."""
    files = sorted(folder.glob("weights-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no weights-N.safetensors in {folder}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def load_from(folder: Path, command: str) -> dict[str, Tensor]:
    """``load`` of what ``command`` left; ``InputError`` (DI444) if it did not."""
    try:
        return load(folder)
    except (OSError, SafetensorError) as fault:
        raise no_checkpoint(folder, fault, command) from fault


def resume(folder: Path, command: str, start: int) -> dict[str, Tensor]:
    """``load_from`` for a run that goes on after ``start`` steps; ``InputError`` (DI447) if others were saved."""
    values = load_from(folder, command)
    with safe_open(folder / "weights-0.safetensors", "pt") as file:
        stored = (file.metadata() or {}).get(_STEP)
    if stored is not None and int(stored) != start:
        raise other_start(start, int(stored), folder)
    return values


@torch.no_grad()
def restore(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy ``values`` into ``model``; those of other models are left alone.

    ``InputError`` (DI445) for one that is missing or has another shape.
    """
    for name, tensor in named_parameters(model):
        # Of the two biases of a gate, which training keeps equal, the last would win.
        if name.endswith("bias_vl"):
            continue
        if name not in values:
            raise foreign_checkpoint(f"the training checkpoint has no parameter '{name}' {list(tensor.shape)}")
        if values[name].shape != tensor.shape:
            shapes = f"{list(values[name].shape)} in the training checkpoint, {list(tensor.shape)} in the model"
            raise foreign_checkpoint(f"parameter '{name}' is {shapes}")
        tensor.copy_(values[name])
