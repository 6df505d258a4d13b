"""A random training checkpoint of the small code model, exported once."""

from __future__ import annotations

import pytest
from export import PRESET, export, read_config
from training_checkpoint import Exported, random_parameters, write_training_checkpoint


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Random weights beside the preset's own files; tests do not change any."""
    parent = tmp_path_factory.mktemp("exported")
    config = read_config(PRESET)
    parameters = random_parameters(config, 0)
    checkpoint = write_training_checkpoint(parent / "drafted", parameters)
    export(checkpoint, PRESET, parent / "released")
    return Exported(checkpoint, parent / "released", config, parameters)
