"""What every TileLang kernel is compared on: random inputs and the edges of each, with the torch reference's answer.

The tests run these on the CPU target; ``tests/device/run_kernels.py`` on a GPU. Answers are computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import fp4_by_hand
import numpy as np
import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference import sampler
from deepinfer_gen.runtime.kernels.reference.mirror_cp import mirror_split
from deepinfer_gen.runtime.kernels.reference.zos_fix import LastStep, PlannedRows, zos_fix
from deepinfer_gen.runtime.kernels.tilelang import implementation
from deepinfer_gen.runtime.speculative.verify_split import split_drafts

GOLDEN = Path(__file__).resolve().parents[1] / "oracle" / "golden_formats.npz"
RECORDS = {"nvfp4_g16": ("main_288", "main_deq", 512), "mxfp4_g32": ("index_68", "index_deq", 128)}
"""4-bit formats: the golden arrays of their records and decoded values, and the numbers of a row."""


class Comparison(NamedTuple):
    """One call: what it is, what the kernel made and what is right, both on the CPU."""

    what: str
    made: tuple[Tensor, ...]
    right: tuple[Tensor, ...]

    def wrong(self) -> str:
        """Empty if all bits agree (NaN equals NaN), else a sentence with the first difference."""
        for n, (made, right) in enumerate(zip(self.made, self.right, strict=True)):
            if made.dtype != right.dtype or made.shape != right.shape:
                return f"{self.what}: output {n} is {made.dtype} {tuple(made.shape)}, not {right.dtype} {right.shape}"
            differ = bits(made) != bits(right)
            if made.is_floating_point():
                differ &= ~(made.isnan() & right.isnan())
            if differ.any():
                at = differ.nonzero()[0].tolist()
                return f"{self.what}: output {n} at {at} is {made[tuple(at)]}, not {right[tuple(at)]}"
        return ""


def bits(values: Tensor) -> Tensor:
    """A float tensor as integers of its width, so that -0.0 differs from 0.0."""
    integer = {torch.float32: torch.int32, torch.float64: torch.int64}.get(values.dtype)
    return values if integer is None else values.view(integer)


class Bench:
    """Where the kernels run, and a seeded source of inputs."""

    def __init__(self, backend: str) -> None:
        self.implementation = f"tilelang_{backend}"
        self.device = torch.device(backend)
        self._random = torch.Generator().manual_seed(20_26)

    def kernel(self, name: str, **static: object) -> Callable[..., object]:
        """The callable of a kernel."""
        return implementation(name, self.implementation, static)

    def ints(self, low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers from ``low`` to ``high``, both included."""
        return torch.randint(low, high + 1, shape, generator=self._random, dtype=dtype)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self._random)

    def order(self, n: int) -> Tensor:
        """A random permutation."""
        return torch.randperm(n, generator=self._random)

    def there(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Copies on the device."""
        return tuple(t.to(self.device, copy=True) for t in tensors)


def kv_scatter(bench: Bench) -> Iterator[Comparison]:
    """Whole records, and both parts of split ones, at released widths and at one that is no multiple of four."""
    scatter = bench.kernel("kv_scatter", threads=128)
    for width, scales, layout in ((528, 16, "interleaved"), (288, 32, "split"), (68, 4, "split"), (35, 3, "split")):
        units, rows = 5, 7
        cache = bench.ints(0, 255, (units, rows * width + 12), torch.uint8)
        data = width - scales
        parts = {
            "interleaved": [(0, width, 0, width)],
            "split": [(0, data, 0, data), (data, width, rows * data, scales)],
        }[layout]
        for count in (0, 1, units * rows - rows, 40):
            where = bench.order((units - 1) * rows)[:count] + rows
            # What is beyond the real places stands for padding rows: all in unit 0, each in a row of its own here.
            where = torch.cat([where, torch.arange(max(count - where.numel(), 0)) % rows])
            records = bench.ints(0, 255, (count, width), torch.uint8)
            if count > (units - 1) * rows:
                records[(units - 1) * rows :] = records[-1]
            unit, row = where // rows, where % rows
            made, right = cache.to(bench.device, copy=True), cache.clone()
            sent = bench.there(unit, row, records)
            for first, end, offset, stride in parts:
                shape, strides = (units, rows, end - first), (cache.shape[1], stride, 1)
                right.view(-1).as_strided(shape, strides, offset).index_put_((unit, row), records[:, first:end])
                scatter(made.view(-1).as_strided(shape, strides, offset), sent[0], sent[1], sent[2][:, first:end])
            yield Comparison(f"{count} {layout} records of {width} bytes", (made.cpu(),), (right,))
    cache, records = torch.zeros(3, 4, 16), bench.normal(2, 16)
    unit, row = torch.tensor([2, 1]), torch.tensor([0, 3])
    made = cache.to(bench.device, copy=True)
    scatter(made, *bench.there(unit, row, records))
    yield Comparison("float32 rows", (made.cpu(),), (cache.index_put((unit, row), records),))
    yield far_scatter(bench)


def far_scatter(bench: Bench) -> Comparison:
    """A cache of more bytes than an int32 counts; only the pages that are written exist on the CPU."""
    scatter = bench.kernel("kv_scatter", threads=128)
    start, records = (1 << 31) + 3, bench.ints(0, 255, (2, 35), torch.uint8)
    cache = torch.empty(start + 4 * 35, dtype=torch.uint8, device=bench.device)
    grid = cache.as_strided((2, 2, 35), (start, 35, 1), 0)
    unit, row = torch.tensor([1, 0]), torch.tensor([1, 0])
    scatter(grid, *bench.there(unit, row, records))
    return Comparison("rows beyond 2 GiB", (grid[1, 1].cpu(), grid[0, 0].cpu()), (records[0], records[1]))


def fp4_inputs(bench: Bench, dims: int) -> Iterator[tuple[str, Tensor]]:
    """Rows [n, dims] float32 of every kind of number that a cache may be given."""
    wide = bench.normal(12, dims) * torch.exp2(bench.ints(-40, 40, (12, 1)).float())
    yield "random", wide
    yield "any magnitude", bench.normal(12, dims) * torch.exp2(bench.ints(-149, 127, (12, 1)).float())
    yield "on the bounds between codes", bench.ints(-48, 48, (12, dims)).float() * 0.125
    exponents = bench.ints(0, 255, (6, dims // 16)).repeat_interleave(16, 1)
    yield "any bits", ((exponents << 23) | bench.ints(0, (1 << 23) - 1, (6, dims))).to(torch.int32).view(torch.float32)
    special = torch.zeros(5, dims)
    special[1, 3], special[1, 40] = torch.inf, -3e38
    special[2, 5], special[2, 6], special[2, 70] = torch.nan, -1.0, -1.0
    special[3] = -0.0
    special[4] = torch.finfo(torch.float32).max
    yield "zeros, infinities, NaN, the largest", special
    yield "no rows", special[:0]


def fp4_pack(bench: Bench) -> Iterator[Comparison]:
    """The golden records, and those worked out by hand."""
    for format, (records, _, dims) in RECORDS.items():
        pack = bench.kernel("fp4_pack", dims=dims, format=format, rows=4, threads=128)
        golden = np.load(GOLDEN)
        made = pack(*bench.there(torch.from_numpy(golden["x"][:, :dims].copy())))
        yield Comparison(f"golden {format}", (made.cpu(),), (torch.from_numpy(golden[records]),))
        for what, values in fp4_inputs(bench, dims):
            right = fp4_by_hand.encode(values, format).view(len(values), golden[records].shape[1])
            yield Comparison(f"{what}, {format}", (pack(*bench.there(values)).cpu(),), (right,))


def fp4_unpack(bench: Bench) -> Iterator[Comparison]:
    """The golden records, every byte of data and scale, and no records."""
    for format, (records, decoded, dims) in RECORDS.items():
        unpack = bench.kernel("fp4_unpack", dims=dims, format=format, rows=4, threads=128)
        golden = np.load(GOLDEN)
        stored = torch.from_numpy(golden[records])
        made = unpack(*bench.there(stored)).cpu()
        yield Comparison(f"golden {format}", (made,), (torch.from_numpy(golden[decoded]),))
        scales = stored.shape[1] - dims // 2
        every = bench.ints(0, 255, (-(-256 // scales), stored.shape[1]), torch.uint8)
        every[:, dims // 2 :] = torch.arange(every.shape[0] * scales).view(-1, scales).to(torch.uint8)
        for what, given in (("every scale", every), ("no records", every[:0])):
            right = fp4_by_hand.decode(given, format).view(len(given), dims)
            yield Comparison(f"{what}, {format}", (unpack(*bench.there(given)).cpu(),), (right,))


def varlen_split(bench: Bench) -> Iterator[Comparison]:
    """Random, tied, certain and impossible confidences; no rows, padding rows, no and all drafts."""
    for max_rows, nextn in ((1, 1), (8, 5), (67, 3)):
        split = bench.kernel("varlen_split", max_rows=max_rows, nextn=nextn, threads=128)
        for rows in sorted({0, 1, max_rows // 2, max_rows}):
            for kind, low, high in (("random", 0, 65535), ("tied", 65534, 65535), ("dead", 0, 1)):
                confidences = bench.ints(low, high, (rows, nextn)).to(torch.uint16)
                caps = bench.ints(0, nextn, (rows,), torch.int32)
                caps[rows // 2 :: 3] = 0
                total = int(caps.sum())
                for count in sorted({0, 1, total // 2, total} & set(range(total + 1))):
                    sent = bench.there(confidences, caps)
                    made = split(*sent, count if count % 2 else torch.tensor(count, device=bench.device))
                    right = split_drafts(confidences, caps, count)
                    yield Comparison(f"{count} of {total} {kind} drafts in {rows} rows", (made.cpu(),), (right,))


def zos_inputs(bench: Bench, rows: int, before: int, max_q: int, depth: int) -> tuple[PlannedRows, LastStep, int]:
    """A step of ``rows`` rows after one of ``before``: every third row is new, the last is padding without queries."""
    remap = torch.full((rows,), -1)
    old = bench.order(before)[:rows]
    remap[: old.shape[0]] = old
    remap[::3] = -1
    q_len = bench.ints(1, max_q, (rows,))
    if rows > 1:
        q_len[-1], remap[-1] = 0, -1
    planned = PlannedRows(
        remap=remap,
        start=bench.ints(100, 1 << 20, (rows,)),
        q_start=q_len.cumsum(0) - q_len,
        q_len=q_len,
        tokens=bench.ints(0, 1 << 17, (rows, max_q)),
        history=bench.ints(-1, 1 << 17, (rows, depth)),
    )
    counts = bench.ints(1, max_q, (before,))
    last = LastStep(
        assumed=torch.maximum(counts, bench.ints(1, max_q, (before,))),
        counts=counts,
        first=bench.ints(0, 1 << 17, (before,)),
        tokens=bench.ints(0, 1 << 17, (before, max_q)),
        drafts=bench.ints(0, 1 << 17, (before, max_q - 1)),
        history=bench.ints(-1, 1 << 17, (before, depth)),
    )
    return planned, last, int(q_len.sum())


def zos_step(bench: Bench) -> Iterator[Comparison]:
    """New, continued and padding rows; without drafts; no rows; more and fewer rows than before."""
    for max_q, depth in ((6, 3), (1, 3), (3, 1)):
        fix = bench.kernel("zos_fix", max_q=max_q, history=depth, threads=32)
        for rows, before in ((0, 1), (1, 1), (9, 4), (5, 11), (40, 40)):
            planned, last, total = zos_inputs(bench, rows, before, max_q, depth)
            sent = PlannedRows(*bench.there(*planned)), LastStep(*bench.there(*last))
            made = fix(*sent, total)
            what = f"{rows} rows after {before}, at most {max_q} queries"
            yield Comparison(what, tuple(t.cpu() for t in made), tuple(zos_fix(planned, last, total)))


def mirror_cp(bench: Bench) -> Iterator[Comparison]:
    """Chunks of every remainder, shorter than the pieces, empty ones among them, and none at all."""
    for cp in (1, 2, 8):
        split = bench.kernel("mirror_cp", cp=cp, tile=128, threads=128)
        for lengths in ([], [1], [2 * cp], [3, 0, 2 * cp + 1, 1], bench.ints(0, 300, (16,)).tolist()):
            starts = torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])
            made = split(*bench.there(starts), sum(lengths))
            right = mirror_split(starts, sum(lengths), cp)
            yield Comparison(f"cp {cp}, chunks {lengths}", tuple(t.cpu() for t in made), tuple(right))


def probabilities(bench: Bench, rows: int, vocab_size: int) -> Tensor:
    """Rows of float64 probabilities: smooth, full of ties, one token only, with zeros, all equal."""
    smooth = torch.softmax(bench.normal(rows, vocab_size).double() * 3, -1)
    smooth[1::5] = torch.softmax(bench.ints(0, 3, (rows, vocab_size))[1::5].double(), -1)
    smooth[2::5] = 0.0
    smooth[2::5, vocab_size // 2] = 1.0
    smooth[3::5] = smooth[3::5].masked_fill(smooth[3::5] < 1.0 / vocab_size, 0.0)
    smooth[4::5] = 1.0 / vocab_size
    return smooth


def top_k(bench: Bench) -> Iterator[Comparison]:
    """k from 0 to beyond the vocabulary, on rows with ties and zeros; and with top-p, the filter of the sampler."""
    for vocab_size, tile in ((1, 128), (37, 128), (1000, 256)):
        keep = bench.kernel("top_k", vocab_size=vocab_size, tile=tile, threads=128)
        keep_p = bench.kernel("top_p", vocab_size=vocab_size, tile=tile, threads=128)
        for rows in (0, 10):
            given = probabilities(bench, rows, vocab_size)
            for k in sorted({0, 1, vocab_size // 3, vocab_size - 1, vocab_size, vocab_size + 5}):
                count = torch.full((rows,), k)
                ordered, order = given.sort(dim=-1, descending=True, stable=True)
                right = torch.zeros_like(given).scatter(1, order[:, :k], ordered[:, :k])
                made = keep(*bench.there(given, count))
                yield Comparison(f"{k} of {vocab_size}", (made.cpu(),), (right,))
            count, share = bench.ints(1, vocab_size, (rows,)), bench.ints(1, 100, (rows,)).double() / 100
            sent = bench.there(given, count, share)
            ordered, order = keep(sent[0], sent[1]).sort(dim=-1, descending=True, stable=True)
            made = torch.zeros_like(sent[0]).scatter(1, order, keep_p(ordered, sent[2]))
            right = sampler._keep_top(given, count, share)
            yield Comparison(f"top-k then top-p of {vocab_size}", (made.cpu(),), (right,))


def top_p(bench: Bench) -> Iterator[Comparison]:
    """Shares from almost nothing to all, on rows with ties and zeros, and a bound that is met exactly."""
    for vocab_size, tile in ((1, 128), (37, 128), (1000, 256)):
        keep = bench.kernel("top_p", vocab_size=vocab_size, tile=tile, threads=128)
        ordered = probabilities(bench, 10, vocab_size).sort(dim=-1, descending=True).values
        for share in (1e-300, 0.25, 0.5, 0.95, 1.0):
            p = torch.full((10,), share, dtype=torch.float64)
            made = keep(*bench.there(ordered, p))
            everything = torch.full((10,), vocab_size)
            yield Comparison(f"{share} of {vocab_size}", (made.cpu(),), (sampler._keep_top(ordered, everything, p),))
        yield Comparison("no rows", (keep(*bench.there(ordered[:0], p[:0])).cpu(),), (ordered[:0],))


KERNELS: Mapping[str, Callable[[Bench], Iterator[Comparison]]] = {
    "fp4_pack": fp4_pack,
    "fp4_unpack": fp4_unpack,
    "kv_scatter": kv_scatter,
    "varlen_split": varlen_split,
    "zos_fix": zos_step,
    "mirror_cp": mirror_cp,
    "top_k": top_k,
    "top_p": top_p,
}


def disagreements(name: str, backend: str) -> list[str]:
    """What a kernel gets wrong on a backend (``cpu``, ``cuda``); an error if nothing was compared."""
    found = [comparison.wrong() for comparison in KERNELS[name](Bench(backend))]
    if not found:
        raise AssertionError(f"{name}: nothing was compared")
    return [sentence for sentence in found if sentence]
