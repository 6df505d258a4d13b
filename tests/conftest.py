"""All tests, and the commands that they start, build engines in one cache of their own."""

import os

from built import TEST_CACHE

os.environ["DEEPINFER_CACHE_DIR"] = str(TEST_CACHE)
