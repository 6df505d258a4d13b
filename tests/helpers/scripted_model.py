"""A model whose next token is a known function of the last token and its position."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.model.step_counts import StepCounts

VOCAB = 512


class ScriptedModel:
    """Called like the real model; the scripted token gets logit 10, the id behind it 9, all others 0.

    It computes no layer and writes no cache.
    """

    counts = StepCounts()

    def __call__(self, batch: ForwardBatch, cache: object, output_tokens: Tensor) -> Tensor:
        logits = torch.zeros(len(output_tokens), VOCAB)
        for row, token in enumerate(output_tokens.tolist()):
            following = next_token(int(batch.input_ids[token]), int(batch.positions[token]))
            logits[row, following], logits[row, following + 1] = 10.0, 9.0
        return logits


def next_token(token: int, position: int) -> int:
    """The scripted continuation; never one of the ids below 3, which are special."""
    return 3 + (token * 31 + position * 7 + 5) % 500


def continuation(prompt: list[int], length: int) -> list[int]:
    """What the scripted model generates behind ``prompt``."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens[-1], len(tokens) - 1))
    return tokens[len(prompt) :]


def words(ids: list[int]) -> str:
    """Text of ids in the tiny tokenizer: w0 W0 w1 W1 … from id 3 on."""
    return " ".join(f"{'wW'[(i - 3) % 2]}{(i - 3) // 2}" for i in ids)
