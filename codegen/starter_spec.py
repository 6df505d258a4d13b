"""The commented spec that ``init`` writes: a small deployment that plans on the chosen hardware."""

from __future__ import annotations

_CPU = """
speculative:
  nextn: 0                        # draft tokens per step; 5 for the released model
  verify: fixed                   # varlen follows the drafts' confidence, once there are drafts

yoco:
  mode: off                       # compact computes the consumer layers for the last rows of a prompt only

schedule:
  zos: off                        # on: schedule step N+1 while step N runs

numerics:
  policy: float32_unquantized     # reference arithmetic; see the schema for released, bf16 and float32
"""
_ACCELERATOR = """
speculative:
  nextn: 5                        # draft tokens per step; 0 turns drafting off

# kv:
#   block_size: 128               # tokens of a block; a multiple of every compression ratio
#   main_format: auto             # auto follows numerics.policy
# state:
#   slots_ratio: 1.2              # state slots per running sequence
# graphs:
#   batch_size_interval: 8        # distance of the captured decode sizes
# schedule:
#   prefill_attempt_interval: 70
#   prefill_any_attempt_interval: 100
"""
_SPEC = """\
# yaml-language-server: $schema=schema.json
# A deployment spec: one model, one hardware target, one deployment shape. It becomes one engine.
#   deepinfer-gen schema > schema.json    lets an editor check this file (then the line above works)
#   deepinfer-gen plan {file}    shows what it comes to; fit {file} what still fits
#   deepinfer-gen {file}    writes generated/{name}/ and builds it

engine:
  name: {name}
  type: NORMAL                    # PROMPT only prefills, COMPLETION only decodes

model: {model}    # a preset, or a config.json beside this file
hardware: {hardware}              # cpu, sm90 (H200), sm100 (B200), ascend950

parallel:
  dp: {ranks}                           # attention data parallelism: ranks with their own sequences
  ep: {ranks}                           # expert parallelism: ranks that share one copy of the experts

limits:
  max_num_seqs: {seqs}                # sequences that run at once, per rank
  max_model_len: {length}           # longest sequence, prompt and output
"""


def starter_spec(file: str, name: str, model: str, hardware: str) -> str:
    """The YAML text. A model of released size is spread over 8 ranks, a tiny one runs on one."""
    tiny = model.startswith("tiny")
    head = _SPEC.format(
        file=file,
        name=name,
        model=model,
        hardware=hardware,
        ranks=1 if tiny else 8,
        seqs=16 if tiny else 64,
        length=2048 if tiny else 32768,
    )
    return head + (_CPU if hardware == "cpu" else _ACCELERATOR)
