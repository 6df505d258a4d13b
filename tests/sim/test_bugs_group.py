"""Public bugs of groups of ranks: B13 to B16, B18, B19."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from scheduler_configs import SPECS
from scheduler_world import DECODE, DONE, FAIL, IDLE, LENGTH, PREFILL, World
from shipped import NAMES, shipped_plan

MakeWorld = Callable[..., World]
HEADERS = Path(__file__).resolve().parents[2] / "templates" / "engine"


def test_b13_a_rank_that_can_schedule_nothing_vetoes_nobody(make_world: MakeWorld) -> None:
    """A rank whose only request did not fit had an empty batch, and its vote stopped the whole fleet for ever."""
    world = make_world("example", ranks=3, loads=False)
    starved, idle, wanting = world.ranks
    for request in (1, 2):
        starved.add_prompted(request, 90)  # every block is waiting for a cache that does not come
    starved.add(3, 90, 2)
    wanting.add(4, 5, 3)
    for _ in range(12):
        world.step()
    assert starved.scheduler.stats()["waiting"] == 1
    assert starved.scheduler.stats()["free_blocks"] == 0
    assert wanting.requests[4].reason == LENGTH
    assert not idle.requests
    starved.fill_loads()
    world.loads = True
    world.drain()


@pytest.mark.parametrize("engine", ["example", "speculative", "padded", "tight"])
@pytest.mark.parametrize("deferred", [False, True])
def test_b13_some_rank_commits_a_token_within_a_bound(make_world: MakeWorld, engine: str, deferred: bool) -> None:
    """No mix of starved, idle and busy ranks stands still."""
    for seed in range(6):
        rng = random.Random(seed)
        world = make_world(engine, ranks=4, deferred=deferred, seed=seed)
        longest = world.constants["kMaxModelLen"] - 1
        for request in range(1, 25):
            rank = world.ranks[rng.choice([0, 0, 0, 1, 3])]
            rank.add(request, rng.choice([1, 5, longest, longest // 2]), rng.randint(1, 25))
        bound = world.constants["kPrefillAnyAttemptInterval"] + longest // world.constants["kMaxNumBatchedTokens"] + 4
        quiet, before = 0, 0
        while world.step() != DONE:
            output = sum(rank.scheduler.stats()["output_tokens"] for rank in world.ranks)
            quiet = 0 if output > before else quiet + 1
            before = output
            assert quiet <= bound
        for rank in world.ranks:
            rank.check_drained()


@pytest.mark.parametrize("engine", ["padded", "completion_varlen"])
@pytest.mark.parametrize("deferred", [False, True])
def test_b14_idle_ranks_run_the_graph_of_the_busy_ones(make_world: MakeWorld, engine: str, deferred: bool) -> None:
    """An idle rank returned early, or ran a batch of one while its peers ran thirty-two."""
    world = make_world(engine, ranks=3, deferred=deferred)
    seen = set()
    for request in range(1, 9):
        if engine == "padded":
            world.ranks[0].add(request, 3 + request, 3 * request)
        else:
            world.ranks[0].add_prompted(request, 3 + request, max_tokens=3 * request)
    while (action := world.step()) not in (DONE, FAIL):
        if action != DECODE:
            continue
        steps = [rank.scheduler.step() for rank in world.ranks]
        assert len({step.graph for step in steps}) == 1
        assert len({(len(step.ids), len(step.input_ids)) for step in steps}) == 1
        assert all(step.num_rows == 0 and step.q_len.sum() == step.graph for step in steps[1:])
        seen.add(int(steps[0].graph))
        del steps
    assert len(seen) >= 3
    for rank in world.ranks:
        rank.check_drained()


def test_b15_the_step_policy_reads_local_state_only_to_vote() -> None:
    """Ranks decided from local state whether two prefills in a row overlap, and took different branches."""
    text = (HEADERS / "step_normal.hpp").read_text(encoding="utf-8")
    code = re.sub(r"//.*", "", text)
    reads = [line.strip() for line in code.splitlines() if re.search(r"\blocal\b", line)]
    assert reads == [
        "Verdict begin(const Record* flags, const LocalState& local, Record& vote) {",
        "decision_.want = local.want;",
        "vote = round_one_record(local);",
    ]
    follow = re.sub(r"//.*", "", (HEADERS / "vote.hpp").read_text(encoding="utf-8")).split("inline Verdict follow")[1]
    assert "local" not in follow


@pytest.mark.parametrize("deferred", [False, True])
def test_b15_ranks_of_any_state_follow_the_same_exchanges(make_world: MakeWorld, deferred: bool) -> None:
    """What a rank does is a function of what the group exchanged: a rank without requests mirrors a busy one."""
    world = make_world("example", ranks=2, deferred=deferred)  # a burst of 2, votes ALL and ANY
    busy, mirror = world.ranks
    for request in range(1, 30):
        busy.add(request, 30 + request, 1 + request)
    actions = set()
    while (action := world.step()) != DONE:
        actions.add(action)
        ours, theirs = busy.scheduler.decision(), mirror.scheduler.decision()
        assert (ours.point, ours.go, ours.decode_counter) == (theirs.point, theirs.go, theirs.decode_counter)
    assert actions == {PREFILL, DECODE}
    assert mirror.scheduler.fingerprint() == mirror.initial


@pytest.mark.parametrize("lacking", ["blocks", "slots", "places", "usage"])
def test_b16_a_rank_wants_only_what_it_could_admit(make_world: MakeWorld, lacking: str) -> None:
    """A rank voted "want" because its queue was not empty; then nothing could be scheduled, again and again."""
    world = make_world("example", ranks=2, loads=False)
    rank, other = world.ranks
    if lacking == "usage":
        for request in (1, 2):
            rank.add_prompted(request, 87)  # 22 of 24 blocks, and one is enough for the prompt
    elif lacking == "blocks":
        rank.add_prompted(1, 90)
    elif lacking == "places":
        for request in (1, 2, 3, 4):
            rank.add_prompted(request, 8)
    else:  # five slots: all of requests that ended and are read from outside
        for request in range(1, 6):
            rank.add_prompted(request, 8)
            world.step()
            rank.finish(request, 3)
    rank.add(9, 90 if lacking == "blocks" else 4, 2)
    if lacking == "blocks":
        rank.add_prompted(8, 4)
    other.add(1, 5, 30)
    for _ in range(25):
        world.step()
        for vote in world.votes[:1]:
            assert rank.scheduler.decision().want == 0
            assert vote[1] == 1, "it declines"
    assert rank.scheduler.stats()["waiting"] == 1
    for request in rank.loads:
        rank.scheduler.end_transfer(request)
        if not rank.requests[request].reason:
            rank.finish(request, 3)
    rank.loads = []
    world.loads = True
    assert world.until(PREFILL) <= 10
    world.drain()


def test_b16_a_persistent_mix_starves_no_prompt(make_world: MakeWorld) -> None:
    """Some ranks could prefill and others never: without a bound the prompts waited for ever."""
    world = make_world("example", ranks=3)
    for request in range(1, 4):
        world.ranks[0].add(request, 4, 90)
    world.until(DECODE)
    waits = []
    for request in range(10, 16):
        world.ranks[2].add(request, 4, 2)
        waits.append(world.until(PREFILL))
        while not world.ranks[2].requests[request].reason:
            world.step()
    assert max(waits) <= world.constants["kPrefillAnyAttemptInterval"]


def rows_needed(size: int, seqs: int, max_q: int, padded: bool) -> int:
    """The most rows that a step of this graph can have, with its padding: over every number of rows and tokens."""
    smallest = 0 if padded else size
    needed = 0
    for rows in range(0, min(size, seqs) + 1):
        for tokens in range(max(rows, smallest), min(size, rows * max_q) + 1):
            needed = max(needed, rows + -(-(size - tokens) // max_q))
    return needed


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.engine != "PROMPT"])
def test_b18_every_geometry_of_a_graph_has_rows(name: str) -> None:
    """A graph captured as 192 rows of one token was replayed as 32 rows of six."""
    values = SPECS[name].constants()
    for size, rows in zip(values["kGraphSizes"], values["kGraphRows"], strict=True):
        padded = bool(values["kPaddedDispatch"])
        assert rows >= rows_needed(size, values["kMaxNumSeqs"], values["kMaxQ"], padded)
        assert rows >= -(-size // values["kMaxQ"])


@pytest.mark.parametrize("name", NAMES)
def test_b18_every_geometry_of_a_shipped_graph_has_rows(name: str) -> None:
    """The same of what the compiler derives."""
    values = {key: traced.value for key, traced in shipped_plan(name).values.items()}
    sizes, rows = values["graphs.sizes"], values["graphs.rows"]
    max_q, seqs = values["speculative.nextn"] + 1, values["limits.max_num_seqs"]
    assert len(sizes) == len(rows)
    for size, capacity in zip(sizes, rows, strict=True):
        assert capacity >= -(-size // max_q)
        assert capacity >= min(size, seqs)


@pytest.mark.parametrize("engine", ["speculative", "varlen", "tight"])
def test_b18_steps_of_few_long_and_of_many_short_rows_fit(make_world: MakeWorld, engine: str) -> None:
    """The same number of tokens comes as few rows with drafts and as many without."""
    world = make_world(engine)
    rank = world.ranks[0]
    geometries = set()
    for request in range(1, 12):
        rank.add(request, 2 + request, 6 + request)
    for count in range(80):
        if rank.last_decode and count % 3 == 0:  # skipped sequences come back without drafts
            for request in rank.last_decode[::2]:
                if not rank.requests[request].reason:
                    rank.scheduler.pause(request)
        world.step()
        step = rank.scheduler.step()
        if step.kind == 2:
            geometries.add((step.graph, step.num_rows))
            assert step.num_rows <= len(step.ids)
        del step
        for request, expected in rank.requests.items():
            if not expected.reason:
                rank.scheduler.resume(request)
    world.drain()
    graphs = [graph for graph, _ in geometries]
    assert max(graphs.count(graph) for graph in graphs) >= 2


@pytest.mark.parametrize("deferred", [False, True])
def test_b19_ranks_that_measured_different_costs_replay_the_same_graph(make_world: MakeWorld, deferred: bool) -> None:
    """Each rank computed its verification budget from its own floats, and ranks replayed different graphs."""
    world = make_world("completion_varlen", ranks=3, deferred=deferred)
    sizes = world.constants["kGraphSizes"]
    for number, rank in enumerate(world.ranks):
        for request in range(1, 6):
            rank.add_prompted(request, 3 + request, max_tokens=10 + 5 * number)
    graphs = set()
    for _ in range(60):
        for number, rank in enumerate(world.ranks):
            for _ in range(30):
                rank.scheduler.observe(sizes[-1], 1, 1.0 + 50 * number, 0.1 * number)
        if world.step() != DECODE:
            continue
        steps = [rank.scheduler.step() for rank in world.ranks]
        assert len({step.graph for step in steps}) == 1
        assert all(step.total_q <= step.graph for step in steps)
        graphs.add(int(steps[0].graph))
        del steps
    assert len(graphs) >= 2
    world.drain()


def test_b19_a_rank_asks_for_a_graph_by_the_curve_alone(make_world: MakeWorld) -> None:
    """The wish of a rank depends on its rows and the common curve, not on what it measured or on confidences."""
    world = make_world("completion_varlen", ranks=2)
    for rank in world.ranks:
        for request in range(1, 5):
            rank.add_prompted(request, 6, max_tokens=30)
    while world.step() != DECODE:
        pass
    one, other = (rank.scheduler for rank in world.ranks)
    before = one.flags()[5]
    for _ in range(200):
        one.observe(world.constants["kGraphSizes"][-1], 4, 900.0, 9.0)
    assert one.flags()[5] == before == other.flags()[5] > 0


def test_b14_without_a_record_the_group_runs_the_largest_graph(make_world: MakeWorld) -> None:
    """The first step of a group has no agreed size yet; every rank takes the same one."""
    world = make_world("padded", ranks=2)
    world.ranks[0].add_prompted(1, 5)
    assert world.step() == IDLE
    assert world.flags is None
    assert world.step() == DECODE
    assert {rank.scheduler.step().graph for rank in world.ranks} == {world.constants["kMaxTotalQ"]}
    world.drain()
