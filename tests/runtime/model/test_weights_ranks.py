"""Each EP rank reads its own experts and no others; every rank checks all headers."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest
import torch
from checkpoints import FIRST, copy_checkpoint, edit_header, plan_of, split_shard
from shipped import shipped_plan

from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.runtime.weights import MetaWeights, Weights, load_weights
from deepinfer_gen.runtime.weights_names import demand, own_experts

EXPERT_BYTES = 2 * (64 * 64 + 64 * 4) + 128 * 32 + 128 * 2  # w1, w3, w2 with their scales
LAYERS, EXPERTS, DRAFT_LAYERS, DRAFT_EXPERTS = 10, 16, 3, 8
# Backbone, draft layers and Engram tables without routed experts: terms of tests/golden/tables/tiny-v41-weights.yaml.
REST_BYTES = 2_528_144 + 641_216 + 411_114


@pytest.fixture(scope="module", params=[1, 2, 4])
def ep(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def plan(ep: int, tmp_path_factory: pytest.TempPathFactory) -> ModelPlan:
    """The compiler's plan of the tiny model with its draft layers for ``ep`` ranks."""
    return plan_of(tmp_path_factory.mktemp("plan"), ep=ep, nextn=5)


def load(plan: ModelPlan, folder: Path, rank: int, ep: int) -> Weights:
    return load_weights(plan, Constants.of(plan), folder, rank, ep)


def routed(layers: int, experts: int, prefix: str) -> set[tuple[str, int]]:
    return {(f"{prefix}.{layer}", expert) for layer in range(layers) for expert in range(experts)}


def held_experts(weights: Weights) -> set[tuple[str, int]]:
    """Layer and number of every routed expert of which the rank holds all six tensors, or any."""
    everything = routed(LAYERS, EXPERTS, "layers") | routed(DRAFT_LAYERS, DRAFT_EXPERTS, "mtp")
    parts = [f"{w}.{kind}" for w in ("w1", "w2", "w3") for kind in ("weight", "scale")]
    held = set()
    for layer, expert in everything:
        present = {part for part in parts if holds(weights, f"{layer}.ffn.experts.{expert}.{part}")}
        assert present in (set(), set(parts))
        if present:
            held.add((layer, expert))
    return held


def holds(weights: Weights, name: str) -> bool:
    try:
        weights.spec(name)
    except KeyError:
        return False
    return True


def test_the_ranks_hold_every_expert_once(plan: ModelPlan, ep: int, checkpoint: Path) -> None:
    shares = [held_experts(load(plan, checkpoint, rank, ep)) for rank in range(ep)]
    assert sum(len(share) for share in shares) == LAYERS * EXPERTS + DRAFT_LAYERS * DRAFT_EXPERTS
    assert set.union(*shares) == routed(LAYERS, EXPERTS, "layers") | routed(DRAFT_LAYERS, DRAFT_EXPERTS, "mtp")
    first = EXPERTS // ep
    assert {e for layer, e in shares[-1] if layer == "layers.0"} == set(range(EXPERTS - first, EXPERTS))


def test_bytes_of_a_rank(plan: ModelPlan, ep: int, checkpoint: Path) -> None:
    """Hand arithmetic: 10 layers of 16 / ep experts, 3 draft layers of 8 / ep, and everything else whole."""
    own = (10 * 16 + 3 * 8) // ep * EXPERT_BYTES
    for rank in range(ep):
        weights = load(plan, checkpoint, rank, ep)
        report = weights.report
        assert report.loaded_bytes == REST_BYTES + own
        assert (report.elsewhere, report.elsewhere_bytes) == (184 * (ep - 1) // ep * 6, own * (ep - 1))
        assert (report.checked, report.skipped) == (0, 0)
        assert report.loaded + report.elsewhere == 1542
        assert report.loaded_bytes + report.elsewhere_bytes == 5_982_778
        read_all(weights, plan, rank, ep)
        assert weights.read_bytes == report.loaded_bytes
        meta = MetaWeights(plan, Constants.of(plan), rank, ep).report
        assert (meta.loaded_bytes, meta.elsewhere_bytes) == (report.loaded_bytes, report.elsewhere_bytes)


def read_all(weights: Weights, plan: ModelPlan, rank: int, ep: int) -> dict[str, bytes]:
    names = demand(plan, Constants.of(plan), rank, ep).held
    return {name: weights.stored(name).reshape(-1).view(torch.uint8).numpy().tobytes() for name in names}


def others(plan: ModelPlan, rank: int, ep: int) -> set[str]:
    return set(demand(plan, Constants.of(plan), rank, ep).elsewhere)


def test_what_other_ranks_hold_may_be_anything(plan: ModelPlan, ep: int, checkpoint: Path, tmp_path: Path) -> None:
    """With every byte of the other ranks' experts overwritten, a rank reads the same values."""
    for rank in range(ep):
        foreign = others(plan, rank, ep)
        assert len(foreign) == 184 * (ep - 1) // ep * 6
        folder = copy_checkpoint(checkpoint, tmp_path / str(rank))
        for shard in folder.glob("*.safetensors"):
            header, data = split_shard(shard)
            with shard.open("r+b") as file:
                base = shard.stat().st_size - len(data)
                for name, entry in header.items():
                    if name in foreign:
                        start, stop = entry["data_offsets"]
                        file.seek(base + start)
                        file.write(b"\xa5" * (stop - start))
        expected = read_all(load(plan, checkpoint, rank, ep), plan, rank, ep)
        assert read_all(load(plan, folder, rank, ep), plan, rank, ep) == expected


def test_every_rank_checks_the_headers_of_the_others(checkpoint: Path, tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "plan", ep=2, nextn=5)
    folder = copy_checkpoint(checkpoint, tmp_path / "checkpoint")
    name = "layers.0.ffn.experts.15.w1.weight"
    assert name in others(plan, 0, 2)
    edit_header(folder, FIRST, lambda h: h[name].update(dtype="F8_E4M3"))
    with pytest.raises(InputError, match=rf"DI358.*{name}.*F8_E4M3, expected I8 \[64, 64\]"):
        load(plan, folder, 0, 2)


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 4), (2, 2), (-1, 2)])
def test_a_group_of_another_size_is_refused(rank: int, size: int, checkpoint: Path, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ep=2)
    with pytest.raises(InputError, match=f"DI400.*among 2 ranks, and this is rank {rank} of {size}"):
        load(plan, checkpoint, rank, size)


def test_experts_that_ranks_do_not_divide(tmp_path: Path) -> None:
    """16 experts on 3 ranks: 5, 5 and 6, at most the slots that the plan gives a rank; 8 draft experts: 2, 3 and 3."""
    plan = plan_of(tmp_path, ep=3, nextn=5)
    constants = Constants.of(plan)
    assert [own_experts(plan, constants, r, 3) for r in range(3)] == [range(5), range(5, 10), range(10, 16)]
    drafts = [own_experts(plan, constants, r, 3, draft=True) for r in range(3)]
    assert drafts == [range(2), range(2, 5), range(5, 8)]


@pytest.mark.parametrize(
    ("name", "ep", "experts", "drafts"),
    [
        ("v41-flash-normal-ep8", 8, 40 * 48, 3 * 16),
        ("v41-flash-decode-ep64", 64, 40 * 6, 3 * 2),
    ],
)
def test_released_bytes_of_a_rank(name: str, ep: int, experts: int, drafts: int) -> None:
    """The terms of tests/golden/tables/v41-flash-weights.yaml; an expert is 18,800,640 bytes."""
    plan = model_plan(shipped_plan(name))
    report = MetaWeights(plan, Constants.of(plan), 3, ep).report
    assert report.loaded_bytes == 9_846_748_608 + 713_428_872 + 202_758_032_400 + (experts + drafts) * 18_800_640
    assert report.loaded_bytes + report.elsewhere_bytes == 509_315_486_040
    assert report.loaded + report.elsewhere == 95_819


def cached_pages(path: Path) -> set[int]:
    """Numbers of the file's pages that are in memory, as the kernel says."""
    access = {"prot": mmap.PROT_READ | mmap.PROT_WRITE, "flags": mmap.MAP_PRIVATE}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, **access) as view:
        states = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
        holder = ctypes.c_char.from_buffer(view)
        done = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(holder)), ctypes.c_size_t(len(view)), states
        )
        del holder
        assert done == 0, os.strerror(ctypes.get_errno())
    return {page for page, state in enumerate(states) if state & 1}


def forget(path: Path) -> None:
    """Drop the file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_only_pages_of_the_ranks_tensors_are_read(checkpoint: Path, tmp_path: Path) -> None:
    """From a cold page cache: headers, and the pages on which the rank's own tensors lie."""
    plan = plan_of(tmp_path / "plan", ep=4, nextn=5)
    folder = copy_checkpoint(checkpoint, tmp_path / "checkpoint")
    shards = sorted(folder.glob("*.safetensors"))
    held = demand(plan, Constants.of(plan), 1, 4).held
    headers, wanted = {}, {}
    for shard in shards:
        forget(shard)
        header, data = split_shard(checkpoint / shard.name)
        base = shard.stat().st_size - len(data)
        offsets = [header[name]["data_offsets"] for name in header if name in held]
        ranges = [(0, base), *((base + start, base + stop) for start, stop in offsets)]
        headers[shard.name] = set(range(-(-base // mmap.PAGESIZE)))
        wanted[shard.name] = {
            page for start, stop in ranges for page in range(start // mmap.PAGESIZE, -(-stop // mmap.PAGESIZE))
        }
    if any(cached_pages(shard) for shard in shards):
        pytest.skip("this file system keeps files in memory")
    weights = load(plan, folder, 1, 4)
    assert {shard.name: cached_pages(shard) for shard in shards} == headers
    read_all(weights, plan, 1, 4)
    assert {shard.name: cached_pages(shard) for shard in shards} == wanted
    assert sum(map(len, wanted.values())) < sum(shard.stat().st_size for shard in shards) // mmap.PAGESIZE * 0.9
