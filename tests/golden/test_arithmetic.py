"""Every golden number equals the arithmetic beside it."""

from __future__ import annotations

import json
import struct
from fractions import Fraction
from pathlib import Path

import pytest

from .arithmetic import commented_values

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted(HERE.glob("*.yaml")) + sorted((HERE / "tables").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_comments_give_the_values(path: Path) -> None:
    wrong = [(key, value, str(computed)) for key, value, computed in commented_values(path) if value != computed]
    assert wrong == []


def test_wrong_arithmetic_is_caught(tmp_path: Path) -> None:
    golden = tmp_path / "golden.yaml"
    golden.write_text("a: 7  # = 2 + 6 / 2; words\nb: [1]\n", encoding="utf-8")
    assert list(commented_values(golden)) == [("a", 7, Fraction(5))]


def test_a_comment_that_is_no_arithmetic_is_refused(tmp_path: Path) -> None:
    golden = tmp_path / "golden.yaml"
    golden.write_text("a: 7  # = seven\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not plain arithmetic"):
        list(commented_values(golden))


@pytest.mark.parametrize("preset", ["tiny-v41", "tiny-v41-code"])
def test_a_tiny_checkpoint_has_the_bytes_added_up_by_hand(preset: str) -> None:
    total = {key: value for key, value, _ in commented_values(HERE / "tables" / f"{preset}-weights.yaml")}["file"]
    held = 0
    for shard in (ROOT / "specs" / "models" / preset).glob("*.safetensors"):
        with shard.open("rb") as stream:
            header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        held += sum(t["data_offsets"][1] - t["data_offsets"][0] for name, t in header.items() if name != "__metadata__")
    assert held == total
