"""JSON Lines with exactly the fields of a table: all faults of a file in one run, each with its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from deepinfer_gen.diagnostics import Diagnostic, InputError

_MAX_EXCERPT = 160
REQUIRED = object()
"""The default of a field that every line must have."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field: ``accepts`` says whether a JSON value is right, ``wanted`` says so in words."""

    name: str
    accepts: Callable[[Any], bool]
    wanted: str
    default: Any = REQUIRED


@dataclass(frozen=True, slots=True)
class Record:
    """One line: ``line`` counts from 1, ``values`` has every field, ``written`` says which of them the line holds."""

    file: str
    line: int
    text: str
    values: Mapping[str, Any]
    written: frozenset[str]

    def fault(self, code: str, message: str, field: str = "", help_: str = "") -> Diagnostic:
        """A diagnostic at the field's value, or at the line."""
        return _fault(self.file, self.line, self.text, code, message, field, help_)


def integer(least: int, most: int) -> Callable[[Any], bool]:
    """Accepts integers of a range; true and false are none."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def optional(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Accepts null too."""
    return lambda value: value is None or accepts(value)


def text(value: Any) -> bool:
    """Accepts texts with something in them; half of a surrogate pair, which JSON can write, is no text."""
    return isinstance(value, str) and bool(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def list_of(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Accepts lists whose elements are all accepted."""
    return lambda value: isinstance(value, list) and all(accepts(v) for v in value)


def read_records(path: Path, fields: Sequence[Field], what: str) -> list[Record]:
    """The lines of a file that are not blank. Raises one ``InputError`` with every fault.

    DI380: the file cannot be read; DI381: a line is no JSON object; DI382: an unknown field; DI383: a field is missing;
    DI384: a field's value is wrong.
    """
    shown = str(path)
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else f"it is not UTF-8 at byte {fault.start}"
        remedy = f"name {what}, a text file with one JSON object a line"
        raise InputError(Diagnostic("DI380", f"{what} cannot be read: {reason}", shown, help=remedy)) from None
    faults: list[Diagnostic] = []
    records: list[Record] = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            given = _parse(line)
        except ValueError as fault:
            faults.append(
                _fault(shown, number, line, "DI381", f"this line is no JSON object: {fault}", "", _example(fields))
            )
            continue
        wrong = list(_wrong(shown, number, line, given, fields))
        faults += wrong
        if not wrong:
            values = {f.name: given.get(f.name, f.default) for f in fields}
            records.append(Record(shown, number, line, values, frozenset(given)))
    if faults:
        raise InputError(faults)
    return records


def _parse(line: str) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise ValueError(f"'{twice}' is written twice")
        return dict(items)

    def constant(literal: str) -> Any:
        raise ValueError(f"{literal} is not a JSON number")

    try:
        parsed = json.loads(line, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as fault:
        raise ValueError(f"{fault.msg} at column {fault.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"it is {_shown(parsed)}")
    return parsed


def _wrong(
    file: str, number: int, line: str, given: Mapping[str, Any], fields: Sequence[Field]
) -> Iterable[Diagnostic]:
    known = {f.name: f for f in fields}
    for name, value in given.items():
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"fields are {', '.join(known)}"
            yield _fault(file, number, line, "DI382", f"unknown field '{name}'", name, hint)
        elif not known[name].accepts(value):
            message = f"{name} is {_shown(value)}, not {known[name].wanted}"
            yield _fault(file, number, line, "DI384", message, name, "")
    missing = [f.name for f in fields if f.default is REQUIRED and f.name not in given]
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        yield _fault(file, number, line, "DI383", f"the line has no {names}", "", _example(fields))


def _shown(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=isinstance(value, str) and not text(value))
    return shown if len(shown) <= _MAX_EXCERPT // 2 else shown[: _MAX_EXCERPT // 2] + "…"


def _example(fields: Sequence[Field]) -> str:
    required = ", ".join(f.name for f in fields if f.default is REQUIRED)
    others = ", ".join(f.name for f in fields if f.default is not REQUIRED)
    return f"a line has {required}, and may have {others}"


def _fault(file: str, number: int, line: str, code: str, message: str, field: str, help_: str) -> Diagnostic:
    column = line.find(json.dumps(field, ensure_ascii=False)) + 1 if field else 0
    excerpt = line.rstrip() if column and len(line) <= _MAX_EXCERPT and line.isprintable() else ""
    return Diagnostic(code, message, file, number, column if excerpt else 0, excerpt, help_)
