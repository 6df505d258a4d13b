"""``python -m deepinfer_gen`` is the command line."""

from deepinfer_gen.codegen.cli import process

process()
