"""The file form of JSON is that of ``json.dumps`` with an indent."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deepinfer_gen.canonical import json_text

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
CONTENT = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(CONTENT)
def test_the_file_form_is_the_indented_one(content: Any) -> None:
    assert json_text(content) == json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
