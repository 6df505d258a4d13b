"""Follows given texts with nemo-automodel; started by ``second_opinion_text.py`` with the interpreter that has it.

``nemo_text.py CHECKPOINT WORK`` reads ``WORK/texts.npz``: ``quantized``, and for each text i its tokens ``ids_i`` [n],
of which the first ``prompt_i`` were given. It writes ``WORK/nemo.npz``, for each of the m tokens after the prompt from
the row before it: ``greedy_i`` [m], the token that it would choose; ``gap_i`` [m], by how much the logit of that one
exceeds the logit of the text's; ``logprob_i`` [m], of the text's; ``margin_i`` [m], how narrowly the row's choices were
decided; and ``scale_i``, the root mean square of these rows' logits.

A causal model that chooses each token of a text from the tokens before it writes that text: one pass shows it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nemo_runner import Choices, choosing, load, without_cache_quantization


def follow(model: Any, ids: torch.Tensor, prompt: int) -> dict[str, Any]:
    """The entries of one text."""
    choices = Choices(len(ids) - 1)
    with torch.inference_mode(), choosing(choices):
        logits = model(ids[:-1].unsqueeze(0)).logits[0, prompt - 1 :]
    written = ids[prompt:].unsqueeze(1)
    chosen = logits.gather(1, written).squeeze(1)
    return {
        "greedy": logits.argmax(1).numpy(),
        "gap": (logits.amax(1) - chosen).numpy(),
        "logprob": logits.log_softmax(1).gather(1, written).squeeze(1).numpy(),
        "margin": choices.margin[prompt - 1 :].numpy(),
        "scale": float(logits.square().mean().sqrt()),
    }


def main(checkpoint: Path, work: Path) -> None:
    """Follow every text of ``work``."""
    torch.set_num_threads(1)
    with np.load(work / "texts.npz") as texts:
        if not texts["quantized"]:
            without_cache_quantization()
        model, _ = load(checkpoint, drafts=False)
        answer: dict[str, Any] = {}
        for number in range(sum(name.startswith("ids_") for name in texts)):
            found = follow(model, torch.from_numpy(texts[f"ids_{number}"]), int(texts[f"prompt_{number}"]))
            answer |= {f"{name}_{number}": values for name, values in found.items()}
    np.savez(work / "nemo.npz", **answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
