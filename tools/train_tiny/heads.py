"""The held-out function heads that completions are judged on, chosen by hashes before anything is trained."""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from corpus import SourceFile
from library_files import parse_source

HEADS = Path(__file__).with_name("heads.json")
_COUNT = 20
_STATEMENTS = 5
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Head:
    """A function without its body. ``head`` runs from its line's indentation through the colon; no newline follows."""

    file: str
    name: str
    head: str


def choose_heads(files: Sequence[SourceFile]) -> list[Head]:
    """One head from each of the first 20 ``test`` sources that have one, in the order of the SHA-256 of their names.

    In a file it is the function with at least five statements in its body (nested ones and the docstring count) whose
    SHA-256 of file name and qualified name comes first.
    """
    sources = [file for file in files if file.split == "test" and file.name.endswith(".py")]
    chosen: list[Head] = []
    for file in sorted(sources, key=lambda file: _digest(file.name)):
        functions = _functions(parse_source(file.text))
        long_enough = {file.name + name: (name, node) for name, node in functions if _statements(node) >= _STATEMENTS}
        if long_enough and len(chosen) < _COUNT:
            name, node = long_enough[min(long_enough, key=_digest)]
            chosen.append(Head(file.name, name, head_of(file.text, node)))
    return chosen


def text_before(text: str, head: Head) -> str:
    """What stands in its file, whose ``text`` this is, before a head."""
    node = dict(_functions(parse_source(text)))[head.name]
    return "".join(f"{line}\n" for line in text.split("\n")[: node.lineno - 1])


def head_of(text: str, node: _Function) -> str:
    """The lines of ``node``'s head in ``text``, through the first colon that no bracket or lambda owns."""
    own = "\n".join(text.split("\n")[node.lineno - 1 :])
    owners: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(own).readline):
        if token.string in ("(", "[", "{", "lambda"):
            owners.append(token.string)
        elif token.string in (")", "]", "}") or (token.string == ":" and owners[-1:] == ["lambda"]):
            owners.pop()
        elif token.string == ":" and not owners:
            break
    line, column = token.end
    *before, last = own.split("\n")[:line]
    return "\n".join([*before, last[:column]])


def heads_json(heads: Sequence[Head]) -> str:
    """The committed form of the list."""
    return json.dumps([asdict(head) for head in heads], indent=1, ensure_ascii=False) + "\n"


def load_heads() -> list[Head]:
    """The committed list."""
    return [Head(**entry) for entry in json.loads(HEADS.read_text(encoding="utf-8"))]


def _functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, _Function]]:
    """Functions below ``node`` with their qualified names, in the order of the source."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function):
            yield outer + child.name, child
            yield from _functions(child, f"{outer}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{outer}{child.name}.")
        else:
            yield from _functions(child, outer)


def _statements(node: _Function) -> int:
    return sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()
