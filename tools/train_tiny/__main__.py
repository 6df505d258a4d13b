"""The small code model that ships with the product, step by step: ``python tools/train_tiny COMMAND``."""

from __future__ import annotations

import argparse
from importlib import import_module

# In the order in which they are run. A command is the module of its name, which is imported when it is called.
COMMANDS = {
    "data": "corpus of the running Python, tokenizer, token files, held-out function heads",
    "train": "the backbone, for hours on a CPU, for minutes on a GPU",
    "draft": "the drafter, against the frozen backbone",
}


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="train_tiny", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {name: commands.add_parser(name, help=summary) for name, summary in COMMANDS.items()}
    name = parser.parse_known_args()[0].command
    module = import_module(name)
    module.add_arguments(parsers[name])
    module.run(parser.parse_args())


if __name__ == "__main__":
    main()
