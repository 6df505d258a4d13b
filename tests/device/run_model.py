"""Run the tiny model on this machine's GPU with the reference operators, under every policy, against the CPU.

    PYTHONPATH=FOLDER_WITH_PYDANTIC_AND_RUAMEL python tests/device/run_model.py

Needs torch with CUDA; deepinfer-gen need not be installed. Prints one line per policy: the largest difference of a
logit from the reference data and from the CPU, the share of rows whose best token is the reference's, whether drafts
are the CPU's, and how long a decode step of one row takes. Exit status 1 where float32 without quantisation is off.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from assemble import ROOT, assemble

TOLERANCE = 1e-4
REFERENCES = {"float32_unquantized": "f32nq", "float32": "f32", "bf16": "f32", "released": "ref"}


def run(folder: Path) -> int:
    """Compare all policies; specs are written into ``folder``."""
    import numpy as np
    import torch
    from compiled_tiny import compiled_tiny
    from teacher_forcing import one_row

    from deepinfer_gen.runtime.kv_cache import KVCache
    from deepinfer_gen.runtime.model.draft_context import DraftRows

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    failed = 0
    for policy, name in REFERENCES.items():
        with np.load(ROOT / "tests" / "oracle" / f"reference_{name}.npz") as data:
            ids, expected = torch.from_numpy(data["p300_ids"]), torch.from_numpy(data["p300_logits"])
        compiled = compiled_tiny(folder, numerics__policy=policy, speculative__nextn=5)
        found: dict[str, tuple[torch.Tensor, list[int]]] = {}
        step_ms = 0.0
        for device in (torch.device("cpu"), torch.device("cuda")):
            model = compiled.model.to(device)
            cache = KVCache(compiled.layout, device)
            batch = moved(one_row(ids, compiled.layout), device)
            logits = model(batch, cache, torch.arange(len(ids), device=device)).cpu()
            token, place = logits[-1].argmax().view(1).to(device), torch.tensor([len(ids)], device=device)
            drafts = model.draft(DraftRows(token, place, batch.slot), cache)
            found[device.type] = logits, drafts.ids[0].tolist()
            step_ms = decode_ms(model, cache, batch, token)
        (cpu, cpu_drafts), (gpu, gpu_drafts) = found["cpu"], found["cuda"]
        off = float((gpu - expected).abs().max())
        failed += policy == "float32_unquantized" and (off > TOLERANCE or cpu_drafts != gpu_drafts)
        print(
            f"{policy:20} from the reference {off:.2g}, from the CPU {float((gpu - cpu).abs().max()):.2g}; best token"
            f" the same in {float((gpu.argmax(1) == expected.argmax(1)).float().mean()):.1%} of rows; drafts"
            f" {'equal' if cpu_drafts == gpu_drafts else 'differ'}; decode step {step_ms:.1f} ms",
            flush=True,
        )
    return 1 if failed else 0


def moved(batch: Any, device: Any) -> Any:
    """A batch whose tensors lie on ``device``."""
    names = [field.name for field in fields(batch) if field.name != "prefills"]
    return replace(batch, **{name: getattr(batch, name).to(device) for name in names})


def decode_ms(model: Any, cache: Any, prompt: Any, token: Any) -> float:
    """Median milliseconds of a step of one token behind ``prompt``."""
    import torch

    zero, one, length = prompt.slot * 0, prompt.slot * 0 + 1, prompt.k_len
    batch = replace(
        prompt, input_ids=token, positions=length, row_of_token=zero, q_start=zero, q_len=one, k_len=length + 1,
        history=prompt.input_ids[-3:].view(1, -1), prefills=False,
    )  # fmt: skip
    times = []
    for _ in range(15):
        start = time.perf_counter()
        model(batch, cache, zero)
        if token.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e3


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as links, tempfile.TemporaryDirectory() as specs:
        assemble(Path(links))
        sys.exit(run(Path(specs)))
