"""The smallest model that has every kind of layer, with a corpus of few words, for training in a test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from compiled_tables import write_tables
from safetensors.torch import load_file, save_file
from tables import FILE

from deepinfer_gen.specs.presets import preset_folder

LENGTH = 64
"""Tokens of a row: four windows, and more entries than the candidate filter leaves."""

BREAK, HEAD = 10, 11
"""Ids that stand for a line break and for ``def``; the tokenizer has neither as a token of its own."""

# With few index heads many scores are exactly 0, and which of those are selected is nobody's rule.
_TEXT = {
    "vocab_size": 512, "hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 6,
    "num_attention_heads": 2, "head_dim": 32, "qk_rope_head_dim": 8, "q_lora_rank": 32, "o_lora_rank": 32,
    "o_groups": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0], "kv_source_layer_ids": [1, 3], "index_source_layer_ids": [1, 3, 4],
    "index_n_heads": 8, "index_head_dim": 32, "index_topk": 4, "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 3, "candidate_block_size": 4, "hc_mult": 2, "hc_sinkhorn_iters": 4,
    "engram_layer_ids": [1, 2], "engram_vocab_size": 50, "num_nextn_predict_layers": 2,
    "dspark_target_layer_ids": [3, 4, 5], "dspark_markov_rank": 16, "dspark_n_routed_experts": 2,
    "dspark_num_experts_per_tok": 1,
    # Six primes a layer: 53, 59, 61, 67, 71, 73 and 79, 83, 89, 97, 101, 103.
    "engram_num_embeddings": [384, 552],
}  # fmt: skip


def miniature_config() -> dict[str, Any]:
    """The content of its config.json: that of tiny-v41, whose tokenizer it keeps, with other sizes and layers."""
    config: dict[str, Any] = json.loads((preset_folder("tiny-v41") / "config.json").read_text(encoding="utf-8"))
    config["text_config"].update(_TEXT)
    return config


def write_miniature(folder: Path) -> tuple[Path, Path]:
    """A model folder and a working folder with what ``data`` writes; the text repeats a few lines in random order."""
    model, work = folder / "model", folder / "work"
    model.mkdir(parents=True)
    work.mkdir()
    (model / "config.json").write_text(json.dumps(miniature_config()), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(preset_folder("tiny-v41") / name, model / name)
    write_tables(model, work)
    tables = load_file(work / FILE)
    ids = torch.arange(len(tables["token_map"]))
    tables |= {"begins_line": ids == BREAK, "is_break": ids == BREAK, "is_head": ids == HEAD}
    save_file(tables, work / FILE)
    for split, lines in (("train", 600), ("calibration", 60)):
        np.save(work / f"tokens-{split}.npy", miniature_tokens(lines, seed=lines))
    return model, work


def miniature_tokens(lines: int, seed: int) -> npt.NDArray[np.uint16]:
    """``lines`` random choices of twelve lines of six to twelve ids: a break, in every second a head, words."""
    words = np.random.default_rng(7)
    known = [
        np.array([BREAK, *[HEAD] * (line % 2), *words.integers(20, 250, words.integers(5, 11))]) for line in range(12)
    ]
    chosen = np.random.default_rng(seed).integers(len(known), size=lines)
    return np.concatenate([known[i] for i in chosen]).astype(np.uint16)
