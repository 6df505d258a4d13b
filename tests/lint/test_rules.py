"""Every house rule catches a bad snippet and lets a good one pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import rules

BAD: list[tuple[Callable[[str], list[str]], str]] = [
    (rules.too_long, "x = 1\n" * 401),
    (rules.markers, "# " + "TO" + "DO later"),
    (rules.markers, "// " + "FIX" + "ME"),
    (rules.machine_paths, 'open("/' + 'home/someone/x")'),
    (rules.machine_paths, "see C:" + "\\Users"),
    (rules.hidden_exceptions, "try:\n    f()\nexcept:\n    raise\n"),
    (rules.hidden_exceptions, "try:\n    f()\nexcept Exception:\n    pass\n"),
    (rules.hidden_exceptions, "try:\n    f()\nexcept (ValueError, BaseException):\n    return None\n"),
    (rules.hidden_exceptions, "with contextlib.suppress(Exception):\n    f()\n"),
    (rules.runtime_constants, "ring = 134"),
    (rules.runtime_constants, "scale = x * 288.0"),
    (rules.runtime_constants, "def f(window: int = 128): ..."),
    (rules.runtime_roles, "r = config.compress_ratios[layer]"),
    (rules.runtime_roles, 'r = config["kv_source_layer_ids"]'),
    (rules.upstream_imports, "from deepinfer_gen.codegen.plan import Plan"),
    (rules.upstream_imports, "import deepinfer_gen.specs.load"),
    (rules.upstream_imports, "from deepinfer_gen import specs"),
    (rules.upstream_imports, "def f():\n    from deepinfer_gen.specs.load import load_spec\n"),
    (rules.bare_imports, "import runtime.llm"),
    (rules.bare_imports, "from codegen import plan"),
    (rules.template_logic, "{% if a %}x{% endif %}"),
    (rules.template_logic, "{{ a + 1 }}"),
    (rules.template_logic, "{% set a = b %}"),
    (rules.template_logic, "{{ 'x' if a else 'y' }}"),
    (rules.template_logic, "{% for a in b if a %}{{ a }}{% endfor %}"),
    (rules.template_logic, "{% macro f() %}{% endmacro %}"),
    (rules.template_logic, "{{ a == b }}"),
    (lambda text: rules.nextn_literals(text, 5), "for (int draft = 0; draft < 5; ++draft) {"),
    (lambda text: rules.nextn_literals(text, 3), "std::array<int, 3> drafts;"),
    (lambda text: rules.nextn_literals(text, 1), "constexpr int kDraftSteps = 1;"),
]

GOOD: list[tuple[Callable[[str], list[str]], str]] = [
    (rules.too_long, "x = 1\n" * 400),
    (rules.markers, "# the method list"),
    (rules.machine_paths, "#!/usr/bin/env python\nhttps://host/home/page\nspecs/models/a"),
    (rules.hidden_exceptions, "try:\n    f()\nexcept Exception as fault:\n    raise E from fault\n"),
    (rules.hidden_exceptions, "try:\n    f()\nexcept FileNotFoundError:\n    pass\n"),
    (rules.runtime_constants, "x = 15 + 0.5 - 1e-6"),
    (lambda text: rules.runtime_constants(text, {448.0}), "s = 448.0"),
    (rules.runtime_roles, "r = layer.ratio"),
    (rules.upstream_imports, "from deepinfer_gen.runtime.plan_types import Region"),
    (rules.bare_imports, "from deepinfer_gen.runtime import llm\nimport specsheet"),
    (rules.template_logic, "{% for a in b %}{{ a.c[0] | digits }}{{ loop.index }}{% endfor %}"),
    (lambda text: rules.nextn_literals(text, 5), "static constexpr int kNextn = 5;  // 5 drafts"),
    (lambda text: rules.nextn_literals(text, 5), "kDrafts = kNextn + 1; int layers = 50;"),
    (lambda text: rules.nextn_literals(text, 3), '"num_nextn_layers": 3,'),
    (lambda text: rules.nextn_literals(text, 1), "kMaxQ = kNextn + 1;"),
]


@pytest.mark.parametrize(("rule", "snippet"), BAD, ids=[s[:40] for _, s in BAD])
def test_bad_snippet_is_caught(rule: Callable[[str], list[str]], snippet: str) -> None:
    assert rule(snippet)


@pytest.mark.parametrize(("rule", "snippet"), GOOD, ids=[s[:40] for _, s in GOOD])
def test_good_snippet_passes(rule: Callable[[str], list[str]], snippet: str) -> None:
    assert rule(snippet) == []
