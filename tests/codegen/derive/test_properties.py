"""Layout, graph and expert rules over random specs and models."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.diagnostics import InputError

FORMATS = st.sampled_from(["nvfp4_g16", "mxfp4_g32", "mxfp8_g32", "bf16", "fp32"])


@st.composite
def models(draw, base):
    """A backbone of window layers, then groups that share a KV source each; the last source is the cut."""
    window_layers = draw(st.integers(0, 3))
    groups = draw(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 4)), min_size=1, max_size=4))
    ratios, sources = [0] * window_layers, []
    for ratio, length in groups:
        sources.append(len(ratios))
        ratios += [ratio] * length
    drafts = base.num_nextn_predict_layers
    return replace(
        base,
        num_hidden_layers=len(ratios),
        compress_ratios=(*ratios, *[0] * drafts),
        kv_source_layer_ids=tuple(sources),
        index_source_layer_ids=tuple(sources),
        candidate_source_layer_id=sources[-1],
        engram_layer_ids=(),
        engram_num_embeddings=(),
        head_dim=32 * draw(st.integers(1, 16)),
        index_head_dim=32 * draw(st.integers(1, 4)),
        sliding_window=draw(st.integers(1, 200)),
    )


@st.composite
def changes(draw):
    nextn = draw(st.integers(0, 5))
    return {
        "kv.block_size": 2 * draw(st.integers(1, 128)),
        "kv.main_format": draw(FORMATS),
        "kv.index_format": draw(FORMATS),
        "kv.swa_format": draw(FORMATS),
        "speculative.nextn": nextn,
        "speculative.max_backtracking_tokens": nextn + draw(st.integers(1, 9)),
        "limits.max_num_seqs": draw(st.integers(1, 300)),
        "limits.max_model_len": draw(st.integers(1, 5000)),
        "graphs.batch_size_interval": draw(st.integers(1, 40)),
        "parallel.ep": draw(st.sampled_from([1, 2, 3, 8, 16])),
        "eplb.min_redundant_per_rank": draw(st.integers(0, 5)),
        "state.slots_ratio": Fraction(draw(st.integers(100, 400)), 100),
    }


def tiles(regions, alignment, end):
    """Regions follow each other without gaps, each size aligned, up to ``end``."""
    position = 0
    for offset, size, padding in regions:
        assert offset == position
        assert size % alignment == 0
        assert 0 <= padding < alignment
        position += size
    assert position == end


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_layouts(make, tiny, data):
    model, change = data.draw(models(tiny)), data.draw(changes())
    try:
        plan = derive(make(change, model=model))
    except InputError as refused:
        # Few main rows of odd width end where no element of a plain index row may begin; anything else is a fault.
        if [d.code for d in refused.diagnostics] != ["DI440"] or change["kv.index_format"] not in ("bf16", "fp32"):
            raise
        assume(False)
    region = lambda key: tuple(plan.integer(f"{key}.{part}") for part in ("offset", "bytes", "padding"))  # noqa: E731
    drafts = model.num_nextn_predict_layers if change["speculative.nextn"] else 0
    layers = model.num_hidden_layers + drafts
    pooled = [i for i in model.kv_source_layer_ids if model.compress_ratios[i] == 2]

    rings = [region(f"state.swa.{i}") for i in range(layers)]
    accumulators = [region(f"state.ca_state.{i}") for i in pooled]
    tiles([*rings, *accumulators], 16, plan["state.slot_bytes"])
    stored = [r for i, r in enumerate(rings) if plan[f"layers.{i}.stored"]]
    assert sum(size for _, size, _ in stored) == plan["state.stored_bytes"]
    assert plan["state.stored_bytes"] == plan[f"state.swa.{model.kv_source_layer_ids[-1]}.offset"]
    assert all(r[1] - r[2] == plan.integer("state.swa_ring_tokens") * plan.integer("kv.swa_row_bytes") for r in rings)
    assert plan.integer("state.swa_ring_tokens") >= model.sliding_window + change["speculative.nextn"] + 1

    sources = [region(f"kv.source.{i}") for i in model.kv_source_layer_ids]
    tiles(sources, 32, plan.integer("kv.block_bytes") - plan.integer("kv.block_padding"))
    assert plan.integer("kv.block_bytes") % 128 == 0
    main, index = plan.integer("kv.main_row_bytes"), plan.integer("kv.index_row_bytes")
    for layer, (offset, size, padding) in zip(model.kv_source_layer_ids, sources, strict=True):
        rows = change["kv.block_size"] // model.compress_ratios[layer]
        assert plan[f"kv.source.{layer}.rows"] == rows
        assert plan[f"kv.source.{layer}.main_offset"] == offset
        assert plan[f"kv.source.{layer}.index_offset"] == offset + rows * main
        assert size - padding == rows * (main + index)
    per_block = sum(size - padding for _, size, padding in sources)
    assert plan["kv.bytes_per_token"] == Fraction(per_block, change["kv.block_size"])
    assert plan.integer("kv.blocks_per_seq") * change["kv.block_size"] >= plan.integer("model.runtime_max_model_len")

    seqs = change["limits.max_num_seqs"]
    assert plan.integer("state.num_slots") >= seqs + 2
    assert plan.integer("state.num_slots") - 1 <= max(seqs * change["state.slots_ratio"], seqs + 1)


@settings(max_examples=60, deadline=None)
@given(change=changes())
def test_graphs(make, enlarged, change):
    plan = derive(make(change, hardware=enlarged("sm100", 10**13)))
    sizes, rows, lookup = (plan.integers(f"graphs.{name}") for name in ("sizes", "rows", "lookup"))
    total, seqs = plan.integer("graphs.max_total_q"), change["limits.max_num_seqs"]
    max_q = change["speculative.nextn"] + 1
    interval = change["graphs.batch_size_interval"]
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == total == seqs * max_q
    assert all(size % interval == 0 for size in sizes[:-1] if size >= interval)
    assert all(size & (size - 1) == 0 for size in sizes[:-1] if size < interval)
    assert len(lookup) == total + 1
    for tokens, index in enumerate(lookup):
        assert sizes[index] >= tokens
        assert index == 0 or sizes[index - 1] < tokens
        if tokens:  # any real rows plus the padding tokens, grouped by max_q, fit the graph's rows
            real = min(tokens, seqs)
            assert real + -(-(sizes[index] - tokens) // max_q) <= rows[index]


@settings(max_examples=60, deadline=None)
@given(change=changes())
def test_redundant_experts_are_the_fewest(make, enlarged, change):
    plan = derive(make(change, hardware=enlarged("sm100", 10**13)))
    ep, minimum = change["parallel.ep"], change["eplb.min_redundant_per_rank"]
    least = next(r for r in range(minimum * ep, minimum * ep + ep) if (384 + r) % ep == 0) if ep > 1 else 0
    assert plan["eplb.redundant_experts"] == least
    assert plan.integer("parallel.local_experts") * ep == 384 + least
