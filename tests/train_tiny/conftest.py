"""A random training checkpoint of the small code model, exported once."""

from __future__ import annotations

import pytest
from checkpoints import preset_config
from export import export, read_config
from training_checkpoint import Exported, random_parameters, write_model_folder, write_training_checkpoint


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Random weights; tests do not change the files."""
    parent = tmp_path_factory.mktemp("exported")
    model = write_model_folder(parent / "model", preset_config("tiny-v41-code"))
    config = read_config(model)
    parameters = random_parameters(config, 0)
    checkpoint = write_training_checkpoint(parent / "training.safetensors", parameters)
    export(checkpoint, model, parent / "released")
    return Exported(checkpoint, model, parent / "released", config, parameters)
