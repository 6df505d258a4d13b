"""One readable source of a specialised scheduler: own includes inlined, branches on config constants resolved.

The engine headers are templates over a config, which is good to maintain and hard to read for one spec. The flattened
text compiles by itself and shows only the code that this spec runs.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from deepinfer_gen.codegen.cxx_text import CxxText

CONFIG = "engine_config.hpp"
ENTRY = "scheduler.hpp"

_INCLUDE = re.compile(r'^#include ([<"])([^>"]+)[>"].*\n', re.MULTILINE)
_PRAGMA = re.compile(r"^#pragma once\n+", re.MULTILINE)
_CONSTANT = re.compile(r"static constexpr [\w:]+ (k\w+) = ([^;]+);")
_BRANCH = re.compile(r"\bif constexpr \(")
_ELSE = re.compile(r"\s*else\b\s*")
_NOT_BUILT = "// This version of deepinfer-gen does not have this policy: what names it below does not compile.\n"
_RULE = "// " + "-" * 100


def flatten(sources: Mapping[str, str], *, entry: str = ENTRY) -> str:
    """The text of ``entry`` with every own include inlined once, in dependency order.

    ``sources`` maps include names to texts and must hold ``engine_config.hpp``. Standard includes stand at the top; an
    ``if constexpr`` whose condition follows from the config is replaced by the branch that is taken; each part names
    the file it comes from. A header that ``sources`` lacks is a policy that is not built yet: a comment stands for it.
    """
    constants = config_constants(sources[CONFIG])
    system: set[str] = set()
    parts: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in parts:
            return
        if name not in sources:
            parts[name] = _NOT_BUILT
            return
        parts[name] = ""  # keeps a circular include from recursing; the order is that of completion
        for kind, included in _INCLUDE.findall(sources[name]):
            if kind == "<":
                system.add(included)
            else:
                visit(included)
        del parts[name]
        parts[name] = resolve_branches(strip_directives(sources[name]), constants)

    visit(entry)
    includes = "".join(f"#include <{name}>\n" for name in sorted(system))
    bodies = "".join(f"\n{_RULE}\n// {name}\n{_RULE}\n{text}" for name, text in parts.items())
    return f"// The scheduler of one spec, flattened for reading.\n{includes}{bodies}"


def strip_directives(text: str) -> str:
    """``text`` without includes and ``#pragma once``, and without the blank lines that they leave."""
    text = _INCLUDE.sub("", _PRAGMA.sub("", text))
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def config_constants(text: str) -> dict[str, int | str]:
    """The scalar constants of a generated config: integers, booleans as 0 or 1, enumerators by name."""
    constants: dict[str, int | str] = {}
    for name, literal in _CONSTANT.findall(text):
        plain = literal.replace("'", "")
        if plain in ("true", "false"):
            constants[name] = int(plain == "true")
        elif re.fullmatch(r"-?\d+", plain):
            constants[name] = int(plain)
        elif re.fullmatch(r"EngineType::\w+", plain):
            constants[name] = plain
    return constants


def resolve_branches(text: str, constants: Mapping[str, int | str]) -> str:
    """``text`` with every ``if constexpr`` on known constants replaced by the branch that is taken."""
    position = 0
    while found := CxxText(text).search(_BRANCH, position):
        code = CxxText(text)
        condition_end = code.matching(found.end() - 1)
        value = evaluate_condition(text[found.end() : condition_end], constants)
        if value is None:
            position = found.end()
            continue
        then_start, then_end = code.statement(condition_end + 1)
        end, chosen = then_end, (then_start, then_end) if value else None
        if alternative := _ELSE.match(text, then_end):
            else_start, end = code.statement(alternative.end())
            chosen = chosen or (else_start, end)
        start = text.rindex("\n", 0, found.start()) + 1
        indent = found.start() - start
        body = unwrap(text[chosen[0] : chosen[1]], indent) if chosen else ""
        rest = text[end:].removeprefix("\n") if not body else text[end:]
        text = text[:start] + body + rest
        position = start
    return text


def unwrap(statement: str, indent: int) -> str:
    """The statements of a branch, without braces, at ``indent`` columns."""
    if not statement.startswith("{"):
        return " " * indent + statement
    lines = statement[1:-1].strip("\n").rstrip().split("\n")
    shift = min(len(line) - len(line.lstrip()) for line in lines if line.strip()) - indent
    return "\n".join(line[shift:] for line in lines)


def evaluate_condition(condition: str, constants: Mapping[str, int | str]) -> bool | None:
    """The value of a condition over ``Cfg::`` constants, or None if it depends on anything else."""

    def literal(name: re.Match[str]) -> str:
        constant = name[1]
        if constant is None:
            return repr(name[0])
        return repr(constants[constant]) if constant in constants else "unknown"

    python = re.sub(r"Cfg::(k\w+)|EngineType::\w+", literal, condition)
    python = re.sub(r"!(?!=)", " not ", python.replace("&&", " and ").replace("||", " or "))
    try:
        value = _evaluate(ast.parse(python.strip(), mode="eval").body)
    except (SyntaxError, _UnknownError):
        return None
    return bool(value)


class _UnknownError(Exception):
    """The condition names something that the config does not decide."""


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _evaluate(node: ast.expr) -> int | str | bool:
    match node:
        case ast.Constant(value=int() | str() as value):
            return value
        # Every operand is evaluated: a condition that names something unknown stays as it is.
        case ast.BoolOp(op=ast.And(), values=values):
            return all(tuple(_evaluate(v) for v in values))
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(tuple(_evaluate(v) for v in values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_evaluate(left), _evaluate(right))
    raise _UnknownError
