"""The table of silent wrong results names the tests that there are, under their numbers."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1]


def test_every_trap_has_a_row_and_every_row_its_tests() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("test_*.py")))
    defined = set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.*) \|$", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 47))
    for number, _, cell in rows:
        named = set(re.findall(r"`(test_\w+)`", cell))
        assert named, f"trap {number} names no test"
        assert named <= defined, f"trap {number} names {named - defined}, which do not exist"
        own = {name for name in defined if name.startswith(f"test_trap_{number}_")}
        assert named == own or (not own and cell.startswith("not yet: ")), f"trap {number}: {named ^ own}"
