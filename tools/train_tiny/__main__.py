"""The small code model that ships with the product, step by step: ``python tools/train_tiny COMMAND``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from deepinfer_gen.diagnostics import EXIT_BAD_INPUT, InputError

# In the order in which they are run. A command is the module of its name, which is imported when it is called.
COMMANDS = {
    "data": "corpus of the running Python, tokenizer, token files, held-out function heads",
    "train": "the backbone, for hours on a CPU, for minutes on a GPU",
    "polish": "the backbone on rows that look like its use, so that greedy text leaves its loops",
    "draft": "the drafter, against the frozen backbone",
    "export": "a training checkpoint in the released names and formats, into the package",
    "assure": "the confidence head, fitted to the greedy rounds of an exported checkpoint; export again after it",
    "calibrate": "temperatures of the confidence head, fitted on the calibration split",
    "quality": "bits per byte, completions, accepted drafts and confidence on the held-out files",
    "curves": "what the training runs recorded, as a picture",
}


def main() -> None:
    """Run one command; input that it cannot use is told on stderr, and the exit status is 2."""
    parser = argparse.ArgumentParser(
        prog="train_tiny",
        description="Make the small code model that ships with the product.",
        epilog="commands:\n" + "\n".join(f"  {name:10} {summary}" for name, summary in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="what to do; COMMAND --help says more")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    command = argparse.ArgumentParser(prog=f"train_tiny {chosen.command}", description=COMMANDS[chosen.command])
    module = import_module(chosen.command)
    module.add_arguments(command)
    try:
        module.run(command.parse_args(chosen.arguments))
    except InputError as fault:
        print(fault, file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
