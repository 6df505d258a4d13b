"""The operators a model runs with: each bound to the tile and the implementation that the kernel table gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.kernels import tilelang
from deepinfer_gen.runtime.kernels.reference import compressor as _compressor
from deepinfer_gen.runtime.kernels.reference import engram_gather as _engram
from deepinfer_gen.runtime.kernels.reference import hyper_connection as _hyper
from deepinfer_gen.runtime.kernels.reference import index_scores as _index
from deepinfer_gen.runtime.kernels.reference import kv_scatter as _scatter
from deepinfer_gen.runtime.kernels.reference import linear as _linear
from deepinfer_gen.runtime.kernels.reference import moe_experts as _moe
from deepinfer_gen.runtime.kernels.reference import sparse_attention as _attention
from deepinfer_gen.runtime.plan_types import KernelConfig

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_gen.runtime.kernels.reference.sparse_attention import EntryRows, WindowRows
    from deepinfer_gen.runtime.kv_cache import RegionRows
    from deepinfer_gen.runtime.model.numerics import Numerics
    from deepinfer_gen.runtime.model.stored import ExpertStack, Matrix


class Operators(Protocol):
    """What the model computes with. Tensors between operators have the activation type of the numerics policy.

    Shapes and arithmetic are documented at the reference operators (``kernels/reference``).
    """

    @property
    def numerics(self) -> Numerics:
        """The policy that the operators follow."""
        ...

    def linear(self, x: Tensor, weight: Matrix) -> Tensor:
        """[T, in] to [T, out] in the type of x."""
        ...

    def grouped_linear(self, x: Tensor, weight: Matrix) -> Tensor:
        """[T, groups, in] to [T, groups * out]; the weight's rows are those of the groups in order."""
        ...

    def hyper_mix(
        self, x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, iterations: int, norm_eps: float, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Streams to float32 (pre, post, comb)."""
        ...

    def hyper_collapse(self, x: Tensor, pre: Tensor) -> Tensor:
        """Streams to a sublayer's input."""
        ...

    def hyper_expand(self, y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """A sublayer's output to streams."""
        ...

    def kv_scatter(self, region: RegionRows, unit: Tensor, row: Tensor, stored: Tensor) -> None:
        """Store encoded rows."""
        ...

    def sparse_attention(
        self, q: Tensor, window: WindowRows, entries: EntryRows | None, sink: Tensor, *, scale: float
    ) -> Tensor:
        """Attention over window rows and selected entries."""
        ...

    def pool_members(self, rows: Tensor, members: Tensor) -> Tensor:
        """Gated pooling of the members of each entry, float32."""
        ...

    def index_scores(
        self, q: Tensor, head_weights: Tensor, keys: RegionRows, block_tables: Tensor, visible: Tensor, *, width: int
    ) -> Tensor:
        """Scores of all entries up to ``width``, float32."""
        ...

    def moe_experts(
        self, x: Tensor, chosen: Tensor, weights: Tensor, w13: ExpertStack, w2: ExpertStack, *, limit: float
    ) -> Tensor:
        """Weighted sum of the chosen experts, float32."""
        ...

    def swiglu(self, gate: Tensor, up: Tensor, *, limit: float) -> Tensor:
        """Clamped SwiGLU in the type of ``gate``."""
        ...

    def engram_gather(self, table: Tensor, scale: Tensor, rows: Tensor) -> Tensor:
        """Decoded table rows, joined per token."""
        ...


class ReferenceOperators:
    """The torch operators with the tiles of the kernel table; shapes are documented at the operators themselves.

    ``kv_scatter`` may be TileLang's where the table says so (``tilelang_cpu``, ``tilelang_cuda``).
    """

    def __init__(self, kernels: Mapping[str, KernelConfig], numerics: Numerics) -> None:
        """Read every tile once; a missing kernel, an unknown implementation or a missing tile is an ``InputError``."""
        self.numerics = numerics
        self._linear_tokens = _tile(kernels, "linear", "tokens")
        self._hyper_tokens = _tile(kernels, "hyper_connection", "tokens")
        self._scatter = _kv_scatter(kernels)
        self._attention_queries = _tile(kernels, "sparse_attention", "queries")
        self._compressor_tokens = _tile(kernels, "compressor", "tokens")
        self._index_queries = _tile(kernels, "index_scores", "queries")
        self._index_entries = _tile(kernels, "index_scores", "entries")
        self._moe_tokens = _tile(kernels, "moe_experts", "tokens")
        self._engram_tokens = _tile(kernels, "engram_gather", "tokens")

    def linear(self, x: Tensor, weight: Matrix) -> Tensor:
        """[T, in] to [T, out]."""
        return _linear.linear(x, weight.decode(), quantized=self._rounds(weight), tokens=self._linear_tokens)

    def grouped_linear(self, x: Tensor, weight: Matrix) -> Tensor:
        """[T, groups, in] to [T, groups * out]; the operand stays unquantised, as in the released model."""
        decoded = weight.decode()
        return _linear.grouped_linear(x, decoded.view(x.shape[1], -1, x.shape[2]), tokens=self._linear_tokens)

    def hyper_mix(
        self, x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, iterations: int, norm_eps: float, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Streams to (pre, post, comb)."""
        return _hyper.mix(
            x, fn, base, scale, iterations=iterations, norm_eps=norm_eps, eps=eps, tokens=self._hyper_tokens
        )

    def hyper_collapse(self, x: Tensor, pre: Tensor) -> Tensor:
        """Streams to a sublayer's input."""
        return _hyper.collapse(x, pre, tokens=self._hyper_tokens)

    def hyper_expand(self, y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """A sublayer's output to streams."""
        return _hyper.expand(y, x, post, comb, tokens=self._hyper_tokens)

    def kv_scatter(self, region: RegionRows, unit: Tensor, row: Tensor, stored: Tensor) -> None:
        """Store encoded rows."""
        self._scatter(region, unit, row, stored)

    def sparse_attention(
        self, q: Tensor, window: WindowRows, entries: EntryRows | None, sink: Tensor, *, scale: float
    ) -> Tensor:
        """Attention over window rows and selected entries."""
        return _attention.sparse_attention(
            q,
            window,
            entries,
            sink,
            scale=scale,
            probabilities=self.numerics.probabilities,
            queries=self._attention_queries,
        )

    def pool_members(self, rows: Tensor, members: Tensor) -> Tensor:
        """Gated pooling of the members of each entry."""
        return _compressor.pool_members(rows, members, tokens=self._compressor_tokens)

    def index_scores(
        self, q: Tensor, head_weights: Tensor, keys: RegionRows, block_tables: Tensor, visible: Tensor, *, width: int
    ) -> Tensor:
        """Scores of all entries up to ``width``."""
        return _index.index_scores(
            q,
            head_weights,
            keys,
            block_tables,
            visible,
            width=width,
            queries=self._index_queries,
            entries=self._index_entries,
        )

    def moe_experts(
        self, x: Tensor, chosen: Tensor, weights: Tensor, w13: ExpertStack, w2: ExpertStack, *, limit: float
    ) -> Tensor:
        """Weighted sum of the chosen experts."""
        return _moe.moe_experts(
            x,
            chosen,
            weights,
            w13.decode,
            w2.decode,
            experts=len(w13),
            limit=limit,
            quantized=self.numerics.quantized_operands,
            tokens=self._moe_tokens,
        )

    def swiglu(self, gate: Tensor, up: Tensor, *, limit: float) -> Tensor:
        """Clamped SwiGLU of the shared expert."""
        return _moe.swiglu(gate, up, limit).to(gate.dtype)

    def engram_gather(self, table: Tensor, scale: Tensor, rows: Tensor) -> Tensor:
        """Decoded table rows, joined per token."""
        return _engram.engram_gather(table, scale, rows, tokens=self._engram_tokens).to(self.numerics.activation)

    def _rounds(self, weight: Matrix) -> bool:
        return weight.quantized and self.numerics.quantized_operands


def _kv_scatter(kernels: Mapping[str, KernelConfig]) -> Callable[[RegionRows, Tensor, Tensor, Tensor], None]:
    """The implementation that the table names: the reference in its tiles, or TileLang's for each part of the rows."""
    kernel = _entry(kernels, "kv_scatter")
    if kernel.implementation not in tilelang.BACKENDS:
        return partial(_scatter.kv_scatter, rows=_tile(kernels, "kv_scatter", "rows"))
    scatter = tilelang.implementation("kv_scatter", kernel.implementation, {"threads": kernel.threads})

    def scatter_parts(region: RegionRows, unit: Tensor, row: Tensor, stored: Tensor) -> None:
        for grid, part in region.parts(stored):
            scatter(grid, unit, row, part)

    return scatter_parts


def _entry(kernels: Mapping[str, KernelConfig], name: str) -> KernelConfig:
    if name not in kernels:
        raise _bad_table(f"the kernel table has no entry '{name}'")
    return kernels[name]


def _tile(kernels: Mapping[str, KernelConfig], name: str, axis: str) -> int:
    kernel = _entry(kernels, name)
    if kernel.implementation != "reference":
        raise _bad_table(f"kernel '{name}' asks for the implementation '{kernel.implementation}'; built: reference")
    size = kernel.tile.get(axis, 0)
    if size < 1:
        raise _bad_table(f"kernel '{name}' needs a tile '{axis}' of at least 1, found {dict(kernel.tile)}")
    return size


def _bad_table(message: str) -> InputError:
    return InputError(
        Diagnostic("DI342", message, file="kernels.py", help="generate the engine again for hardware: cpu")
    )
