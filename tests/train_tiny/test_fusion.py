"""What a GPU compiles can be traced: each function as one graph, with the losses and gradients of the plain one.

In a process of its own, since the functions are wrapped when their modules are imported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from miniature import LENGTH, write_miniature

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
from pathlib import Path

import fusion
import numpy as np
import torch

model, work, out, backend, length = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
if backend != "none":
    fusion.fused = lambda function, any_shape=False: torch.compile(
        function, dynamic=any_shape, fullgraph=True, backend=backend
    )

import drafter
import train
from network import Backbone
from rows import Rows, load_tokens
from sizes import read_sizes
from tables import read_tables

torch.manual_seed(0)
sizes, tables = read_sizes(model / "config.json"), read_tables(work)
backbone, drafts = Backbone(sizes, tables.token_map, tables.hashes), drafter.Drafter(sizes)
ids = torch.from_numpy(Rows(load_tokens(work, "train"), length, 2, 0).at(0))
loss, index_loss = train.losses(backbone, ids)
(loss + index_loss).backward()
found = {"loss": loss, "index_loss": index_loss}
with torch.no_grad():
    logits, features, _ = backbone(ids[:, :-1])
anchors = torch.tensor([[1, 20, 30], [5, 6, 40]])
blocks = drafts(ids[:, :-1], features, anchors, backbone.embed.weight.detach(), backbone.head.weight.detach())
total = drafter.losses(blocks, ids[:, :-1], logits, anchors).total
total.backward()
found["draft"] = total
for part in (backbone, drafts):
    found |= {name: parameter.grad for name, parameter in part.named_parameters()}
torch.save({name: tensor.detach() for name, tensor in found.items()}, out)
"""


@pytest.mark.long
def test_compiled_functions_give_what_the_plain_ones_give(tmp_path: Path) -> None:
    model, work = write_miniature(tmp_path)
    found = []
    for backend in ("none", "aot_eager"):
        out = tmp_path / f"{backend}.pt"
        command = [sys.executable, "-c", SCRIPT, str(model), str(work), str(out), backend, str(LENGTH)]
        done = subprocess.run(command, cwd=ROOT / "tools" / "train_tiny", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(torch.load(out))
    plain, compiled = found
    assert plain.keys() == compiled.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(
            compiled[name], tensor, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
