"""``calibrate``: fit the temperatures of the confidence head and write them beside the weights."""

from __future__ import annotations

import argparse

from checkpoint_model import add_checkpoint_arguments, open_checkpoint
from confidence import calibration_error, cumulative, fit_temperatures, write_temperatures
from decoding import speculate
from drafts import choose_prompts, rounds_of
from manifest import recorded_corpus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The checkpoint, which gets the file, and how much is drafted."""
    add_checkpoint_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Draft behind files of the calibration split, fit, and write."""
    checkpoint = open_checkpoint(arguments.checkpoint, policy=arguments.policy, rows=arguments.rows)
    texts = [(file.name, checkpoint.encode(file.text)) for file in recorded_corpus() if file.split == "calibration"]
    prompts = choose_prompts(checkpoint, texts, arguments.prompts)
    drafted = speculate(checkpoint, prompts, arguments.tokens, rows=arguments.rows, eos=checkpoint.eos)
    rounds = rounds_of(drafted, checkpoint.nextn)
    temperatures = fit_temperatures(rounds)
    fitted_on = (
        f"{len(rounds.accepted)} greedy rounds behind {len(prompts)} prompts of the calibration split,"
        f" policy {arguments.policy}"
    )
    path = write_temperatures(arguments.checkpoint, temperatures, fitted_on)
    before = calibration_error(*cumulative(rounds, [1.0] * checkpoint.nextn))
    after = calibration_error(*cumulative(rounds, temperatures))
    print(f"temperatures {', '.join(f'{t:.3f}' for t in temperatures)}, fitted on {fitted_on}")
    print(f"calibration error there: {before:.2%} before, {after:.2%} after; wrote {path}")
