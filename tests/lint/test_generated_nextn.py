"""The draft length is one constant of the generated C++: no second place holds it, whatever its value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.render import render
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

from . import rules

CONFIG = Path(__file__).resolve().parents[2] / "specs" / "models" / "tiny-v41" / "config.json"
SPEC = """
engine: {{name: drafts}}
model: model/config.json
hardware: cpu
limits: {{max_num_seqs: 16, max_model_len: 1024}}
kv: {{block_size: 32}}
speculative: {{nextn: {nextn}}}
"""


@pytest.mark.parametrize("nextn", [1, 3, 5, 7])
def test_b21_no_literal_draft_length(nextn: int, tmp_path: Path) -> None:
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    config["text_config"]["dspark_block_size"] = 8
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "drafts.yaml").write_text(SPEC.format(nextn=nextn), encoding="utf-8")
    files = render(derive(resolve(load_spec(tmp_path / "drafts.yaml"))))
    sources = {name: text for name, text in files.items() if name.endswith((".hpp", ".cpp"))}
    assert sum(f"kNextn = {nextn};" in text for text in sources.values()) == 1
    assert {name: rules.nextn_literals(text, nextn) for name, text in sources.items()} == {name: [] for name in sources}
