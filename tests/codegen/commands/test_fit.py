"""fit: what fits, which limit binds, how far each limit goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiny_spec import TINY_SPEC

from deepinfer_gen.codegen.fit import fit_json, fit_lines, fit_report, wanted_blocks
from deepinfer_gen.codegen.sources import plan_spec_unfit

Cli = Callable[..., Any]
WriteSpec = Callable[..., str]

# So little memory that it runs out within the limits that are searched.
SMALL_HOST = """\
name: small
card: small host
backend: cpu
arch: ""
memory_bytes: 200000000
memory_bandwidth_bytes_per_s: 76800000000
scale_up_ranks: 8
shared_memory_bytes: 0
compute_units: 2
memory_margin: 0.25
graph_bytes: 0
"""


@pytest.fixture
def small(tmp_path: Any, write_spec: WriteSpec) -> str:
    (tmp_path / "small.yaml").write_text(SMALL_HOST)
    return write_spec("on-small.yaml", ("hardware: cpu", "hardware: small.yaml"))


def test_answers_are_the_exact_limits(cli: Cli, small: str) -> None:
    """At the answer the real plan fits, one further it does not; the same for all sequences full."""
    data = cli("fit", small, "--json").data
    assert data["fits"] is True
    for answer in data["answers"][:2]:
        key, fits, full = answer["key"], answer["fits"], answer["full"]
        assert fits >= full >= answer["now"]
        plan, fault = plan_spec_unfit(small, {key: str(full)})
        assert fault is None
        assert plan.integer("kv.num_blocks") == wanted_blocks(plan)
        plan, fault = plan_spec_unfit(small, {key: str(full + 1)})
        assert fault is not None or plan.integer("kv.num_blocks") < wanted_blocks(plan)
        assert plan_spec_unfit(small, {key: str(fits)})[1] is None
    seqs = data["answers"][0]
    assert plan_spec_unfit(small, {seqs["key"]: str(seqs["fits"] + 1)})[1] is not None


def test_the_smallest_ep(cli: Cli) -> None:
    """By hand, per rank of 180.0 GB, 18,800,640 B an expert.

    ep 4: 97 experts x 40 layers + 33 x 3 draft = 3,979 experts = 74.81 GB; Engram 202.76 / 4 = 50.69 GB; dense 10.56;
    margin 9.00; together 145.06 GB, and about 6 GB of state, workspace and graphs: fits.
    ep 2: 193 x 40 + 65 x 3 = 7,915 experts = 148.81 GB and Engram 101.38 GB: does not.
    """
    data = cli("fit", "v41-flash-normal-ep8", "--json").data
    assert data["answers"][2]["key"] == "parallel.ep"
    assert data["answers"][2]["fits"] == 4
    assert "short" in data["answers"][2]["beyond"]


def test_more_ranks_are_proposed_where_no_ep_fits(cli: Cli, write_spec: WriteSpec) -> None:
    """One B200 cannot hold 509 GB, nor can two; 4 ranks can (see above)."""
    spec = write_spec(
        "one.yaml",
        ("tiny-v41", "deepseek-v4.1-flash"),
        ("hardware: cpu", "hardware: sm100"),
        ("numerics:\n  policy: float32_unquantized\n", ""),
    )
    result = cli("fit", spec)
    assert result.status == 2
    assert "Does not fit: " in result.out
    assert "dp = ep = 4 would fit" in result.out
    assert "error[DI102]" in result.err


def test_before_and_after(cli: Cli, small: str) -> None:
    """By hand: 20 sequences instead of 16 have floor(20 x 1.2) + 1 = 25 slots instead of 20."""
    report = fit_report(small, {"limits.max_num_seqs": "20"})
    slot = report.before.integer("state.slot_bytes")
    data = fit_json(report)
    assert data["before"]["parts"]["state"] == 20 * slot
    assert data["after"]["parts"]["state"] == 25 * slot
    lines = fit_lines(report)
    assert lines[1].split() == ["as", "written", "with", "--set", "change"]
    assert "The limits bind: 20 sequences of 1,024 tokens fit at once" in "\n".join(lines)


def test_memory_binds(cli: Cli, small: str) -> None:
    out = cli("fit", small, "--set", "limits.max_num_seqs=100").out
    assert "Memory binds: " in out
    assert " tokens) of the 3,300 that 100 sequences of 1,024 tokens need at once" in out


def test_what_stops_the_model_length_is_the_model(cli: Cli) -> None:
    answer = cli("fit", TINY_SPEC, "--json").data["answers"][1]
    assert answer["fits"] == 4096  # max_position_embeddings of the tiny model
    assert answer["beyond"] == "limits.max_model_len exceeds the positions of the model"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("limits.max_num_seqs", "error[DI262]: '--set limits.max_num_seqs' is not KEY=VALUE\n"),
        ("=3", "error[DI262]: '--set =3' is not KEY=VALUE\n"),
        ("limits.max_num_sqs=3", "--set limits.max_num_sqs=3: error[DI011]: unknown key 'limits.max_num_sqs'\n"),
        ("limits.max_num_seqs=many", "--set limits.max_num_seqs=many: error[DI013]: "),
        ("limits.max_num_seqs=0", "--set limits.max_num_seqs=0: error[DI015]: "),
        ("yoco.keep_tokens=5", "--set yoco.keep_tokens=5: error[DI"),
    ],
)
def test_overrides_are_validated_under_their_own_name(cli: Cli, written: str, message: str) -> None:
    result = cli("fit", "tiny-cpu", "--set", written)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(message)


def test_an_override_given_twice(cli: Cli) -> None:
    result = cli("fit", "tiny-cpu", "--set", "kv.block_size=32", "--set", "kv.block_size=64")
    assert result.err.startswith("error[DI262]: --set gives kv.block_size twice: 32 and 64\n")
