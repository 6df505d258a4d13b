"""Hash tables of the Engram layers: prime moduli, multipliers and row offsets."""

from __future__ import annotations

from itertools import accumulate, islice

from deepinfer_gen.codegen.derive.faults import fault
from deepinfer_gen.codegen.derive.pcg64 import bounded_integers
from deepinfer_gen.codegen.derive.primes import primes_after
from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved

_SEED_PER_LAYER = 10007
_C = "model.config"


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``engram.L.{primes,offsets,rows,multipliers}``; lists run over (order, head), the head fastest."""
    b.formula(
        "engram.tables_per_layer",
        "(max_ngram - 1) * heads",
        why="one table for every n-gram order from 2 up and every hash head",
        max_ngram=f"{_C}.engram_max_ngram_size",
        heads=f"{_C}.engram_n_heads",
    )
    b.formula(
        "engram.history_tokens",
        "max_ngram - 1",
        unit="tokens",
        why="ids before a step's first query that its longest n-gram reaches back to",
        max_ngram=f"{_C}.engram_max_ngram_size",
    )
    b.formula(
        "engram.multiplier_bound",
        "(2 ** 63 - 1) // vocab // 2",
        why="an odd multiplier below twice this keeps token times multiplier inside 63 bits",
        vocab=f"{_C}.engram_compressed_vocab_size",
    )
    tables, bound = b.integer("engram.tables_per_layer"), b.integer("engram.multiplier_bound")
    search = primes_after(r.model.engram_vocab_size - 1)
    for layer, expected in zip(r.model.engram_layer_ids, r.model.engram_num_embeddings, strict=True):
        _layer(b, r, layer, expected, tuple(islice(search, tables)), bound)


def multipliers(layer: int, bound: int, count: int) -> tuple[int, ...]:
    """The hash multipliers of a layer for ``count`` look-back distances: odd, and below twice ``bound``."""
    return tuple(2 * m + 1 for m in bounded_integers(_SEED_PER_LAYER * layer, bound, count))


def _layer(b: PlanBuilder, r: Resolved, layer: int, expected: int, primes: tuple[int, ...], bound: int) -> None:
    prefix = f"engram.{layer}"
    b.table(
        f"{prefix}.primes",
        primes,
        unit="rows",
        formula="the next tables_per_layer unused primes from engram_vocab_size up, layers in order",
        inputs={"vocab": f"{_C}.engram_vocab_size", "tables": "engram.tables_per_layer"},
        why="distinct prime moduli make the tables' collisions independent",
    )
    b.table(
        f"{prefix}.offsets",
        (0, *accumulate(primes[:-1])),
        unit="rows",
        formula="running sum of the primes before each table",
        inputs={"primes": f"{prefix}.primes"},
        why="all tables of a layer lie in one matrix",
    )
    b.formula(
        f"{prefix}.rows", "sum(primes)", unit="rows", why="rows of the layer's embedding matrix",
        primes=f"{prefix}.primes",
    )  # fmt: skip
    b.table(
        f"{prefix}.multipliers",
        multipliers(layer, bound, r.model.engram_max_ngram_size),
        formula=f"2 * PCG64(seed {_SEED_PER_LAYER} * {layer}).integers(0, multiplier_bound, max_ngram) + 1",
        inputs={"bound": "engram.multiplier_bound", "max_ngram": f"{_C}.engram_max_ngram_size"},
        why="odd factors, one for each look-back distance, fixed by the layer's number",
    )
    rows = b[f"{prefix}.rows"]
    if rows != expected:
        raise fault(
            r,
            ("model",),
            "DI101",
            f"Engram layer {layer} has {expected} rows in engram_num_embeddings, but the primes from"
            f" engram_vocab_size {r.model.engram_vocab_size} up sum to {rows}",
            "correct engram_num_embeddings, engram_vocab_size, engram_n_heads or engram_max_ngram_size",
        )
