"""What the trainings refuse, each with its code: DI442 to DI448, and DI452.

Of this project's package only ``diagnostics`` is used here and in what the trainings import, so that they run
where neither compiler nor tokenizer is installed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from sizes import Sizes
from storage import TILE

from deepinfer_gen.diagnostics import Diagnostic, InputError

LEAST_POLISHED_ROWS = 4
"""Of fewer no quarter can be loops."""


def unreadable(what: str, path: Path, fault: Exception, remedy: str) -> InputError:
    """DI442: a file that an earlier command writes is missing or is not what it wrote."""
    return InputError(Diagnostic("DI442", f"{what} cannot be read: {_sentence(fault)}", file=str(path), help=remedy))


def too_little_text(message: str) -> InputError:
    """DI443: the corpus has no room for what is cut from it."""
    return InputError(Diagnostic("DI443", message, help="take a larger corpus, a lower --batch or a lower --length"))


def no_checkpoint(folder: Path, fault: Exception, command: str) -> InputError:
    """DI444: the checkpoint that ``command`` leaves cannot be read."""
    message = f"the training checkpoint cannot be read: {_sentence(fault)}"
    return InputError(Diagnostic("DI444", message, file=str(folder), help=run_first(command)))


def foreign_checkpoint(message: str) -> InputError:
    """DI445: a checkpoint of another model."""
    return InputError(Diagnostic("DI445", message, help="name the config.json that it was trained with by --config"))


def not_finite(step: int, names: Sequence[str]) -> InputError:
    """DI452: a training that broke; what the last evaluation saved is kept."""
    message = f"{', '.join(names)} are no numbers any more after step {step}"
    return InputError(Diagnostic("DI452", message, help="go on from the last checkpoint with a lower --lr"))


def run_first(command: str) -> str:
    """The remedy for what an earlier command would have written."""
    return f"run `python tools/train_tiny {command}` first"


def check_length(sizes: Sizes, length: int) -> None:
    """Raise DI446 for rows that the network cannot cut into windows, pooled tokens and candidate blocks."""
    ratios = [sizes.compress_ratios[source] for source in sizes.kv_source_layer_ids]
    block = sizes.compress_ratios[sizes.candidate_source_layer_id] * sizes.candidate_block_size
    unit, most = math.lcm(sizes.sliding_window, block, *ratios), sizes.max_position_embeddings
    if length % unit or length > most:
        message = (
            f"--length {length} is no multiple of {unit} up to {most}:"
            f" rows are cut into windows of {sizes.sliding_window} tokens and candidate blocks of {block}"
        )
        nearest = max(unit, min(length, most) // unit * unit)
        raise InputError(Diagnostic("DI446", message, help=f"--length {nearest}"))


def check_tile(sizes: Sizes) -> None:
    """Raise DI445 where one scale does not stand for the 32 x 32 weights that training rounds together."""
    tile = sizes.weight_block_size
    if list(tile) != [TILE, TILE]:
        message = f"weight_block_size is {list(tile)}, training rounds dense weights in tiles of [{TILE}, {TILE}]"
        raise InputError(Diagnostic("DI445", message, help="train with the released tile"))


def check_start(arguments: argparse.Namespace) -> None:
    """Raise DI447 where no step is left."""
    if arguments.start >= arguments.steps:
        message = f"--start {arguments.start} leaves no step before --steps {arguments.steps}"
        remedy = "give the step that the run before stopped after, or a later end"
        raise InputError(Diagnostic("DI447", message, help=remedy))


def other_start(start: int, saved: int, folder: Path) -> InputError:
    """DI447: a run that would go on from another step than its checkpoint's."""
    message = f"--start {start}, but the checkpoint was saved after step {saved}"
    return InputError(Diagnostic("DI447", message, file=str(folder), help=f"--start {saved}"))


def check_anchors(sizes: Sizes, length: int, anchors: int) -> None:
    """Raise DI448 where a row has too few places for so many draft blocks."""
    places = length - sizes.dspark_block_size - 1
    if anchors > places:
        message = f"--anchors {anchors} exceeds the {max(places, 0)} places for a draft block in {length} tokens"
        raise InputError(Diagnostic("DI448", message, help="give fewer anchors or longer rows"))


def check_polished_rows(batch: int) -> None:
    """Raise DI448 where a quarter of the rows is none."""
    if batch < LEAST_POLISHED_ROWS:
        message = f"--batch {batch} has no quarter that could be loops"
        raise InputError(Diagnostic("DI448", message, help=f"--batch {LEAST_POLISHED_ROWS}"))


def _sentence(fault: Exception) -> str:
    """A fault in its own words, without the path that the place names."""
    if isinstance(fault, FileNotFoundError):
        return "it does not exist"
    return fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
