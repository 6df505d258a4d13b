"""Loading: shipped names, positions, files that cannot be read, paths, overrides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.specs.load import MAX_SPEC_BYTES, load_spec
from deepinfer_gen.specs.presets import presets, shipped_specs
from deepinfer_gen.specs.resolve import resolve

MINIMAL = "engine:\n  name: small\nmodel: tiny-v41\nhardware: cpu\nlimits:\n  max_num_seqs: 4\n  max_model_len: 512\n"


def write(folder: Path, text: str, name: str = "small.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def codes(path: str | Path, overrides: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        resolve(load_spec(path, overrides))
    return [d.code for d in caught.value.diagnostics]


def test_the_six_shipped_specs_load_by_bare_name() -> None:
    assert set(shipped_specs()) == {
        "tiny-cpu",
        "v41-flash-prefill-ep8",
        "v41-flash-decode-ep64",
        "v41-flash-normal-ep8",
        "v41-flash-normal-ep8-sm90",
        "v41-flash-normal-ep8-ascend950",
    }
    for name, path in shipped_specs().items():
        assert resolve(load_spec(name)).name == name
        assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=schema.json\n")


def test_a_bare_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny-cpu").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_spec("tiny-cpu").source.base == "tiny-cpu.yaml"


def test_positions_count_from_one(tmp_path: Path) -> None:
    loaded = load_spec(
        write(tmp_path, "\ufeff" + MINIMAL.replace("limits:", "# é comment\nlimits:") + "kv: {block_size: 64}\n")
    )
    assert loaded.source_of("engine.name") == "small.yaml:2:9"
    assert loaded.source_of("limits.max_num_seqs") == "small.yaml:7:17"
    assert loaded.source_of("kv.block_size") == "small.yaml:9:18"
    assert loaded.source_of("kv.num_blocks") is None


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_every_line_break_gives_the_same_spec(line_break: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_bytes(MINIMAL.replace("\n", line_break).encode())
    assert load_spec(path).source_of("limits.max_model_len") == "small.yaml:7:18"


def test_unicode_line_separators_break_no_line(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("engine:\n  name: a\n# \x85 \u2028\nmodel: 5\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_spec(file)
    fault = next(d for d in caught.value.diagnostics if d.code == "DI013")
    assert (fault.line, fault.excerpt) == (4, "model: 5")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert codes(tmp_path / "none.yaml") == ["DI001"]
    assert codes(tmp_path) == ["DI001"]
    assert codes("none\0.yaml") == ["DI001"]
    assert codes("x" * 5000) == ["DI001"]
    assert codes("") == ["DI001"]
    os.mkfifo(tmp_path / "pipe.yaml")
    assert codes(tmp_path / "pipe.yaml") == ["DI001"]


def test_a_misspelt_shipped_name_is_corrected() -> None:
    with pytest.raises(InputError, match="did you mean 'tiny-cpu'"):
        load_spec("tiny-cup")


def test_size_limit(tmp_path: Path) -> None:
    padding = MAX_SPEC_BYTES - len(MINIMAL) - 2
    load_spec(write(tmp_path, MINIMAL + "#" + "x" * padding + "\n"))
    assert codes(write(tmp_path, MINIMAL + "#" + "x" * (padding + 1) + "\n")) == ["DI002"]


def test_a_symbolic_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    outside = presets()["tiny-v41"] / "config.json"
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "config.json").symlink_to(outside)
    assert codes(write(folder, MINIMAL.replace("tiny-v41", "config.json"))) == ["DI018"]
    (folder / "loop.json").symlink_to(folder / "loop.json")
    assert codes(write(folder, MINIMAL.replace("tiny-v41", "loop.json"))) in (["DI018"], ["DI019"])


def test_a_model_and_a_table_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_bytes((presets()["tiny-v41"] / "config.json").read_bytes())
    table = Path(load_spec.__code__.co_filename).parent / "hardware/sm90.yaml"
    (tmp_path / "mine/card.yaml").write_text(table.read_text().replace("name: sm90", "name: mine"))
    text = MINIMAL.replace("tiny-v41", "mine/config.json").replace("hardware: cpu", "hardware: ./mine/card.yaml")
    resolved = resolve(load_spec(write(tmp_path, text)))
    assert resolved.model.preset == ""
    assert resolved.model.sources["head_dim"] == "config.json: text_config.head_dim"
    assert (resolved.hardware.name, resolved.hardware.file) == ("mine", "card.yaml")
    assert resolved["numerics.policy"] == "bf16"


def test_overrides_replace_values_and_name_themselves(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    resolved = resolve(load_spec(path, {"limits.max_num_seqs": "64", "kv.block_size": "64"}))
    assert (resolved["limits.max_num_seqs"], resolved["kv.block_size"]) == (64, 64)
    assert resolved.settings["kv.block_size"].source == "--set kv.block_size=64"
    assert resolved.settings["limits.max_model_len"].source == "small.yaml:7:18"
    for key, text, code in (
        ("kv.block_sise", "64", "DI011"),
        ("block_size", "64", "DI011"),
        ("kv", "64", "DI013"),
        ("kv.block_size", "64x", "DI013"),
        ("kv.block_size", "010", "DI016"),
        ("kv.block_size", "1", "DI035"),
        ("kv.block_size", "", "DI013"),
        ("kv.block_size", "{a: 1}", "DI013"),
        ("kv.block_size", "1\nother: 2", "DI013"),
        ("kv.block_size", "&a 1", "DI009"),
        ("model.path", "1", "DI011"),
    ):
        assert code in codes(path, {key: text}), (key, text)


def test_neither_yaml_nor_pydantic_is_imported_early() -> None:
    program = (
        "import sys; import deepinfer_gen.specs.load, deepinfer_gen.specs.presets, deepinfer_gen.specs.resolved;"
        "print([m for m in ('pydantic', 'ruamel.yaml', 'torch', 'numpy') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: " + "[" * 30_000, "DI004"),
        ("a: " + "[" * 15_000 + "]" * 15_000, "DI004"),
        ("a: " + "{a: " * 15_000, "DI004"),
        ("".join(" " * n + "a:\n" for n in range(300)), "DI004"),
        ("? " * 30_000, "DI004"),
        ("kv:\n" + "  a: 1\n" * 3000, "DI008"),
        ("".join(f"k{n}: 1\n" for n in range(2000)), "DI011"),
    ],
    ids=["open-brackets", "nested-lists", "nested-mappings", "nested-blocks", "nested-keys", "repeated", "unknown"],
)
@pytest.mark.timeout(20)
def test_hostile_text_is_refused_in_linear_time(text: str, code: str, tmp_path: Path) -> None:
    assert code in codes(write(tmp_path, text))
