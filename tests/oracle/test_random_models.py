"""Random models of the config schema: compiled, loaded strictly, and run at once and in chunks.

``second_opinion.py`` compares the same kind of models with another implementation; this part needs no other package.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from agreement import compare
from oracle.second_opinion import Result, alone, verdict
from random_config import draw_model
from random_sample import make_sample

SEED = 0


def check(folder: Path, number: int) -> None:
    sample = make_sample(folder, SEED, number)
    assert sample.whole.logits.isfinite().all()
    # Weights are scaled to keep the logits near 1: a formula that loses its input would not.
    assert 0.5 < sample.whole.logits.std() < 2
    sides = alone(sample)
    assert set(sides) == ({"chunked", "drafts", "confidence"} if sample.nextn else {"chunked"})
    assert Result(number, sample, sides).verdict == "agree", (sample.roles, sample.chunks, sides)


@pytest.mark.parametrize("number", range(4))
def test_chunked_equals_one_step(number: int, tmp_path: Path) -> None:
    check(tmp_path, number)


@pytest.mark.long
@pytest.mark.parametrize("number", range(4, 60))
def test_chunked_equals_one_step_for_many_models(number: int, tmp_path: Path) -> None:
    check(tmp_path, number)


def test_the_drawn_models_use_the_freedoms_of_the_schema() -> None:
    """Over a few dozen draws every layer role and every count that changes the code's path occurs."""
    texts = [draw_model(random.Random(f"{SEED}.{n}")).config["text_config"] for n in range(60)]

    def values(name: str) -> set[int]:
        return {text[name] for text in texts}

    assert {len(text["kv_source_layer_ids"]) for text in texts} == {1, 2, 3}
    assert {len(text["engram_layer_ids"]) for text in texts} == {0, 1, 2}
    assert values("num_nextn_predict_layers") == {0, 1, 2, 3}
    assert values("hc_mult") == {1, 2, 3, 4, 5}
    assert {1, 2} <= values("num_experts_per_tok")
    assert values("engram_max_ngram_size") == {2, 3, 4, 5}
    assert {1, 2} < values("sliding_window")
    assert {tuple(sorted(set(text["compress_ratios"]))) for text in texts} >= {(0, 1), (0, 2), (0, 1, 2), (1, 2)}
    reindexed = [text["index_source_layer_ids"][-1] > text["candidate_source_layer_id"] for text in texts]
    assert set(reindexed) == {True, False}


def test_a_difference_is_found_and_only_a_near_tie_explains_it() -> None:
    other = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    ours, margin = other.copy(), np.full(5, 1e-3, np.float32)
    assert compare(ours, other, margin).verdict == "agree"
    ours[3, 2] += 1e-3
    found = compare(ours, other, margin)
    assert (found.verdict, found.agreed) == ("DISAGREE", 3)
    margin[2] = margin[4] = 1e-7  # of other rows than the first that differs
    assert compare(ours, other, margin).verdict == "DISAGREE"
    margin[3] = 1e-7
    assert compare(ours, other, margin).verdict == "near-tie"
    ours[1, 0] = np.nan
    found = compare(ours, other, margin)
    assert (found.verdict, found.agreed) == ("DISAGREE", 1)


def test_the_comparison_fails_on_a_refusal_a_disagreement_and_on_many_near_ties(tmp_path: Path) -> None:
    sample = make_sample(tmp_path, SEED, 0)
    margin, logits = np.full(sample.rows, 1e-7, np.float32), sample.whole.logits.numpy()
    same, parted = compare(logits, logits, margin), compare(-logits, logits, margin)
    differs = compare(-logits, logits, 1000 * margin)
    agreed, near = Result(0, sample, {"logits": same}), Result(1, sample, {"chunked": same, "logits": parted})
    assert verdict([agreed] * 10) == []
    assert verdict([agreed] * 9 + [near]) == []
    assert verdict([agreed] * 8 + [near] * 2) == ["2 of 10 models part at a near-tie: too many to be luck"]
    assert verdict([Result(4, sample, {"chunked": near.worst, "logits": differs})]) == ["model 4: DISAGREE"]
    assert verdict([Result(5, sample, {"chunked": same}, refused="no such width")])[0].startswith("model 5: REFUSED")
