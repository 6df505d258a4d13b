"""Small, diverse engines for scheduler tests: a table of configs, their three C++ files, and built modules of them.

The files are written here and not rendered, so that a config may be any that the headers accept, also one that no spec
leads to. ``random_spec`` draws further ones.
"""

from __future__ import annotations

import importlib.util
import random
from dataclasses import asdict, dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from built import shared_cache
from sample_folder import header

from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.derive.graphs import graph_sizes
from deepinfer_gen.manifest import MANIFEST, manifest_text

STEPS = {
    "NORMAL": ("Normal", "step_normal.hpp", "NormalStep"),
    "PROMPT": ("Prompt", "step_prompt.hpp", "PromptStep"),
    "COMPLETION": ("Completion", "step_completion.hpp", "CompletionStep"),
}


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """What a deployment chooses; ``spare_blocks`` are those beyond the longest sequence's."""

    engine: str = "NORMAL"
    seqs: int = 4
    model_len: int = 48
    tokens: int = 32
    prompts: int = 3
    block_size: int = 4
    spare_blocks: int = 14
    spare_slots: int = 1
    nextn: int = 0
    varlen: bool = False
    padded: bool = False
    cp: int = 1
    stop: bool = True
    intervals: tuple[int, int] = (2, 3)
    burst: int = 1
    usage: tuple[int, int] = (9, 10)
    prior: float = 0.7
    min_gain: tuple[int, int] = (0, 1)
    graph_interval: int = 4
    history: int = 3
    sum_lengths: int = 0  # beyond model_len

    def constants(self) -> dict[str, Any]:
        """What ``module.constants()`` of its engine returns, of the values that a scheduler reads."""
        max_q = self.nextn + 1
        runtime_len = self.model_len + self.nextn + max_q + self.nextn
        per_seq = -(-runtime_len // self.block_size)
        values: dict[str, Any] = {
            "kEngineType": self.engine,
            "kMaxNumSeqs": self.seqs,
            "kMaxModelLen": self.model_len,
            "kRuntimeMaxModelLen": runtime_len,
            "kMaxNumBatchedTokens": self.tokens,
            "kMaxNumPrompts": self.prompts,
            "kPrefillMaxSumSeqlenK": self.model_len + self.sum_lengths,
            "kBlockSize": self.block_size,
            "kNumBlocks": per_seq + self.spare_blocks + 1,
            "kBlocksPerSeq": per_seq,
            "kNumSlots": self.seqs + self.spare_slots + 1,
            "kHistory": self.history,
            "kNextn": self.nextn,
            "kMaxQ": max_q,
        }
        if self.engine == "NORMAL":
            values["kPrefillAttemptInterval"], values["kPrefillAnyAttemptInterval"] = self.intervals
            values["kPrefillBurst"] = self.burst
        if self.engine != "COMPLETION":
            values["kPrefillCacheUsageLimitNumerator"], values["kPrefillCacheUsageLimitDenominator"] = self.usage
            values["kCpSize"] = self.cp
        if self.engine != "PROMPT":
            values["kStopPreemptedRequest"] = int(self.stop)
            values["kPaddedDispatch"], values["kVarlen"] = int(self.padded), int(self.varlen)
        if self.varlen:
            values["kPriorSurvival"] = round(self.prior * 65535)
            values["kMinGainNumerator"], values["kMinGainDenominator"] = self.min_gain
        return values | self._graphs(max_q)

    def _graphs(self, max_q: int) -> dict[str, Any]:
        """With padded dispatch a step of few tokens fills up the largest graph, so its rows must hold that padding."""
        total = 0 if self.engine == "PROMPT" else self.seqs * max_q
        sizes = list(graph_sizes(self.graph_interval, total)) if total else []
        rows = []
        for size in sizes:
            real = min(size, self.seqs)
            padding = size - real if self.padded else 0
            rows.append(real + -(-max(padding, self.graph_interval - 1) // max_q))
        return {
            "kMaxTotalQ": total,
            "kMaxGraphRows": max(rows, default=0),
            "kGraphSizes": sizes,
            "kGraphRows": rows,
            "kSlotBytes": 256,
            "kBlockBytes": 128,
        }


SPECS: dict[str, SchedulerSpec] = {
    "plain": SchedulerSpec(),
    "recompute_cp": SchedulerSpec(
        seqs=5, model_len=64, tokens=22, nextn=5, cp=2, stop=False, intervals=(3, 5), burst=3, spare_blocks=12,
        usage=(4, 5), graph_interval=8, sum_lengths=6,
    ),
    "varlen": SchedulerSpec(seqs=6, nextn=5, varlen=True, spare_blocks=20, graph_interval=8),
    "varlen_gain": SchedulerSpec(
        seqs=5, nextn=3, varlen=True, stop=False, min_gain=(1, 20), intervals=(2, 5), burst=2, prior=0.9,
        block_size=8, spare_blocks=5,
    ),
    "padded": SchedulerSpec(nextn=1, padded=True, burst=2, stop=False),
    "padded_varlen": SchedulerSpec(seqs=5, nextn=3, varlen=True, padded=True, prior=0.5, spare_blocks=16),
    "single": SchedulerSpec(
        seqs=1, model_len=12, tokens=12, prompts=1, block_size=16, spare_blocks=0, spare_slots=1, intervals=(1, 2),
        usage=(1, 1), graph_interval=1, history=2,
    ),
    "tight": SchedulerSpec(
        seqs=8, nextn=1, block_size=1, model_len=24, tokens=16, spare_blocks=4, stop=False, usage=(1, 1), burst=4,
        spare_slots=3,
    ),
    "prompt": SchedulerSpec(engine="PROMPT", seqs=3, prompts=2, tokens=16),
    "prompt_cp": SchedulerSpec(engine="PROMPT", nextn=5, cp=2, tokens=24, model_len=64, usage=(1, 2)),
    "completion": SchedulerSpec(engine="COMPLETION", nextn=1, spare_slots=2, spare_blocks=6),
    "completion_varlen": SchedulerSpec(
        engine="COMPLETION", seqs=6, nextn=5, varlen=True, padded=True, min_gain=(1, 50), graph_interval=8,
        spare_blocks=24,
    ),
}  # fmt: skip
"""All engine types; nextn 0, 1, 3, 5; both verifications; cp 1 and 2; one-block pools; a single place."""


def random_spec(rng: random.Random, largest: SchedulerSpec | None = None) -> SchedulerSpec:
    """A spec as diverse as the table's; of the form of ``largest`` and within its sizes, if that is given."""
    form = largest or SchedulerSpec(
        engine=rng.choice(list(STEPS)), seqs=rng.choice([1, 2, 5, 9]), nextn=rng.choice([0, 1, 3, 5]),
        varlen=rng.random() < 0.5, padded=rng.random() < 0.3, model_len=rng.choice([12, 40, 70]),
        block_size=rng.choice([1, 2, 4, 8, 16]), spare_blocks=40, history=rng.randint(0, 3),
    )  # fmt: skip
    model_len = rng.randint(6, form.model_len)
    cp = 1 if form.engine == "COMPLETION" else rng.choice([1, 1, 2, 3])
    all_interval = rng.randint(1, 4)
    numerator = rng.randint(1, 10)
    return SchedulerSpec(
        **{
            **asdict(form),
            "seqs": rng.randint(1, form.seqs),
            "model_len": model_len,
            "tokens": rng.randint(max(2 * cp, 4), model_len + 10),
            "prompts": rng.randint(1, 4),
            "spare_blocks": rng.choice([0, 1, rng.randint(0, form.spare_blocks)]),
            "cp": cp,
            "stop": form.engine == "COMPLETION" or rng.random() < 0.5,
            "intervals": (all_interval, all_interval + rng.randint(1, 4)),
            "burst": rng.randint(1, 4),
            "usage": (numerator, rng.randint(numerator, 10)),
            "prior": rng.random(),
            "min_gain": rng.choice([(0, 1), (1, 50), (1, 5)]),
            "sum_lengths": rng.choice([0, 5, 100]),
            "varlen": form.varlen and form.engine != "PROMPT",
            "padded": form.padded and form.engine != "PROMPT",
        }
    )


def _cpp_value(name: str, value: Any) -> tuple[str, str]:
    """Type and text of a member of EngineConfig."""
    if name == "kEngineType":
        return "EngineType", f"EngineType::{STEPS[value][0]}"
    if name in ("kStopPreemptedRequest", "kPaddedDispatch", "kVarlen"):
        return "bool", "true" if value else "false"
    if name == "kPriorSurvival":
        return "std::uint16_t", str(value)
    if isinstance(value, list):
        return f"std::array<std::int32_t, {len(value)}>", f"{{{', '.join(map(str, value))}}}"
    return ("std::int64_t" if name.endswith("Bytes") else "std::int32_t"), str(value)


def engine_config_text(spec: SchedulerSpec, name: str) -> str:
    """``engine_config.hpp``."""
    members = [(key, *_cpp_value(key, value)) for key, value in spec.constants().items()]
    lines = "\n".join(f"  static constexpr {kind} {key} = {text};" for key, kind, text in members)
    return f"""\
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/engine_types.hpp"

namespace deepinfer::generated {{

struct EngineConfig {{
{lines}
  static constexpr std::array<StateRegion, 1> kStateRegions{{StateRegion{{0, 256}}}};
  static constexpr std::string_view kPlanDigest = "{name}";
}};

}}  // namespace deepinfer::generated
"""


def scheduler_text(spec: SchedulerSpec) -> str:
    """``scheduler.hpp``: the policies of the spec's engine."""
    _, step_header, step = STEPS[spec.engine]
    headers, policies = ["core.hpp", step_header], [step]
    if spec.engine != "PROMPT":
        verification = "verify_varlen.hpp" if spec.varlen else "verify_fixed.hpp"
        headers += ["order_output_length.hpp", verification]
        policies += ["VarlenVerification" if spec.varlen else "FixedVerification", "OutputLengthOrder"]
    includes = "\n".join(f'#include "engine/{file}"' for file in sorted(headers))
    return f"""\
#pragma once

{includes}
#include "engine_config.hpp"

namespace deepinfer::generated {{

using Scheduler = Core<EngineConfig, {", ".join(policies)}>;

}}  // namespace deepinfer::generated
"""


def engine_text(spec: SchedulerSpec) -> str:
    """``engine.cpp``: the factory and the constants that the module reports."""
    names = [*spec.constants(), "kStateRegions", "kPlanDigest"]
    constants = "\n".join(f'          constant("{name}", EngineConfig::{name}),' for name in names)
    return f"""\
#include <memory>

#include "engine/constants.hpp"
#include "engine/engine_api.hpp"
#include "engine/engine_instance.hpp"
#include "engine_config.hpp"
#include "scheduler.hpp"

namespace deepinfer {{

using generated::EngineConfig;

std::unique_ptr<EngineApi> make_engine() {{ return std::make_unique<EngineInstance<generated::Scheduler>>(); }}

const EngineInfo& engine_info() {{
  static const EngineInfo info{{
      EngineConfig::kPlanDigest,
      kFilesDigest,
      {{
{constants}
      }},
  }};
  return info;
}}

}}  // namespace deepinfer
"""


def engine_files(spec: SchedulerSpec, name: str) -> dict[str, str]:
    """File name to text: the C++ part of a generated folder."""
    return {
        "engine_config.hpp": engine_config_text(spec, name),
        "scheduler.hpp": scheduler_text(spec),
        "engine.cpp": engine_text(spec),
    }


def build_library(name: str, files: dict[str, str], parent: Path) -> Path:
    """Build ``files`` as a generated folder below ``parent``, in the shared cache; gives the module's file."""
    contents = {file: text.encode() for file, text in files.items()} | {"plan.json": b'{"values": {}}\n'}
    standalone = any(file.startswith("engine/") for file in files)
    manifest = manifest_text(header(name=name, standalone=standalone), contents)
    folder = parent / name
    for file, content in {**contents, MANIFEST: manifest.encode()}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return build_folder(folder, shared_cache()).engine.library


def load_module(name: str, library: Path) -> ModuleType:
    """pybind11 keeps modules by their full name, so each engine needs its own; the last part is the init symbol."""
    module_name = f"scheduler_configs.{name}.deepinfer_engine"
    spec = importlib.util.spec_from_loader(module_name, ExtensionFileLoader(module_name, str(library)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_spec(name: str, spec: SchedulerSpec, parent: Path) -> ModuleType:
    """The built extension module of ``spec``."""
    return load_module(name, build_library(name, engine_files(spec, name), parent))
