"""The command line: one table of commands, each in its own module that is imported when the command is called.

Exit statuses: 0 fine, 1 different or drifted, 2 bad input, 3 internal fault, 4 a request failed; 130 after Ctrl-C and
141 when the reader of stdout went away, as shells expect.
"""

from __future__ import annotations

import argparse
import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from deepinfer_gen.diagnostics import EXIT_BAD_INPUT, EXIT_INTERNAL, Diagnostic, InputError, render_diagnostics

PROG = "deepinfer-gen"
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_MACHINE_FAULTS = {
    errno.ENOSPC: "make room on the disk, or choose another place (-o, DEEPINFER_CACHE_DIR, TMPDIR)",
    errno.EDQUOT: "make room in your quota, or choose another place (-o, DEEPINFER_CACHE_DIR, TMPDIR)",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOMEM: "free memory, or raise the limit (ulimit -v)",
    errno.EIO: "check the disk",
}
"""Faults of the machine that Python often reports without a file name, and their remedies."""
ERROR_FORMATS = ("text", "json", "github")
OBJECTS_BETWEEN_COLLECTIONS = 100_000


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table. ``name`` is empty for the default command, which takes a spec and generates."""

    name: str
    module: str
    summary: str
    examples: tuple[str, ...]
    exits: str = "0, 2"

    @property
    def prog(self) -> str:
        """How the command is called, without its arguments."""
        return f"{PROG} {self.name}".rstrip()


_HERE = "deepinfer_gen.codegen.commands"
GENERATE = Command(
    "",
    f"{_HERE}.generate",
    "validate a spec, plan it, write the folder PARENT/<name>/ and build its engine",
    ("deepinfer-gen specs/tiny-cpu.yaml", "deepinfer-gen tiny-cpu -o engines --no-build"),
)
COMMANDS = (
    Command("plan", f"{_HERE}.plan", "show what a spec comes to: memory per rank, caches, graphs",
            ("deepinfer-gen plan v41-flash-decode-ep64", "deepinfer-gen plan my.yaml --json")),
    Command("explain", f"{_HERE}.explain", "show where a value comes from, down to the spec's line",
            ("deepinfer-gen explain tiny-cpu kv.bytes_per_token --depth 2",
             "deepinfer-gen explain tiny-cpu 'state.*'")),
    Command("fit", f"{_HERE}.fit", "what fits in memory, and which limit binds",
            ("deepinfer-gen fit v41-flash-decode-ep64 --set limits.max_num_seqs=256",)),
    Command("check", f"{_HERE}.check", "compare generated folders with what their specs give now",
            ("deepinfer-gen check specs/*.yaml -o generated",), "0, 1 drift, 2"),
    Command("diff", f"{_HERE}.diff", "compare two specs or generated folders by meaning",
            ("deepinfer-gen diff generated/tiny-cpu my.yaml",), "0, 1 different, 2"),
    Command("draw", f"{_HERE}.draw", "draw the state slot and a KV block",
            ("deepinfer-gen draw v41-flash-decode-ep64", "deepinfer-gen draw my.yaml -o layout.svg")),
    Command("flatten", f"{_HERE}.flatten", "print the specialised scheduler as one readable source",
            ("deepinfer-gen flatten tiny-cpu > scheduler_flat.cpp",)),
    Command("init", f"{_HERE}.init", "write a commented spec to start from",
            ("deepinfer-gen init my.yaml --model deepseek-v4.1-flash --hardware sm100",)),
    Command("schema", f"{_HERE}.schema", "print the JSON schema of specs, for editors",
            ("deepinfer-gen schema > schema.json",)),
    Command("doctor", f"{_HERE}.doctor", "say what this machine lacks, and the remedy",
            ("deepinfer-gen doctor",)),
    Command("build", f"{_HERE}.build", "build the engine of a generated folder",
            ("deepinfer-gen build generated/tiny-cpu",)),
    Command("clean", f"{_HERE}.clean", "remove built engines from the cache",
            ("deepinfer-gen clean --dry-run",)),
    Command("weights", f"{_HERE}.weights", "list the tensors that a model config demands",
            ("deepinfer-gen weights deepseek-v4.1-flash", "deepinfer-gen weights folder/config.json --json")),
    Command("simulate", f"{_HERE}.simulate", "run the scheduler of a whole group against a modelled device",
            ("deepinfer-gen simulate generated/tiny-cpu --workload workload.jsonl --trace trace.jsonl",),
            "0, 2, 4 a step broke a rule"),
    Command("run", "deepinfer_gen.runtime.cli_run", "generate text with an engine",
            ('deepinfer-gen run generated/tiny-cpu --prompt "class Queue:" --temperature 0',),
            "0, 2, 4 a request failed"),
)  # fmt: skip


class Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors are diagnostics like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise the fault as ``InputError`` in place of printing and exiting."""
        usage = " ".join(self.format_usage().split())
        raise InputError(Diagnostic("DI250", f"{self.prog}: {message}", help=f"{usage}; {self.prog} --help says more"))


def process() -> NoReturn:
    """The command line as a process of its own: ``main`` and the end of the interpreter.

    Nearly all that a command makes it keeps until its end, so collections on the way and at the end find nothing and
    take a tenth of the time. Plugins of pydantic are left out: what a spec means depends on nothing else installed.
    """
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    status = main()
    gc.freeze()
    sys.exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; ``argv`` defaults to the process's arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    common = argparse.Namespace(error_format="text", debug=False)
    _open_closed_streams()
    try:
        common, rest = _split_common(arguments)
        status = _dispatch(common, rest)
        sys.stdout.flush()
    except InputError as fault:
        return _report(fault.diagnostics, common.error_format, EXIT_BAD_INPUT)
    except BrokenPipeError:
        _drop_unwritable_output()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        sys.stderr.write(f"{PROG}: interrupted\n")
        return EXIT_INTERRUPTED
    except Exception as fault:
        if common.debug:
            raise
        if isinstance(fault, OSError) and (fault.filename is not None or fault.errno in _MACHINE_FAULTS):
            _drop_unwritable_output()
            return _report([_file_fault(fault)], common.error_format, EXIT_BAD_INPUT)
        return _report([_internal_fault(fault, arguments)], common.error_format, EXIT_INTERNAL)
    return status


def _drop_unwritable_output() -> None:
    """The interpreter flushes stdout once more at exit and would end with a status of its own if that failed."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed_streams() -> None:
    """A standard stream that the caller closed is None in Python; what is written to it is then dropped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _dispatch(common: argparse.Namespace, rest: list[str]) -> int:
    if not rest:
        names = ", ".join(c.name for c in COMMANDS)
        raise InputError(Diagnostic("DI251", "no spec and no command given", help=f"{PROG} SPEC, or one of {names}"))
    if rest[0] in ("-h", "--help"):
        sys.stdout.write(_main_help() + "\n")
        return 0
    if rest[0] == "--version":
        sys.stdout.write(f"{PROG} {tool_version()}\n")
        return 0
    command = _command_of(rest)
    parser, run = _load(command)
    arguments = rest[1:] if command.name else rest
    if "-h" in arguments or "--help" in arguments:
        sys.stdout.write(parser.format_help() + "\n")
        return 0
    known, extra = parser.parse_known_args(arguments, argparse.Namespace(**vars(common)))
    if extra:
        _refuse_extra(parser, command, extra)
    return run(known)


def _split_common(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Take the options that every command has, wherever they stand, before the command is known."""
    parser = Parser(prog=PROG, add_help=False, allow_abbrev=False, usage=f"{PROG} [--error-format FORMAT] [--debug] …")
    _add_common(parser)
    return parser.parse_known_args(arguments)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--error-format", choices=ERROR_FORMATS, default="text", help="how errors are written to stderr (default: text)"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an internal fault")


def _command_of(rest: list[str]) -> Command:
    """The command that the first argument names; the default command when it is an option or looks like a spec."""
    first = rest[0]
    for command in COMMANDS:
        if command.name == first:
            if len(rest) == 1 and os.path.isfile(first):
                text = f"'{first}' is a command, and also a file here"
                raise InputError(Diagnostic("DI252", text, help=f"write {PROG} ./{first} to generate from the file"))
            return command
    if first.startswith("-") or os.sep in first or "." in first or os.path.exists(first):
        return GENERATE
    from deepinfer_gen.specs.presets import shipped_specs

    shipped = shipped_specs()
    if first in shipped:
        return GENERATE
    names = [c.name for c in COMMANDS]
    text = f"'{first}' is neither a command nor a spec"
    hint = did_you_mean(first, [*names, *shipped]) or f"commands are {', '.join(names)}; a spec is a YAML file"
    raise InputError(Diagnostic("DI253", text, help=hint))


def _load(command: Command) -> tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]:
    from importlib import import_module

    module = import_module(command.module)
    parser = Parser(
        prog=command.prog,
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog="\n".join(["example:", *(f"  {e}" for e in command.examples), "", f"exit status: {command.exits}"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    _add_common(parser)
    return parser, module.run


def _main_help() -> str:
    parser, _ = _load(GENERATE)
    width = max(len(c.name) for c in COMMANDS) + 2
    parser.usage = f"{PROG} SPEC [-o PARENT] [--no-build] [--standalone] [--force]\n       {PROG} COMMAND …"
    parser.description = "A compiler from a deployment spec to one specialised LLM inference engine."
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.epilog = "\n".join(
        [
            f"commands ({PROG} COMMAND --help says more):",
            *(f"  {c.name:<{width}}{c.summary}" for c in COMMANDS),
            "",
            "example:",
            *(f"  {e}" for e in (*GENERATE.examples[:1], *COMMANDS[-1].examples)),
            "",
            "exit status: 0 fine, 1 different or drifted, 2 bad input, 3 internal fault, 4 a request failed",
        ]
    )
    return parser.format_help()


def _refuse_extra(parser: argparse.ArgumentParser, command: Command, extra: list[str]) -> NoReturn:
    options = [o for action in parser._actions for o in action.option_strings if o.startswith("--")]
    unknown = [e.split("=")[0] for e in extra if e.startswith("-")] or extra
    noun = "option" if unknown[0].startswith("-") else "argument"
    hint = did_you_mean(unknown[0], options) if noun == "option" else ""
    usage = " ".join(parser.format_usage().split())
    text = f"{command.prog} knows no {noun} {', '.join(repr(u) for u in unknown)}"
    raise InputError(Diagnostic("DI254", text, help=hint or usage))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """``did you mean 'x'?`` for the closest of ``known``, or the empty text when none is close."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""


def tool_version() -> str:
    """The installed version of deepinfer-gen."""
    from importlib.metadata import version

    return version("deepinfer-gen")


def _file_fault(fault: OSError) -> Diagnostic:
    if fault.errno in _MACHINE_FAULTS:
        where = f"{os.fsdecode(fault.filename)}: " if fault.filename is not None else "a file cannot be written: "
        return Diagnostic("DI256", f"{where}{fault.strerror}", help=_MACHINE_FAULTS[fault.errno])
    name = os.fsdecode(fault.filename)
    return Diagnostic(
        "DI255", f"{name}: {fault.strerror}", help="check that the path exists and that you may read and write it"
    )


def _internal_fault(fault: Exception, arguments: Sequence[str]) -> Diagnostic:
    text = " ".join(str(fault).split()) or "no message"
    return Diagnostic(
        "DI299",
        f"internal fault: {type(fault).__name__}: {text}",
        help=f"this is a bug; report it with the spec and the output of: {PROG} {' '.join(arguments)} --debug",
    )


def _report(diagnostics: Sequence[Diagnostic], error_format: str, status: int) -> int:
    sys.stderr.write(render_diagnostics(diagnostics, error_format) + "\n")
    return status


if __name__ == "__main__":
    process()
