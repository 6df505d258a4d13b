"""The commands one after the other on the miniature, up to a checkpoint that the product runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from export import read_config
from miniature import LENGTH, miniature_tokens, write_miniature
from paged_run import PagedModel, compile_plan
from saved import load
from training_form import decoded_parameters, exact_caches, network_of
from weight_formats import represented

from deepinfer_gen.codegen.tensors import demanded_parameters

TOOL = Path(__file__).resolve().parents[2] / "tools" / "train_tiny"


def call(*arguments: str) -> str:
    """Run the tool in a process of its own; its stdout."""
    command = [sys.executable, str(TOOL), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_train_polish_draft_export(tmp_path: Path) -> None:
    """Each command reads what the one before wrote, also after a stop; the exported model is the trained one."""
    model, work = write_miniature(tmp_path)
    common = ["--work", str(work), "--config", str(model / "config.json"), "--length", str(LENGTH), "--batch", "4"]
    common += ["--held-out", "2", "--evaluate-every", "10"]
    assert "saved after step 0 of 4" in call("train", *common, "--steps", "4", "--seconds", "0")
    assert "saved after step 2 of 2" in call("train", *common, "--steps", "2")
    begun = load(work / "backbone")
    assert "saved after step 4 of 4" in call("train", *common, "--steps", "4", "--start", "2")
    trained = load(work / "backbone")
    assert any(not torch.equal(trained[name], begun[name]) for name in begun)
    call("polish", *common, "--steps", "2")
    call("polish", *common, "--steps", "3", "--start", "2")
    polished = load(work / "polished")
    assert all(torch.equal(tensor, trained[name]) for name, tensor in load(work / "backbone").items())
    assert any(not torch.equal(polished[name], trained[name]) for name in trained)
    out = call("draft", *common, "--anchors", "8", "--steps", "2")
    assert "'held_out_accepted': " in out
    drafted = load(work / "drafted")
    call("draft", *common, "--anchors", "8", "--steps", "3", "--start", "2")
    again = load(work / "drafted")
    assert all(torch.equal(again[name], tensor) for name, tensor in polished.items())  # frozen
    assert any(not torch.equal(again[name], drafted[name]) for name in drafted.keys() - polished.keys())

    released = tmp_path / "released"
    call("export", str(work / "drafted"), "--model", str(model), "-o", str(released))
    decoded = decoded_parameters(released)
    for parameter in demanded_parameters(read_config(model)):
        expected = represented(parameter.storage, again[parameter.name])
        assert torch.equal(decoded[parameter.name], expected), parameter.name
    ids = miniature_tokens(40, seed=5)[:LENGTH].tolist()
    plan = compile_plan(released, tokens=LENGTH, block=32)
    served = PagedModel(plan, released).logits(ids, [40, LENGTH - 40])
    with exact_caches(), torch.no_grad():
        logits = network_of(released)[0](torch.tensor([ids]))[0][0]
    assert float(served.std()) > 0.1
    torch.testing.assert_close(logits, served, atol=1e-4, rtol=0)
