"""Compares this model with nemo-automodel 0.7.0 on random small models: ``python tests/oracle/second_opinion.py``.

Each model is drawn from the config schema, written as a checkpoint in the released formats, compiled, loaded and run
over paged caches, at once and in chunks, with a draft pass behind each chunk; nemo-automodel runs the same folder in an
interpreter of its own, float32 without cache quantisation on both sides. Prints a Markdown table and a verdict, and
exits with 1 where they disagree.

What nemo-automodel answers is in ``nemo.npz`` beside the checkpoint (``nemo_runner.py``). Each of its arrays that this
side also has is one more entry of ``Result.sides``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "helpers")]

from agreement import TOLERANCE, Agreement, compare  # noqa: E402
from nemo_venv import interpreter  # noqa: E402
from random_sample import Sample, make_sample  # noqa: E402

# Near-ties are a matter of luck; more of them than this hide what the comparison is for.
_MOST_NEAR_TIES = 0.1
_VERDICTS = ("agree", "near-tie", "DISAGREE")
# The sides that compare the prompt's rows; the others compare drafts.
_PROMPT = ("chunked", "logits")
_COLUMNS = (
    "model", "layers", "streams", "heads × dim", "top-k, blocks × size", "window", "experts", "n-grams", "rows",
    "choices", "max abs", "median", "relative", "argmax", "chunked", "drafts", "draft logits", "confidence", "verdict",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """One model's row: ``chunked`` against one step, and by array what nemo-automodel gave, or why it ``refused``."""

    number: int
    sample: Sample
    sides: Mapping[str, Agreement]
    choices: int = 0
    refused: str = ""

    @property
    def worst(self) -> Agreement:
        """The side that decides the verdict."""
        return max(self.sides.values(), key=lambda side: _VERDICTS.index(side.verdict))

    @property
    def verdict(self) -> str:
        """That of the worst side, or the refusal."""
        return f"REFUSED: {self.refused}" if self.refused else self.worst.verdict


def main(arguments: Sequence[str]) -> int:
    """Draw, run, compare, print; 0 when everything agrees up to near-ties."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=30, help="how many random models (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the random models (default: 0)")
    parser.add_argument("--longest", type=int, default=200, help="most tokens of a prompt (default: 200)")
    parser.add_argument("--folder", type=Path, help="keep the checkpoints here (default: a temporary folder)")
    parser.add_argument(
        "--venv", type=Path, default=HERE.parents[1] / "build" / "nemo",
        help="environment for nemo-automodel, made on first use (default: build/nemo)",
    )  # fmt: skip
    parser.add_argument("--alone", action="store_true", help="without nemo-automodel: chunked against one step only")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        samples = [
            make_sample(folder / str(n), options.seed, n, longest=options.longest) for n in range(options.configs)
        ]
        if options.alone:
            results = [Result(n, sample, alone(sample)) for n, sample in enumerate(samples)]
        else:
            _ask_nemo(interpreter(options.venv), samples)
            results = [_compared(n, sample) for n, sample in enumerate(samples)]
    print("\n".join(table(results)))
    faults = verdict(results)
    print(f"\n{_summary(results)}", *faults, sep="\n")
    return 1 if faults else 0


def _ask_nemo(python: Path, samples: Sequence[Sample]) -> None:
    for sample in samples:
        anchors = np.array(sample.chunked.anchors, np.int64)
        np.savez(sample.folder / "prompt.npz", ids=np.array(sample.ids), nextn=sample.nextn, anchors=anchors)
    command = [str(python), str(HERE / "nemo_runner.py"), *(str(sample.folder) for sample in samples)]
    # Compiling a function anew for each model's sizes takes minutes and ends at a limit.
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    subprocess.run(command, check=True, env=environment)


def _compared(number: int, sample: Sample) -> Result:
    with np.load(sample.folder / "nemo.npz") as answer:
        if str(answer["error"]):
            return Result(number, sample, alone(sample), refused=str(answer["error"]))
        margin, logits = answer["margin"], sample.whole.logits.numpy()
        sides = {
            "chunked": compare(sample.chunked.logits.numpy(), logits, margin),
            "logits": compare(logits, answer["logits"], margin),
        }
        if sample.nextn:
            parted = sides["logits"] if sides["logits"].agreed < sample.rows else None
            sides |= _drafts(sample, answer["draft_logits"], answer["confidences"], answer["draft_margin"], parted)
        return Result(number, sample, sides, int(answer["choices"]))


def _drafts(
    sample: Sample,
    logits: NDArray[np.float32],
    confidences: NDArray[np.float32],
    margin: NDArray[np.float32],
    parted: Agreement | None,
) -> dict[str, Agreement]:
    """The drafts behind each chunk against the other side's; ``parted`` is where the prompts' rows were.

    A draft block is explained by its own near-ties, and by those of the rows that it reads.
    """
    if parted is not None:
        margin = np.where(np.array(sample.chunked.anchors) > parted.agreed, np.minimum(margin, parted.margin), margin)
    margin = np.repeat(margin, sample.nextn)
    run = sample.chunked
    return {
        "drafts": compare(run.draft_logits.flatten(0, 1).numpy(), logits.reshape(-1, logits.shape[2]), margin),
        "confidence": compare(run.confidences.view(-1, 1).numpy(), confidences.reshape(-1, 1), margin),
    }


def alone(sample: Sample) -> dict[str, Agreement]:
    """Without the other side: chunks against one step, whose only drafts are those behind the whole prompt."""
    never = np.full(sample.rows, np.inf, np.float32)
    sides = {"chunked": compare(sample.chunked.logits.numpy(), sample.whole.logits.numpy(), never)}
    if sample.nextn:
        last, never = sample.chunked.draft_logits[-1].numpy(), never[: sample.nextn]
        sides["drafts"] = compare(last, sample.whole.draft_logits[-1].numpy(), never)
        sides["confidence"] = compare(
            sample.chunked.confidences[-1:].T.numpy(), sample.whole.confidences[-1:].T.numpy(), never
        )
    return sides


def table(results: Sequence[Result]) -> list[str]:
    """The rows of a Markdown table."""
    lines = [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
    return lines + [f"| {' | '.join(_cells(result))} |" for result in results]


def _cells(result: Result) -> list[str]:
    text, logits = result.sample.model.config["text_config"], result.sides.get("logits")
    tables = (text["engram_max_ngram_size"] - 1) * text["engram_n_heads"] if text["engram_layer_ids"] else 0
    figures = ["", "", "", ""]
    if logits:
        figures = [f"{logits.largest:.1e}", f"{logits.typical:.1e}", f"{logits.relative:.1e}", f"{logits.argmax:.1%}"]
    drafts, confidence = (result.sides.get(name) for name in ("drafts", "confidence"))
    shape = f"{text['num_nextn_predict_layers']} layers, {result.sample.nextn} of {text['dspark_block_size']}"
    parted = not result.refused and result.worst.agreed < result.worst.rows
    where = f" at row {result.worst.agreed}, margin {result.worst.margin:.0e}" if parted else ""
    return [
        str(result.number),
        result.sample.roles,
        str(text["hc_mult"]),
        f"{text['num_attention_heads']} × {text['head_dim']}",
        f"{text['index_topk']}, {text['candidate_topk_blocks']} × {text['candidate_block_size']}",
        str(text["sliding_window"]),
        f"{text['num_experts_per_tok']} of {text['n_routed_experts']} + {text['n_shared_experts']}",
        f"{tables} × {text['engram_vocab_size']}" if tables else "",
        str(result.sample.rows),
        str(result.choices),
        *figures,
        f"{result.sides['chunked'].largest:.1e}",
        f"{shape}; {drafts.rows}" if drafts else "",
        f"{drafts.relative:.1e}" if drafts else "",
        f"{confidence.relative:.1e}" if confidence else "",
        result.verdict + where,
    ]


def verdict(results: Sequence[Result]) -> list[str]:
    """What is wrong, one sentence each; empty when the two sides agree."""
    faults = [f"model {r.number}: {r.verdict}" for r in results if r.verdict not in ("agree", "near-tie")]
    near = sum(r.verdict == "near-tie" for r in results)
    if near > _MOST_NEAR_TIES * len(results):
        faults.append(f"{near} of {len(results)} models part at a near-tie: too many to be luck")
    return faults


def _summary(results: Sequence[Result]) -> str:
    rows = sum(r.sample.rows for r in results)
    agreed = sum(min(r.sides[s].agreed for s in _PROMPT if s in r.sides) for r in results if not r.refused)
    drafts = [side for r in results for name, side in r.sides.items() if name == "drafts"]
    counts = {v: sum(r.verdict == v for r in results) for v in _VERDICTS}
    return (
        f"{counts['agree']} of {len(results)} models agree on all rows, {counts['near-tie']} up to a near-tie:"
        f" {agreed} of {rows} rows before any, and {sum(d.agreed for d in drafts)} of"
        f" {sum(d.rows for d in drafts)} drafts of {len(drafts)} models."
        f" Tolerance {TOLERANCE:.0e} relative; torch {torch.__version__}."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
