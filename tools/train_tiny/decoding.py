"""Greedy decoding, plain and with drafts: run the drafts as one row, keep those that the model would have said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from checkpoint_model import CheckpointModel
from paged_sequences import PagedSequence, PagedSequences
from tqdm import tqdm


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a sequence: ``accepted`` of its drafts, and the logit of the confidence head for each of them.

    Whether drafts were right is known for the first ``observed`` of them; what stands behind eos has no answer.
    """

    accepted: int
    observed: int
    confidence_logits: tuple[float, ...]


@dataclass(slots=True)
class Transcript:
    """New tokens of one prompt, eos included where it ended, and the rounds that made them; plain decoding has none."""

    tokens: list[int]
    rounds: list[Round] = field(default_factory=list)


def greedy(
    checkpoint: CheckpointModel, prompts: Sequence[Sequence[int]], count: int, *, rows: int, eos: int | None
) -> list[Transcript]:
    """``count`` likeliest tokens behind each prompt, fewer where ``eos`` ends it; ``rows`` prompts are run together."""
    return [t for batch in _batches(checkpoint, prompts, rows, "greedy") for t in _greedy(*batch, count, eos)]


def speculate(
    checkpoint: CheckpointModel, prompts: Sequence[Sequence[int]], count: int, *, rows: int, eos: int | None
) -> list[Transcript]:
    """Like ``greedy`` with drafts; the last round of a prompt may bring it beyond ``count``."""
    return [t for batch in _batches(checkpoint, prompts, rows, "drafting") for t in _speculate(*batch, count, eos)]


_Batch = tuple[PagedSequences, list[PagedSequence], list[Transcript]]


def _batches(checkpoint: CheckpointModel, prompts: Sequence[Sequence[int]], rows: int, what: str) -> Iterator[_Batch]:
    """Batches of sequences after their prefill, each with its first token; their caches are given back."""
    engine = PagedSequences(checkpoint)
    with tqdm(total=len(prompts), desc=what, unit="prompt") as bar:
        for start in range(0, len(prompts), rows):
            sequences = [engine.begin(prompt) for prompt in prompts[start : start + rows]]
            yield engine, sequences, [Transcript([token]) for token in engine.prefill(sequences)]
            for sequence in sequences:
                engine.end(sequence)
            bar.update(len(sequences))


def _running(
    sequences: list[PagedSequence], transcripts: list[Transcript], count: int, eos: int | None
) -> list[tuple[PagedSequence, Transcript]]:
    both = zip(sequences, transcripts, strict=True)
    return [(s, t) for s, t in both if len(t.tokens) < count and t.tokens[-1] != eos]


def _greedy(
    engine: PagedSequences, sequences: list[PagedSequence], transcripts: list[Transcript], count: int, eos: int | None
) -> list[Transcript]:
    while rows := _running(sequences, transcripts, count, eos):
        for sequence, transcript in rows:
            sequence.ids.append(transcript.tokens[-1])
        best = engine.run([(sequence, 1) for sequence, _ in rows], range(len(rows))).argmax(1).tolist()
        for (_, transcript), token in zip(rows, best, strict=True):
            transcript.tokens.append(token)
    return transcripts


def _speculate(
    engine: PagedSequences, sequences: list[PagedSequence], transcripts: list[Transcript], count: int, eos: int | None
) -> list[Transcript]:
    length = 1 + engine.checkpoint.nextn
    while rows := _running(sequences, transcripts, count, eos):
        drafts = engine.draft([s for s, _ in rows], [t.tokens[-1] for _, t in rows])
        guesses, confidences = drafts.ids.tolist(), drafts.confidence_logits.tolist()
        for (sequence, transcript), guessed in zip(rows, guesses, strict=True):
            sequence.ids += [transcript.tokens[-1], *guessed]
        logits = engine.run([(sequence, length) for sequence, _ in rows], range(len(rows) * length))
        answers = logits.argmax(1).view(-1, length).tolist()
        for (sequence, transcript), guessed, right, confidence in zip(rows, guesses, answers, confidences, strict=True):
            accepted = next((k for k, token in enumerate(guessed) if token != right[k]), len(guessed))
            said, finished = _until(right[: accepted + 1], eos)
            transcript.tokens += said
            if finished and len(said) <= accepted:
                transcript.rounds.append(Round(len(said), len(said), tuple(confidence)))
            else:
                transcript.rounds.append(Round(accepted, len(guessed), tuple(confidence)))
            sequence.forget(len(guessed) - accepted)
    return transcripts


def _until(tokens: list[int], eos: int | None) -> tuple[list[int], bool]:
    """The tokens up to eos and whether it is among them."""
    end = next((i for i, token in enumerate(tokens) if token == eos), None)
    return (tokens, False) if end is None else (tokens[: end + 1], True)
