"""Greedy completions of held-out function heads, cut at the end of the function: do they parse, and what is in them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checkpoint_model import CheckpointModel
from decoding import greedy
from function_body import End, Statements, count_statements, cut_at_dedent
from heads import Head, text_before
from ngram import NgramModel

BEFORE = "\n\n"
"""What stands before a head in its file: the end of a line and a blank one, with which its indentation is a token."""
CONTEXT = 512
"""Tokens of a file that may stand before a head."""
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


def model_completions(
    checkpoint: CheckpointModel, heads: Sequence[Head], texts: Mapping[str, str] | None = None
) -> list[Completion]:
    """The model's, all heads in one batch, whose size the checkpoint's caches must hold.

    Each head stands alone behind a blank line, or, given the ``texts`` of the files, behind ``CONTEXT`` tokens of its
    own.
    """
    if texts is None:
        prompts = [checkpoint.encode(BEFORE + head.head) for head in heads]
    else:
        before = [text_before(texts[head.file], head) for head in heads]
        wholes = [checkpoint.encode(text + head.head) for text, head in zip(before, heads, strict=True)]
        alone = [len(checkpoint.encode(head.head)) for head in heads]
        prompts = [ids[-CONTEXT - length :] for ids, length in zip(wholes, alone, strict=True)]
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
