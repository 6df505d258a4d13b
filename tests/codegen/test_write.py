import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_folder import sample_files

from deepinfer_gen.codegen import write
from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.manifest import list_files, read_folder


def contents(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in list_files(folder)}


def test_writes_everything_and_nothing_else(tmp_path: Path) -> None:
    files = sample_files()
    written = write_folder(files, tmp_path / "out" / "sample")
    assert contents(written.path) == files
    assert set(written.changed) == set(files)
    assert os.listdir(tmp_path / "out") == ["sample"]
    read_folder(written.path)


def test_an_unchanged_folder_is_not_touched(tmp_path: Path) -> None:
    target = tmp_path / "sample"
    write_folder(sample_files(), target)
    before = {p: p.stat().st_mtime_ns for p in (target, *target.rglob("*"))}
    assert write_folder(sample_files(), target).changed == ()
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_a_changed_file_is_replaced_and_a_dropped_one_removed(tmp_path: Path) -> None:
    target = tmp_path / "sample"
    write_folder(sample_files(**{"old.json": "{}\n"}), target)
    written = write_folder(sample_files(PLAN_md="# other\n"), target)
    assert written.changed == ("PLAN.md", "manifest.json", "old.json")
    assert contents(target) == sample_files(PLAN_md="# other\n")


@pytest.mark.parametrize("name", ["engine.cpp", "PLAN.md", "manifest.json", "engine/engine_api.hpp"])
def test_a_hand_edited_file_is_kept_until_forced(tmp_path: Path, name: str) -> None:
    target = tmp_path / "sample"
    write_folder(sample_files(), target)
    (target / name).write_text((target / name).read_text() + "// mine\n")
    edited = contents(target)
    with pytest.raises(InputError, match=name) as caught:
        write_folder(sample_files(PLAN_md="# other\n"), target)
    assert "--force" in str(caught.value)
    assert {d.code for d in caught.value.diagnostics} == {"DI151"}
    assert contents(target) == edited
    write_folder(sample_files(), target, force=True)
    assert contents(target) == sample_files()


def test_an_added_file_is_kept_until_forced(tmp_path: Path) -> None:
    target = tmp_path / "sample"
    write_folder(sample_files(), target)
    (target / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt is not listed"):
        write_folder(sample_files(), target)
    assert (target / "notes.txt").read_text() == "mine"


def test_a_linked_folder_inside_is_an_added_file(tmp_path: Path) -> None:
    target = tmp_path / "sample"
    write_folder(sample_files(), target)
    (target / "link").symlink_to(Path(__file__).parent)
    with pytest.raises(InputError, match="link is not listed"):
        write_folder(sample_files(PLAN_md="# other\n"), target)
    with pytest.raises(InputError, match="link is not listed"):
        read_folder(target)


def test_an_edit_that_equals_the_new_text_loses_nothing(tmp_path: Path) -> None:
    target = tmp_path / "sample"
    write_folder(sample_files(), target)
    (target / "PLAN.md").write_text("# other\n")
    write_folder(sample_files(PLAN_md="# other\n"), target)
    assert contents(target) == sample_files(PLAN_md="# other\n")


def test_a_deleted_file_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "sample"
    write_folder(sample_files(), target)
    (target / "engine.cpp").unlink()
    assert write_folder(sample_files(), target).changed == ("engine.cpp",)


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_is_no_generated_folder_is_refused_even_when_forced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "sample"
    (tmp_path / "elsewhere").mkdir()
    if kind == "file":
        target.write_text("mine")
    elif kind == "link":
        target.symlink_to(tmp_path / "elsewhere")
    else:
        target.mkdir()
        (target / "thesis.tex").write_text("mine")
    for force in (False, True):
        with pytest.raises(InputError, match="sample") as caught:
            write_folder(sample_files(), target, force=force)
        assert caught.value.diagnostics[0].code == "DI150"
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("crash", ["write_tree", "rename_aside", "rename_fresh", "rmtree"])
def test_an_interrupted_write_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    """A process that dies without cleaning up, at each of its four steps where names cannot be exchanged; the next
    writer puts things right."""
    target = tmp_path / "sample"
    write_folder(sample_files(), target)
    script = f"""
import os, sys
from pathlib import Path
from deepinfer_gen.codegen import write
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from sample_folder import sample_files
crash, renames, rename = {crash!r}, [], Path.rename
def dying_rename(self, to):
    if crash == ("rename_aside", "rename_fresh")[len(renames)]:
        os._exit(9)
    renames.append(1)
    if len(renames) == 2 and crash == "rmtree":
        rename(self, to)
        os._exit(9)
    return rename(self, to)
def dying_tree(folder, contents):
    folder.mkdir()
    os._exit(9)
Path.rename = dying_rename
write.exchange = lambda fresh, target: False
if crash == "write_tree":
    write.write_tree = dying_tree
write.write_folder(sample_files(PLAN_md="# other\\n"), Path({str(target)!r}))
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    if crash != "rename_fresh":  # there the old folder stands aside until the next writer
        assert contents(target) == sample_files(**({"PLAN_md": "# other\n"} if crash == "rmtree" else {}))
    assert write_folder(sample_files(), target).path == target
    assert contents(target) == sample_files()
    assert os.listdir(tmp_path) == ["sample"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_exchanged_folders_leave_no_moment_without_one(tmp_path: Path, when: str) -> None:
    """The writer dies right before or right after the one step that matters: the folder is the old or the new one."""
    target = tmp_path / "sample"
    write_folder(sample_files(), target)
    script = f"""
import os, sys
from pathlib import Path
from deepinfer_gen.codegen import write
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from sample_folder import sample_files
exchange = write.exchange
def dying(fresh, target):
    if {when!r} == "after" and not exchange(fresh, target):
        os._exit(8)
    os._exit(9)
write.exchange = dying
write.write_folder(sample_files(PLAN_md="# other\\n"), Path({str(target)!r}))
"""
    status = subprocess.run([sys.executable, "-c", script]).returncode
    if status == 8:
        pytest.skip("this file system cannot exchange two names")
    assert status == 9
    assert contents(target) == sample_files(**({"PLAN_md": "# other\n"} if when == "after" else {}))
    assert write_folder(sample_files(), target).path == target
    assert contents(target) == sample_files()
    assert os.listdir(tmp_path) == ["sample"]


def test_a_fault_between_the_renames_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "sample"
    write_folder(sample_files(), target)
    rename = Path.rename

    def interrupted(self: Path, to: Path) -> Path:
        if self.name.endswith(".new"):
            raise KeyboardInterrupt
        return rename(self, to)

    monkeypatch.setattr(write, "exchange", lambda fresh, target: False)
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(sample_files(PLAN_md="# other\n"), target)
    assert contents(target) == sample_files()


def test_concurrent_writers_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = 0, 0
    write_tree = write.write_tree

    def counted(folder: Path, encoded: dict[str, bytes]) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        write_tree(folder, encoded)
        inside -= 1

    monkeypatch.setattr(write, "write_tree", counted)
    target = tmp_path / "sample"
    texts = [f"# {i}\n" for i in range(8)]
    threads = [
        threading.Thread(target=write_folder, args=(sample_files(PLAN_md=text), target), kwargs={"force": True})
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert (target / "PLAN.md").read_text() in texts
    read_folder(target)


@settings(max_examples=20, deadline=None)  # each example waits for the disk
@given(st.dictionaries(st.sampled_from(["a.txt", "b.txt", "c/d.txt"]), st.text(max_size=5), max_size=3))
def test_any_file_set_is_written_exactly(tmp_path_factory: pytest.TempPathFactory, extra: dict[str, str]) -> None:
    target = tmp_path_factory.mktemp("any") / "sample"
    files = sample_files(**{name: text.replace("\r", "") for name, text in extra.items()})
    write_folder(sample_files(), target)
    write_folder(files, target)
    assert contents(target) == files
