"""A released checkpoint folder as a model over caches, planned as an engine of its configuration would be."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argument_types import positive
from engine_plan import plan_engine

from deepinfer_gen.codegen.views.layout import layout_content
from deepinfer_gen.codegen.views.model import kernels, model_plan
from deepinfer_gen.runtime.model.model import Model, load_model
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.specs.presets import presets

DEFAULT_MODEL = "tiny-v41-code"
POLICIES = ("float32", "float32_unquantized", "bf16", "released")
NEXTN = 5
MAX_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class CheckpointModel:
    """The model of a checkpoint, the layout of its caches (the content of layout.json), and its tokenizer."""

    folder: Path
    plan: ModelPlan
    layout: Mapping[str, Any]
    model: Model
    tokenizer: Tokenizer

    def constant(self, name: str) -> int:
        """A whole number of the plan's constants, by its name there."""
        return int(self.plan.constants[name])

    @property
    def bos(self) -> int:
        """Id that begins a text."""
        return self.constant("bos_token_id")

    @property
    def eos(self) -> int:
        """Id that ends a text."""
        return self.constant("eos_token_id")

    @property
    def nextn(self) -> int:
        """Drafts of a round."""
        return self.plan.draft.nextn if self.plan.draft else 0

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` alone, without bos."""
        return self.tokenizer.encode(text, add_special_tokens=False)


def open_checkpoint(
    folder: Path, *, policy: str = POLICIES[0], nextn: int = NEXTN, rows: int = 16, max_tokens: int = MAX_TOKENS
) -> CheckpointModel:
    """Plan an engine for ``rows`` sequences of up to ``max_tokens`` from the folder's config.json; load its weights.

    Raises ``InputError`` for every fault of the configuration, the checkpoint and the tokenizer.
    """
    sections: dict[str, dict[str, object]] = {
        "limits": {"max_num_seqs": rows, "max_model_len": max_tokens},
        "speculative": {"nextn": nextn, "verify": "fixed"},
        "yoco": {"mode": "off"},
        "schedule": {"zos": "off"},
        "numerics": {"policy": policy},
    }
    plan = plan_engine(folder, sections)
    described = model_plan(plan)
    model = load_model(described, kernels(plan), folder)
    return CheckpointModel(folder, described, layout_content(plan), model, Tokenizer(folder))


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the commands that run a checkpoint."""
    parser.add_argument(
        "--checkpoint",
        type=_checkpoint,
        default=DEFAULT_MODEL,
        metavar="FOLDER",
        help=f"a released checkpoint folder or a preset (default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--policy", choices=POLICIES, default=POLICIES[0], help="numerics.policy (default: %(default)s)"
    )
    parser.add_argument(
        "--rows", type=positive, default=16, metavar="N", help="sequences of a step (default: %(default)s)"
    )
    parser.add_argument(
        "--prompts", type=positive, default=64, metavar="N", help="prompts to draft for (default: %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=positive, default=128, metavar="N", help="new tokens of each prompt (default: %(default)s)"
    )


def _checkpoint(written: str) -> Path:
    folder = presets().get(written, Path(written))
    if not (folder / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"'{written}' is neither a preset nor a folder with a config.json")
    return folder
