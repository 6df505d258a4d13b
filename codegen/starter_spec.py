"""The commented spec that ``init`` writes: a small deployment that plans on the chosen hardware."""

from __future__ import annotations

_COLUMN = 34

_Line = tuple[str, str]
_CPU: tuple[_Line, ...] = (
    ("speculative:", ""),
    ("  nextn: 0", "draft tokens per step"),
    ("", ""),
    ("yoco:", ""),
    ("  mode: off", "compact computes the consumer layers for the last rows of a prompt only"),
    ("", ""),
    ("schedule:", ""),
    ("  zos: off", "on schedules step N+1 while step N runs"),
    ("", ""),
    ("numerics:", ""),
    ("  policy: float32", "the trained formats, computed in float32; the schema documents the others"),
)
_ACCELERATOR: tuple[_Line, ...] = (
    ("speculative:", ""),
    ("  nextn: 5", "draft tokens per step; 0 turns drafting off"),
    ("", ""),
    ("kv:", ""),
    ("  block_size: 128", "tokens of a block, a multiple of every compression ratio"),
    ("", ""),
    ("state:", ""),
    ("  slots_ratio: 1.2", "state slots per running sequence"),
    ("", ""),
    ("graphs:", ""),
    ("  batch_size_interval: 8", "distance of the captured decode sizes"),
)


def starter_spec(file: str, name: str, model: str, hardware: str) -> str:
    """The YAML text. A model of released size is spread over 8 ranks, a tiny one runs on one."""
    tiny = model.startswith("tiny")
    ranks, seqs, length = (1, 16, 2048) if tiny else (8, 64, 32768)
    lines: tuple[_Line, ...] = (
        ("# yaml-language-server: $schema=schema.json", ""),
        ("# One engine: one model, one hardware target, one deployment shape.", ""),
        (f"#   deepinfer-gen plan {file}", "what it comes to"),
        (f"#   deepinfer-gen fit {file}", "what still fits"),
        (f"#   deepinfer-gen {file}", f"write generated/{name}/ and build it"),
        ("#   deepinfer-gen schema > schema.json", "lets an editor check this file"),
        ("", ""),
        ("engine:", ""),
        (f"  name: {name}", "names the generated folder"),
        ("  type: NORMAL", "PROMPT only prefills, COMPLETION only decodes"),
        ("", ""),
        (f"model: {model}", "a preset, or a config.json beside this file"),
        (f"hardware: {hardware}", "cpu, sm90 (H200), sm100 (B200), ascend950"),
        ("", ""),
        ("parallel:", ""),
        (f"  dp: {ranks}", "attention data parallelism: ranks with their own sequences"),
        (f"  ep: {ranks}", "expert parallelism: ranks that share one copy of the experts"),
        ("", ""),
        ("limits:", ""),
        (f"  max_num_seqs: {seqs}", "sequences that run at once, per rank"),
        (f"  max_model_len: {length}", "longest sequence, prompt and output"),
        ("", ""),
        *(_CPU if hardware == "cpu" else _ACCELERATOR),
    )
    return "".join(_commented(code, comment) for code, comment in lines)


def _commented(code: str, comment: str) -> str:
    """One line, its comment in a column (two blanks away where the code is longer)."""
    return (f"{code:<{_COLUMN}}  # {comment}" if comment else code) + "\n"
