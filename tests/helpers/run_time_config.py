"""The engine headers built once for many specs: an EngineConfig whose limits are read when the scheduler runs.

A limit is a constexpr object that converts to its largest value in constant expressions (array sizes, template
arguments, assertions) and to the value in force everywhere else. Copies of the headers are compiled in which every
``Cfg::kLimit`` is written ``(+Cfg::kLimit)``, an integer also where a template deduces its type.
What decides types or tables stays constant: engine type, policies, nextn, pools, graphs, and those limits of which the
headers make constants (``static constexpr``, template arguments, ``const`` variables): these keep the largest value.
"""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from scheduler_configs import SchedulerSpec, build_library, engine_files, load_module, random_spec

LIMITS = (
    "kMaxNumPrompts", "kPrefillMaxSumSeqlenK", "kBlockSize", "kPrefillAttemptInterval", "kPrefillAnyAttemptInterval",
    "kPrefillBurst", "kPrefillCacheUsageLimitNumerator", "kPrefillCacheUsageLimitDenominator",
)  # fmt: skip
"""What may change between two schedulers of one build."""

SOURCES = Path(__file__).parents[2] / "templates"

_LIMIT = """\
// A value that is `maximum` in constant expressions and `value` when the scheduler runs.
template <class T>
struct Limit {
  T maximum;
  const T* value;
  constexpr operator T() const { return std::is_constant_evaluated() ? maximum : *value; }
};

"""


def run_time_files(spec: SchedulerSpec, name: str) -> dict[str, str]:
    """The three files of an engine whose largest limits are those of ``spec``, and the sources that read them."""
    files, constants = engine_files(spec, name), spec.constants()
    limits = [limit for limit in LIMITS if limit in constants]
    engine = files["engine.cpp"]
    for limit in limits:
        engine = engine.replace(f"EngineConfig::{limit})", f"generated::{limit}InForce)")
    config = run_time_config(files["engine_config.hpp"], limits)
    sources = {f"src/{path.name}": path.read_text() for path in (SOURCES / "src").iterdir()}
    return (
        files
        | run_time_headers(limits)
        | sources
        | {"engine_config.hpp": config, "engine.cpp": engine + _setter(limits)}
    )


def run_time_config(config: str, limits: Iterable[str]) -> str:
    """The text of an engine_config.hpp with ``limits`` made readable at run time."""
    storage = []
    for limit in limits:
        (text,) = re.findall(rf"static constexpr std::int32_t {limit} = ([\d']+);", config)
        storage.append(f"inline std::int32_t {limit}InForce = {text};")
        config = config.replace(
            f"static constexpr std::int32_t {limit} = {text};",
            f"static constexpr Limit<std::int32_t> {limit}{{{text}, &{limit}InForce}};",
        )
    config = config.replace("struct EngineConfig {", _LIMIT + "\n".join(storage) + "\n\nstruct EngineConfig {")
    return config.replace("#include <string_view>", "#include <string_view>\n#include <type_traits>")


def run_time_headers(limits: Iterable[str]) -> dict[str, str]:
    """The engine's headers as they are, but for a plus before each limit that is an integer."""
    integers = "|".join(limits)
    headers = {f"engine/{path.name}": path.read_text() for path in (SOURCES / "engine").glob("*.hpp")}
    return {name: re.sub(rf"\bCfg::({integers})\b", r"(+Cfg::\1)", text) for name, text in headers.items()}


def _setter(limits: list[str]) -> str:
    """A function that is found by name in the built library."""
    cases = "\n".join(f'  if (name == "{limit}") deepinfer::generated::{limit}InForce = value;' for limit in limits)
    return f"""
extern "C" __attribute__((visibility("default"))) void set_limit(const char* text, std::int32_t value) {{
  const std::string_view name = text;
{cases}
}}
"""


@dataclass(frozen=True, slots=True)
class RunTimeEngine:
    """A built module and its limits. Schedulers of one engine share the limits in force."""

    module: ModuleType
    library: ctypes.CDLL
    largest: SchedulerSpec

    @classmethod
    def build(cls, name: str, largest: SchedulerSpec, parent: Path) -> RunTimeEngine:
        path = build_library(name, run_time_files(largest, name), parent)
        return cls(load_module(name, path), ctypes.CDLL(str(path)), largest)

    def set_limits(self, constants: Mapping[str, Any]) -> None:
        """For the schedulers made from now on; those made before must not be used any more."""
        for limit in LIMITS:
            if limit in constants:
                self.library.set_limit(limit.encode(), ctypes.c_int32(constants[limit]))

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Constants of a random spec within the largest one: its limits, with the largest's pools and tables."""
        spec = random_spec(rng, self.largest)
        smallest = self.largest.block_size
        sizes = [smallest, smallest + 1, 2 * smallest, 4 * smallest]
        drawn = replace(spec, block_size=rng.choice(sizes), model_len=self.largest.model_len).constants()
        constants = self.largest.constants()
        limits = {limit: drawn[limit] for limit in LIMITS if limit in constants}
        prompts = min(drawn["kMaxNumPrompts"], self.largest.prompts)
        return constants | limits | {"kMaxNumPrompts": prompts}
