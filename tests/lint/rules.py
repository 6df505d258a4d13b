"""House rules as functions from source text to findings (``line: sentence``); an empty list means clean.

Each rule is applied to the repository by ``test_repository.py`` and to a bad snippet by ``test_rules.py``, so that no
rule can pass by matching nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

import jinja2
from jinja2 import nodes

MAX_LINES = 400
SMALL_LITERAL = 16
"""Integers below this are counts and indices of everyday code; a layout constant or a model size is larger."""

BARE_PACKAGES = ("specs", "codegen", "templates", "runtime")
_MODEL_CONFIG_LISTS = ("compress_ratios", "kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids")
_MARKERS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
_MACHINE_PATH = re.compile(
    r"(?<![\w.*-])/(?:" + "|".join(("home", "root", "opt", "work", "mnt", "Users", "private")) + r")/\w|\b[A-Z]:\\\w"
)
_TEMPLATE_NODES = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Const,
    nodes.Filter, nodes.Call, nodes.Keyword, nodes.Tuple, nodes.List,
)  # fmt: skip


def too_long(text: str) -> list[str]:
    """A file holds one concept: at most ``MAX_LINES`` lines."""
    lines = text.count("\n") + (not text.endswith("\n"))
    return [f"{MAX_LINES + 1}: {lines} lines, at most {MAX_LINES}"] if lines > MAX_LINES else []


def markers(text: str) -> list[str]:
    """No deferred work in the text."""
    return [
        f"{n}: deferred work: {m[0]}" for n, line in enumerate(text.splitlines(), 1) if (m := _MARKERS.search(line))
    ]


def machine_paths(text: str) -> list[str]:
    """No absolute path of somebody's machine."""
    return [
        f"{n}: absolute path of a machine: {line.strip()[:80]}"
        for n, line in enumerate(text.splitlines(), 1)
        if _MACHINE_PATH.search(line)
    ]


def hidden_exceptions(text: str) -> list[str]:
    """No bare ``except``, no broad one that does nothing, no ``suppress`` of a broad class."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ExceptHandler(type=None):
                found.append(f"{node.lineno}: bare except")
            case ast.ExceptHandler(type=caught, body=body) if _broad(caught) and all(_idle(s) for s in body):
                found.append(f"{node.lineno}: broad except that hides the fault")
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=args) if any(
                _broad(a) for a in args
            ):
                found.append(f"{node.lineno}: suppress of a broad class")
    return found


def runtime_constants(text: str, allowed: Collection[float] = ()) -> list[str]:
    """The runtime derives no size: no numeric literal of ``SMALL_LITERAL`` or more that has no stated reason."""
    return [
        f"{node.lineno}: literal {node.value} in the runtime; read it from the generated folder"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
        and abs(node.value) >= SMALL_LITERAL
        and node.value not in allowed
    ]


def runtime_roles(text: str) -> list[str]:
    """The runtime derives no role: it reads none of the model config's layer lists, by attribute, key or name."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str() as name):
                if name in _MODEL_CONFIG_LISTS:
                    found.append(f"{node.lineno}: reads {name}; the layer list of model_plan.py says the roles")
    return found


def upstream_imports(text: str, allowed: Collection[str] = ()) -> list[str]:
    """The runtime imports nothing upstream of the generated folder."""
    upstream = ("deepinfer_gen.specs", "deepinfer_gen.codegen")
    found = []
    for node in ast.walk(ast.parse(text)):
        for name in _imported(node):
            if name.startswith(upstream) and name not in allowed:
                found.append(f"{getattr(node, 'lineno', 0)}: imports {name}, which is upstream of the generated folder")
    return found


def bare_imports(text: str) -> list[str]:
    """The top-level folders are imported under the package name only."""
    return [
        f"{getattr(node, 'lineno', 0)}: imports bare {name}; write deepinfer_gen.{name}"
        for node in ast.walk(ast.parse(text))
        for name in _imported(node)
        if name.split(".")[0] in BARE_PACKAGES
    ]


def template_logic(text: str) -> list[str]:
    """A template holds expressions and loops over tables: no condition, arithmetic, assignment or macro."""
    found = []
    for node in _descend(jinja2.Environment(autoescape=False).parse(text)):
        if not isinstance(node, _TEMPLATE_NODES):
            found.append(f"{node.lineno}: {type(node).__name__} in a template; decide it in the Plan or in a header")
        if isinstance(node, nodes.For) and (node.test is not None or node.else_ or node.recursive):
            found.append(f"{node.lineno}: a filtered, recursive or else loop in a template")
    return found


def nextn_literals(text: str, nextn: int) -> list[str]:
    """The draft length is one constant: no other line of code that speaks of drafts holds its value as a literal.

    The definition (``kNextn = 5;`` or ``"nextn": 5``) and ``+ 1`` / ``- 1`` beside a name are legitimate; counts of
    draft layers are another quantity that may happen to be equal.
    """
    found = []
    for n, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"//.*|(?<!['\"])#.*", "", line)
        if not re.search(r"nextn|draft|dspark", code, re.IGNORECASE):
            continue
        code = re.sub(rf"\bkNextn\s*=\s*{nextn}\b|\"speculative\.nextn\"\s*:\s*{nextn}\b", "", code)
        code = re.sub(r"\w*(?:nextn_layers|mtp_layers)\w*[\"']?\s*[:=]\s*\d+", "", code)
        code = re.sub(r"[+-]\s*1\b", "", code) if nextn == 1 else code
        if re.search(rf"(?<![\w.']){nextn}(?![\w.'])", code):
            found.append(f"{n}: the literal {nextn} beside a draft name: {line.strip()[:80]}")
    return found


def _broad(node: ast.expr | None) -> bool:
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(isinstance(n, ast.Name) and n.id in ("Exception", "BaseException") for n in names)


def _idle(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Continue() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Return(value=None | ast.Constant(value=None)):
            return True
    return False


def _imported(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Import(names=names):
            return tuple(alias.name for alias in names)
        case ast.ImportFrom(module=str() as module, level=0, names=names):
            return (module, *(f"{module}.{alias.name}" for alias in names)) if module == "deepinfer_gen" else (module,)
    return ()


def _descend(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _descend(child)
