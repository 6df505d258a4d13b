"""Records: the bytes of one cached row by its format, and where its data and its scales lie.

Interleaved, a record is contiguous: data, then scales. Split, the rows of one kind in a block or a ring keep all their
data first and all their scales behind it. Both take the same bytes.
"""

from __future__ import annotations

from deepinfer_gen.codegen.derive.faults import fault
from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def sizes(b: PlanBuilder, r: Resolved, kind: str, dims: str, why: str) -> None:
    """``kv.KIND_row_bytes``; with scales also ``kv.KIND_row_{data,scales}_bytes`` and ``kv.KIND_{data,scales}_stride``.

    ``dims`` is the Plan key of the values of a row, ``why`` what such a row is.
    """
    setting, key = f"kv.{kind}_format", f"kv.{kind}_row_bytes"
    cache_format = b[setting]
    for property_, said in (
        ("bits", "bits of a value"),
        ("group", "values that share a scale"),
        ("scale_bytes", "bytes of a scale"),
    ):
        entry = f"formats.{cache_format}.{property_}"
        b.table(
            f"kv.{kind}_{property_}",
            b[entry],
            unit=b.unit(entry),
            formula=f"{property_} of the format",
            inputs={"format": setting, property_: entry},
            why=f"{said} in {setting}",
        )
    b.formula(
        key,
        "dims * bits / 8 + dims / group * scale_bytes",
        unit="B",
        why=why,
        dims=dims,
        bits=f"kv.{kind}_bits",
        group=f"kv.{kind}_group",
        scale_bytes=f"kv.{kind}_scale_bytes",
    )
    if not isinstance(b[key], int):
        raise fault(
            r,
            (setting, "model"),
            "DI100",
            f"a row of {dims.removeprefix('model.config.')} {b[dims]} values in {cache_format} takes {b[key]} bytes,"
            " which is no whole number",
            f"choose a {setting} whose group divides {b[dims]}",
        )
    if b[f"kv.{kind}_scale_bytes"]:
        _parts(b, kind, dims)


def scales_offset(b: PlanBuilder, kind: str, key: str, *, start: str, rows: str) -> None:
    """``key``: where the scales of ``rows`` rows begin whose data begin at ``start``; no key without scales."""
    if not b[f"kv.{kind}_scale_bytes"]:
        return
    b.formula(
        key,
        "start + (data if row_layout == 'interleaved' else rows * data)",
        unit="B",
        why="the scales of the first row: behind its data, or in the split layout behind the data of all rows",
        start=start,
        data=f"kv.{kind}_row_data_bytes",
        row_layout="kv.row_layout",
        rows=rows,
    )


def _parts(b: PlanBuilder, kind: str, dims: str) -> None:
    b.formula(
        f"kv.{kind}_row_data_bytes",
        "dims * bits / 8",
        unit="B",
        why="the values of a row",
        dims=dims,
        bits=f"kv.{kind}_bits",
    )
    b.formula(
        f"kv.{kind}_row_scales_bytes",
        "dims / group * scale_bytes",
        unit="B",
        why="the scales of a row",
        dims=dims,
        group=f"kv.{kind}_group",
        scale_bytes=f"kv.{kind}_scale_bytes",
    )
    for part in ("data", "scales"):
        b.formula(
            f"kv.{kind}_{part}_stride",
            f"row if row_layout == 'interleaved' else {part}",
            unit="B",
            why=f"from the {part} of a row to those of the next: a whole record, or nothing else in between",
            row=f"kv.{kind}_row_bytes",
            row_layout="kv.row_layout",
            **{part: f"kv.{kind}_row_{part}_bytes"},
        )
