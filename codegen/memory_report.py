"""The memory plan of one rank as a table: what is used, what is free, and by how much it is short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.text import GIB, columns

PARTS = (
    ("weights_dense", "dense weights"),
    ("weights_experts", "experts"),
    ("weights_engram", "Engram tables"),
    ("block_kv", "block KV"),
    ("state", "state slots"),
    ("workspace", "workspace"),
    ("graphs", "graphs"),
    ("margin", "margin"),
)
"""Parts of the memory plan in the order of the table: name in the key ``memory.<name>_bytes``, title."""


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Bytes per part of one rank; ``used`` is their total and ``capacity`` what the hardware table gives."""

    parts: tuple[tuple[str, str, int], ...]
    used: int
    capacity: int

    @property
    def free(self) -> int:
        """Bytes left over; negative when the plan does not fit."""
        return self.capacity - self.used


def memory_table(plan: Plan) -> MemoryTable:
    """The table of a Plan; a part that the Plan does not have is left out."""
    keys = [(name, title, f"memory.{name}_bytes") for name, title in PARTS]
    return MemoryTable(
        parts=tuple((name, title, plan.integer(key)) for name, title, key in keys if key in plan),
        used=plan.integer("memory.total_bytes"),
        capacity=plan.integer("memory.capacity_bytes"),
    )


def memory_lines(table: MemoryTable) -> list[str]:
    """The table as text: GiB, exact bytes and the share of the capacity. Capacity = used + free."""
    rows = [[title, *_cells(size, table.capacity)] for _, title, size in table.parts]
    used = ["used", *_cells(table.used, table.capacity)]
    rest = ["free" if table.free >= 0 else "DEFICIT", *_cells(table.free, table.capacity)]
    whole = ["capacity", *_cells(table.capacity, table.capacity)]
    lines = columns([["", "GiB", "bytes", "share"], *rows, used, rest, whole], "<>>>")
    rule = "  " + "-" * (max(map(len, lines)) - 2)
    return [lines[0], *lines[1:-3], rule, *lines[-3:]]


def memory_json(table: MemoryTable) -> dict[str, Any]:
    """The table as data, in bytes."""
    parts = {name: size for name, _, size in table.parts}
    return {"parts": parts, "used": table.used, "free": table.free, "capacity": table.capacity}


def _cells(size: int, capacity: int) -> list[str]:
    share = f"{100 * size / capacity:.1f} %" if capacity else ""
    return [f"{size / GIB:,.3f}", f"{size:,}", share]
