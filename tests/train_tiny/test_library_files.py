"""Which texts of a Python installation the corpus takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from library_files import is_table, read_documents


def put(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def test_names_are_posix_paths_in_order_and_texts_are_decoded_as_python_does(tmp_path: Path) -> None:
    put(tmp_path, "zebra.py", b"one = 1\r\ntwo = 'many words'\r\n")
    put(tmp_path, "apes/gibbon.py", b"# -*- coding: latin-1 -*-\nname = 'gibb\xf6n'\n")
    put(tmp_path, "apes/marked.py", b"\xef\xbb\xbfname = 'a mark of the order of bytes'\n")
    documents = read_documents(tmp_path)
    assert list(documents) == ["apes/gibbon.py", "apes/marked.py", "zebra.py"]
    assert documents["zebra.py"] == "one = 1\ntwo = 'many words'\n"
    assert documents["apes/gibbon.py"].splitlines()[1] == "name = 'gibbön'"
    assert documents["apes/marked.py"].startswith("name")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("site-packages/other/module.py", b"name = 'other'\n"),
        ("pack/__pycache__/module.py", b"name = 'cached'\n"),
        ("lib2to3/tests/data/fixers/old.py", b"name = 'old'\n"),
        ("_sysconfigdata__linux_x86_64.py", b"build_time_vars = {}\n"),
        ("config-3.11-x86_64/python-config.py", b"name = 'here'\n"),
        ("test/test_module/bad_getattr.py", b"name = 'on purpose'\n"),
        ("test/broken.py", b"def (:\n"),
        ("test/undecodable.py", b"# -*- coding: ascii -*-\nname = '\xff'\n"),
        ("test/unknown_coding.py", b"# -*- coding: uft-8 -*-\nname = 'x'\n"),
        ("test/null.py", b"name = '\0'\n"),
        ("package/__init__.py", b""),
        ("test/recorded.py", b"frames = [1042, 3998, 1129, 5540]\n"),
        ("readme.txt", b"name\n"),
    ],
)
def test_what_is_left_out(tmp_path: Path, name: str, content: bytes) -> None:
    put(tmp_path, "kept.py", b"name = 'kept'\n")
    put(tmp_path, name, content)
    assert list(read_documents(tmp_path)) == ["kept.py"]


@pytest.mark.parametrize("name", ["lib2to3/tests/test_fixers.py", "test/data/configuration.py", "configs.py"])
def test_names_that_only_resemble_those_are_kept(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, b"name = 'kept'\n")
    assert list(read_documents(tmp_path)) == [name]


def test_each_topic_of_the_documentation_is_a_text(tmp_path: Path) -> None:
    put(tmp_path, "pydoc_data/topics.py", b"# made by a tool\ntopics = {'in': 'Membership\\n' '1 2 3\\n', 'a': 'b'}\n")
    assert read_documents(tmp_path) == {
        "pydoc_data/topics/a.txt": "b",
        "pydoc_data/topics/in.txt": "Membership\n1 2 3\n",
    }


def test_a_table_has_twelve_hundredths_of_its_characters_in_numbers() -> None:
    assert not is_table("1" * 11 + "x" * 89)
    assert is_table("1" * 12 + "x" * 88)
    assert is_table(r"\xff" * 3 + "x" * 88)  # the escape's letters count
