"""The progress bar of ``generate``, with vLLM's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from deepinfer_gen.runtime.outputs import RequestOutput

UseTqdm = bool | Callable[..., Any]


class ProgressBar:
    """Counts finished requests and shows the estimated speed; nothing is shown when ``use_tqdm`` is False."""

    def __init__(self, total: int, use_tqdm: UseTqdm) -> None:
        self._bar: Any = None
        self._input_tokens = 0
        self._output_tokens = 0
        if use_tqdm:
            make = use_tqdm if callable(use_tqdm) else tqdm
            self._bar = make(total=total, desc="Processed prompts", dynamic_ncols=True, postfix=_speed(0, 0, 0.0))

    def finished(self, output: RequestOutput) -> None:
        """Count one request."""
        if self._bar is None:
            return
        self._input_tokens += len(output.prompt_token_ids or ())
        self._output_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        self._bar.postfix = _speed(self._input_tokens, self._output_tokens, self._bar.format_dict["elapsed"])
        self._bar.update(1)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


def _speed(input_tokens: int, output_tokens: int, seconds: float) -> str:
    seconds = seconds or float("inf")
    return f"est. speed input: {input_tokens / seconds:.2f} toks/s, output: {output_tokens / seconds:.2f} toks/s"
