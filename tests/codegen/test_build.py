"""The build protocol, on a sample folder that compiles in a moment."""

import json
import multiprocessing
import os
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest
from sample_folder import sample_files

from deepinfer_gen.build_cache import BuildCache, DamagedEntryError, cache_root
from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.compiler import find_compiler
from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.diagnostics import Diagnostic, InputError

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(sample_files(), tmp_path / "generated" / "sample").path


@pytest.fixture
def compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that notes each compilation in a file of this folder, and waits while ``pause`` exists beside it.

    One file each: two compilers run at a time, and not every file system keeps appended lines apart. Those of other
    folders are left out: engines that later tests need may be compiled meanwhile, with the same $CXX.
    """
    calls, wrapper = tmp_path / "compiles", tmp_path / "c++"
    calls.mkdir()
    wrapper.write_text(
        "#!/bin/sh\n"
        f'case "$PWD $*" in *" --version"|*" -dumpmachine") ;; {tmp_path}/*) echo "$*" >{calls}/$$;'
        f" while [ -e {tmp_path}/pause ]; do sleep 0.05; done;; esac\n"
        'exec g++ "$@"\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(wrapper))
    return calls


def compiled_units(calls: Path) -> list[str]:
    """The source files compiled so far, linking left out."""
    commands = [path.read_text().split() for path in calls.iterdir()]
    return sorted(command[command.index("-c") + 1] for command in commands if "-c" in command)


BOTH = ["engine.cpp", "src/bindings.cpp"]


def faults(caught: "pytest.ExceptionInfo[InputError]") -> tuple[Diagnostic, ...]:
    return caught.value.diagnostics


def test_a_second_build_compiles_nothing(folder: Path, cache: BuildCache, compiles: Path) -> None:
    first = build_folder(folder, cache)
    assert first.compiled
    assert compiled_units(compiles) == BOTH
    second = build_folder(folder, cache)
    assert (second.compiled, second.engine) == (False, first.engine)
    assert compiled_units(compiles) == BOTH


def test_moved_provenance_rebuilds_nothing_and_code_does(folder: Path, cache: BuildCache, compiles: Path) -> None:
    build_folder(folder, cache)
    write_folder(sample_files(PLAN_md="# moved\n"), folder)
    assert not build_folder(folder, cache).compiled
    write_folder(sample_files(scheduler_hpp="// other\n"), folder)
    assert build_folder(folder, cache).compiled
    assert compiled_units(compiles) == ["engine.cpp", *BOTH]
    write_folder(sample_files(scheduler_hpp="// other\n", **{"layout.json": "{}\n"}), folder)
    assert build_folder(folder, cache).compiled
    assert compiled_units(compiles) == ["engine.cpp", *BOTH]  # no code changed: linked only


def test_headers_and_flags_are_part_of_the_key(
    folder: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_folder(folder, cache)
    monkeypatch.setenv("CXX", "g++ -DNDEBUG")
    other_flags = build_folder(folder, cache)
    assert other_flags.compiled
    header = sample_files()["engine/engine_api.hpp"] + "// changed\n"
    write_folder(sample_files(**{"engine/engine_api.hpp": header}), folder)
    other_header = build_folder(folder, cache)
    assert other_header.compiled
    assert len({b.engine.entry.key for b in (first, other_flags, other_header)}) == 3


def test_the_loader_finds_the_engine_without_a_compiler(
    folder: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_folder(folder, cache).engine
    monkeypatch.setenv("PATH", "")
    assert cache.find(built.entry.files_digest, built.entry.sources_digest) == built
    assert cache.find("0" * 64, built.entry.sources_digest) is None
    with pytest.raises(InputError, match="not installed") as caught:
        build_folder(folder, cache)
    assert faults(caught)[0].code == "DI210"
    assert "apt-get install g++" in faults(caught)[0].help


def test_a_compiler_that_cannot_run_is_named(folder: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InputError, match=r"\$CXX names 'no-such-compiler'"):
        build_folder(folder, cache)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(InputError, match="'false --version' fails"):
        build_folder(folder, cache)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("\x7fgarbage", "cannot be run: Exec format error"),
        ("#!/no/such/shell\n", "cannot be run: No such file"),
        ("#!/bin/sh\nexit 0\n", "fails: no output"),
        ("#!/bin/sh\nprintf '\\377\\n'\n", "does not compile: the compiler ended with status 0"),
    ],
)
def test_a_broken_compiler_is_a_fault_of_the_machine(
    folder: Path, cache: BuildCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    broken = tmp_path / "broken"
    broken.write_text(script)
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(InputError, match=message):
        build_folder(folder, cache)


def test_a_command_that_cannot_be_split_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", 'g++ "')
    with pytest.raises(InputError, match="No closing quotation"):
        find_compiler()


def test_a_relative_compiler_and_a_relative_cache_are_those_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").symlink_to(str(shutil.which("g++")))
    monkeypatch.setenv("CXX", "./mine")
    assert find_compiler().command == (str(tmp_path / "mine"),)
    monkeypatch.delenv("DEEPINFER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert BuildCache().root == tmp_path / "caches" / "deepinfer-gen"


def test_a_cache_without_a_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", "relative")
    with pytest.raises(InputError, match="DI213"):
        BuildCache()


def test_sixteen_cold_processes_compile_once(folder: Path, cache: BuildCache, compiles: Path) -> None:
    processes = [FORK.Process(target=build_folder, args=(folder, cache)) for _ in range(16)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [p.exitcode for p in processes] == [0] * 16
    assert compiled_units(compiles) == BOTH
    assert not list((cache.root / "work").iterdir())
    assert not build_folder(folder, cache).compiled


def test_a_killed_builder_blocks_nobody(folder: Path, cache: BuildCache, compiles: Path, tmp_path: Path) -> None:
    (tmp_path / "pause").touch()
    doomed = FORK.Process(target=build_folder, args=(folder, cache))
    doomed.start()
    deadline = time.monotonic() + 60
    while not compiled_units(compiles):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert doomed.pid is not None
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.join(60)
    assert list((cache.root / "work").iterdir())  # what it left behind
    (tmp_path / "pause").unlink()
    assert build_folder(folder, cache).compiled
    assert not list((cache.root / "work").iterdir())


def test_the_first_compile_error_is_shown_and_the_log_named(folder: Path, cache: BuildCache) -> None:
    broken = "int ok;\nint f() { return undeclared_name; }\nint g() { return other_name; }\n"
    write_folder(sample_files(engine_cpp=broken), folder)
    with pytest.raises(InputError, match="undeclared_name") as caught:
        build_folder(folder, cache)
    (fault,) = faults(caught)
    assert (fault.code, fault.file, fault.line) == ("DI211", str(folder / "engine.cpp"), 2)
    log = Path(fault.help.removeprefix("the whole compiler output is in "))
    assert "other_name" in log.read_text()
    assert "other_name" not in str(caught.value)


def test_a_link_error_is_shown(folder: Path, cache: BuildCache) -> None:
    write_folder(sample_files(engine_cpp="int bindings() { return 1; }\n"), folder)
    with pytest.raises(InputError, match="multiple definition") as caught:
        build_folder(folder, cache)
    assert faults(caught)[0].code == "DI211"


def test_a_missing_policy_is_named_with_key_value_and_line(folder: Path, cache: BuildCache) -> None:
    write_folder(sample_files(scheduler_hpp='#include "engine/step_prompt.hpp"\n'), folder)
    with pytest.raises(InputError) as caught:
        build_folder(folder, cache)
    (fault,) = faults(caught)
    expected = "engine.type: PROMPT needs the prompt step policy, which is not built yet (sample.yaml:4:9)"
    assert (fault.code, fault.message) == ("DI212", expected)


def test_a_hand_edited_folder_is_not_built(folder: Path, cache: BuildCache) -> None:
    (folder / "engine.cpp").write_text("int mine;\n")
    with pytest.raises(InputError, match=r"engine\.cpp differs"):
        build_folder(folder, cache)


@pytest.mark.parametrize("name", ["engine.so", "entry.json"])
def test_a_damaged_entry_is_refused_and_built_again(folder: Path, cache: BuildCache, name: str) -> None:
    built = build_folder(folder, cache).engine
    path = built.library.with_name(name)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedEntryError) as caught:
        cache.find(built.entry.files_digest, built.entry.sources_digest)
    assert caught.value.path == path
    repaired = build_folder(folder, cache)
    assert repaired.compiled
    assert repaired.engine.entry.engine_sha256 == built.entry.engine_sha256


def test_a_damaged_object_is_compiled_again(folder: Path, cache: BuildCache, compiles: Path) -> None:
    build_folder(folder, cache)
    objects = list((cache.root / "objects").glob("*/object.o"))
    assert len(objects) == 2
    for compiled in objects:
        compiled.write_bytes(b"not an object")
    write_folder(sample_files(**{"layout.json": "{}\n"}), folder)
    assert build_folder(folder, cache).compiled
    assert compiled_units(compiles) == sorted(BOTH * 2)


def test_cached_things_can_be_listed_and_removed(folder: Path, cache: BuildCache) -> None:
    built = build_folder(folder, cache).engine
    kinds = {item.kind: item for item in cache.items()}
    assert set(kinds) == {"engine", "object", "log"}
    assert kinds["engine"].name == "sample"
    assert kinds["engine"].size > built.library.stat().st_size
    for item in cache.items():
        cache.remove(item)
    assert cache.items() == ()
    assert cache.find(built.entry.files_digest, built.entry.sources_digest) is None
    assert build_folder(folder, cache).compiled


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "mine"
    monkeypatch.delenv("DEEPINFER_CACHE_DIR")
    assert cache_root() == tmp_path / "xdg" / "deepinfer-gen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "deepinfer-gen"


def test_an_entry_says_what_it_is(folder: Path, cache: BuildCache) -> None:
    built = build_folder(folder, cache).engine
    content = json.loads(built.library.with_name("entry.json").read_text())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert content["files_digest"] == manifest["files_digest"]
    assert content["plan_digest"] == manifest["plan_digest"]
    assert manifest["files_digest"].encode() in built.library.read_bytes()
