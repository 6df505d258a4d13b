"""Greedy completions of held-out function heads, cut at the end of the function: do they parse, and what is in them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint_model import CheckpointModel
from decoding import greedy
from function_body import End, Statements, count_statements, cut_at_dedent
from heads import Head
from ngram import NgramModel

BEFORE = "\n\n"
"""What stands before a head in its file: the end of a line and a blank one, with which its indentation is a token."""
LIMIT = 256
"""New tokens of a completion at most."""
ENOUGH = 3
"""Statements of a body that counts."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A body as it was cut; ``statements`` is None where head and body do not parse."""

    head: Head
    body: str
    end: End
    statements: Statements | None

    @property
    def is_enough(self) -> bool:
        """Whether it parses and says something."""
        return self.statements is not None and self.statements.nested >= ENOUGH


def model_completions(checkpoint: CheckpointModel, heads: Sequence[Head]) -> list[Completion]:
    """The model's, all heads in one batch, whose size the checkpoint's caches must hold."""
    prompts = [checkpoint.encode(BEFORE + head.head) for head in heads]
    transcripts = greedy(checkpoint, prompts, LIMIT, rows=len(prompts), eos=checkpoint.eos)
    return [_completion(checkpoint, head, t.tokens) for head, t in zip(heads, transcripts, strict=True)]


def ngram_completions(checkpoint: CheckpointModel, ngram: NgramModel, heads: Sequence[Head]) -> list[Completion]:
    """Those of the n-gram model over the same tokens."""
    return [_completion(checkpoint, head, ngram.greedy(checkpoint.encode(BEFORE + head.head), LIMIT)) for head in heads]


def _completion(checkpoint: CheckpointModel, head: Head, tokens: list[int]) -> Completion:
    finished = tokens[-1] == checkpoint.eos
    text = checkpoint.tokenizer.decode(tokens[:-1] if finished else tokens)
    body, end = cut_at_dedent(head.head, text, finished=finished)
    return Completion(head, body, end, count_statements(head.head, body))
