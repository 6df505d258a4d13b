"""Operators that remember what they were given and what they gave."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import Tensor


class Recorder:
    """Stands for the operators of a module; ``calls[name]`` are the (arguments, result) of each call, as they were."""

    def __init__(self, operators: Any) -> None:
        self._operators = operators
        self.calls: dict[str, list[tuple[tuple[Any, ...], Any]]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        operator = getattr(self._operators, name)
        if not callable(operator):
            return operator

        def call(*arguments: Any, **options: Any) -> Any:
            kept = tuple(_copy(argument) for argument in arguments)
            result = operator(*arguments, **options)
            self.calls[name].append((kept, _copy(result)))
            return result

        return call


def _copy(value: Any) -> Any:
    """Rotations and sums work in place, so a tensor is kept as it was."""
    return value.clone() if isinstance(value, Tensor) else value
