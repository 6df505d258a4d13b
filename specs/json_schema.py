"""The JSON schema of a spec, for editors (``specs/schema.json``), made from the pydantic models."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from deepinfer_gen.canonical import json_text
from deepinfer_gen.specs.schema import Spec

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema. Computed defaults are described by ``default_rule`` instead of being ``null``."""
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        """Writes exact fractions as JSON numbers."""

        def encode_default(self, dft: Any) -> Any:
            return float(dft) if isinstance(dft, Fraction) else super().encode_default(dft)

    schema = Spec.model_json_schema(schema_generator=Generator)
    return {"$schema": SCHEMA_ID, **_without_null(schema)}


def schema_text() -> str:
    """The content of ``schema.json``."""
    return json_text(json_schema())


def _without_null(node: Any) -> Any:
    """Drop ``null`` as an alternative and as a default: a spec leaves a key out instead."""
    if isinstance(node, list):
        return [_without_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    result = {k: _without_null(v) for k, v in node.items() if not (k == "default" and v is None)}
    options = result.get("anyOf")
    if options is not None and {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]
        del result["anyOf"]
        result |= rest[0] if len(rest) == 1 else {"anyOf": rest}
    return result
