"""The keys of a model configuration: where each stands in ``config.json``, its type, unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from deepinfer_gen.formula import normalise

Kind = Literal["count", "index", "number", "integers", "choice", "flag"]
_MAX = 2**40
_LEAST = Fraction(1, 2**126)  # the smallest normal float32; below it an epsilon is none


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key.

    ``count`` is a positive integer, ``index`` one from 0, ``number`` a positive decimal, ``integers`` a list of
    integers from 0, ``choice`` one of ``allowed``, ``flag`` the only supported truth value.
    """

    path: str
    kind: Kind
    why: str
    unit: str = ""
    allowed: tuple[str | bool, ...] = ()

    def fault(self, value: Any) -> tuple[str, str] | None:
        """Code and rest of the sentence ``it must be ...`` if ``value`` is wrong."""
        number: Any = normalise(value) if isinstance(value, Fraction) else value
        integer = isinstance(number, int) and not isinstance(number, bool)
        match self.kind:
            case "count" | "index":
                low = 1 if self.kind == "count" else 0
                if not integer:
                    return "DI064", "an integer"
                return None if low <= number <= _MAX else ("DI065", f"between {low} and {_MAX}")
            case "number":
                if not integer and not isinstance(number, Fraction):
                    return "DI064", "a number"
                return None if _LEAST <= number <= _MAX else ("DI065", f"between 2^-126 (float32) and {_MAX}")
            case "integers":
                if not isinstance(value, list) or not all(
                    isinstance(v, int) and not isinstance(v, bool) for v in value
                ):
                    return "DI064", "a list of integers"
                if len(value) > 1024:
                    return "DI065", "a list of at most 1024 integers"
                return None if all(0 <= v <= _MAX for v in value) else ("DI065", f"a list of integers from 0 to {_MAX}")
            case "choice":
                if not isinstance(value, str):
                    return "DI064", "text"
                return None if value in self.allowed else ("DI066", " or ".join(f"'{a}'" for a in self.allowed))
            case "flag":
                if not isinstance(value, bool):
                    return "DI064", "true or false"
                return None if value in self.allowed else ("DI066", " or ".join(str(a).lower() for a in self.allowed))


def _text(name: str, kind: Kind, why: str, unit: str = "", *allowed: str | bool) -> tuple[str, ConfigKey]:
    return name, ConfigKey(f"text_config.{name}", kind, why, unit, allowed)


def _quant(name: str, kind: Kind, why: str, *allowed: str) -> tuple[str, ConfigKey]:
    return name, ConfigKey(f"quantization_config.{name}", kind, why, "", allowed)


def _top(name: str, why: str) -> tuple[str, ConfigKey]:
    return name, ConfigKey(name, "index", why)


KEYS: dict[str, ConfigKey] = dict((
    _text("vocab_size", "count", "rows of the embedding and the head", "tokens"),
    _text("hidden_size", "count", "width of one stream"),
    _text("num_hidden_layers", "count", "backbone layers", "layers"),
    _text("num_nextn_predict_layers", "index", "draft layers in the checkpoint", "layers"),
    _text("num_attention_heads", "count", "query heads"),
    _text("num_key_value_heads", "count", "key and value heads"),
    _text("head_dim", "count", "width of a head, of a window row and of a compressed row"),
    _text("qk_rope_head_dim", "count", "rotated channels at the end of a head"),
    _text("q_lora_rank", "count", "width of the query latent"),
    _text("o_lora_rank", "count", "width of one output group's latent"),
    _text("o_groups", "count", "groups of the output projection"),
    _text("hidden_act", "choice", "activation of the experts", "", "silu"),
    _text("attention_bias", "flag", "biases in the attention projections", "", False),
    _text("tie_word_embeddings", "flag", "head shares the embedding", "", False),
    _text("rms_norm_eps", "number", "epsilon of every RMS norm"),
    _text("max_position_embeddings", "count", "positions the model was trained for", "tokens"),
    _text("rope_theta", "count", "rotary base of layers without compressed KV and of draft layers"),
    _text("compress_rope_theta", "count", "rotary base of layers with compressed KV"),
    _text("rope_scaling.rope_type", "choice", "kind of rotary scaling", "", "yarn"),
    _text("rope_scaling.factor", "count", "YaRN stretch of the low frequencies"),
    _text("rope_scaling.beta_fast", "count", "rotations above which a frequency is kept"),
    _text("rope_scaling.beta_slow", "count", "rotations below which a frequency is stretched whole"),
    _text("rope_scaling.original_max_position_embeddings", "count", "positions before the stretch", "tokens"),
    _text("moe_intermediate_size", "count", "inner width of an expert"),
    _text("n_routed_experts", "count", "routed experts of a backbone layer", "experts"),
    _text("n_shared_experts", "count", "experts that see every token", "experts"),
    _text("num_experts_per_tok", "count", "routed experts per token", "experts"),
    _text("scoring_func", "choice", "score of the router", "", "sqrtsoftplus"),
    _text("topk_method", "choice", "how experts are chosen", "", "noaux_tc"),
    _text("norm_topk_prob", "flag", "chosen scores are normalised", "", True),
    _text("routed_scaling_factor", "number", "factor on the routed sum"),
    _text("swiglu_limit", "number", "clamp of gate and up"),
    _text("sliding_window", "count", "rows each query sees by position, itself included", "tokens"),
    _text("compress_ratios", "integers", "tokens per compressed row, per layer, draft layers last; 0: window only"),
    _text("kv_source_layer_ids", "integers", "layers that own compressed KV and index keys"),
    _text("index_source_layer_ids", "integers", "layers that select rows for themselves and the layers after them"),
    _text("index_n_heads", "count", "heads of the indexer"),
    _text("index_head_dim", "count", "width of an index key"),
    _text("index_topk", "count", "compressed rows that a query selects", "rows"),
    _text("candidate_source_layer_id", "index", "layer whose best blocks bound the later selections"),
    _text("candidate_topk_blocks", "count", "candidate blocks kept", "blocks"),
    _text("candidate_block_size", "count", "compressed rows of a candidate block", "rows"),
    _text("hc_mult", "count", "streams of the hyper-connection"),
    _text("hc_sinkhorn_iters", "count", "normalisation passes of the stream mixing"),
    _text("hc_eps", "number", "epsilon of the hyper-connection"),
    _text("engram_layer_ids", "integers", "layers with an Engram table"),
    _text("engram_num_embeddings", "integers", "rows of each Engram table", "rows"),
    _text("engram_max_ngram_size", "count", "longest n-gram that is hashed", "tokens"),
    _text("engram_vocab_size", "count", "least rows of one hash head, from which primes are searched", "rows"),
    _text("engram_n_heads", "count", "hash heads per n-gram order"),
    _text("engram_head_dim", "count", "width of an Engram row"),
    _text("engram_pad_token_id", "index", "token that stands before the start of a sequence"),
    _text("engram_compressed_vocab_size", "count", "classes of the Engram token map"),
    _text("dspark_block_size", "count", "tokens drafted in one pass", "tokens"),
    _text("dspark_noise_token_id", "index", "token at the positions to be drafted"),
    _text("dspark_target_layer_ids", "integers", "layers whose attention inputs feed the draft layers"),
    _text("dspark_markov_rank", "count", "width of the Markov head"),
    _text("dspark_n_routed_experts", "count", "routed experts of a draft layer", "experts"),
    _text("dspark_num_experts_per_tok", "count", "routed experts per token of a draft layer", "experts"),
    _top("bos_token_id", "token that begins a text"),
    _top("eos_token_id", "token that ends a text"),
    _top("pad_token_id", "padding token"),
    _top("image_token_id", "token that marks image positions"),
    _quant("quant_method", "choice", "format of the dense weights", "fp8"),
    _quant("weight_block_size", "integers", "weight tile of one scale, rows and columns"),
    _quant("scale_fmt", "choice", "format of the scales", "ue8m0"),
    _quant("expert_dtype", "choice", "format of the routed experts", "fp4"),
))  # fmt: skip
