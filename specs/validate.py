"""A positioned YAML tree checked against a pydantic model, every fault as a diagnostic in our own words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from deepinfer_gen.diagnostics import Diagnostic
from deepinfer_gen.specs.source_text import Place
from deepinfer_gen.specs.yaml_tree import KeyPlace, PlainWord, YamlTree

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], tree: YamlTree) -> tuple[Model | None, list[Diagnostic], frozenset[str]]:
    """Check ``tree`` against ``model``.

    Gives the instance (``None`` if anything is wrong), the diagnostics of the tree and of the model in file order, and
    the dotted keys at fault. Codes: DI011 unknown key, DI012 missing, DI013 type, DI014 choice, DI015 range, DI016
    ambiguous word, DI017 pattern.
    """
    diagnostics = list(tree.diagnostics)
    faulty = set(tree.faulty)
    instance: Model | None = None
    try:
        instance = model.model_validate(tree.tree)
    except ValidationError as fault:
        for error in fault.errors(include_url=False):
            key = ".".join(str(part) for part in error["loc"])
            if not _hidden(key, faulty):
                diagnostics.append(_diagnostic(model, tree, key, error))
                faulty.add(key)
    if diagnostics:
        return None, in_file_order(diagnostics), frozenset(faulty)
    return instance, [], frozenset()


def in_file_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Sorted by position, files in order of first appearance, equal ones once."""
    unique = list(dict.fromkeys(diagnostics))
    files = list(dict.fromkeys(d.file for d in unique))
    return sorted(unique, key=lambda d: (files.index(d.file), d.line, d.column, d.code))


def show(value: Any) -> str:
    """A value as the spec would write it, long text cut."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(quoted(v) for v in value) + "]"
    text = decimal(value) if isinstance(value, Fraction) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def quoted(value: Any) -> str:
    """Like ``show``, with text in quotes."""
    return f"'{show(value)}'" if isinstance(value, str) else show(value)


def decimal(value: Fraction) -> str:
    """``6/5`` as ``1.2``; a fraction with no short decimal stays a fraction."""
    scaled = value * 10**12
    if scaled.denominator != 1:
        return str(value)
    sign = "-" if scaled < 0 else ""
    whole, rest = divmod(abs(int(scaled)), 10**12)
    digits = f"{rest:012d}".rstrip("0")
    return f"{sign}{whole}.{digits or '0'}"


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """``did you mean 'dp'?`` if something is close, else the list of what there is."""
    from difflib import get_close_matches

    options = list(known)
    close = get_close_matches(word, options, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"{otherwise}: {', '.join(options)}"


def _hidden(key: str, faulty: set[str]) -> bool:
    """Whether the fault at ``key`` follows from one already reported at it or above it."""
    parts = key.split(".")
    return any(".".join(parts[: n + 1]) in faulty for n in range(len(parts)))


def _section(model: type[BaseModel], key: str) -> type[BaseModel]:
    section = model
    for part in key.split(".")[:-1]:
        section = section.model_fields[part].annotation  # type: ignore[assignment]
    return section


def _dotted(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of the model and its sections."""
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _dotted(info.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _diagnostic(model: type[BaseModel], tree: YamlTree, key: str, error: Any) -> Diagnostic:
    kind = error["type"]
    value = error["input"]
    parent, _, name = key.rpartition(".")
    if kind == "missing":
        place = tree.places[parent].key if parent in tree.places else Place(1, 1)
        meaning = _section(model, key).model_fields[name].description or "a section with required keys"
        return tree.source.error("DI012", f"{key} is required", place, f"add it: {meaning}")
    at: KeyPlace = tree.places[key]
    if kind == "extra_forbidden":
        where = f"{parent} has" if parent else "there are"
        elsewhere = [k for k in _dotted(model) if k.rpartition(".")[2] == name]
        help_ = (
            f"did you mean '{elsewhere[0]}'?"
            if elsewhere
            else did_you_mean(name, _section(model, key).model_fields, f"{where} these keys")
        )
        return at.source.error("DI011", f"unknown key '{key}'", at.key, help_)
    return at.error(*_sentence(model, key, kind, value, error))


def _sentence(model: type[BaseModel], key: str, kind: str, value: Any, error: Any) -> tuple[str, str, str]:
    """Code, sentence and help of a fault of the value."""
    info = _section(model, key).model_fields[key.rpartition(".")[2]]
    help_ = f"{key}: {info.description}" if info.description else ""
    context = error.get("ctx", {})
    found = f"{key} is {quoted(value)}"
    match kind:
        case "int_type":
            return "DI013", f"{found}; it must be an integer", help_
        case "bool_type":
            word = f"write true or false; '{value}' is text in YAML 1.2" if isinstance(value, PlainWord) else help_
            return "DI013", f"{found}; it must be true or false", word
        case "string_type":
            return "DI013", f"{found}; it must be text", "quote it if it is meant as text"
        case "model_type" | "model_attributes_type":
            keys = ", ".join(info.annotation.model_fields) if isinstance(info.annotation, type) else ""
            return "DI013", f"{found}; it must be a mapping", f"it has these keys: {keys}"
        case "literal_error":
            choices = [str(c) for c in _choices(info.annotation)] or str(context["expected"]).split(" or ")
            return "DI014", f"{found}; it must be one of {', '.join(choices)}", _closest(value, choices) or help_
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than":
            word = {"g": "at least" if kind.endswith("equal") else "over", "l": "at most"}[kind[0]]
            return "DI015", f"{found}; it must be {word} {next(iter(context.values()))}", help_
        case "string_pattern_mismatch":
            return "DI017", f"{found}; it must match {context['pattern']}", help_
        case "string_too_short" | "string_too_long":
            return "DI015", f"{found}; it has {len(str(value))} characters", help_
        case "out_of_range":
            return "DI015", f"{found}; it {error['msg']}", help_
        case "ambiguous":
            return "DI016", f"{key} {error['msg']}", "quote it"
        case "wrong_type":
            return "DI013", f"{found}; it {error['msg']}", help_
    raise ValueError(f"no sentence for the pydantic error '{kind}' at {key}")


def _choices(annotation: Any) -> list[str]:
    """The words of a Literal, looking through ``| None`` and ``Annotated``."""
    if isinstance(annotation, str):
        return [annotation]
    return [c for arg in get_args(annotation) for c in _choices(arg)]


def _closest(value: Any, choices: list[str]) -> str:
    from difflib import get_close_matches

    close = {c.lower(): c for c in choices}
    match = get_close_matches(str(value).lower(), close, n=1, cutoff=0.6)
    return f"did you mean {close[match[0]]}?" if match else ""
