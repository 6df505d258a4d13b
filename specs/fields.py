"""The table of every spec key, read from the schema: for tests, documentation and ``resolve``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo

from deepinfer_gen.specs.schema import Spec
from deepinfer_gen.specs.schema_types import Section


@dataclass(frozen=True, slots=True)
class SpecField:
    """One dotted spec key.

    ``default`` is ``None`` when required or computed; ``rule`` words a computed default; ``least`` is the lowest value
    of a plain number.
    """

    key: str
    default: Any
    required: bool
    rule: str
    status: str
    engine_types: tuple[str, ...]
    unit: str
    description: str
    least: int | None

    def means_something_for(self, engine_type: str) -> bool:
        """Whether an engine of this type reads the key."""
        return engine_type in self.engine_types


@cache
def spec_fields() -> dict[str, SpecField]:
    """Every spec key, in the order of the schema."""
    return {field.key: field for field in _walk(Spec, "")}


def _walk(section: type[Section], prefix: str) -> Iterator[SpecField]:
    for name, info in section.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from _walk(info.annotation, f"{prefix}{name}.")
        else:
            yield _field(prefix + name, info)


def _field(key: str, info: FieldInfo) -> SpecField:
    extra: dict[str, Any] = dict(info.json_schema_extra)  # type: ignore[arg-type]
    return SpecField(
        key=key,
        default=None if info.is_required() else info.default,
        required=info.is_required(),
        rule=extra.get("default_rule", ""),
        status=extra["status"],
        engine_types=tuple(extra["engine_types"]),
        unit=extra["unit"],
        description=info.description or "",
        least=next((m.ge for m in info.metadata if hasattr(m, "ge")), None),
    )
