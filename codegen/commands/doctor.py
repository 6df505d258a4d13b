"""``doctor``: what this machine has and lacks for building and running engines."""

from __future__ import annotations

import argparse

from deepinfer_gen.codegen.commands.output import write_json, write_lines
from deepinfer_gen.codegen.machine import Finding, examine
from deepinfer_gen.codegen.text import columns
from deepinfer_gen.diagnostics import EXIT_BAD_INPUT, EXIT_OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``doctor``."""
    parser.add_argument("--json", action="store_true", help="print the findings as data")


def run(args: argparse.Namespace) -> int:
    """Print the findings; the status is 2 when something required is missing."""
    findings = examine()
    if args.json:
        write_json(
            [
                {"what": f.what, "found": f.found, "ok": f.ok, "required": f.required, "remedy": f.remedy}
                for f in findings
            ]
        )
    else:
        write_lines(_lines(findings))
    return EXIT_OK if all(f.ok or not f.required for f in findings) else EXIT_BAD_INPUT


def _lines(findings: list[Finding]) -> list[str]:
    words = {(True, True): "ok", (True, False): "ok", (False, True): "MISSING", (False, False): "absent"}
    lines = columns([[words[f.ok, f.required], f.what, f.found] for f in findings], "<<<", indent="")
    out: list[str] = []
    for line, finding in zip(lines, findings, strict=True):
        out.append(line)
        if not finding.ok:
            out.append(f"         {'help' if finding.required else 'optional'}: {finding.remedy}")
    missing = [f.what for f in findings if f.required and not f.ok]
    verdict = f"{len(missing)} required missing: {', '.join(missing)}" if missing else "everything required is here"
    return [*out, "", verdict]
