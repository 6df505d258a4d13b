from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_gen.formula import align, ceil_div, evaluate, operand_names


@pytest.mark.parametrize(
    ("expression", "operands", "value"),
    [
        ("dims * bits // 8 + dims / group * scale", {"dims": 512, "bits": 4, "group": 16, "scale": 1}, 288),
        ("floor(seqs * ratio)", {"seqs": 128, "ratio": Fraction(6, 5)}, 153),
        ("a / b", {"a": 1, "b": 3}, Fraction(1, 3)),
        ("0 if ep == 1 else ep", {"ep": 1}, 0),
        ("sum(sizes) + count(sizes) + max(sizes)", {"sizes": (1, 2, 4)}, 14),
        ("ceil_div(rows, 8) + align(rows, 8) - clamp(rows, 1, 3)", {"rows": 9}, 2 + 16 - 3),
        ("round(a / 2) + round(b / 2)", {"a": 5, "b": 7}, 2 + 4),
        ("a == 'fp32'", {"a": "fp32"}, True),
    ],
)
def test_evaluates_exactly(expression, operands, value):
    assert evaluate(expression, operands) == value


@pytest.mark.parametrize(
    "expression",
    ["__import__('os')", "a.b", "[a for a in b]", "lambda: 1", "a and b", "1.5", "open(a)", "max(a, key=b)"],
)
def test_refuses_everything_else(expression):
    with pytest.raises(ValueError, match=r"not allowed|no operand"):
        evaluate(expression, {"a": 1, "b": 2})


def test_unknown_operand_is_named():
    with pytest.raises(ValueError, match="names 'window'"):
        evaluate("window + 1", {"ring": 3})


def test_operand_names_leave_functions_out():
    assert operand_names("max(a, floor(b * a))") == ("a", "b")


@given(st.integers(0, 10**9), st.integers(1, 10**4))
def test_alignment(size, alignment):
    aligned = align(size, alignment)
    assert aligned % alignment == 0
    assert 0 <= aligned - size < alignment
    assert ceil_div(size, alignment) * alignment == aligned
