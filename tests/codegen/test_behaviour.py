"""Each field that the built engine acts on, changed alone: what the compiled scheduler does, before and after.

``test_specialisation`` holds what changes in the Plan and in the files. Here the base and the changed spec are
compiled, one scene is run on both, and both observations equal numbers worked out by hand. ``SHOWN_ELSEWHERE`` names,
for every other field, what shows its effect; a field in neither table fails.

The base: 4 sequences of 96 tokens, a pool of 24 usable blocks of 8 tokens, prefill steps of at most 64 tokens, 3
prompts and 128 tokens of K, intervals 7 (ALL) and 10 (ANY), bursts of 2, no drafts.
"""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from built import shared_cache
from scheduler_rank import Rank
from scheduler_world import DECODE, DONE, PREEMPTED, PREFILL, World

from deepinfer_gen import LLM, SamplingParams
from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.runtime.loader import load_engine
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

from .specialisation_rows import MORE_ROWS
from .specialisation_table import ROWS

BASE = """
engine: {name: behaviour}
model: tiny-v41
hardware: cpu
limits:
  {max_num_seqs: 4, max_model_len: 96, max_num_batched_tokens: 64, max_num_prompts: 3, prefill_max_sum_seqlen_k: 128}
kv: {block_size: 8, num_blocks: 25}
speculative: {nextn: 0}
yoco: {mode: off}
schedule: {zos: off, prefill_attempt_interval: 7, prefill_any_attempt_interval: 10, prefill_burst: 2}
numerics: {policy: float32_unquantized}
"""
RUNS_OUT = 2000
REFERENCE = Path(__file__).parents[1] / "oracle" / "reference_f32nq.npz"


def most_sequences(folder: Path) -> int:
    """Eight short requests at once: how many run side by side."""
    world = world_of(folder)
    for request in range(1, 9):
        world.ranks[0].add(request, 1, 30, 0, [])
    most = 0
    while world.step() != DONE:
        most = max(most, world.ranks[0].scheduler.stats()["running"])
    return most


def longest_prompt(folder: Path) -> int:
    """The longest prompt that ``add`` accepts: one token less than a sequence may have."""
    world = world_of(folder)
    for length in range(200, 0, -1):
        try:
            world.ranks[0].add(1, length, 1, 0, [])
        except ValueError:
            continue
        return length
    return 0


def first_prefill_tokens(folder: Path) -> int:
    """Tokens of a first step to which a prompt of 90 is offered."""
    world = world_of(folder)
    world.ranks[0].add(1, 90, 2, 0, [])
    world.step()
    return int(world.ranks[0].scheduler.step().total_q)


def first_prefill_prompts(folder: Path) -> int:
    """Prompts of a first step to which four of one token are offered."""
    world = world_of(folder)
    for request in range(1, 5):
        world.ranks[0].add(request, 1, 2, 0, [])
    world.step()
    return int(world.ranks[0].scheduler.step().num_rows)


def second_prefill_k(folder: Path) -> list[int]:
    """K lengths of the step that ends a prompt of 94 tokens, with one of 34 waiting."""
    world = world_of(folder)
    for request, length in enumerate((94, 34), 1):
        world.ranks[0].add(request, length, 1, 0, [])
    world.step()
    world.step()
    return [int(k) for k in world.ranks[0].scheduler.step().k_len]


def blocks_of_40_tokens(folder: Path) -> int:
    world = world_of(folder)
    world.ranks[0].add(1, 40, 2, 0, [])
    world.step()
    return int((world.ranks[0].scheduler.step().block_table[0] > 0).sum())


def free_blocks(folder: Path) -> int:
    return int(world_of(folder).ranks[0].scheduler.stats()["free_blocks"])


def free_slots(folder: Path) -> int:
    return int(world_of(folder).ranks[0].scheduler.stats()["free_slots"])


def ring_rows(folder: Path) -> int:
    """Window rows that a sequence of 153 tokens writes in the ring of layer 0; zeros would not be counted."""
    torch.set_num_threads(1)
    region = load_engine(folder, shared_cache()).model.layers[0].swa
    with LLM(engine=folder) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        llm.generate({"prompt_token_ids": list(range(3, 153))}, params, use_tqdm=False)
        grid = llm.llm_engine._worker._cache.slot_rows(region).grid
    return int((grid[1:] != 0).any(dim=2).any(dim=0).sum())


def greedy_tokens(folder: Path) -> list[int]:
    """Four greedy tokens of the reference's prompt of 3 tokens."""
    torch.set_num_threads(1)
    with np.load(REFERENCE) as reference, LLM(engine=folder) as llm:
        prompt = {"prompt_token_ids": reference["p3_ids"].tolist()}
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        (output,) = llm.generate(prompt, params, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def first_consumer_rows(folder: Path) -> int:
    """Rows of a prompt of 153 tokens that go through layer 6, the last KV source."""
    torch.set_num_threads(1)
    trace = io.StringIO()
    with LLM(engine=folder, trace=trace) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        llm.generate({"prompt_token_ids": list(range(3, 156))}, params, use_tqdm=False)
    return sum(json.loads(line)["layer_rows"]["6"] for line in trace.getvalue().splitlines())


def decode_steps_when_all_want(folder: Path) -> int:
    """The only rank decodes and a prompt waits: decode steps before the next prefill step."""
    return _decode_steps_before_prefill(world_of(folder))


def decode_steps_when_one_wants(folder: Path) -> int:
    """One rank of two decodes, a prompt waits at the other: decode steps before the next prefill step."""
    return _decode_steps_before_prefill(world_of(folder, ranks=2))


def _decode_steps_before_prefill(world: World) -> int:
    world.ranks[0].add(1, 4, 80, 0, [])
    while world.step() != DECODE:
        pass
    world.ranks[-1].add(2, 4, 3, 0, [])
    return next(count for count in range(RUNS_OUT) if world.step() == PREFILL)


def prefills_in_a_row(folder: Path) -> int:
    """Three prompts of 60 tokens, 64 a step, offered to an idle engine."""
    world = world_of(folder)
    for request in range(1, 4):
        world.ranks[0].add(request, 60, 2, 0, [])
    return next(count for count in range(RUNS_OUT) if world.step() != PREFILL)


def admitted_before_decoding(folder: Path) -> int:
    """Four prompts of 30 tokens, 4 blocks of 24 each: how many are taken in before the first decode step."""
    world = world_of(folder)
    for request in range(1, 5):
        world.ranks[0].add(request, 30, 40, 0, [])
    while world.step() == PREFILL:
        pass
    return int(world.ranks[0].scheduler.stats()["running"])


def preempted_requests_end(folder: Path) -> bool:
    """Four requests of 80 tokens, 10 blocks each, in 24 blocks: whether one ends as preempted."""
    world = world_of(folder)
    for request in range(1, 5):
        world.ranks[0].add(request, 40, 40, 0, [])
    world.drain()
    assert world.ranks[0].scheduler.stats()["preemptions"] > 0
    return any(expected.reason == PREEMPTED for expected in world.ranks[0].requests.values())


def rows_of_one_sequence(folder: Path) -> int:
    """Rows, padding included, in which one sequence decodes."""
    world = world_of(folder)
    world.ranks[0].add(1, 4, 4, 0, [])
    while world.step() != DECODE:
        pass
    return len(world.ranks[0].scheduler.step().ids)


def graph_asked_for(folder: Path) -> int:
    """The graph size that a rank with one sequence asks its group for."""
    world = world_of(folder)
    world.ranks[0].add(1, 4, 4, 0, [])
    while world.step() != DECODE:
        pass
    return int(world.ranks[0].scheduler.flags()[5])


def first_verified(folder: Path, curve: tuple[float, ...]) -> int:
    """Tokens of the first step that may verify drafts, of one sequence with three; ``curve``: of 1, 2, 4, 8, 16."""
    world = world_of(folder)
    scheduler = world.ranks[0].scheduler
    if load_engine(folder, shared_cache()).value("speculative.verify") == "varlen":
        scheduler.set_cost_curve(np.array(curve))
    rank = world.ranks[0]
    rank.draw_drafts = partial(all_drafts, rank)  # type: ignore[method-assign]
    rank.add(1, 4, 30, 0, [])
    while world.step() != DECODE:
        pass
    return int(scheduler.step().total_q)


def all_drafts(rank: Rank, rng: random.Random, request: int, columns: np.ndarray) -> None:
    """The prompt's step delivers as many drafts as fit; nothing is known of them but the prior."""
    columns[:] = 7
    rank.drafts[request] = columns.tolist()


# Tokens expected of 1, 2 and 4 at 0.8 a draft: 1, 1.8, 2.952; at 0.2: 1, 1.2, 1.248.
def verified_where_drafts_pay(folder: Path) -> int:
    """At 0.8 a draft 0.1, 0.106, 0.123 a millisecond; at 0.2 a draft 0.1, 0.071, 0.052."""
    return first_verified(folder, (10, 17, 24, 30, 40))


def verified_where_drafts_cost(folder: Path) -> int:
    """At 0.8 a draft 0.1, 0.082, 0.089 a millisecond: no drafts gain 12 % over all."""
    return first_verified(folder, (10, 22, 33, 40, 50))


@cache
def compiled(parent: Path, changes: tuple[tuple[str, str], ...]) -> Path:
    """The folder of the base with ``changes`` (key, YAML text), built."""
    folder = parent / f"engine{len(list(parent.iterdir()))}"
    folder.mkdir()
    (folder / "spec.yaml").write_text(BASE, encoding="utf-8")
    plan = derive(resolve(load_spec(folder / "spec.yaml", dict(changes))))
    built = write_folder(render(plan), folder / plan.name).path
    build_folder(built, shared_cache())
    return built


def world_of(folder: Path, ranks: int = 1) -> World:
    return World(load_engine(folder, shared_cache()).extension, ranks=ranks)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """``observe`` gives ``before`` on the base and ``after`` with ``key`` set to ``value``; ``both`` changes both."""

    key: str
    value: str
    observe: Callable[[Path], object]
    before: object
    after: object
    both: tuple[tuple[str, str], ...] = ()


LONG = (("limits.max_model_len", "160"), ("limits.prefill_max_sum_seqlen_k", "160"))
DRAFTS = (("speculative.nextn", "3"),)
COMPACT = (("yoco.mode", "compact"),)
BEHAVIOURS = (
    Behaviour("limits.max_num_seqs", "3", most_sequences, 4, 3),
    Behaviour("limits.max_model_len", "64", longest_prompt, 95, 63),  # one token is generated
    Behaviour("limits.max_num_batched_tokens", "48", first_prefill_tokens, 64, 48),
    Behaviour("limits.max_num_prompts", "2", first_prefill_prompts, 3, 2),
    # 94 + 34 = 128 tokens of K fit in 128, not in 127: then the second prompt waits whole.
    Behaviour("limits.prefill_max_sum_seqlen_k", "127", second_prefill_k, [94, 34], [94]),
    Behaviour("kv.block_size", "16", blocks_of_40_tokens, 5, 3),  # ceil(40 / 8), ceil(40 / 16)
    Behaviour("kv.num_blocks", "20", free_blocks, 24, 19),  # block 0 is padding's
    # max(floor(4 * 1.2), 4 + 1) and max(floor(4 * 2), 4 + 1); slot 0 comes on top
    Behaviour("state.slots_ratio", "2", free_slots, 5, 8),
    Behaviour("parallel.dispatch", "padded", graph_asked_for, 0, 1),
    Behaviour("speculative.verify", "fixed", verified_where_drafts_cost, 1, 4, DRAFTS),
    Behaviour("speculative.prior_survival", "0.2", verified_where_drafts_pay, 4, 1, DRAFTS),
    Behaviour("speculative.min_gain", "0.2", verified_where_drafts_cost, 1, 4, DRAFTS),
    Behaviour("speculative.max_backtracking_tokens", "9", ring_rows, 129, 137, LONG),  # 128 + 1, 128 + 9
    Behaviour("yoco.mode", "compact", first_consumer_rows, 153, 140, LONG),  # the last max(140, 128 + 1)
    Behaviour("yoco.keep_tokens", "150", first_consumer_rows, 140, 150, LONG + COMPACT),
    # The first of the decode steps between two prefills is the one that busies the engine.
    Behaviour("schedule.prefill_attempt_interval", "5", decode_steps_when_all_want, 7 - 1, 5 - 1),
    Behaviour("schedule.prefill_any_attempt_interval", "12", decode_steps_when_one_wants, 10 - 1, 12 - 1),
    Behaviour("schedule.prefill_burst", "1", prefills_in_a_row, 2, 1),
    # Usage before each is 0, 4, 8 and 12 of 24 blocks: at most 0.9 for all four, over 0.4 for the last.
    Behaviour("schedule.prefill_cache_usage_limit", "0.4", admitted_before_decoding, 4, 3),
    Behaviour("schedule.stop_preempted_request", "false", preempted_requests_end, True, False),
    # `p3_greedy` of tests/oracle/reference_f32nq.npz and of reference_ref.npz
    Behaviour("numerics.policy", "released", greedy_tokens, [487, 21, 288, 229], [487, 21, 288, 78]),
    # 1 + ceil((8 - 1) / 1) and 1 + ceil((2 - 1) / 1)
    Behaviour("graphs.batch_size_interval", "2", rows_of_one_sequence, 8, 2),
)

_RENDERED = "tests/codegen/test_specialisation.py: test_plan_keys and test_generated_files"
_STORED = "tests/codegen/test_specialisation.py: test_whether_stored_kv_can_be_read"
_ROWS_STORED = "tests/runtime/model/test_caches.py: test_a_step_writes_only_its_rows, in each format"
_MEMORY = (
    "one rank holds every table and every expert once; tests/codegen/derive/test_released.py: test_engram_placement"
)
SHOWN_ELSEWHERE = {
    "engine.type": "tests/runtime/test_prompt_engine.py test_one_token_for_each_request",
    "engine.name": _RENDERED,
    "model": "tests/runtime/model/test_weights.py: a checkpoint of another shape is refused",
    "hardware": "tests/runtime/test_mechanisms.py: hardware.backend",
    "parallel.engram_placement": "tests/runtime/test_mechanisms.py: host is refused; on one rank a share is all",
    "eplb.min_redundant_per_rank": _MEMORY,
    "kv.main_format": _ROWS_STORED,
    "kv.index_format": _ROWS_STORED,
    "kv.swa_format": _ROWS_STORED,
    "determinism.batch_invariant": "tests/runtime/model/test_batch_invariance.py test_the_bits_of_a_request",
    "kv.row_layout": "tests/runtime/model/test_caches.py: test_both_row_layouts_compute_the_same_bits",
    "kv.store_grain": _STORED,
}
"""Fields whose effect is not a decision of the built scheduler, and what shows it."""


def test_every_field_is_shown() -> None:
    stable = {row.key for row in (*ROWS, *MORE_ROWS) if not row.planned and not row.run_refuses}
    shown = [behaviour.key for behaviour in BEHAVIOURS]
    assert len(set(shown)) == len(shown)
    assert set(shown) | set(SHOWN_ELSEWHERE) == stable
    assert not set(shown) & set(SHOWN_ELSEWHERE)


def test_what_shows_the_others_exists() -> None:
    for shown in SHOWN_ELSEWHERE.values():
        (file,) = re.findall(r"tests/\S+\.py", shown)
        source = (Path(__file__).parents[2] / file).read_text()
        for name in re.findall(r"\btest_\w+\b(?!\.py)", shown):
            assert f"def {name}(" in source, shown


@pytest.mark.long
@pytest.mark.parametrize("row", BEHAVIOURS, ids=lambda row: row.key)
def test_behaviour(row: Behaviour, parent: Path) -> None:
    before = row.observe(compiled(parent, row.both))
    after = row.observe(compiled(parent, (*row.both, (row.key, row.value))))
    assert (before, after) == (row.before, row.after)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("behaviour")
