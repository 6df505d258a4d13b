"""Where a layer's time goes on the CPU: ``python bench/model.py [--runs N] [--released-runs N]``.

One layer of each kind runs the same step again and again, and the CPU time of each operator is taken; the layers share
the step, so that reuse layers find what their source published. The tiny model is the preset tiny-v41 in float32 over
300 held tokens; the other has the released widths, formats and policy over 17,000 held tokens, eight experts standing
for 384 and random weights. Operators decode a weight when they use it, and the reference ones do that anew in every
call: at few rows this is most of a released layer's time. What is left of a layer beside its operators is norms,
rotations, index tensors and the encoding of cache rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
from released_scene import Parts, Scene, released
from tiny_spec import tiny_plan

from deepinfer_gen.codegen.views.layout import layout_content
from deepinfer_gen.codegen.views.model import kernels, model_plan
from deepinfer_gen.runtime.kernels.operators import ReferenceOperators
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.layer import Layer
from deepinfer_gen.runtime.model.numerics import NUMERICS
from deepinfer_gen.runtime.plan_types import LayerPlan
from deepinfer_gen.runtime.weights import load_weights
from deepinfer_gen.specs.presets import preset_folder

# Tokens that a step adds to each of its rows.
STEPS = {"prefill of 64": [64], "decode of 1": [1], "decode of 8": [1] * 8}
COLUMNS = {
    "linear": ("linear",), "grouped linear": ("grouped_linear",), "experts": ("moe_experts", "swiglu"),
    "attention": ("sparse_attention",), "index scores": ("index_scores",),
    "mHC": ("hyper_mix", "hyper_collapse", "hyper_expand"), "compressor": ("pool_members",),
    "Engram rows": ("engram_gather",), "scatter": ("kv_scatter",),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: python bench/model.py --runs 9 --released-runs 1"
    )
    parser.add_argument("--runs", type=int, default=31, help="runs of the tiny model's layers, one more warms up")
    parser.add_argument("--released-runs", type=int, default=3, help="runs of the layers of released widths")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| layer | step | ms | {' | '.join(COLUMNS)} | rest |")
    print(f"|---|---|---:|{'---:|' * (len(COLUMNS) + 1)}")
    rows("tiny", tiny(), held=300, runs=arguments.runs)
    with tempfile.TemporaryDirectory() as work:
        rows("released", released(Path(work), "released", blocks=1100), held=17_000, runs=arguments.released_runs)


def tiny() -> Parts:
    """The preset of the numeric reference with the weights that ship with it."""
    plan = tiny_plan()
    model = model_plan(plan)
    constants = Constants.of(model)
    weights = load_weights(model, constants, preset_folder("tiny-v41"))
    return Parts(
        model,
        layout_content(plan),
        constants,
        ReferenceOperators(kernels(plan), NUMERICS[model.policy]),
        weights,
    )


def rows(model: str, parts: Parts, *, held: int, runs: int) -> None:
    """One row for each kind of layer and step: medians of the layer's and of each operator's ms, and of its share."""
    timed = TimedOperators(parts.operators)
    parts = replace(parts, operators=timed)
    kinds = layers_of_each_kind(parts.plan.layers, tables=model == "tiny")
    layers = [(kind, plan.index, Layer(parts.source, plan, parts.constants, timed)) for kind, plan in kinds.items()]
    for name, counts in STEPS.items():
        scene = Scene(parts, [held] * len(counts))
        scene.fill([index for _, index, _ in layers])
        measured = [run(scene, counts, layers, timed) for _ in range(runs + 1)][1:]
        for kind, index, _ in layers:
            total = statistics.median(times[index]["layer"] for times in measured)
            cells = []
            for names in (*COLUMNS.values(), ("rest",)):
                spent = [sum(times[index][n] for n in names) for times in measured]
                shares = [part / times[index]["layer"] for part, times in zip(spent, measured, strict=True)]
                part, share = statistics.median(spent), statistics.median(shares)
                cells.append(f"{milliseconds(part)} ({share:.0%})" if part else "–")
            print(f"| {model}, {kind} | {name} | {milliseconds(total)} | {' | '.join(cells)} |", flush=True)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds > 0.1 else f"{seconds * 1e3:.2f}"


def layers_of_each_kind(layers: Sequence[LayerPlan], *, tables: bool) -> Mapping[str, LayerPlan]:
    """The first layer of each kind, in order; with ``tables`` also the first that has an Engram."""
    chosen: dict[str, LayerPlan] = {}
    for layer in layers:
        if layer.engram:
            if tables:
                chosen.setdefault("window and Engram", layer)
        elif layer.ratio == 0:
            chosen.setdefault("window", layer)
        elif layer.kv_source == layer.index:
            chosen.setdefault(f"full, ratio {layer.ratio}", layer)
        else:
            kind = "reindex" if layer.index_source == layer.index else "reuse"
            chosen.setdefault(f"{kind}, ratio {layer.ratio}", layer)
    return chosen


def run(
    scene: Scene, counts: Sequence[int], layers: Sequence[tuple[str, int, Layer]], timed: TimedOperators
) -> dict[int, dict[str, float]]:
    """Seconds of one step by layer, then by operator; ``layer`` is the whole and ``rest`` what no operator took."""
    c = scene.engine.constants
    tokens = sum(counts)
    ngrams = torch.arange(tokens * c.engram_max_ngram_size).view(tokens, -1) % c.engram_compressed_vocab_size
    step = scene.step(counts, ngrams)
    x = scene.randn(tokens, c.hc_mult, c.hidden_size).to(timed.numerics.activation)
    pre = torch.full((tokens, c.hc_mult), 1 / c.hc_mult)
    result = {}
    for _, index, layer in layers:
        timed.seconds.clear()
        with torch.inference_mode():
            start = time.thread_time()
            x, pre = layer(x, pre, step)
            whole = time.thread_time() - start
        result[index] = defaultdict(float, timed.seconds, layer=whole, rest=whole - sum(timed.seconds.values()))
    return result


class TimedOperators:
    """Operators whose CPU time is taken; ``seconds`` sums it by name."""

    def __init__(self, operators: ReferenceOperators) -> None:
        self.numerics = operators.numerics
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._operators = operators

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator = getattr(self._operators, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.thread_time()
            try:
                return operator(*arguments, **options)
            finally:
                self.seconds[name] += time.thread_time() - start

        return timed


if __name__ == "__main__":
    main()
