"""A folder laid out like Python's library, with texts of made-up words."""

from __future__ import annotations

import random
from pathlib import Path

TOPICS = {"alpha": 'About alpha\n***********\n\nIt is "quoted".\n', "beta": "About beta\n"}


def words(seed: int, count: int = 12) -> str:
    """Lines of calls whose names no other seed shares."""
    draw = random.Random(seed)
    names = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(8 * count)]
    lines = [f"    {a}.{b}({c}, {d})\n" for a, b, c, d in zip(*[iter(names)] * 4, strict=True)]
    return f"def run_{seed}(self):\n" + "".join(lines)


def make_library(folder: Path, modules: int = 80) -> Path:
    """``modules`` modules in two folders, a licence, the documentation's topics."""
    (folder / "pydoc_data").mkdir(parents=True)
    (folder / "LICENSE.txt").write_text("The licence.\n", encoding="utf-8")
    lines = "".join(f" {name!r}: {text!r},\n" for name, text in TOPICS.items())
    (folder / "pydoc_data/topics.py").write_text(f"# made by a tool\ntopics = {{\n{lines}}}\n", encoding="utf-8")
    (folder / "deep/er").mkdir(parents=True)
    for seed in range(modules):
        place = folder if seed % 2 else folder / "deep/er"
        (place / f"module_{seed:03}.py").write_text(words(seed), encoding="utf-8")
    return folder
