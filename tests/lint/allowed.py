"""What the runtime may hold against a house rule, each with its reason. An entry that is not used any more fails.

Literals of 16 and more: facts of number formats, of algorithms and of text output, never of a model, a layout or a
deployment. Imports: the two places where the runtime touches what is upstream of the generated folder.
"""

from __future__ import annotations

from collections.abc import Mapping

LITERALS: Mapping[str, tuple[tuple[tuple[float, ...], str], ...]] = {
    "block_formats.py": (
        ((16, 32), "values that share a scale in NVFP4 and in the MX formats"),
        ((126,), "the floor of an mxfp4 scale, as a power of two"),
    ),
    "consistency.py": (((77, 80), "characters of a value shown in a sentence"),),
    "kernels/tilelang/fp4_values.py": (
        ((16, 32), "values that share a scale in NVFP4 and MXFP4"),
        ((23, 28, 0x7FFFFF, 0x800000, 0x400000, 0x7F800000, 0x7FFFFFFF, 0x7FC00000), "fields of a float32's bits"),
        ((0x7F, 448.0), "e4m3: the code of NaN and the largest number"),
        ((120, 121), "exponents of e4m3 numbers as a float32 writes them"),
        ((255,), "ue8m0: the code of NaN"),
    ),
    "kernels/tilelang/top_k.py": (((63,), "bits of a float64 without its sign"),),
    "kernels/tilelang/varlen_split.py": (((16,), "bits of a confidence"),),
    "metrics.py": (
        ((30.0, 60.0, 120.0, 300.0), "bucket limits of a histogram, seconds"),
        ((16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0), "bucket limits, tokens"),
    ),
    "number_formats.py": (
        ((448.0,), "the largest e4m3 value"),
        ((127, 255), "ue8m0 and float32: exponent bias; the code of NaN"),
        ((23, 28, 0x7FFFFF), "fields of a float32"),
        ((256,), "codes of a byte"),
    ),
    "random_numbers.py": (
        ((0xD2511F53, 0xCD9E8D57), "Philox 4x32 multipliers"),
        ((0x9E3779B9, 0xBB67AE85), "Philox 4x32 key increments"),
        ((32, 64, 0xFFFFFFFF), "widths of the generator's words"),
        ((26, 53), "bits of a float64's mantissa, taken from two words"),
    ),
    "sampling_params.py": (
        ((16,), "vLLM's default of max_tokens"),
        ((63, 64), "range of a 64-bit seed, signed or unsigned"),
        ((16_384,), "vLLM's limit of n"),
    ),
    "speculative/confidence.py": (((65535,), "the confidence of a certain draft: the largest of 16 bits"),),
    "speculative/cost_curve.py": (
        ((80,), "characters of a value shown in a sentence"),
        ((1e3,), "milliseconds of a second"),
        ((1e9,), "the longest duration that a curve may hold, ms"),
    ),
    "speculative/verify_split.py": (((16,), "bits of a confidence"),),
    "simulate/mixing.py": (
        ((0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB), "splitmix64 multipliers"),
        ((27, 30, 31), "splitmix64 shifts"),
        ((53, 64), "bits of a float64's mantissa, taken from a word"),
    ),
    "simulate/records.py": (((160,), "characters of a line shown below a sentence"),),
    "simulate/requests.py": (((33,), "a token id is the upper bits of a hash that an int32 holds"),),
    "simulate/statistics.py": (((1000,), "milliseconds of a second"),),
    "startup.py": (((30,), "bytes of a GiB as a power of two"),),
    "weights_check.py": (((20,), "faults shown of one checkpoint"),),
    "weights_files.py": (
        ((100_000_000,), "largest header that a safetensors file may have"),
        ((22,), "bytes copied between two releases of mapped pages, as a power of two"),
        ((21,), "bytes that one page fault may map, as a power of two"),
    ),
    "weights_header.py": (((63,), "bits of a file offset"),),
}
"""File (relative to ``runtime/``) to groups of literals and the reason of each group."""

IMPORTS: Mapping[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "folders.py": (
        (("deepinfer_gen.specs.presets",), "where the checkpoints of presets are installed; no spec is read"),
    ),
    "llm.py": (
        (
            (
                "deepinfer_gen.codegen.build",
                "deepinfer_gen.codegen.render",
                "deepinfer_gen.codegen.sources",
                "deepinfer_gen.codegen.write",
            ),
            "LLM.from_spec runs the compiler and then loads the folder like any other",
        ),
    ),
}
"""File (relative to ``runtime/``) to groups of modules and the reason of each group."""
