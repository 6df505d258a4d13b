"""The cost curve's file, every refusal with its values, the measurement, and the modelled device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped import shipped_plan

from deepinfer_gen.canonical import json_text, sealed
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.speculative.cost_curve import (
    LEAST_RISE,
    CostCurve,
    affine_curve,
    agreed_milliseconds,
    check_curve,
    read_curve,
    trimmed_mean,
    write_curve,
)

SIZES = (1, 2, 4, 8)
CURVE = CostCurve("a" * 64, "NVIDIA B200", "checkpoint 1", SIZES, (3.0, 3.25, 3.5, 4.125))


def read(path: Path) -> CostCurve:
    return read_curve(path, plan_digest=CURVE.plan_digest, sizes=SIZES)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    write_curve(path, CURVE)
    write_curve(path, CURVE)
    assert read(path) == CURVE
    assert [p.name for p in tmp_path.iterdir()] == ["curve.json"]
    assert f'"digest": "{CURVE.digest}"' in path.read_text()


def test_the_digest_covers_everything() -> None:
    others = [
        CostCurve(**{**{name: getattr(CURVE, name) for name in CostCurve.__slots__}, **change})
        for change in (
            {"plan_digest": "b"}, {"device": "b"}, {"model": "b"}, {"sizes": (1, 2, 4, 9)},
            {"milliseconds": (3.0, 3.25, 3.5, 4.25)},
        )
    ]  # fmt: skip
    assert len({CURVE.digest, *(other.digest for other in others)}) == 1 + len(others)


def changed(**changes: Any) -> Callable[[Path], None]:
    """Write the curve with other values, sealed as if they were measured; None removes a key."""

    def write(path: Path) -> None:
        content = {key: value for key, value in {**CURVE.content(), **changes}.items() if value is not None}
        path.write_text(json_text(sealed(content)))

    return write


def damaged(path: Path) -> None:
    write_curve(path, CURVE)
    path.write_text(path.read_text().replace("3.25", "3.26"))


REFUSED: list[tuple[Callable[[Path], object], str, str]] = [
    (lambda path: None, "DI370", "cannot be read: No such file or directory"),
    (lambda path: path.mkdir(), "DI370", "cannot be read: Is a directory"),
    (lambda path: path.write_text("{"), "DI370", "the cost curve is not valid JSON"),
    (lambda path: path.write_text("{}"), "DI370", "has no digest of its own"),
    (damaged, "DI370", "differs from its own digest"),
    (changed(schema=2), "DI371", "has schema 2, this version reads 1"),
    (changed(model=None), "DI371", "model is missing"),
    (changed(device=7), "DI371", "device is 7, not a string"),
    (changed(sizes=[1, 2, 4, True]), "DI371", r"sizes is \[1, 2, 4, true\], not a list of integers"),
    (changed(milliseconds=[3, "4", 5, 6]), "DI371", "not a list of numbers"),
    (changed(extra=1), "DI371", "extra is unknown"),
    (changed(plan_digest="b" * 64), "DI372", "is for the plan b{64}, the engine is that of a{64}"),
    (changed(sizes=[1, 2, 4, 16]), "DI373", r"for graph sizes \[1, 2, 4, 16\]; the engine has \[1, 2, 4, 8\]"),
    (changed(milliseconds=[3, 4, 5]), "DI373", r"3 durations for graph sizes \[1, 2, 4, 8\]"),
    (changed(milliseconds=[3, 0, 5, 6]), "DI374", r"gives 0\.0 ms for graph size 2"),
    (changed(milliseconds=[3, 4, 5, 2e9]), "DI374", r"2000000000\.0 ms for graph size 8; a duration lies between"),
    (changed(milliseconds=[3, 4, 5, float("inf")]), "DI374", "gives inf ms for graph size 8"),
    (changed(milliseconds=[float("nan"), 4, 5, 6]), "DI374", "gives nan ms for graph size 1"),
    (changed(milliseconds=[3, 5, 4, 6]), "DI375", r"falls from 5\.0 ms at graph size 2 to 4\.0 ms at 4"),
    (changed(milliseconds=[3, 3, 3, 3.1]), "DI376", r"flat: 3\.0 ms at graph size 1, 3\.1 ms at 8, under 5 % more"),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "code", "words"), REFUSED, ids=[f"{c} {w[:20]}" for _, c, w in REFUSED])
def test_a_curve_that_does_not_fit_is_refused_with_place_values_and_remedy(
    prepare: Callable[[Path], object], code: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "curve.json"
    prepare(path)
    with pytest.raises(InputError, match=words) as fault:
        read(path)
    (found,) = fault.value.diagnostics
    assert (found.code, found.file) == (code, str(path))
    assert "measure the curve again" in found.help
    assert ("speculative.verify: fixed" in found.help) == (code == "DI376")


def test_the_refusals_are_those_of_the_compiled_engine() -> None:
    """5 % is steep enough, and a single size cannot be flat."""
    check_curve("here", (1, 2), (1.0, LEAST_RISE))
    check_curve("here", (6,), (1.0,))
    with pytest.raises(InputError, match="flat"):
        check_curve("here", (1, 2), (1.0, 1.049))


def test_the_fastest_and_the_slowest_replay_are_dropped() -> None:
    assert trimmed_mean([9.0, 1.0, 3.0, 2.0, 4.0]) == 3.0
    with pytest.raises(ValueError, match="2 replays"):
        trimmed_mean([1.0, 2.0])


def test_ranks_agree_on_their_mean_forced_not_to_fall() -> None:
    assert agreed_milliseconds([[1.0, 4.0, 3.0, 6.0], [3.0, 4.0, 2.0, 6.0]]) == (2.0, 4.0, 4.0, 6.0)
    with pytest.raises(ValueError, match="longer"):
        agreed_milliseconds([[1.0], [1.0, 2.0]])


@given(st.lists(st.lists(st.floats(0.01, 100), min_size=5, max_size=5), min_size=1, max_size=4))
def test_the_agreed_curve_never_falls(curves: list[list[float]]) -> None:
    agreed = agreed_milliseconds(curves)
    assert list(agreed) == sorted(agreed)


@pytest.mark.parametrize("name", ["v41-flash-normal-ep8", "v41-flash-decode-ep64", "tiny-cpu"])
def test_the_modelled_device_can_choose_a_size(name: str) -> None:
    plan = shipped_plan(name)
    sizes, curve = plan.integers("graphs.sizes"), affine_curve(plan.as_dict()["values"])
    check_curve(name, sizes, curve)
    rises = [(ms - curve[0]) / (size - sizes[0]) for size, ms in list(zip(sizes, curve, strict=True))[1:]]
    assert max(rises) == pytest.approx(min(rises)), "a straight line"


def test_the_modelled_device_by_hand() -> None:
    """B200: 10,560,177,480 B dense, 37,808,087,040 B of experts, 43 layers of 342,016 B a token, 8 TB/s."""
    curve = affine_curve(shipped_plan("v41-flash-normal-ep8").as_dict()["values"])
    assert curve[0] == pytest.approx(1.320022 + 4.726011 / 768 + 0.003677, rel=1e-6)
    assert curve[-1] == pytest.approx(1.320022 + 4.726011 + 0.003677 * 768, rel=1e-4)


def test_reading_a_curve_needs_no_torch() -> None:
    program = "import sys, deepinfer_gen.runtime.speculative.cost_curve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
