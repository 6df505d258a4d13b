"""The held-out function heads."""

from __future__ import annotations

import ast
import platform
import textwrap
from hashlib import sha256

import pytest
from corpus import SourceFile
from heads import Head, choose_heads, head_of, load_heads, text_before
from library_files import STANDARD_LIBRARY, read_source
from manifest import load_manifest

BODY = "\n    ".join(f"a{i} = {i}" for i in range(5))


@pytest.mark.parametrize(
    "head",
    [
        "def f(x):",
        "def f(x, y={'a': 1}, z=lambda q: q[1:2]) -> dict[str, int]:",
        "async def f(\n    x: int,  # a note: with a colon\n    y: str = ':)',\n) -> None:",
        "def f() -> lambda x={1: 2}: x:",
        "def f(a='\f'):",
    ],
)
def test_a_head_ends_with_its_own_colon(head: str) -> None:
    text = f"first = '\f'\n@decorated(x[1:2])\n{head}  # then\n    'doc: string'\n    {BODY}\n"
    node = ast.parse(text).body[1]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    assert head_of(text, node) == head


def test_a_methods_head_keeps_its_indentation() -> None:
    method = textwrap.indent(f"def f(self):\n    {BODY}\n", "    ")
    chosen = choose_heads([SourceFile("a.py", "class Kind(Base):\n" + method, "test")])
    assert chosen == [Head("a.py", "Kind.f", "    def f(self):")]


def test_the_text_before_a_head_ends_where_it_begins() -> None:
    """Of two functions of one name the qualified one is found, behind a form feed too."""
    method = textwrap.indent(f"def f(self):\n    {BODY}\n", "    ")
    text = "\n".join(["mark = '\f'", "class A: ", method, "class B: ", method])
    (head,) = choose_heads([SourceFile("a.py", text, "test")])
    before = text_before(text, head)
    assert text.startswith(before + head.head)
    assert before.count("class") == ("A", "B").index(head.name[0]) + 1


def test_only_held_out_sources_and_functions_of_five_statements_are_taken() -> None:
    short = "def short():\n    'doc'\n    for x in y:\n        if x:\n            pass\n"
    long = short.replace("short", "long").replace("pass", "a = 1\n            b = 2")
    assert choose_heads([SourceFile("a.py", short, "test")]) == []
    assert [h.name for h in choose_heads([SourceFile("a.py", short + long, "test")])] == ["long"]
    assert choose_heads([SourceFile("a.py", long, "train"), SourceFile("b.txt", long, "test")]) == []


def test_order_is_that_of_the_hashes() -> None:
    """Two functions in each of 30 files, one inside the other's class: expected by hand from the hashes."""
    method = textwrap.indent(f"def g(self):\n    {BODY}\n", "    ")
    text = f"def f():\n    {BODY}\nclass Kind(Base):\n{method}"
    names = [f"m{i}.py" for i in range(30)]
    chosen = choose_heads([SourceFile(name, text, "test") for name in names])

    def digest(value: str) -> str:
        return sha256(value.encode()).hexdigest()

    expected = [(name, min(("f", "Kind.g"), key=lambda f: digest(name + f))) for name in sorted(names, key=digest)[:20]]
    assert [(head.file, head.name) for head in chosen] == expected
    assert {head.name for head in chosen} == {"f", "Kind.g"}


def test_committed_heads_are_what_the_recipe_gives() -> None:
    record = load_manifest()
    if record["python"] != platform.python_version():
        pytest.skip(f"the heads were chosen from the library of Python {record['python']}")
    held_out = record["held_out"]["test"]
    files = []
    for name in (name for name in held_out if name.endswith(".py")):
        text = read_source(STANDARD_LIBRARY / name)
        assert text is not None
        assert sha256(text.encode()).hexdigest() == held_out[name]
        files.append(SourceFile(name, text, "test"))
    assert choose_heads(files) == load_heads()
    assert len(load_heads()) == 20
