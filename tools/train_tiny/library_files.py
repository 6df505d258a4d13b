"""What of a Python installation is text to learn from: the library's sources and the documentation's topics."""

from __future__ import annotations

import ast
import re
import sysconfig
import tokenize
import warnings
from pathlib import Path, PurePosixPath

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
TOPICS = "pydoc_data/topics.py"

# Beside the library, or made on this machine, or examples of what Python 2 wrote.
_LEFT_OUT_FOLDERS = {"site-packages", "__pycache__", "lib-dynload", "lib2to3/tests/data", "test/test_lib2to3/data"}
# Made when Python was built, they name the machine; the test suite calls "bad" what is wrong on purpose.
_LEFT_OUT_NAMES = ("_sysconfigdata_", "_sysconfig_vars_", "config-", "bad")
_NUMBERS = re.compile(r"\\x[0-9a-fA-F]{2}|\\[uU][0-9a-fA-F]{4,8}|\\[0-7]{3}|0[xX][0-9a-fA-F]+|[0-9]+")
# Share of a file's characters in numbers. Hand-written modules stay below a tenth; character maps and recorded test
# data begin at an eighth.
_TABLE_SHARE = 0.12


def read_documents(library: Path) -> dict[str, str]:
    """Texts by name, sorted by name, of ``library`` (a folder laid out like Python's ``lib/python3.x``).

    A name is the posix path below ``library``. Sources are decoded as Python does it (``tokenize.open``: PEP 263,
    newlines become ``\\n``); each topic of the documentation is a text ``pydoc_data/topics/NAME.txt``. Left out are
    files that Python cannot decode or parse and others of the test suite that are bad on purpose, empty ones, those
    that describe the machine (``_sysconfigdata_*``, ``config-*``), and tables of numbers: a text with ``_TABLE_SHARE``
    of its characters in numbers or escapes is data (most of ``encodings``, ``html/entities.py``, ``stringprep.py``,
    recorded audio in the test suite), on which a small model would spend its weights.
    """
    documents = {}
    for path in library.rglob("*.py"):
        name = path.relative_to(library).as_posix()
        if name == TOPICS:
            documents.update(_topics(path))
        elif not _is_left_out(name) and (text := read_source(path)) and not is_table(text):
            documents[name] = text
    return dict(sorted(documents.items()))


def is_table(text: str) -> bool:
    """Whether a text is mainly numbers."""
    return sum(len(number) for number in _NUMBERS.findall(text)) >= _TABLE_SHARE * len(text)


def read_source(path: Path) -> str | None:
    """The text of a source; None for one that Python refuses."""
    try:
        with tokenize.open(path) as file:
            text = file.read()
        parse_source(text)
    except (SyntaxError, ValueError):  # undecodable bytes and, in some releases, null bytes are a ValueError
        return None
    return text


def parse_source(text: str) -> ast.Module:
    """The syntax tree; the warnings about old spellings that the test suite keeps are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (SyntaxWarning, DeprecationWarning))
        return ast.parse(text)


def _is_left_out(name: str) -> bool:
    path = PurePosixPath(name)
    above = {str(folder) for folder in path.parents} | set(path.parent.parts)
    return bool(above & _LEFT_OUT_FOLDERS) or any(part.startswith(_LEFT_OUT_NAMES) for part in path.parts)


def _topics(path: Path) -> dict[str, str]:
    """The reference manual's chapters that ``help()`` shows, which the library keeps as one dictionary."""
    module = parse_source(path.read_text(encoding="utf-8"))
    (topics,) = [ast.literal_eval(node.value) for node in module.body if isinstance(node, ast.Assign)]
    return {f"pydoc_data/topics/{topic}.txt": text for topic, text in topics.items()}
