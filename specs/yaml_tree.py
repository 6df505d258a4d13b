"""YAML 1.2 text to a plain tree with the position of every key and value.

Only what a deployment spec needs is accepted: one document of mappings and scalars. Anchors, aliases, tags,
directives, lists, several documents, duplicate keys and scalars that YAML readers disagree about are refused, each with
a place. The tree is built from parser events, so nothing is ever expanded or constructed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.specs.source_text import Place, SourceText

Scalar = bool | int | Fraction | str
Tree = dict[str, "Scalar | Tree"]

_MAX_DEPTH = 4
_MAX_SKIPPED_DEPTH = 16  # the parser takes quadratic time in the depth of brackets
_MAX_DIGITS = 40
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_WORD = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+\Z")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off"})
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_AMBIGUOUS = (
    (re.compile(r"[-+]?0[0-9_]+(\.[0-9_]*)?\Z"), "a number with a leading zero, octal to some YAML readers"),
    (re.compile(r"[-+]?0[oO][0-7_]+\Z"), "an octal number"),
    (re.compile(r"[-+]?0[xX][0-9a-fA-F_]+\Z"), "a hexadecimal number"),
    (re.compile(r"[-+]?0[bB][01_]+\Z"), "a binary number"),
    (re.compile(r"[-+]?[0-9]+(:[0-9]+)+(\.[0-9]*)?\Z"), "a base-60 number to some YAML readers"),
    (re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?\Z"), "a number with underscores"),
    (re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+\Z"), "a number with an exponent"),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.)\Z"), "a number without digits on both sides of the point"),
    (re.compile(r"\+[0-9]+(\.[0-9]+)?\Z"), "a number with a plus sign"),
    (re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z"), "not a finite number"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*\Z"), "a date to some YAML readers"),
    (re.compile(r"(True|TRUE|False|FALSE)\Z"), "a truth value in another spelling"),
)


_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE_OUT_OF_RANGE = re.compile(r"\\U(?!000|0010)[0-9A-Fa-f]{8}")


class PlainWord(str):
    """An unquoted ``yes``, ``no``, ``on``, ``off``, ``y`` or ``n``: text in YAML 1.2, a boolean in YAML 1.1."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """Where a key and its value stand, and in which text."""

    source: SourceText
    key: Place
    value: Place

    def error(self, code: str, message: str, help_: str = "") -> Diagnostic:
        """A diagnostic that points at the value."""
        return self.source.error(code, message, self.value, help_)


@dataclass(frozen=True, slots=True)
class YamlTree:
    """The content of one file. ``places`` is by dotted key; ``faulty`` holds dotted keys whose value was refused."""

    source: SourceText
    tree: Tree
    places: Mapping[str, KeyPlace]
    faulty: frozenset[str]
    diagnostics: tuple[Diagnostic, ...]


def read_tree(source: SourceText) -> YamlTree:
    """Parse ``source``.

    Faults that leave the rest readable are collected in ``diagnostics`` (DI008, DI010, DI013, DI016); the others raise
    ``InputError`` at once (DI004 syntax, DI005 documents, DI006 empty, DI007 no mapping, DI009 anchors).
    """
    builder = _Builder(source)
    for event in _events(source):
        builder.take(event)
    if not builder.seen_document:
        raise InputError(source.error("DI006", "the file holds no settings", Place(1, 1), "start with 'engine:'"))
    return YamlTree(source, builder.root, builder.places, frozenset(builder.faulty), tuple(builder.diagnostics))


def _events(source: SourceText) -> Iterator[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        yield from YAML(typ="safe", pure=True).parse(source.text)
    except MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place()
        raise InputError(_syntax_error(source, str(fault.problem or fault.context), place)) from None
    except (ValueError, OverflowError):
        # ruamel hands a \U escape to chr() unchecked; both faults come from there.
        found = _ESCAPE_OUT_OF_RANGE.search(source.text)
        place = source.place_of(found.start() if found else 0)
        message = "an escape \\U names no character: the last one is \\U0010FFFF"
        raise InputError(source.error("DI004", message, place, "write the character itself, or quote with '")) from None
    except YAMLError as fault:
        offset = getattr(fault, "position", 0)
        message = f"character U+{ord(source.text[offset]):04X} is not allowed in YAML"
        raise InputError(source.error("DI004", message, source.place_of(offset), "remove the character")) from None


def _syntax_error(source: SourceText, problem: str, place: Place) -> Diagnostic:
    if "'\\t'" in problem:
        return source.error("DI004", "a tab is used for indentation", place, "indent with spaces")
    if "mapping values are not allowed" in problem:
        remedy = "put one 'key: value' on a line, and quote a value that contains ': '"
        return source.error("DI004", "a second ':' or a wrong indentation makes this no YAML", place, remedy)
    return source.error("DI004", f"this is no YAML: {problem}", place, "check quotes, brackets and indentation")


_UNKNOWN = Place()


@dataclass(slots=True)
class _Frame:
    mapping: Tree
    prefix: str
    keys: dict[str, Place] = field(default_factory=dict)
    key: str | None = None
    key_place: Place = _UNKNOWN
    ignored: bool = False


class _Builder:
    """Folds parser events into a tree. A value that is refused is left out and its key noted in ``faulty``."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.root: Tree = {}
        self.places: dict[str, KeyPlace] = {}
        self.faulty: set[str] = set()
        self.diagnostics: list[Diagnostic] = []
        self.seen_document = False
        self._frames: list[_Frame] = []
        self._skip = 0

    def take(self, event: Any) -> None:
        """Fold one event."""
        kind = type(event).__name__
        place = Place(event.start_mark.line + 1, event.start_mark.column + 1)
        if kind == "DocumentStartEvent":
            self._document(event, place)
        elif kind == "AliasEvent" or getattr(event, "anchor", None):
            message = f"anchors and aliases are not allowed: '{event.anchor}'"
            raise InputError(self.source.error("DI009", message, place, "write the value out"))
        elif kind in ("MappingStartEvent", "SequenceStartEvent", "ScalarEvent"):
            self._node(kind, event, place)
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            if self._skip:
                self._skip -= 1
            else:
                self._frames.pop()

    def _document(self, event: Any, place: Place) -> None:
        if self.seen_document:
            raise InputError(
                self.source.error("DI005", "a second document begins here", place, "write one engine per file")
            )
        if event.version or event.tags:
            message = "YAML directives are not allowed; a spec is always YAML 1.2"
            raise InputError(self.source.error("DI010", message, Place(1, 1), "remove the line that begins with '%'"))
        self.seen_document = True

    def _node(self, kind: str, event: Any, place: Place) -> None:
        if self._skip:
            self._skip += kind != "ScalarEvent"
            if self._skip > _MAX_SKIPPED_DEPTH:
                raise InputError(self.source.error("DI004", "brackets are nested too deeply", place, "close them"))
            return
        if not self._frames:
            if kind != "MappingStartEvent":
                if kind == "ScalarEvent" and not event.value and event.style is None:
                    raise InputError(
                        self.source.error("DI006", "the file holds no settings", place, "start with 'engine:'")
                    )
                found = "a list" if kind == "SequenceStartEvent" else "a single value"
                message = f"the top level is {found}, not a mapping of settings"
                raise InputError(self.source.error("DI007", message, place, "start with 'engine:'"))
            self._frames.append(_Frame(self.root, ""))
            return
        frame = self._frames[-1]
        if frame.key is None:
            self._key(frame, kind, event, place)
            return
        key = frame.key
        frame.key = None
        self._value(frame, key, kind, event, place)

    def _key(self, frame: _Frame, kind: str, event: Any, place: Place) -> None:
        if kind != "ScalarEvent":
            raise InputError(self.source.error("DI004", "a key must be a plain word", place, "write 'key: value'"))
        if event.tag:
            self._refuse("", "DI010", f"YAML tags are not allowed: '{event.tag}'", place, "remove the tag")
        if event.value == "<<":
            message = "merge keys are not allowed: '<<'"
            raise InputError(self.source.error("DI009", message, place, "write the settings out"))
        name = str(event.value)
        frame.key, frame.key_place = name, place
        frame.ignored = name in frame.keys or not _WORD.match(name)
        if not _WORD.match(name):
            remedy = "keys are plain words; a dotted key is written as a section with the rest below it"
            self._refuse("", "DI011", f"unknown key '{frame.prefix}{name[:60]}'", place, remedy)
        elif frame.ignored:
            first = frame.keys[name]
            message = f"'{frame.prefix}{name}' is written twice, first on line {first.line}"
            self._refuse("", "DI008", message, place, "keep one of the two")
        else:
            frame.keys[name] = place

    def _value(self, frame: _Frame, key: str, kind: str, event: Any, place: Place) -> None:
        dotted = frame.prefix + key
        if frame.ignored:
            self._skip += kind != "ScalarEvent"
            return
        self.places[dotted] = KeyPlace(self.source, frame.key_place, place)
        if event.tag and not (kind == "ScalarEvent" and event.tag == "!" and event.style):
            self._refuse(dotted, "DI010", f"YAML tags are not allowed: '{event.tag}'", place, "remove the tag")
            self._skip += kind != "ScalarEvent"
        elif kind == "SequenceStartEvent":
            self._refuse(dotted, "DI013", f"{dotted} is a list; no setting is one", place, "write a single value")
            self._skip += 1
        elif kind == "MappingStartEvent":
            if len(self._frames) >= _MAX_DEPTH:
                self._refuse(dotted, "DI013", f"{dotted} is nested too deeply", place, "settings have two levels")
                self._skip += 1
                return
            child: Tree = {}
            frame.mapping[key] = child
            self._frames.append(_Frame(child, dotted + "."))
        else:
            # The mark of an absent value is that of the next token, so an empty value is shown at its key.
            value = self._scalar(dotted, event, place if event.value or event.style else frame.key_place)
            if value is not None:
                frame.mapping[key] = value

    def _scalar(self, dotted: str, event: Any, place: Place) -> Scalar | None:
        text = str(event.value)
        if _SURROGATE.search(text):
            remedy = "write the character itself in place of an escape"
            self._refuse(dotted, "DI004", f"{dotted} holds half a surrogate pair, which is no character", place, remedy)
            return None
        if event.style is not None:
            return text
        if text in _NULLS:
            self._refuse(dotted, "DI013", f"{dotted} has no value", place, "give it a value, or remove the key")
            return None
        if text in ("true", "false"):
            return text == "true"
        if text.lower() in _WORDS:
            return PlainWord(text)
        if len(text) > _MAX_DIGITS and (_INTEGER.match(text) or _DECIMAL.match(text)):
            self._refuse(
                dotted, "DI015", f"{dotted} is a number of {len(text)} characters", place, "write fewer digits"
            )
            return None
        if _INTEGER.match(text):
            return int(text)
        if _DECIMAL.match(text):
            return Fraction(text)
        for pattern, what in _AMBIGUOUS:
            if pattern.match(text):
                remedy = "write numbers as plain decimals, truth values as true or false, and quote text"
                self._refuse(dotted, "DI016", f"{dotted} is '{text}', {what}", place, remedy)
                return None
        return text

    def _refuse(self, dotted: str, code: str, message: str, place: Place, remedy: str) -> None:
        self.diagnostics.append(self.source.error(code, message, place, remedy))
        if dotted:
            self.faulty.add(dotted)
