"""plan and explain: looking before building."""

from __future__ import annotations

from pathlib import Path

import pytest

