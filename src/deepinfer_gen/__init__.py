"""deepinfer-gen: a compiler from a deployment spec to one specialised LLM inference engine.

``from deepinfer_gen import LLM, SamplingParams`` gives the offline API. The names load on first use, so that
importing the package (as the command line does) costs no torch import.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer_gen.runtime.llm import LLM
    from deepinfer_gen.runtime.outputs import CompletionOutput, RequestOutput
    from deepinfer_gen.runtime.sampling_params import SamplingParams

_RUNTIME_NAMES = {
    "LLM": "deepinfer_gen.runtime.llm",
    "SamplingParams": "deepinfer_gen.runtime.sampling_params",
    "RequestOutput": "deepinfer_gen.runtime.outputs",
    "CompletionOutput": "deepinfer_gen.runtime.outputs",
}

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Load one of the runtime names on first use."""
    if name not in _RUNTIME_NAMES:
        raise AttributeError(f"module 'deepinfer_gen' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_RUNTIME_NAMES[name]), name)
