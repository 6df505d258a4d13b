"""Rules between the keys of a model configuration.

One row per rule: its code, the keys it reads, what must hold and the sentence said when it does not. A rule is skipped
when one of its keys is missing or faulty, so that one fault is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from deepinfer_gen.checkpoint_table import MX_GROUP
from deepinfer_gen.diagnostics import Diagnostic
from deepinfer_gen.specs.json_marks import JsonTree
from deepinfer_gen.specs.model_keys import KEYS
from deepinfer_gen.specs.validate import show


@dataclass(frozen=True, slots=True)
class ModelRule:
    """``holds`` gets the values of ``keys`` in order."""

    code: str
    keys: tuple[str, ...]
    holds: Callable[..., bool]
    sentence: str
    help: str


def check_config(values: Mapping[str, Any], tree: JsonTree) -> list[Diagnostic]:
    """The diagnostics of every broken rule, each at its first key and with all values involved."""
    faults = []
    for rule in MODEL_RULES:
        if all(key in values for key in rule.keys) and not rule.holds(*(values[key] for key in rule.keys)):
            evidence = ", ".join(_evidence(tree, KEYS[key].path, values[key]) for key in rule.keys)
            place = tree.place(KEYS[rule.keys[0]].path)
            faults.append(tree.source.error(rule.code, f"{rule.sentence}: {evidence}", place, rule.help))
    return faults


def latest_source(sources: Sequence[int], layer: int) -> int | None:
    """The last of the increasing ``sources`` at or below ``layer``."""
    return max((s for s in sources if s <= layer), default=None)


def _evidence(tree: JsonTree, path: str, value: Any) -> str:
    text = show(value)
    return f"{path} = {text} (line {tree.place(path).line})"


def _increasing(ids: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(ids))


def _below(limit: int, ids: Sequence[int]) -> bool:
    return all(i < limit for i in ids)


def _ratios_follow_sources(ratios: Sequence[int], sources: Sequence[int], layers: int) -> bool:
    if len(ratios) < layers or not _below(len(ratios), sources):
        return True  # reported by its own rule
    for layer in range(layers):
        source = latest_source(sources, layer)
        if ratios[layer] and (source is None or ratios[source] != ratios[layer]):
            return False
    return True


def _compressed(ids: Sequence[int], ratios: Sequence[int], layers: int) -> bool:
    return all(ratios[i] for i in ids if i < min(layers, len(ratios)))


def _one_side(targets: Sequence[int], sources: Sequence[int]) -> bool:
    return not sources or len({t >= sources[-1] for t in targets}) <= 1


_LAYER_HELP = "layer ids count from 0 and leave out the draft layers"
MODEL_RULES: tuple[ModelRule, ...] = (
    ModelRule(
        "DI067",
        ("compress_ratios", "num_hidden_layers", "num_nextn_predict_layers"),
        lambda ratios, layers, drafts: len(ratios) == layers + drafts,
        "compress_ratios needs one entry per backbone and draft layer",
        "give num_hidden_layers + num_nextn_predict_layers ratios",
    ),
    ModelRule(
        "DI068",
        ("engram_num_embeddings", "engram_layer_ids"),
        lambda rows, layers: len(rows) == len(layers),
        "engram_num_embeddings needs one row count per Engram layer",
        "give as many row counts as engram_layer_ids has layers",
    ),
    *(
        ModelRule(
            "DI069", (name,), _increasing, f"{name} must increase strictly", "sort the ids and remove repeated ones"
        )
        for name in ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids", "dspark_target_layer_ids")
    ),
    *(
        ModelRule(
            "DI070",
            (name, "num_hidden_layers"),
            lambda ids, layers: _below(layers, ids if isinstance(ids, tuple) else (ids,)),
            f"{name} names a layer that does not exist",
            _LAYER_HELP,
        )
        for name in (
            "kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids", "dspark_target_layer_ids",
            "candidate_source_layer_id",
        )
    ),
    ModelRule(
        "DI071",
        ("kv_source_layer_ids", "index_source_layer_ids"),
        lambda kv, index: set(kv) <= set(index),
        "every KV source must be an index source",
        "add the KV sources to index_source_layer_ids",
    ),
    *(
        ModelRule(
            "DI072",
            (name, "compress_ratios", "num_hidden_layers"),
            _compressed,
            f"{name} names a layer of ratio 0, which compresses nothing",
            "a source layer has ratio 1 or 2",
        )
        for name in ("kv_source_layer_ids", "index_source_layer_ids")
    ),
    ModelRule(
        "DI073",
        ("compress_ratios", "kv_source_layer_ids", "num_hidden_layers"),
        _ratios_follow_sources,
        "every compressed layer must have the ratio of the latest KV source at or below it",
        "a change of ratio needs a KV source of its own",
    ),
    ModelRule(
        "DI074",
        ("compress_ratios",),
        lambda ratios: set(ratios) <= {0, 1, 2},
        "a compression ratio must be 0, 1 or 2",
        "0: window only, 1: every token, 2: pairs of tokens",
    ),
    ModelRule(
        "DI075",
        ("compress_ratios", "num_hidden_layers"),
        lambda ratios, layers: not any(ratios[layers:]),
        "draft layers must have ratio 0",
        "the entries after num_hidden_layers belong to the draft layers",
    ),
    ModelRule(
        "DI076",
        ("candidate_source_layer_id", "kv_source_layer_ids"),
        lambda candidate, kv: not kv or candidate == kv[-1],
        "the candidate source must be the last KV source",
        "the layer that begins the consumers selects the candidates of the layers after it",
    ),
    ModelRule(
        "DI077",
        ("engram_layer_ids", "kv_source_layer_ids"),
        lambda engram, kv: not kv or _below(kv[-1], engram),
        "no Engram layer may stand at or after the last KV source",
        "prefill truncation keeps only the last rows there, so an Engram table would miss its history",
    ),
    ModelRule(
        "DI078",
        ("dspark_target_layer_ids", "kv_source_layer_ids"),
        _one_side,
        "the draft targets must all stand before the last KV source, or all at or after it",
        "rows on the two sides of the cut differ in number",
    ),
    ModelRule(
        "DI079",
        ("candidate_topk_blocks", "candidate_block_size", "index_topk"),
        lambda blocks, size, topk: (blocks - 1) * size + 1 >= topk,
        "the candidate blocks may hold fewer rows than are selected, (blocks - 1) * size + 1 < topk",
        "raise candidate_topk_blocks",
    ),
    ModelRule(
        "DI080",
        ("qk_rope_head_dim", "head_dim", "index_head_dim"),
        lambda rope, head, index: rope % 2 == head % 2 == index % 2 == 0 and rope < head and rope <= index,
        "qk_rope_head_dim, head_dim and index_head_dim must be even, the first below the second and at most the third",
        "the rotated channels are pairs at the end of a head",
    ),
    ModelRule(
        "DI081",
        ("o_groups", "num_attention_heads"),
        lambda groups, heads: heads % groups == 0,
        "o_groups must divide num_attention_heads",
        "each group projects the same number of heads",
    ),
    *(
        ModelRule(
            "DI082",
            (name, "vocab_size"),
            lambda token, vocab: token < vocab,
            f"{name} is outside the vocabulary",
            "token ids count from 0 to vocab_size - 1",
        )
        for name in (
            "bos_token_id", "eos_token_id", "pad_token_id", "image_token_id", "engram_pad_token_id",
            "dspark_noise_token_id",
        )
    ),
    ModelRule(
        "DI083",
        ("num_experts_per_tok", "n_routed_experts"),
        lambda chosen, experts: chosen <= experts,
        "num_experts_per_tok exceeds n_routed_experts",
        "a token chooses among the routed experts",
    ),
    ModelRule(
        "DI084",
        ("dspark_num_experts_per_tok", "dspark_n_routed_experts"),
        lambda chosen, experts: chosen <= experts,
        "dspark_num_experts_per_tok exceeds dspark_n_routed_experts",
        "a token chooses among the routed experts of the draft layer",
    ),
    ModelRule(
        "DI085",
        ("weight_block_size",),
        lambda block: len(block) == 2 and all(block),
        "weight_block_size must be two positive numbers, rows and columns",
        "the release has [32, 32]",
    ),
    *(
        ModelRule(
            "DI086",
            (name,),
            lambda size: size % MX_GROUP == 0,
            f"{name} must be a multiple of {MX_GROUP}",
            f"expert and Engram rows carry one scale per group of {MX_GROUP} columns, whatever the weight tile",
        )
        for name in ("hidden_size", "moe_intermediate_size", "engram_head_dim")
    ),
    ModelRule(
        "DI087",
        ("num_key_value_heads",),
        lambda heads: heads == 1,
        "num_key_value_heads must be 1",
        "all query heads share one key and value row",
    ),
    ModelRule(
        "DI088",
        ("kv_source_layer_ids",),
        bool,
        "kv_source_layer_ids is empty",
        "the last KV source begins the consumer layers, so there must be one",
    ),
    ModelRule(
        "DI089",
        ("engram_max_ngram_size", "engram_compressed_vocab_size", "vocab_size"),
        lambda order, classes, vocab: order >= 2 and classes <= vocab,
        "engram_max_ngram_size must be at least 2 and engram_compressed_vocab_size at most vocab_size",
        "hashes begin with pairs of tokens, and the token map merges tokens",
    ),
    ModelRule(
        "DI089",
        ("engram_compressed_vocab_size",),
        lambda classes: classes < 2**30,
        "engram_compressed_vocab_size must be below 2^30",
        "a class times its hash multiplier stays below 2^63, and the multiplier needs more than 32 bits",
    ),
    ModelRule(
        "DI091",
        ("engram_max_ngram_size", "engram_n_heads"),
        lambda order, heads: (order - 1) * heads <= 1024,
        "an Engram layer has too many hash tables, (engram_max_ngram_size - 1) * engram_n_heads",
        "more than 1024 are not supported",
    ),
    *(
        ModelRule("DI090", (name,), lambda theta: theta > 1, f"{name} must be over 1", "the release has 10000 and more")
        for name in ("rope_theta", "compress_rope_theta")
    ),
    ModelRule(
        "DI090",
        ("rope_scaling.beta_slow", "rope_scaling.beta_fast", "rope_scaling.original_max_position_embeddings"),
        lambda slow, fast, original: slow < fast and 7 * slow <= original,
        "the YaRN ramp must run from a faster to a slower frequency that turns within the original context",
        "beta_slow must be below beta_fast, and 7 * beta_slow at most the original positions",
    ),
)  # fmt: skip
