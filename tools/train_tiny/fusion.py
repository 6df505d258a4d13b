"""Functions that are compiled on a GPU and run as written on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

# One function meets the shapes of every kind of layer, in training and in evaluation.
torch._dynamo.config.recompile_limit = 64


def fused(function: Callable[..., Any], *, any_shape: bool = False) -> Callable[..., Any]:
    """``function`` of tensors, the first of which decides: on a GPU one compiled kernel sequence for its shapes, or
    one for ``any_shape``.
    """
    compiled = torch.compile(function, dynamic=any_shape)

    @functools.wraps(function)
    def call(first: torch.Tensor, *rest: Any, **options: Any) -> Any:
        return (compiled if first.is_cuda else function)(first, *rest, **options)

    return call
