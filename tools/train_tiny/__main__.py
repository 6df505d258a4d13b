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
    "draft": "the drafter, against the frozen backbone",
    "export": "a training checkpoint in the released names and formats, into the package",
}


def main() -> None:
    """Run one command; input that it cannot use is told on stderr, and the exit status is 2."""
    parser = argparse.ArgumentParser(prog="train_tiny", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {name: commands.add_parser(name, help=summary) for name, summary in COMMANDS.items()}
    name = parser.parse_known_args()[0].command
    module = import_module(name)
    module.add_arguments(parsers[name])
    try:
        module.run(parser.parse_args())
    except InputError as fault:
        print(fault, file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
