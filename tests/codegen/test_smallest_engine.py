"""The smallest legal engine compiles: every capacity at its least, where arrays of one invite warnings."""

from __future__ import annotations

from pathlib import Path

from built import shared_cache

from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.sources import plan_spec
from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.runtime.loader import load_engine

SPEC = """\
engine: {name: smallest}
model: tiny-v41
hardware: cpu
limits: {max_num_seqs: 1, max_model_len: 2, max_num_batched_tokens: 1, max_num_prompts: 1, prefill_max_sum_seqlen_k: 2}
kv: {block_size: 2, num_blocks: 3}
state: {slots_ratio: 1}
speculative: {nextn: 0, verify: fixed}
yoco: {mode: off}
schedule: {zos: off, prefill_attempt_interval: 1, prefill_any_attempt_interval: 2}
graphs: {batch_size_interval: 1}
numerics: {policy: float32_unquantized}
"""


def test_the_smallest_engine_compiles_and_serves(tmp_path: Path) -> None:
    spec = tmp_path / "smallest.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    folder = write_folder(render(plan_spec(str(spec))), tmp_path / "smallest").path
    build_folder(folder, shared_cache())
    scheduler = load_engine(folder, shared_cache()).extension.Scheduler()
    scheduler.add(1, [5], 1, 0, [])
    assert scheduler.begin_step(None) == 0
    assert scheduler.resolve_vote(scheduler.vote()) == 0
    assert scheduler.resolve_vote(scheduler.vote()) == 1
    assert scheduler.step().history.shape == (1, load_engine(folder, shared_cache()).value("engram.history_tokens"))
    scheduler.commit(scheduler.step().step_id, [[7]], [1], [[]])
    assert scheduler.outcomes().reasons.tolist() == [2]
