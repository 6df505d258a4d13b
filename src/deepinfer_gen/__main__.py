"""``python -m deepinfer_gen`` is the command line."""

import sys

from deepinfer_gen.codegen.cli import main

sys.exit(main())
