"""JSON text to a plain tree with the position of every value; numbers stay exact, duplicate keys are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.specs.source_text import Place, SourceText

# A text without its closing quote is one token too: looking for the quote again from every later one takes quadratic
# time.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.S)
_MAX_DEPTH = 16
_MAX_NUMBER = 40


@dataclass(frozen=True, slots=True)
class JsonTree:
    """The content of one JSON object; ``offsets`` is by dotted key (list elements have none)."""

    source: SourceText
    content: dict[str, Any]
    offsets: Mapping[str, int]

    def place(self, key: str) -> Place:
        """Where the value of the dotted ``key`` stands; unknown if it is missing."""
        return self.source.place_of(self.offsets[key]) if key in self.offsets else Place()


def read_json(source: SourceText) -> JsonTree:
    """Parse ``source``; raises ``InputError`` DI061 unless it is one well-formed JSON object."""
    offsets = _offsets(source)

    def refuse(literal: str, message: str, help_: str) -> InputError:
        return InputError(source.error("DI061", message, source.place_of(source.text.find(literal)), help_))

    def number(text: str) -> int | Fraction:
        if len(text) > _MAX_NUMBER or abs(int(re.split("[eE]", text + "e0")[1])) > 400:
            raise refuse(text, f"the number {text[:_MAX_NUMBER]} is out of range", "write fewer digits")
        return int(text) if text.lstrip("-").isdigit() else Fraction(text)

    def constant(text: str) -> Any:
        raise refuse(text, f"{text} is not a JSON number", "write a finite number")

    try:
        content = json.loads(source.text, parse_int=number, parse_float=number, parse_constant=constant)
    except json.JSONDecodeError as fault:
        place = Place(fault.lineno, fault.colno)
        raise InputError(
            source.error("DI061", f"this is no JSON: {fault.msg}", place, "check quotes, commas and brackets")
        ) from None
    if not isinstance(content, dict):
        raise InputError(source.error("DI061", "the file is no JSON object", Place(1, 1), "name a config.json"))
    return JsonTree(source, content, offsets)


def _key(token: str) -> str:
    """The key that a token spells, escapes read, so that two spellings of one key are found."""
    try:
        return str(json.loads(token))
    except ValueError:
        return token[1:-1]


def _offsets(source: SourceText) -> dict[str, int]:
    """The offset of every key's value. The text need not be valid; the parser proper judges that.

    A key with a dot in it is none of a config's, and has no place: it would look like a nested one.
    """
    offsets: dict[str, int] = {}
    stack: list[tuple[str | None, bool]] = []  # dotted prefix (None inside a list) and whether it is an object
    key = ""
    expect_value = False
    for found in _TOKEN.finditer(source.text):
        token = found.group()
        prefix, in_object = stack[-1] if stack else ("", False)
        if token in "}]":
            del stack[-1:]
            expect_value = False
        elif token in ":,":
            expect_value = token == ":"
        elif in_object and not expect_value:
            key = _key(token)
        else:
            dotted = f"{prefix}{key}" if in_object and prefix is not None and "." not in key else None
            if dotted is not None and dotted in offsets:
                place = source.place_of(found.start())
                raise InputError(source.error("DI061", f"'{dotted}' is written twice", place, "keep one of the two"))
            if dotted is not None:
                offsets[dotted] = found.start()
            if token in "{[":
                if len(stack) >= _MAX_DEPTH:
                    place = source.place_of(found.start())
                    raise InputError(
                        source.error("DI061", "the file is nested too deeply", place, "name a config.json")
                    )
                root = "" if not stack else None
                stack.append((f"{dotted}." if dotted else root, token == "{"))
            expect_value = False
    return offsets
