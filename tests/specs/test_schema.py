"""The schema as a table and as the editor's file, hardware tables, and the property that input never crashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_spec import TINY_SPEC

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.specs.defaults import BUILT, COMPUTED
from deepinfer_gen.specs.fields import spec_fields
from deepinfer_gen.specs.hardware_table import read_hardware
from deepinfer_gen.specs.json_schema import json_schema, schema_text
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.presets import hardware_tables, preset_folder
from deepinfer_gen.specs.resolve import resolve
from deepinfer_gen.specs.source_text import SourceText, read_source

SPECS = Path(load_spec.__code__.co_filename).parent
TINY = TINY_SPEC.read_text(encoding="utf-8")
CONFIG = (preset_folder("tiny-v41") / "config.json").read_text(encoding="utf-8")


def test_the_committed_schema_is_current() -> None:
    assert (SPECS / "schema.json").read_text(encoding="utf-8") == schema_text()


def test_the_schema_offers_no_null() -> None:
    text = json.dumps(json_schema())
    assert '"null"' not in text
    assert "null" not in text


def test_every_field_is_described() -> None:
    fields = spec_fields()
    assert len(fields) == 45
    for key, field in fields.items():
        assert field.description, key
        assert "\n" not in field.description, key
        assert field.status in ("stable", "planned"), key
        assert field.engine_types, key
        assert bool(field.rule) == (key in COMPUTED and field.default is None), key
        assert field.required + (field.default is not None) + bool(field.rule) == 1, key


def test_planned_fields() -> None:
    assert {key for key, field in spec_fields().items() if field.status == "planned"} == {
        "kv.store_extra_tokens",
        "eplb.window_steps",
        "eplb.rebalance_steps",
        "sampling.force_topk",
        "structured_output",
        "kernels.pdl",
    }


def test_what_auto_means_is_said_for_every_auto_default() -> None:
    autos = {key for key, field in spec_fields().items() if field.default == "auto"}
    assert autos == {"kv.num_blocks", *BUILT, *(key for key in COMPUTED if spec_fields()[key].default == "auto")}


def test_hardware_tables() -> None:
    tables = {name: read_hardware(read_source(path, name, 10**5, "table")) for name, path in hardware_tables().items()}
    assert set(tables) == {"cpu", "sm90", "sm100", "ascend950"}
    assert all(table.name == name for name, table in tables.items())
    assert tables["sm90"].memory_bytes == 141 * 10**9
    assert tables["sm100"].memory_bytes == 180 * 10**9
    assert tables["sm100"].memory_margin == Fraction(1, 20)
    assert tables["cpu"].graph_bytes == 0
    assert tables["sm90"].settings["memory_bytes"].source == "sm90.yaml: memory_bytes"


def diagnostics_of(action: Callable[[], object]) -> tuple[Diagnostic, ...]:
    """Run ``action``, which either succeeds or raises ``InputError`` with at least one diagnostic."""
    try:
        action()
    except InputError as fault:
        return fault.diagnostics or pytest.fail("an InputError without a diagnostic")
    return ()


_SNIPPETS = st.sampled_from(
    ["\n", " ", "\t", ":", ": ", "-", "- ", "&a ", "*a", "!!int ", "? ", "|", ">", "{", "}", "[", "]", "'", '"', "#",
     "%", "---\n", "...\n", "<<: ", "010", "1:30", "yes", "~", "null", "true", "1e9", "0.5", "-1", "auto", "\x00",
     "\x85", "\u2028", "\ufeff", "é", "\U0001f600", "kv:\n", "kv.block_size: 1\n", "engine: 1\n", "limits: []\n",
     "a" * 300]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """``text`` after one to four cuts, insertions or moves."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 2, 8, 40])))
        insert = draw(_SNIPPETS | st.text(max_size=3) | st.just(text[start : start + 30]))
        text = text[:start] + insert + text[end:]
    return text


@st.composite
def revalued(draw: st.DrawFn) -> str:
    """The tiny spec with some values replaced, most of them in range."""
    lines = TINY.splitlines(keepends=True)
    values = st.sampled_from(["0", "1", "2", "5", "32", "129", "4096", "auto", "on", "off", "true", "1.5", "0.3",
                              "PROMPT", "COMPLETION", "varlen", "compact", "bf16", "sm90", "x/y.json", "[1]",
                              "''"])  # fmt: skip
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(lines) - 1))
        key, colon, _rest = lines[at].partition(": ")
        if colon:
            lines[at] = f"{key}: {draw(values)}\n"
    return "".join(lines)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=mutated(TINY) | revalued())
def test_no_spec_text_crashes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mutated.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for diagnostic in diagnostics_of(lambda: resolve(load_spec(path))):
        assert diagnostic.file
        assert diagnostic.as_text().replace("\n", "").isprintable()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=mutated(CONFIG))
def test_no_model_config_crashes(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(config.encode("utf-8", "surrogatepass"))
    path = tmp_path / "spec.yaml"
    path.write_text(TINY.replace("tiny-v41", "config.json"), encoding="utf-8")
    diagnostics_of(lambda: resolve(load_spec(path)))


@pytest.mark.parametrize("name", sorted(hardware_tables()))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_hardware_table_crashes(name: str, data: st.DataObject) -> None:
    text = data.draw(mutated(hardware_tables()[name].read_text(encoding="utf-8")))
    diagnostics_of(lambda: read_hardware(SourceText("table.yaml", "table.yaml", text)))
