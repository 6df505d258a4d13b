import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
from clang_format import get_executable
from jinja2 import nodes
from shipped import NAMES, SPEC_FOLDER, shipped_plan

import deepinfer_gen.templates
from deepinfer_gen.codegen.compiler import FLAGS
from deepinfer_gen.codegen.render import render, stamp_lines
from deepinfer_gen.manifest import files_digest

ROOT = Path(__file__).parents[2]
TEMPLATES = Path(deepinfer_gen.templates.__path__[0])
FILES = {
    "PLAN.md", "engine.cpp", "engine_config.hpp", "graphs.json", "kernels.json", "kernels.py", "layout.json",
    "manifest.json", "model_plan.py", "plan.json", "scheduler.hpp",
}  # fmt: skip
CODE = sorted(FILES - {"PLAN.md", "plan.json", "manifest.json"})


@pytest.fixture(scope="module", params=NAMES)
def rendered(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    return request.param, render(shipped_plan(request.param))


def test_the_folder_has_exactly_its_files_each_with_the_stamp(rendered: tuple[str, dict[str, str]]) -> None:
    name, files = rendered
    assert set(files) == FILES
    stamp = stamp_lines(shipped_plan(name))
    assert len(stamp) == 4
    for file, text in files.items():
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert "\r" not in text
        if file.endswith(".json"):
            assert json.loads(text)["stamp"] == stamp
            assert text == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        else:
            assert all(line in head for line, head in zip(stamp, text.splitlines(), strict=False)), file


def test_provenance_stays_out_of_code(rendered: tuple[str, dict[str, str]]) -> None:
    _, files = rendered
    for file in CODE:
        assert not re.search(r"\.(yaml|json):\d+", files[file]), file
    assert re.search(r"\.yaml:\d+:\d+", files["plan.json"])
    assert re.search(r"\.yaml:\d+:\d+", files["PLAN.md"])


def test_a_moved_line_changes_only_what_is_not_compiled(tmp_path: Path) -> None:
    from deepinfer_gen.codegen.derive import derive
    from deepinfer_gen.specs.load import load_spec
    from deepinfer_gen.specs.resolve import resolve

    text = (SPEC_FOLDER / "tiny-cpu.yaml").read_text()
    (tmp_path / "tiny-cpu.yaml").write_text("# moved down\n\n" + text)
    moved, still = render(derive(resolve(load_spec(tmp_path / "tiny-cpu.yaml")))), render(shipped_plan("tiny-cpu"))
    assert {name for name in FILES if moved[name] != still[name]} == {"plan.json", "PLAN.md", "manifest.json"}
    manifests = [json.loads(files["manifest.json"]) for files in (moved, still)]
    assert manifests[0]["files_digest"] == manifests[1]["files_digest"]
    assert files_digest(manifests[0]["files"]) == manifests[0]["files_digest"]


def test_cpp_is_formatted(rendered: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    paths = []
    for file in ("engine_config.hpp", "scheduler.hpp", "engine.cpp"):
        paths.append(tmp_path / file)
        paths[-1].write_text(rendered[1][file])
    style = f"--style=file:{ROOT / '.clang-format'}"
    subprocess.run([get_executable("clang-format"), style, "--dry-run", "-Werror", *paths], check=True)


def test_python_is_formatted(rendered: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    for file in ("model_plan.py", "kernels.py"):
        (tmp_path / file).write_text(rendered[1][file])
    ruff = [sys.executable, "-m", "ruff", "format", "--check", "--line-length", "120", "--no-cache", str(tmp_path)]
    subprocess.run(ruff, check=True, capture_output=True)


def test_python_needs_the_plan_types_only(rendered: tuple[str, dict[str, str]]) -> None:
    for file in ("model_plan.py", "kernels.py"):
        imports = re.findall(r"^(?:from|import) .*$", rendered[1][file], re.M)
        assert all(line.startswith("from deepinfer_gen.runtime.plan_types import ") for line in imports)
        assert len(imports) == 1
        exec(compile(rendered[1][file], file, "exec"), {})


def test_the_config_holds_its_invariants_without_warnings(rendered: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """The static_asserts hold, and each of them can fail."""
    text = rendered[1]["engine_config.hpp"]

    def compiles(config: str) -> bool:
        (tmp_path / "engine_config.hpp").write_text(config)
        (tmp_path / "unit.cpp").write_text('#include "engine_config.hpp"\n')
        command = ["g++", *FLAGS, f"-I{TEMPLATES}", "-fsyntax-only", str(tmp_path / "unit.cpp")]
        return subprocess.run(command, capture_output=True).returncode == 0

    assert compiles(text)
    assert not compiles(re.sub(r"(kBlockBytes = [\d']*)\d;", r"\g<1>1;", text))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("kNumSlots", "129"),
        ("kNumBlocks", "1025"),
        ("kBlocksPerSeq", "1024"),
        ("kRuntimeMaxModelLen", "131071"),
        ("kPrefillMaxSumSeqlenK", "131071"),
        ("kPrefillAnyAttemptInterval", "70"),
        ("kMaxQ", "5"),
        ("kSwaRingTokens", "133"),
        ("kMaxTotalQ", "760"),
        ("kStoredBytes", "1415041"),
        ("kSlotBytes", "3128351"),
        ("kBlockBytes", "113921"),
    ],
)
def test_every_invariant_can_fail(tmp_path: Path, member: str, value: str) -> None:
    text = render(shipped_plan("v41-flash-normal-ep8"))["engine_config.hpp"]
    broken, count = re.subn(rf"({member} = )[\d']+;", rf"\g<1>{value};", text)
    assert count == 1
    (tmp_path / "engine_config.hpp").write_text(broken)
    (tmp_path / "unit.cpp").write_text('#include "engine_config.hpp"\n')
    command = ["g++", *FLAGS, f"-I{TEMPLATES}", "-fsyntax-only", str(tmp_path / "unit.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert "static assertion failed" in done.stderr


def test_constants_of_the_large_engine() -> None:
    """Numbers worked out by hand (DESIGN, section 4), with digit groups from 10,000 on."""
    files = render(shipped_plan("v41-flash-normal-ep8"))
    config = files["engine_config.hpp"]
    for text in (
        "kBlockBytes = 113'920;", "kSlotBytes = 3'128'352;", "kStoredBytes = 1'415'040;", "kDroppedBytes = 1'713'312;",
        "kNumSlots = 154;", "kSwaRingTokens = 134;", "kMaxTotalQ = 768;", "kRuntimeMaxModelLen = 131'088;",
        "std::array<std::int32_t, 99> kGraphSizes", "std::array<StateRegion, 49> kStateRegions",
        "// state.slot_bytes = stored + dropped", "// graphs.max_total_q = max_num_seqs * max_q",
    ):  # fmt: skip
        assert text in config
    layout, graphs = json.loads(files["layout.json"]), json.loads(files["graphs.json"])
    assert [(r["name"], r["offset"], r["bytes"]) for r in layout["block"]["regions"]] == [
        ("kv.2", 0, 22784), ("kv.8", 22784, 22784), ("kv.14", 45568, 22784), ("kv.20", 68352, 45568),
    ]  # fmt: skip
    assert layout["block"]["regions"][0]["index"] == {
        "format": "mxfp4_g32", "offset": 64 * 288, "rows": 64, "row_bytes": 68,
        "scales": {"offset": 64 * 288 + 64, "bytes": 4, "stride": 68, "data_bytes": 64, "data_stride": 68},
    }  # fmt: skip
    assert len(layout["block"]["aliases"]) == 38 - 4
    assert [r["name"] for r in layout["state"]["regions"][-6:]] == [
        "ca_state.2", "ca_state.8", "ca_state.14", "ica_state.2", "ica_state.8", "ica_state.14",
    ]  # fmt: skip
    assert graphs["graphs"][-1] == {"size": 768, "rows": 130}
    assert (len(graphs["lookup"]), graphs["lookup"][0], graphs["lookup"][768]) == (769, 0, 98)
    assert graphs["max_q"] == 6


def test_a_prompt_engine_has_no_decode_parts() -> None:
    files = render(shipped_plan("v41-flash-prefill-ep8"))
    assert "PromptStep" in files["scheduler.hpp"]
    assert "erification" not in files["scheduler.hpp"]
    assert "order" not in files["scheduler.hpp"]
    assert "kPrefillAttemptInterval" not in files["engine_config.hpp"]
    assert json.loads(files["graphs.json"])["graphs"] == []


def test_standalone_adds_the_engine_sources() -> None:
    files = render(shipped_plan("tiny-cpu"), standalone=True)
    extra = set(files) - FILES
    assert extra == {"build.sh"} | {
        p.relative_to(TEMPLATES).as_posix() for p in (*TEMPLATES.glob("engine/*.hpp"), *TEMPLATES.glob("src/*"))
    }
    assert json.loads(files["manifest.json"])["standalone"] is True
    assert "build.sh" in files["PLAN.md"]


def test_templates_decide_nothing() -> None:
    """Only expressions and loops over prepared tables: no arithmetic, no comparison, no condition, no assignment."""
    environment = jinja2.Environment()
    paths = sorted(TEMPLATES.glob("*.jinja"))
    assert paths
    allowed_filters = {"join"}
    for path in paths:
        tree = environment.parse(path.read_text())
        refused = (nodes.If, nodes.CondExpr, nodes.BinExpr, nodes.UnaryExpr, nodes.Compare, nodes.Assign, nodes.Macro,
                   nodes.Call, nodes.Include, nodes.Test)  # fmt: skip
        assert not list(tree.find_all(refused)), path.name
        assert {f.name for f in tree.find_all(nodes.Filter)} <= allowed_filters, path.name


WRITE_ALL = """
import sys
from pathlib import Path
from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve
for path in sys.argv[2:]:
    plan = derive(resolve(load_spec(Path(path))))
    write_folder(render(plan), Path(sys.argv[1]) / plan.name)
"""


def test_two_processes_write_identical_bytes(tmp_path: Path) -> None:
    trees = []
    for seed, locale in (("1", "C"), ("77", "tr_TR.UTF-8")):
        out, cwd = tmp_path / f"out{seed}", tmp_path / f"cwd{seed}"
        cwd.mkdir()
        specs = [os.path.relpath(SPEC_FOLDER / f"{name}.yaml", cwd) for name in NAMES]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": f"UTC-{len(seed)}"}
        subprocess.run([sys.executable, "-c", WRITE_ALL, str(out), *specs], cwd=cwd, env=environment, check=True)
        trees.append({p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()})
    assert trees[0] == trees[1]
    assert len(trees[0]) == len(NAMES) * len(FILES)
    for name, content in trees[0].items():
        assert str(tmp_path).encode() not in content, name
