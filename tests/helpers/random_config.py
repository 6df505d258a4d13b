"""Random small model configurations that keep every rule of the config schema and use its freedoms."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count
from typing import Any

from random_tokenizer import RandomTokenizer, draw_tokenizer

TILE = 32
"""Side of a weight tile. Other implementations know no other than the released one."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """``config`` is the content of a config.json; ids below ``tokenizer.tokens`` but ``image_token_id`` are text."""

    config: dict[str, Any]
    tokenizer: RandomTokenizer


@dataclass(frozen=True, slots=True)
class _Roles:
    ratios: list[int]
    kv_sources: list[int]
    index_sources: list[int]


def draw_model(rng: random.Random) -> RandomModel:
    """Draw sizes, layer roles and constants. Every count of KV groups, drafts, Engrams, streams and experts occurs."""
    tokenizer = draw_tokenizer(rng)
    roles = _draw_roles(rng)
    layers, cut = len(roles.ratios), roles.kv_sources[-1]
    drafts = rng.randint(0, 3)
    side = range(cut, layers) if cut == 0 or rng.random() < 0.5 else range(cut)
    block, topk = rng.choice([1, 2, 3, 4, 8]), rng.randint(1, 24)
    least_blocks = 1 + -(-(topk - 1) // block)
    # Room between the candidates' least number and the few dozen blocks of a prompt lets the filter bite.
    text: dict[str, Any] = {
        "model_type": "deepseek_v41_text",
        "vocab_size": tokenizer.tokens + 1 + rng.randint(0, 9),
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": drafts,
        "compress_ratios": roles.ratios + [0] * drafts,
        "kv_source_layer_ids": roles.kv_sources,
        "index_source_layer_ids": roles.index_sources,
        "candidate_source_layer_id": cut,
        "index_topk": topk,
        "candidate_block_size": block,
        "candidate_topk_blocks": least_blocks + rng.randint(0, 3),
        "dspark_target_layer_ids": sorted(rng.sample(side, rng.randint(1, min(3, len(side))))),
        **_widths(rng),
        **_experts(rng),
        **_rotation(rng),
        **_engram(rng, tokenizer, cut),
        "rms_norm_eps": rng.choice([1e-20, 1e-6, 1e-3]),
        "hc_mult": rng.randint(1, 5),
        "hc_sinkhorn_iters": rng.choice([1, 2, 5, 20]),
        "hc_eps": rng.choice([1e-6, 1e-3]),
        "sliding_window": rng.choice([1, 2, 7, 16, 33, 64]),
        "max_position_embeddings": 4096,
        "dspark_block_size": rng.randint(1, 6),
        "dspark_markov_rank": rng.randint(8, 40),
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    text["dspark_noise_token_id"] = rng.randrange(text["vocab_size"])
    config = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": text["vocab_size"] - 1,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [TILE, TILE],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": text,
        "vision_config": {"model_type": "deepseek_v41_vision", "num_hidden_layers": 0},
    }
    return RandomModel(config, tokenizer)


def draw_prompt(rng: random.Random, model: RandomModel, length: int) -> list[int]:
    """Ids of text tokens; phrases come again, so that n-grams do."""
    ids = [rng.randrange(model.tokenizer.tokens) for _ in range(length)]
    for _ in range(length // 20):
        size = rng.randint(1, 12)
        source, target = rng.randrange(length), rng.randrange(length)
        phrase = ids[source : source + size]
        ids[target : target + len(phrase)] = phrase
    return ids[:length]


def _draw_roles(rng: random.Random) -> _Roles:
    """Layers without compression first, then groups that each begin with a KV source."""
    ratios = [0] * rng.randint(0, 2)
    kv_sources, index_sources = [], []
    for _ in range(rng.randint(1, 3)):
        kv_sources.append(len(ratios))
        index_sources.append(len(ratios))
        ratio = rng.randint(1, 2)
        ratios.append(ratio)
        for _ in range(rng.randint(0, 3)):
            kind = rng.choice(["reuse", "reindex", "window"])
            if kind == "reindex":
                index_sources.append(len(ratios))
            ratios.append(0 if kind == "window" else ratio)
    return _Roles(ratios, kv_sources, index_sources)


def _widths(rng: random.Random) -> dict[str, Any]:
    """Only what the MX formats group must be a multiple of 32; heads hold pairs; every other width may be odd."""
    groups = rng.randint(1, 3)
    rope = 2 * rng.randint(1, 8)
    return {
        "hidden_size": TILE * rng.randint(1, 4),
        "num_attention_heads": groups * rng.randint(1, 3),
        "num_key_value_heads": 1,
        "qk_rope_head_dim": rope,
        "head_dim": rope + 2 * rng.randint(1, 20),
        "q_lora_rank": rng.randint(9, 70),
        "o_lora_rank": rng.randint(5, 40),
        "o_groups": groups,
        "index_n_heads": rng.randint(1, 16),
        "index_head_dim": rope + 2 * rng.randint(0, 12),
    }


def _experts(rng: random.Random) -> dict[str, Any]:
    experts, draft_experts = rng.randint(1, 17), rng.randint(1, 9)
    return {
        "moe_intermediate_size": TILE * rng.randint(1, 3),
        "n_routed_experts": experts,
        "n_shared_experts": rng.choice([1, 1, 2]),
        "num_experts_per_tok": rng.randint(1, min(experts, 6)),
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": rng.choice([0.5, 1.5, 2.5]),
        "swiglu_limit": rng.choice([0.5, 2.0, 10.0]),
        "dspark_n_routed_experts": draft_experts,
        "dspark_num_experts_per_tok": rng.randint(1, draft_experts),
    }


def _rotation(rng: random.Random) -> dict[str, Any]:
    slow = rng.randint(1, 4)
    return {
        "rope_theta": rng.choice([10000, 500, 50000]),
        "compress_rope_theta": rng.choice([160000, 1000, 40000]),
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": rng.choice([1, 2, 16, 40]),
            "beta_fast": slow + rng.randint(1, 40),
            "beta_slow": slow,
            "original_max_position_embeddings": rng.choice([28, 64, 256, 4096]),
        },
    }


def _engram(rng: random.Random, tokenizer: RandomTokenizer, cut: int) -> dict[str, Any]:
    layers = sorted(rng.sample(range(cut), rng.randint(0, min(2, cut))))
    order, heads, least = rng.randint(2, 5), rng.randint(1, 4), rng.choice([2, 50, 256, 400])
    primes = (number for number in count(least) if _is_prime(number))
    return {
        "engram_layer_ids": layers,
        "engram_num_embeddings": [sum(next(primes) for _ in range((order - 1) * heads)) for _ in layers],
        "engram_max_ngram_size": order,
        "engram_vocab_size": least,
        "engram_n_heads": heads,
        "engram_head_dim": TILE * rng.randint(1, 2),
        "engram_pad_token_id": rng.randrange(tokenizer.tokens),
        "engram_compressed_vocab_size": tokenizer.classes,
    }


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
