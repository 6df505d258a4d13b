import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from built import build_tiny, shared_cache
from resign import replace_once, resign
from tiny_spec import TINY, tiny_plan

from deepinfer_gen.build_cache import BuildCache
from deepinfer_gen.canonical import json_text, sealed
from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.views.model import kernels, model_plan
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.manifest import MANIFEST, list_files, read_folder
from deepinfer_gen.runtime.loader import load_engine, verify_engine


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("generated"))


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy to spoil; it is built, because the cache knows its content."""
    return Path(shutil.copytree(built, tmp_path / "generated" / TINY))


@pytest.fixture
def own_cache(built: Path, tmp_path: Path) -> BuildCache:
    """A cache to spoil, with the engine and the objects of the shared one."""
    shared = shared_cache()
    (tmp_path / "cache").mkdir()
    engine = verify_engine(built, shared).cached
    for part in (f"engines/{engine.entry.key}", "index", "objects"):
        shutil.copytree(shared.root / part, tmp_path / "cache" / part)
    return BuildCache(tmp_path / "cache")


def refused(folder: Path, cache: BuildCache | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        load_engine(folder, cache or shared_cache())
    for fault in caught.value.diagnostics:
        assert re.search(r"deepinfer-gen (build )?\S+", fault.help), "every refusal names the command that repairs it"
    return caught.value


def json_edit(change: Callable[[Any], None]) -> Callable[[str], str]:
    """An edit of a generated JSON file."""

    def edit(text: str) -> str:
        content = json.loads(text)
        change(content)
        return json_text(content)

    return edit


def test_loads_what_the_plan_says(built: Path) -> None:
    engine = load_engine(built, shared_cache())
    plan = tiny_plan()
    assert (engine.name, engine.folder) == (TINY, built)
    assert engine.value("kv.block_bytes") == plan["kv.block_bytes"]
    assert engine.plan["engine.type"]["source"].startswith(f"{TINY}.yaml:")
    assert engine.model == model_plan(plan)
    assert engine.kernels == kernels(plan)
    assert engine.layout["block"]["bytes"] == plan["kv.block_bytes"]
    assert [g["size"] for g in engine.graphs["graphs"]] == list(plan.integers("graphs.sizes"))
    assert engine.extension.constants()["kPlanDigest"] == plan.plan_digest
    assert engine.extension.plan_digest == plan.plan_digest
    assert engine.extension.files_digest == read_folder(built).manifest.files_digest
    assert engine.extension.Scheduler()


def test_loads_without_the_yaml_a_compiler_or_the_code_generator(built: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from deepinfer_gen.build_cache import BuildCache
from deepinfer_gen.runtime.loader import load_engine
engine = load_engine({str(built)!r}, BuildCache(Path({str(shared_cache().root)!r})))
assert engine.name == "{TINY}"
assert not [name for name in sys.modules if name.startswith(("deepinfer_gen.codegen", "torch", "jinja2", "pydantic"))]
assert not {{"specs", "codegen", "templates", "runtime"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], env={"PATH": ""}, check=True)


def test_every_flipped_bit_is_refused_by_name(folder: Path, own_cache: BuildCache) -> None:
    """1,200 single-bit flips over every file of the folder and of the cache entry; each refusal names its file."""
    engine = verify_engine(folder, own_cache).cached
    index = [p for p in (own_cache.root / "index").iterdir() if engine.entry.key in p.read_text()]
    paths = [*(folder / name for name in list_files(folder)), engine.library, engine.library.with_name("entry.json")]
    paths += index
    assert len(paths) == 14
    rng = random.Random(20260801)
    for flip in range(1200):
        path = paths[flip % len(paths)]
        content = bytearray(path.read_bytes())
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        original = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            verify_engine(folder, own_cache)
        path.write_bytes(original)
        assert {d.file for d in caught.value.diagnostics} == {str(path)}, (path, bit)
        assert path.name in caught.value.diagnostics[0].message + caught.value.diagnostics[0].file
    verify_engine(folder, own_cache)


def test_no_code_of_a_tampered_folder_runs(folder: Path, tmp_path: Path) -> None:
    path = folder / "model_plan.py"
    path.write_text(path.read_text() + f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "model_plan.py differs" in str(refused(folder))
    assert not (tmp_path / "ran").exists()


def test_an_unbuilt_folder_names_the_build_command(folder: Path, tmp_path: Path) -> None:
    fault = refused(folder, BuildCache(tmp_path / "empty"))
    assert fault.diagnostics[0].code == "DI220"
    assert f"deepinfer-gen build {folder}" in str(fault)


@pytest.mark.parametrize("name", ["nothing", "file", "foreign"])
def test_what_is_no_engine_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    assert refused(tmp_path / name).diagnostics[0].code == "DI200"


def test_a_missing_and_an_extra_file_are_named_together(folder: Path) -> None:
    (folder / "layout.json").unlink()
    (folder / "extra.py").write_text("")
    text = str(refused(folder))
    assert "layout.json is missing" in text
    assert "extra.py is not listed" in text


def test_a_manifest_that_omits_a_file_is_refused(folder: Path) -> None:
    path = folder / MANIFEST
    content = json.loads(path.read_text())
    del content["files"]["graphs.json"]
    (folder / "graphs.json").unlink()
    path.write_text(json_text(sealed(content)))
    assert refused(folder).diagnostics[0].code == "DI200"  # files_digest differs


def test_a_changed_plan_json_is_refused_though_it_takes_no_part_in_the_build(folder: Path) -> None:
    resign(folder, {"plan.json": json_edit(lambda c: c["values"]["kv.block_size"].update(value=64))})
    assert "plan.json holds plan" in str(refused(folder))


def test_resigned_provenance_loads_without_a_build(folder: Path) -> None:
    resign(folder, {"PLAN.md": replace_once(f"# {TINY}", f"# {TINY}, annotated")})
    assert load_engine(folder, shared_cache()).name == TINY


def test_a_resigned_table_needs_a_build_and_then_loads(folder: Path, own_cache: BuildCache) -> None:
    """The tile of one kernel, changed in both kernel files: no code of the engine changes, so it is linked only."""
    tile = tiny_plan()["kernels.linear.tile.tokens"]

    def edit_json(content: Any) -> None:
        content["kernels"]["linear"]["tile"]["tokens"] = 7

    edits = {
        "kernels.json": json_edit(edit_json),
        "kernels.py": _first(f'tile={{"tokens": {tile}}}', 'tile={"tokens": 7}'),
    }
    resign(folder, edits)
    assert refused(folder, own_cache).diagnostics[0].code == "DI220"
    build_folder(folder, own_cache)
    assert load_engine(folder, own_cache).kernels["linear"].tile == {"tokens": 7}


def _first(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


def _set_offset(content: Any) -> None:
    content["state"]["regions"][1]["offset"] += 128


def _drop_graph(content: Any) -> None:
    del content["graphs"][2]


def _set_lookup(content: Any) -> None:
    content["lookup"][3] -= 1


def _set_alias(content: Any) -> None:
    content["block"]["aliases"][0]["of"] = 4


@pytest.mark.parametrize(
    ("file", "edit", "named"),
    [
        ("layout.json", json_edit(_set_offset), {"layout.json", "model_plan.py"}),
        ("layout.json", json_edit(_set_alias), {"model_plan.py"}),
        ("graphs.json", json_edit(_drop_graph), {"graphs.json"}),
        ("graphs.json", json_edit(_set_lookup), {"graphs.json"}),
        ("kernels.py", _first("threads=1", "threads=2"), {"kernels.json"}),
        ("model_plan.py", _first("kv_source=2,", "kv_source=4,"), {"model_plan.py"}),
        ("model_plan.py", _first("stored=True", "stored=False"), {"model_plan.py"}),
        ("model_plan.py", _first('"max_positions": 1025', '"max_positions": 1026'), {"model_plan.py"}),
        ("model_plan.py", _first("MODEL: ModelPlan", "OTHER: ModelPlan"), {"model_plan.py"}),
    ],
)
def test_files_that_contradict_each_other_are_refused(
    folder: Path, file: str, edit: Callable[[str], str], named: set[str]
) -> None:
    resign(folder, {file: edit})
    build_folder(folder, shared_cache())
    fault = refused(folder)
    assert {d.code for d in fault.diagnostics} == {"DI223"}
    assert {Path(d.file).name for d in fault.diagnostics} == named


def test_an_engine_of_other_files_is_refused_even_if_the_cache_says_otherwise(
    folder: Path, own_cache: BuildCache
) -> None:
    """A forged entry: right digests on the outside, another engine inside."""
    engine = verify_engine(folder, own_cache).cached
    resign(folder, {"kernels.json": json_edit(lambda c: c.update(schema=2))})
    digest = read_folder(folder).manifest.files_digest
    forged = {**asdict(engine.entry), "files_digest": digest}
    engine.library.with_name("entry.json").write_text(json_text(sealed(forged)))
    own_cache.point(type(engine.entry)(**forged))
    fault = refused(folder, own_cache)
    assert fault.diagnostics[0].code == "DI222"
    assert "engine.so carries files_digest" in str(fault)


@pytest.mark.parametrize("missing", ["schema", "compiler"])
def test_a_cache_entry_without_one_of_its_keys_is_refused(folder: Path, own_cache: BuildCache, missing: str) -> None:
    engine = verify_engine(folder, own_cache).cached
    forged = {name: value for name, value in asdict(engine.entry).items() if name != missing}
    engine.library.with_name("entry.json").write_text(json_text(sealed(forged)))
    assert "does not have the keys of a cache entry" in str(refused(folder, own_cache))


def test_a_library_that_cannot_be_linked_is_refused(folder: Path, own_cache: BuildCache) -> None:
    engine = verify_engine(folder, own_cache).cached
    engine.library.write_bytes(b"\x7fELF, but not really")
    forged = {**asdict(engine.entry), "engine_sha256": "2e9b9d1a2d7c" + "0" * 52}
    engine.library.with_name("entry.json").write_text(json_text(sealed(forged)))
    assert refused(folder, own_cache).diagnostics[0].code == "DI221"


def test_two_engines_in_one_process_keep_apart(built: Path, folder: Path) -> None:
    """The second engine differs in a compiled constant and is loaded beside the first."""
    resign(folder, {"engine_config.hpp": _first("kPrefillBurst = 1;", "kPrefillBurst = 2;")})
    build_folder(folder, shared_cache())
    engines = load_engine(built, shared_cache()), load_engine(folder, shared_cache())
    assert [engine.extension.constants()["kPrefillBurst"] for engine in engines] == [1, 2]
    first, second = (engine.extension.Scheduler for engine in engines)
    assert first is not second
    assert first().fingerprint() == second().fingerprint()
