"""The two JSON forms of this product: the text that is written to files and the bytes that are digested."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from deepinfer_gen.formula import Value


def plain(value: Value) -> Any:
    """The JSON form of a value: tuples become lists, fractions the text ``6/5``."""
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Fraction) else value


def json_text(content: Any) -> str:
    """The file form: sorted keys, two-space indent, UTF-8, one final line feed."""
    return _indented(content, "\n") + "\n"


_encode = json.JSONEncoder(ensure_ascii=False).encode


def _indented(value: Any, line_break: str) -> str:
    """``value`` as ``json.dumps`` indents it, which its compiled encoder cannot do and its other one does slowly.

    ``line_break`` is a line feed and the margin of the line on which ``value`` begins.
    """
    inner = line_break + "  "
    if isinstance(value, dict) and value:
        items = [f"{_encode(key)}: {_indented(item, inner)}" for key, item in sorted(value.items())]
        return "{" + inner + f",{inner}".join(items) + line_break + "}"
    if isinstance(value, list | tuple) and value:
        return "[" + inner + f",{inner}".join([_indented(item, inner) for item in value]) + line_break + "]"
    return str(value) if type(value) is int else _encode(value)


def digest_json(content: Any) -> str:
    """sha256 of the digested form: sorted keys, no spaces, UTF-8."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest_bytes(text.encode())


def digest_bytes(content: bytes) -> str:
    """sha256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digest_table(digests: Mapping[str, str]) -> str:
    """sha256 over ``name digest`` lines in name order: one digest for a set of named digests."""
    return digest_bytes("".join(f"{name} {digest}\n" for name, digest in sorted(digests.items())).encode())


def digest_plan(values: Mapping[str, tuple[Any, str]]) -> str:
    """The plan digest: over value (in its JSON form) and unit of every Plan key, so not over lines and reasons."""
    return digest_json(values)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` with a ``digest`` key over everything else in it."""
    body = {k: v for k, v in content.items() if k != "digest"}
    return {**body, "digest": digest_json(body)}


def parse_sealed(text: bytes) -> dict[str, Any]:
    """Parse a sealed JSON file; ``ValueError`` says what is wrong with its bytes.

    Only the canonical bytes of a content with the right digest are accepted, so that any changed bit is found, white
    space included.
    """
    try:
        content = json.loads(text.decode())
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"is not valid JSON ({fault})") from fault
    if not isinstance(content, dict) or "digest" not in content:
        raise ValueError("has no digest of its own")
    if sealed(content)["digest"] != content["digest"]:
        raise ValueError("differs from its own digest")
    if json_text(content).encode() != text:
        raise ValueError("is not in canonical form")
    return content
