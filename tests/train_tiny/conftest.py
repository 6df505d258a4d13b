"""The shipped random checkpoint as the tools open it, the reference's transcripts, and a random export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_model import CheckpointModel, open_checkpoint
from export import PRESET, export, read_config
from one_thread import one_thread as one_thread
from training_checkpoint import Exported, random_parameters, write_training_checkpoint

from deepinfer_gen.specs.presets import preset_folder

ORACLE = Path(__file__).parents[1] / "oracle"


@pytest.fixture(scope="session")
def checkpoint() -> CheckpointModel:
    """tiny-v41 without quantised caches: chunks and batches then do not change a token."""
    return open_checkpoint(preset_folder("tiny-v41"), policy="float32_unquantized", rows=8)


@pytest.fixture(scope="session")
def oracle() -> Mapping[str, Any]:
    with np.load(ORACLE / "reference_f32nq.npz") as first, np.load(ORACLE / "drafts_f32nq.npz") as second:
        return {**first, **second}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A training checkpoint of random weights, exported beside the preset's own files; tests change nothing of it."""
    parent = tmp_path_factory.mktemp("exported")
    config = read_config(PRESET)
    parameters = random_parameters(config, 0)
    checkpoint = write_training_checkpoint(parent / "drafted", parameters)
    export(checkpoint, PRESET, parent / "released")
    return Exported(checkpoint, parent / "released", config, parameters)
