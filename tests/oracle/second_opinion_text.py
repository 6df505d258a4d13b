"""Greedy text of a checkpoint beside nemo-automodel's: ``python tests/oracle/second_opinion_text.py CHECKPOINT``.

The checkpoint's engine is compiled and its ``LLM`` continues the prompts, in one batch; nemo-automodel 0.7.0 loads the
same folder, strictly too, in an interpreter of its own, and says after each token which one it would have chosen. Both
in float32, once without and once with cache quantisation (policies ``float32_unquantized`` and ``float32``).

Where the texts part the table gives the token and nemo-automodel's gap: the logit of its choice less that of ours. A
near-tie is a gap below 1e-4 of the logits' root mean square, or a choice inside the model decided by less than 1e-5 of
its range. A quantised cache turns one rounding into a step of its format, so there a gap below a hundredth is one, too.
Exits with 1 where texts part otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "helpers")]

from agreement import NEAR_TIE, TOLERANCE  # noqa: E402
from held_out_prompts import held_out_prompts  # noqa: E402
from nemo_venv import interpreter  # noqa: E402
from spec_plan import spec_plan  # noqa: E402

from deepinfer_gen.codegen.build import build_folder  # noqa: E402
from deepinfer_gen.codegen.render import render  # noqa: E402
from deepinfer_gen.codegen.write import write_folder  # noqa: E402
from deepinfer_gen.runtime.llm import LLM  # noqa: E402
from deepinfer_gen.runtime.sampling_params import SamplingParams  # noqa: E402

# Gap of a near-tie relative to the logits' root mean square.
_NEAR_GAP = {"float32_unquantized": TOLERANCE, "float32": 1e-2}
_LENGTHS = (1, 2, 3, 33, 127, 128, 129, 300)


@dataclass(frozen=True, slots=True)
class Text:
    """``ids`` begin with ``prompt`` given tokens; ``logprobs`` are those of the tokens after them."""

    ids: list[int]
    prompt: int
    logprobs: list[float]

    @property
    def written(self) -> int:
        """Tokens after the prompt."""
        return len(self.ids) - self.prompt


@dataclass(frozen=True, slots=True)
class Compared:
    """``agreed`` tokens come before the first that nemo-automodel would not have chosen, whose ``gap`` and ``margin``
    these are. ``largest`` is the largest difference of a token's log probability up to there.
    """

    text: Text
    agreed: int
    largest: float
    gap: float = 0.0
    margin: float = float("inf")
    near: bool = True

    @property
    def verdict(self) -> str:
        """``equal``, ``near-tie`` or ``DISAGREE``."""
        if self.agreed == self.text.written:
            return "equal"
        return "near-tie" if self.near else "DISAGREE"


def main(arguments: Sequence[str]) -> int:
    """Write, follow, compare, print; 0 when the texts are equal up to near-ties."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="checkpoint folder")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--prompts", type=Path, help="JSON list of texts or of lists of ids (default: 8 of random ids)")
    given.add_argument(
        "--held-out",
        action="store_true",
        help="prompts of the code model: its 20 held-out heads, 3 beginnings of files",
    )
    parser.add_argument("--tokens", type=int, default=64, help="tokens after each prompt (default: 64)")
    parser.add_argument(
        "--venv", type=Path, default=HERE.parents[1] / "build" / "nemo",
        help="environment for nemo-automodel, made on first use (default: build/nemo)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    config = json.loads((options.checkpoint / "config.json").read_text(encoding="utf-8"))
    prompts: Sequence[str | list[int]] = _random_prompts(config)
    if options.held_out:
        prompts = held_out_prompts(options.checkpoint)
    elif options.prompts:
        prompts = json.loads(options.prompts.read_text(encoding="utf-8"))
    python = interpreter(options.venv)
    print(
        "| policy | prompt | written | equal | log probability | gap | margin | verdict |", "|---" * 8 + "|", sep="\n"
    )
    verdicts = []
    for policy in _NEAR_GAP:
        with tempfile.TemporaryDirectory() as work:
            texts = write_texts(options.checkpoint, Path(work), prompts, options.tokens, policy)
            for compared in follow_texts(python, options.checkpoint, Path(work), texts, policy):
                verdicts.append(compared.verdict)
                print(_row(policy, compared))
    counts = {verdict: verdicts.count(verdict) for verdict in ("equal", "near-tie", "DISAGREE")}
    print(f"\n{', '.join(f'{count} {verdict}' for verdict, count in counts.items())} of {len(verdicts)} texts")
    return 1 if counts["DISAGREE"] else 0


def _random_prompts(config: Mapping[str, Any]) -> list[list[int]]:
    """Ordinary ids: the first of a vocabulary are the special ones."""
    vocabulary = config["text_config"]["vocab_size"]
    return [[random.Random(n).randrange(8, vocabulary) for _ in range(n)] for n in _LENGTHS]


def write_texts(
    checkpoint: Path, work: Path, prompts: Sequence[str | list[int]], tokens: int, policy: str
) -> list[Text]:
    """The prompts, each with the greedy tokens that an engine compiled for the checkpoint writes behind it."""
    shutil.copyfile(checkpoint / "config.json", work / "config.json")
    # An id has a text, and a text no fewer bytes than ids, so that this is room for all.
    longest = max(len(prompt.encode() if isinstance(prompt, str) else prompt) for prompt in prompts) + 1
    spec = {
        "engine": {"name": "second-opinion"},
        "model": "config.json",
        "hardware": "cpu",
        "limits": {"max_num_seqs": len(prompts), "max_model_len": longest + tokens},
        "speculative": {"nextn": 0},
        "yoco": {"mode": "off"},
        "schedule": {"zos": "off"},
        "numerics": {"policy": policy},
    }
    folder = write_folder(render(spec_plan(work, spec)), work / "engine").path
    build_folder(folder)
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=0)
    given = [prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt} for prompt in prompts]
    texts = []
    with LLM(checkpoint, engine=folder) as llm:
        for output in llm.generate(given, params, use_tqdm=False):
            (completion,), ids = output.outputs, output.prompt_token_ids
            if ids is None or completion.logprobs is None:
                raise ValueError("the engine gave no ids or no log probabilities")
            chosen = [
                each[token].logprob for each, token in zip(completion.logprobs, completion.token_ids, strict=True)
            ]
            texts.append(Text([*ids, *completion.token_ids], len(ids), chosen))
    return texts


def follow_texts(python: Path, checkpoint: Path, work: Path, texts: Sequence[Text], policy: str) -> list[Compared]:
    """What nemo-automodel makes of the texts."""
    arrays: dict[str, Any] = {"quantized": policy == "float32"}
    for number, text in enumerate(texts):
        arrays |= {f"ids_{number}": np.array(text.ids, np.int64), f"prompt_{number}": text.prompt}
    np.savez(work / "texts.npz", **arrays)
    # Compiling a function anew for each length takes minutes and ends at a limit.
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [str(python), str(HERE / "nemo_text.py"), str(checkpoint), str(work)]
    subprocess.run(command, check=True, env=environment)
    with np.load(work / "nemo.npz") as answer:
        found = dict(answer)
    return [
        compare_text(text, {name: found[f"{name}_{n}"] for name in _ANSWER}, policy) for n, text in enumerate(texts)
    ]


_ANSWER = ("greedy", "gap", "logprob", "margin", "scale")


def compare_text(text: Text, answer: Mapping[str, Any], policy: str) -> Compared:
    """One text against nemo-automodel's choices along it."""
    parted = np.flatnonzero(answer["greedy"] != np.array(text.ids[text.prompt :]))
    agreed = int(parted[0]) if parted.size else text.written
    until = slice(0, min(agreed + 1, text.written))
    largest = float(np.abs(answer["logprob"][until] - np.array(text.logprobs[until])).max())
    if agreed == text.written:
        return Compared(text, agreed, largest)
    gap, margin = float(answer["gap"][agreed]), float(answer["margin"][agreed])
    near = gap < _NEAR_GAP[policy] * float(answer["scale"]) or margin < NEAR_TIE
    return Compared(text, agreed, largest, gap, margin, near)


def _row(policy: str, compared: Compared) -> str:
    text, parted = compared.text, compared.verdict != "equal"
    cells = [
        policy,
        str(text.prompt),
        str(text.written),
        str(compared.agreed),
        f"{compared.largest:.1e}",
        f"{compared.gap:.1e}" if parted else "",
        f"{compared.margin:.1e}" if parted else "",
        compared.verdict,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
