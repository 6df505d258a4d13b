"""``quality``: what a checkpoint is worth on the held-out files, as Markdown tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256

from argument_types import positive
from bits_per_byte import model_bits
from checkpoint_model import CheckpointModel, add_checkpoint_arguments, open_checkpoint
from completions import CONTEXT, ENOUGH, LIMIT, Completion, model_completions, ngram_completions
from compressors import ZLIB_WINDOW, xz_bytes, xz_solid_bytes, zlib_bytes
from confidence import BINS, FILE_NAME, area_under_curve, calibration_error, conditional, cumulative, read_temperatures
from confidence import pooled as pooled_confidences
from corpus import SourceFile
from drafts import Drafting, choose_prompts, measure
from function_body import End
from heads import load_heads
from manifest import recorded_corpus
from ngram import NgramModel
from places import ROOT

from deepinfer_gen.diagnostics import Diagnostic, InputError

REPORT = ROOT / "bench" / "results" / "quality-tiny-v41-code.md"
ROW_TOKENS = 1024


class Subject:
    """The checkpoint with the texts that it is measured on; what several parts need is made once."""

    def __init__(self, checkpoint: CheckpointModel, files: Sequence[SourceFile]) -> None:
        """Test files are in the order of the SHA-256 of their names, so that the first of them are a sample."""
        self.checkpoint = checkpoint
        self.train = [file for file in files if file.split == "train"]
        tests = [file for file in files if file.split == "test"]
        self.tests = sorted(tests, key=lambda file: sha256(file.name.encode()).digest())

    @cached_property
    def test_ids(self) -> list[list[int]]:
        """Token ids of the test files. ``ValueError`` for a text that its tokens do not give back."""
        ids = [self.checkpoint.encode(file.text) for file in self.tests]
        for file, tokens in zip(self.tests, ids, strict=True):
            if self.checkpoint.tokenizer.decode(tokens) != file.text:
                raise ValueError(f"{file.name} is not what its tokens decode to: its bits would be those of no code")
        return ids

    @cached_property
    def ngram(self) -> NgramModel:
        """The n-gram model of the training text."""
        c = self.checkpoint
        return NgramModel(
            [c.encode(file.text) for file in self.train],
            vocab_size=c.constant("vocab_size"), bos=c.bos, eos=c.eos,
        )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The checkpoint, how much is measured, and where the report goes."""
    add_checkpoint_arguments(parser)
    parser.add_argument(
        "--files", type=positive, metavar="N", help="test files for the bits per byte, chosen by a hash (default: all)"
    )
    parser.add_argument(
        "--overlap",
        type=positive,
        default=ROW_TOKENS // 4,
        metavar="N",
        help=f"context tokens at the start of each row of {ROW_TOKENS} (default: %(default)s)",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured (default: all)"
    )
    parser.add_argument("--show", action="store_true", help="print the completions too")
    parser.add_argument("--write", action="store_true", help=f"write the report to {REPORT.parent.name}/{REPORT.name}")


def run(arguments: argparse.Namespace) -> None:
    """Measure and print, part by part."""
    if arguments.write and (arguments.files or set(arguments.parts) != set(PARTS)):
        message = "--write would replace the whole report by a part of it"
        raise InputError(Diagnostic("DI451", message, help="leave out --files and --parts, or --write"))
    checkpoint = open_checkpoint(arguments.checkpoint, policy=arguments.policy, rows=max(arguments.rows, _heads()))
    subject = Subject(checkpoint, recorded_corpus())
    lines = [f"# Quality of {checkpoint.folder.name} on held-out files, policy {arguments.policy}", ""]
    print(*lines, sep="\n")
    for part in arguments.parts:
        for line in PARTS[part](subject, arguments):
            print(line, flush=True)
            lines.append(line)
    if arguments.write:
        REPORT.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _heads() -> int:
    return len(load_heads())


def bits_section(subject: Subject, arguments: argparse.Namespace) -> Iterator[str]:
    """Bits per byte of the model, the n-gram model and the compressors."""
    ids = subject.test_ids[: arguments.files]
    texts = [file.data for file in subject.tests[: arguments.files]]
    known = [file.data for file in subject.train]
    size, tokens = sum(map(len, texts)), sum(map(len, ids))
    model = sum(
        model_bits(subject.checkpoint, ids, rows=arguments.rows, row_tokens=ROW_TOKENS, overlap=arguments.overlap)
    )
    ngram = sum(map(subject.ngram.bits, ids))
    yield f"## Bits per byte of {len(texts)} of {len(subject.tests)} test files ({size:,} bytes, {tokens:,} tokens)"
    yield ""
    yield (
        f"Each file is coded from bos through eos. The model runs rows of at most {ROW_TOKENS} tokens; each but a"
        f" file's first begins with {arguments.overlap} tokens of context. The {subject.ngram.order}-gram model is"
        " interpolated modified Kneser-Ney over the same tokens, trained on the"
        f" {sum(map(len, known)):,} bytes of the train split."
    )
    yield ""
    yield "| what | knows | bits per byte |"
    yield "|---|---|---:|"
    for what, knows, bits in (
        (subject.checkpoint.folder.name, "its training", model),
        (f"{subject.ngram.order}-gram model", "the train split", ngram),
        ("xz -9e", "nothing; each file alone", 8 * xz_bytes(texts)),
        ("xz -9e", "the train split and the files before: growth of a solid archive", 8 * xz_solid_bytes(texts, known)),
        ("zlib -9", "nothing; each file alone", 8 * zlib_bytes(texts)),
        ("zlib -9", f"the last {ZLIB_WINDOW:,} bytes of the train split", 8 * zlib_bytes(texts, b"".join(known))),
    ):
        yield f"| {what} | {knows} | {bits / size:.3f} |"
    yield ""


def completions_section(subject: Subject, arguments: argparse.Namespace) -> Iterator[str]:
    """How many function heads are completed."""
    heads = load_heads()
    name, texts = subject.checkpoint.folder.name, {file.name: file.text for file in subject.tests}
    made = {
        name: model_completions(subject.checkpoint, heads),
        f"{name}, behind {CONTEXT} tokens of the file": model_completions(subject.checkpoint, heads, texts),
        f"{subject.ngram.order}-gram model": ngram_completions(subject.checkpoint, subject.ngram, heads),
    }
    yield f"## Greedy completions of {len(heads)} held-out function heads, at most {LIMIT} tokens, cut at the dedent"
    yield ""
    yield (
        "A head stands alone behind a blank line where nothing else is said. Statements are counted in the whole body,"
        " nested ones included and strings that stand alone left out;"
        " in brackets are those of the body itself, the docstring included."
    )
    yield ""
    yield f"| what | parse | parse with {ENOUGH} statements or more | cut at the limit |"
    yield "|---|---:|---:|---:|"
    for what, completions in made.items():
        parsed = sum(completion.statements is not None for completion in completions)
        enough = sum(completion.is_enough for completion in completions)
        unended = sum(completion.end is End.LIMIT for completion in completions)
        yield f"| {what} | {parsed} | {enough} | {unended} |"
    yield ""
    yield "| head | " + " | ".join(made) + " |"
    yield "|---|" + "---|" * len(made)
    for head, *row in zip(heads, *made.values(), strict=True):
        yield f"| `{head.name}` of {head.file} | " + " | ".join(map(_verdict, row)) + " |"
    yield ""
    if arguments.show:
        for what, completions in made.items():
            for completion in completions:
                yield from ("```python", f"# {what}: {completion.head.file}, {_verdict(completion)}")
                yield from ((completion.head.head + completion.body).rstrip("\n"), "```", "")


def _verdict(completion: Completion) -> str:
    end = "" if completion.end is End.DEDENT else f", ended by the {completion.end.value}"
    if completion.statements is None:
        return f"does not parse{end}"
    return f"{completion.statements.nested} ({completion.statements.top}){end}"


def drafts_section(subject: Subject, arguments: argparse.Namespace) -> Iterator[str]:
    """Accepted drafts, and how well the confidences foretell them."""
    named = [(file.name, ids) for file, ids in zip(subject.tests, subject.test_ids, strict=True)]
    prompts = choose_prompts(subject.checkpoint, named, arguments.prompts)
    found = measure(subject.checkpoint, prompts, arguments.tokens, rows=arguments.rows)
    nextn = subject.checkpoint.nextn
    yield f"## Drafts: greedy, {nextn} a round, {found.prompts} prompts of test files, {arguments.tokens} new tokens"
    yield ""
    yield f"| tokens per step, bonus token included | rounds | {_positions('accepted', nextn)} |"
    yield f"|---:|---:|{'---:|' * nextn}"
    rates = " | ".join(f"{rate:.3f}" for rate in found.acceptance)
    yield f"| {found.tokens_per_round:.3f} | {len(found.rounds.accepted):,} | {rates} |"
    yield ""
    yield f"Text equal to that of plain greedy decoding: {found.equal} of {found.prompts}."
    yield ""
    yield from _confidence_section(subject, found)


def _confidence_section(subject: Subject, found: Drafting) -> Iterator[str]:
    nextn = subject.checkpoint.nextn
    fitted = read_temperatures(subject.checkpoint.folder, nextn)
    yield f"## Confidence in the same rounds; calibration error in {BINS} bins of equal mass"
    yield ""
    yield (
        "| temperatures | calibration error of the product | AUC of the product | AUC, all |"
        f" {_positions('AUC', nextn)} |"
    )
    yield f"|---|---:|---:|---:|{'---:|' * nextn}"
    cases = [("none", [1.0] * nextn)]
    if fitted is not None:
        cases.append((", ".join(f"{t:.3f}" for t in fitted), fitted))
    single = [area_under_curve(*conditional(found.rounds, k)) for k in range(nextn)]
    for name, temperatures in cases:
        products = cumulative(found.rounds, temperatures)
        error, joint = calibration_error(*products), area_under_curve(*products)
        together = area_under_curve(*pooled_confidences(found.rounds, temperatures))
        yield f"| {name} | {error:.2%} | {joint:.3f} | {together:.3f} | {' | '.join(f'{a:.3f}' for a in single)} |"
    yield ""
    if fitted is None:
        yield f"The checkpoint has no {FILE_NAME}; `calibrate` writes it."
        yield ""


def _positions(what: str, nextn: int) -> str:
    return " | ".join(f"{what}, draft {k + 1}" for k in range(nextn))


PARTS: dict[str, Callable[[Subject, argparse.Namespace], Iterator[str]]] = {
    "bits": bits_section,
    "completions": completions_section,
    "drafts": drafts_section,
}
