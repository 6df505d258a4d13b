"""Sampling defaults that a checkpoint brings along."""

from __future__ import annotations

from pathlib import Path

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.checkpoint_files import read_object
from deepinfer_gen.runtime.sampling_params import ParameterError, SamplingParams

_FIELD_OF = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


def default_sampling_params(checkpoint: Path) -> SamplingParams:
    """vLLM's defaults with what ``generation_config.json`` says; raises ``InputError`` (DI306) if it cannot be used."""
    path = checkpoint / "generation_config.json"
    if not path.is_file():
        return SamplingParams()
    config = read_object(path, "the generation config", "DI306")
    given = {field: config[name] for name, field in _FIELD_OF.items() if config.get(name) is not None}
    try:
        return SamplingParams(**given)
    except ParameterError as fault:
        message, remedy = f"the generation config cannot be used: {fault}", "correct the value, or remove the file"
        raise InputError(Diagnostic("DI306", message, file=str(path), help=remedy)) from fault
