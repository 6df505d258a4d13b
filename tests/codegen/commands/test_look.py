"""plan and explain: looking before building."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_spec import TINY_SPEC

from deepinfer_gen.specs.presets import shipped_specs

Cli = Callable[..., Any]
WriteSpec = Callable[..., str]


def test_the_report_names_the_engine_its_memory_and_its_constants(cli: Cli) -> None:
    result = cli("plan", "v41-flash-decode-ep64")
    assert result.status == 0
    assert result.out.startswith(
        "v41-flash-decode-ep64: COMPLETION engine for deepseek-v4.1-flash on sm100, 64 ranks, numerics released\n"
        "spec v41-flash-decode-ep64.yaml, spec digest "
    )
    for line in (
        "  kv.bytes_per_token  890          B",
        "  kv.block_bytes      113,920      B",
        "  state.stored_bytes           1,415,040  B",
        "  state.num_slots              154        slots",
        "  graphs.max_total_q  768                                tokens",
    ):
        assert f"{line}\n" in result.out


@pytest.mark.parametrize("spec", sorted(shipped_specs()))
def test_memory_adds_up(cli: Cli, spec: str) -> None:
    """capacity = used + free and used = the sum of the parts, read back from the printed table."""
    table = cli("plan", spec).out.partition("Memory of one rank\n")[2].partition("\n\n")[0]
    rows = [line.split() for line in table.splitlines()[1:] if "---" not in line]
    sizes = {" ".join(row[:-4]): int(row[-3].replace(",", "")) for row in rows}
    used, free, capacity = (sizes.pop(name) for name in ("used", "free", "capacity"))
    assert capacity == used + free
    assert used == sum(sizes.values())


def test_json_is_plan_json(cli: Cli, write_spec: WriteSpec, folder: Path) -> None:
    written = json.loads((folder / "plan.json").read_text())
    written.pop("stamp")
    assert cli("plan", write_spec(), "--json").data == written
    assert cli("plan", write_spec(), "--dump", "plan").data == written
    reread = cli("plan", folder, "--json").data
    assert {k: v["value"] for k, v in reread["values"].items()} == {k: v["value"] for k, v in written["values"].items()}
    assert reread["plan_digest"] == written["plan_digest"]


def test_the_stages_can_be_dumped(cli: Cli, write_spec: WriteSpec) -> None:
    spec = cli("plan", write_spec(), "--dump", "spec").data
    assert spec["limits.max_num_seqs"] == {"value": 16, "source": "case.yaml:6:17"}
    assert "kv.num_blocks" not in spec
    resolved = cli("plan", write_spec(), "--dump", "resolved").data
    assert resolved["settings"]["state.slots_ratio"]["value"] == "6/5"
    assert resolved["settings"]["state.slots_ratio"]["source"] == "default"


def test_what_does_not_fit_is_shown_and_refused(cli: Cli, write_spec: WriteSpec) -> None:
    spec = write_spec("big.yaml", ("block_size: 32", "block_size: 32\n  num_blocks: 700000"))
    result = cli("plan", spec)
    assert result.status == 2
    assert "  DEFICIT " in result.out
    assert result.err.startswith("big.yaml:10:15: error[DI102]: ")
    assert (cli("plan", spec, "--json").status, cli("plan", spec, "--json").out) == (2, "")


SLOTS = """\
state.num_slots = 20 slots
│    = max(floor(max_num_seqs * slots_ratio), max_num_seqs + 1) + 1
│    = max(floor(16 * (6/5)), 16 + 1) + 1
│    spare slots let prompts start while others finish; slot 0 is the dummy of padding rows
├─ limits.max_num_seqs = 16 sequences   ← case.yaml:6:17
│       sequences that run at once
└─ state.slots_ratio = 6/5   ← default
        state slots per running sequence, so that leaving ones can drain
"""


def test_explain_goes_down_to_line_and_column(cli: Cli, write_spec: WriteSpec) -> None:
    result = cli("explain", write_spec(), "state.num_slots")
    assert (result.status, result.out, result.err) == (0, SLOTS, "")


def test_explain_names_the_model_config_and_repeats_nothing(cli: Cli) -> None:
    out = cli("explain", "v41-flash-decode-ep64", "kv.bytes_per_token").out
    assert out.startswith("kv.bytes_per_token = 890 B\n")
    assert "model.config.head_dim = 512   ← config.json: text_config.head_dim\n" in out
    out = cli("explain", "v41-flash-decode-ep64", "memory.state_bytes").out
    assert out.count("= window + backtracking\n") == 1
    assert "state.swa_region_bytes = 70,752 B   (explained above)\n" in out


def test_explain_stops_at_a_depth(cli: Cli) -> None:
    shown = cli("explain", TINY_SPEC, "kv.bytes_per_token", "--depth", "1").out
    assert "├─ kv.main_row_bytes = 256 B   …\n" in shown
    assert "kv.main_format" not in shown
    assert len(shown.splitlines()) < 12


def test_explain_shows_long_lists_whole_on_request(cli: Cli) -> None:
    short = cli("explain", "v41-flash-decode-ep64", "graphs.sizes").out.splitlines()[0]
    assert short == "graphs.sizes = [1, 2, 4, 8, 16, 24, … 99 items] tokens"
    full = cli("explain", "v41-flash-decode-ep64", "graphs.sizes", "--full").out.splitlines()[0]
    assert full.endswith("752, 760, 768] tokens")
    assert full.count(",") == 98


def test_explain_of_a_folder_has_formulas_and_inputs_only(cli: Cli, folder: Path) -> None:
    out = cli("explain", folder, "state.num_slots").out
    assert out == SLOTS.replace("│    = max(floor(16 * (6/5)), 16 + 1) + 1\n", "")


def test_explain_as_data(cli: Cli, write_spec: WriteSpec) -> None:
    data = cli("explain", write_spec(), "state.num_slots", "--json").data
    assert data["key"] == "state.num_slots"
    assert list(data["values"]) == ["limits.max_num_seqs", "state.num_slots", "state.slots_ratio"]
    assert data["values"]["state.num_slots"]["numbers"] == "max(floor(16 * (6/5)), 16 + 1) + 1"


@pytest.mark.parametrize("pattern", ["state.swa.3", "state.swa.3.", "state.swa.3.*", "state.swa.[3].*"])
def test_a_prefix_or_glob_lists_keys(cli: Cli, pattern: str) -> None:
    out = cli("explain", TINY_SPEC, pattern).out
    assert [line.split()[0] for line in out.splitlines()] == [
        f"state.swa.3.{f}" for f in ("bytes", "offset", "padding")
    ]
    assert list(cli("explain", TINY_SPEC, pattern, "--json").data["keys"]) == [
        f"state.swa.3.{f}" for f in ("bytes", "offset", "padding")
    ]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("kv.byte_per_tokn", "did you mean kv.bytes_per_token?"),
        ("bytes_per_token", "did you mean kv.bytes_per_token?"),
        ("nonsense", "deepinfer-gen explain tiny-cpu '*' lists all keys"),
    ],
)
def test_an_unknown_key(cli: Cli, key: str, hint: str) -> None:
    result = cli("explain", "tiny-cpu", key)
    assert (result.status, result.out) == (2, "")
    assert result.err == f"error[DI261]: the Plan of tiny-cpu has no key '{key}'\nhelp: {hint}\n"


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda text: text.replace('"value": 20,', '"value": 21,'), "values have digest"),
        (lambda text: text.replace('"schema": 1', '"schema": 9'), "schema is 9"),
        (lambda text: "{", "Expecting property name"),
        (lambda text: "[]", "TypeError"),
    ],
)
def test_a_damaged_plan_is_refused(damage: Callable[[str], str], fault: str, folder: Path) -> None:
    from deepinfer_gen.codegen.plan_file import parse_plan
    from deepinfer_gen.diagnostics import InputError

    text = (folder / "plan.json").read_text()
    assert parse_plan(text, "plan.json", "case.yaml").integer("state.num_slots") == 20
    with pytest.raises(InputError, match="DI260") as caught:
        parse_plan(damage(text), "plan.json", "case.yaml")
    assert fault in str(caught.value)


def test_an_edited_folder_is_refused(cli: Cli, folder: Path) -> None:
    path = folder / "plan.json"
    path.write_text(path.read_text().replace('"value": 20,', '"value": 21,'))
    result = cli("explain", folder, "state.num_slots")
    assert result.status == 2
    assert "error[DI201]: plan.json differs from manifest.json: it was changed by hand" in result.err
