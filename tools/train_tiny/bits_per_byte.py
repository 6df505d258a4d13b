"""Bits per byte of a model: what a text costs when each token is coded with the model's probability of it.

A text is coded as bos | tokens | eos; bos is given and everything behind it is paid for, eos included, so that the
figure is that of a complete code, as a compressor's is. It runs in rows of at most ``row_tokens`` tokens. A row after
the first begins with tokens that were already paid for, which are its context; the rest are scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from checkpoint_model import CheckpointModel
from paged_sequences import PagedSequence, PagedSequences
from torch import Tensor
from tqdm import tqdm


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens ``start`` to ``stop`` of ids run; they predict the tokens ``start + 1`` to ``stop``.

    Those from ``scored`` on are paid for here, all before in earlier rows.
    """

    text: int
    start: int
    stop: int
    scored: int


def rows_of(text: int, length: int, row_tokens: int, overlap: int) -> Iterator[Row]:
    """Rows over ``length`` ids, each beginning ``overlap`` tokens before the first that is still to be predicted."""
    if not 1 <= overlap < row_tokens:
        raise ValueError(f"an overlap of {overlap} tokens in rows of {row_tokens}")
    scored = 1
    while scored < length:
        start = max(0, scored - overlap)
        stop = min(start + row_tokens, length - 1)
        yield Row(text, start, stop, scored)
        scored = stop + 1


def model_bits(
    checkpoint: CheckpointModel,
    texts: Sequence[Sequence[int]],
    *,
    rows: int,
    row_tokens: int,
    overlap: int,
) -> list[float]:
    """Bits of each text of token ids (without bos and eos) under the model, ``rows`` rows run together."""
    coded = [[checkpoint.bos, *text, checkpoint.eos] for text in texts]
    work = [row for text, ids in enumerate(coded) for row in rows_of(text, len(ids), row_tokens, overlap)]
    # Rows of similar length share their steps.
    work.sort(key=lambda row: row.start - row.stop)
    bits = [0.0] * len(texts)
    engine = PagedSequences(checkpoint)
    with tqdm(total=sum(row.stop - row.start for row in work), desc="bits per byte", unit="tok") as bar:
        for first in range(0, len(work), rows):
            batch = work[first : first + rows]
            for row, cost in zip(batch, _batch_bits(engine, coded, batch, bar.update), strict=True):
                bits[row.text] += cost
    return bits


def token_bits(logits: Tensor, targets: Tensor) -> Tensor:
    """Bits float64 [K] of ``targets`` int64 [K] under the softmax of ``logits`` [K, vocab_size]."""
    wide = logits.to(torch.float64)
    return (wide.logsumexp(1) - wide.gather(1, targets.unsqueeze(1)).squeeze(1)) / math.log(2)


def _batch_bits(
    engine: PagedSequences, coded: Sequence[Sequence[int]], batch: Sequence[Row], progress: Callable[[int], object]
) -> list[float]:
    sequences = [engine.begin(coded[row.text][row.start : row.stop]) for row in batch]
    place = {sequence.slot: i for i, sequence in enumerate(sequences)}
    bits = [0.0] * len(batch)
    while True:
        waiting, counts, ends = engine.chunk(sequences)
        if not waiting:
            break
        outputs: list[int] = []
        targets: list[int] = []
        owners: list[int] = []
        for sequence, count, end in zip(waiting, counts, ends, strict=True):
            row = batch[place[sequence.slot]]
            wanted = _scored(row, sequence, count)
            outputs += [end - count + predicting for predicting in wanted]
            targets += [coded[row.text][row.start + sequence.done + predicting + 1] for predicting in wanted]
            owners += [place[sequence.slot]] * len(wanted)
        logits = engine.run(list(zip(waiting, counts, strict=True)), outputs)
        for owner, cost in zip(owners, token_bits(logits, torch.tensor(targets)).tolist(), strict=True):
            bits[owner] += cost
        progress(sum(counts))
    for sequence in sequences:
        engine.end(sequence)
    return bits


def _scored(row: Row, sequence: PagedSequence, count: int) -> range:
    """Which of the next ``count`` tokens of the row predict one that is scored."""
    already = row.scored - 1 - row.start - sequence.done
    return range(min(count, max(0, already)), count)
