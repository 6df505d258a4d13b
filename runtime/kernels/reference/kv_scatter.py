"""Writing new rows into a cache region."""

from __future__ import annotations

from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiles
from deepinfer_gen.runtime.kv_cache import RegionRows


def kv_scatter(region: RegionRows, unit: Tensor, row: Tensor, stored: Tensor, *, rows: int) -> None:
    """Store encoded rows [N, elements] at (``unit``, ``row``) int64 [N], ``rows`` at a time.

    The caller gives each real place once; only padding rows may share one, in unit 0.
    """
    for t in tiles(stored.shape[0], rows):
        for grid, part in region.parts(stored[t]):
            grid.index_put_((unit[t], row[t]), part)
