"""``deepinfer-gen run ENGINE``: offline generation from the command line.

Results go to standard output, everything else to standard error. Nothing heavy is imported before the arguments are
known to be right.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from deepinfer_gen.diagnostics import EXIT_OK, EXIT_REQUEST_FAILED, Diagnostic, InputError

if TYPE_CHECKING:
    from deepinfer_gen.runtime.llm import LLM
    from deepinfer_gen.runtime.outputs import RequestOutput
    from deepinfer_gen.runtime.sampling_params import SamplingParams

_FAILED = ("abort", "error")
_FIRST_REQUEST = 1  # a new LLM numbers its requests from here on
_SAMPLING_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("temperature", float, "randomness; 0 takes the most likely token"),
    ("top_p", float, "sample from the most likely tokens that hold this probability"),
    ("top_k", int, "sample from this many most likely tokens"),
    ("min_p", float, "least probability, relative to the most likely token"),
    ("seed", int, "seed of the random numbers"),
    ("max_tokens", int, "tokens to generate at most"),
    ("min_tokens", int, "tokens before which no end token is taken"),
    ("logprobs", int, "log probabilities of this many alternatives a token (with --json)"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``run``; the sampling flags have vLLM's names and defaults."""
    parser.add_argument("engine", metavar="ENGINE", help="generated folder, or its name below ./generated")
    parser.add_argument("--model", metavar="FOLDER", help="checkpoint (default: the one that ships with the preset)")
    # One list keeps the order in which prompts of both kinds were given.
    parser.add_argument(
        "--prompt",
        dest="prompts",
        metavar="T",
        action="append",
        type=_text_prompt,
        default=[],
        help="a text; repeatable",
    )
    parser.add_argument(
        "--prompt-ids",
        dest="prompts",
        metavar="1,2,3",
        action="append",
        type=_id_prompt,
        help="token ids, taken as they are; repeatable",
    )
    parser.add_argument("--file", metavar="F", type=Path, help="file with one prompt per line, behind the others")
    for name, kind, text in _SAMPLING_FLAGS:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="X", type=kind, help=text)
    parser.add_argument("--stop", metavar="T", action="append", help="text that ends the output; repeatable")
    parser.add_argument("--stop-token-ids", metavar="1,2,3", type=_token_ids, help="token ids that end the output")
    parser.add_argument("--ignore-eos", action="store_true", help="go on behind the end token")
    parser.add_argument("--include-stop-str-in-output", action="store_true", help="keep the stop text in the output")
    parser.add_argument("--json", action="store_true", help="one JSON line per request, in input order")
    parser.add_argument("--trace", metavar="F", type=Path, help="write one JSON event per engine step to this file")


def run(args: argparse.Namespace) -> int:
    """Generate and print; 0, or 4 if a request failed. Raises ``InputError`` for bad input."""
    prompts = [*args.prompts, *_file_prompts(args.file)]
    if not prompts:
        raise InputError(Diagnostic("DI320", "there is no prompt", help="give --prompt, --prompt-ids or --file"))
    from deepinfer_gen.runtime.folders import engine_folder, read_plan
    from deepinfer_gen.runtime.mechanisms import refuse_unbuilt

    plan = read_plan(engine_folder(args.engine))
    refuse_unbuilt(plan.name, plan.values)
    params = _sampling_params(args)
    from deepinfer_gen.runtime.llm import LLM
    from deepinfer_gen.runtime.sampling_params import ParameterError

    with _trace_file(args.trace) as trace, LLM(args.model, engine=args.engine, trace=trace) as llm:
        try:
            if args.json:
                return _print_json(llm.generate(prompts, params, use_tqdm=False))
            return _print_text(llm, prompts, params)
        except ParameterError as fault:
            raise InputError(Diagnostic("DI322", str(fault))) from fault


def _text_prompt(text: str) -> dict[str, Any]:
    return {"prompt": text}


def _id_prompt(text: str) -> dict[str, Any]:
    return {"prompt_token_ids": _token_ids(text)}


def _token_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of token ids like 1,2,3") from None


def _file_prompts(path: Path | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(Diagnostic("DI321", f"the prompt file cannot be read: {fault}", file=str(path))) from fault
    return [_text_prompt(line) for line in lines if line.strip()]


def _sampling_params(args: argparse.Namespace) -> SamplingParams:
    from deepinfer_gen.runtime.sampling_params import ParameterError, SamplingParams

    given = {name: getattr(args, name) for name, _, _ in _SAMPLING_FLAGS if getattr(args, name) is not None}
    try:
        return SamplingParams(
            stop=args.stop,
            stop_token_ids=args.stop_token_ids,
            ignore_eos=args.ignore_eos,
            include_stop_str_in_output=args.include_stop_str_in_output,
            **given,
        )
    except ParameterError as fault:
        flag = "--" + fault.parameter.replace("_", "-")
        raise InputError(Diagnostic("DI322", f"{flag}: {fault}")) from fault


@contextmanager
def _trace_file(path: Path | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    with path.open("w", encoding="utf-8") as stream:
        yield stream


def _print_json(outputs: list[RequestOutput]) -> int:
    for output in outputs:
        completion = output.outputs[0]
        line: dict[str, Any] = {
            "request_id": output.request_id,
            "prompt": output.prompt,
            "prompt_token_ids": output.prompt_token_ids,
            "token_ids": completion.token_ids,
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
            "metrics": asdict(output.metrics),
        }
        if completion.logprobs is not None:
            line["logprobs"] = [{i: asdict(p) for i, p in position.items()} for position in completion.logprobs]
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
    return _status(outputs)


def _print_text(llm: LLM, prompts: list[dict[str, Any]], params: SamplingParams) -> int:
    """Prompt and completion of each request; on a terminal the first unfinished one is shown as it comes."""
    printer = _Printer(llm, sys.stdout, live=sys.stdout.isatty())
    last: list[RequestOutput] = []
    for output in llm.stream(prompts, params):
        printer.take(output)
        if output.finished:
            last.append(output)
    return _status(last)


class _Printer:
    """Prints interleaved pieces of several requests one request after the other, in input order."""

    def __init__(self, llm: LLM, stream: TextIO, *, live: bool) -> None:
        self._llm = llm
        self._stream = stream
        self._live = live
        self._pieces: dict[int, list[str]] = {}
        self._ended: set[int] = set()
        self._current = _FIRST_REQUEST

    def take(self, output: RequestOutput) -> None:
        """Take one piece and print what is due."""
        number = int(output.request_id)
        if number not in self._pieces:
            self._pieces[number] = [self._prompt_text(output)]
        self._pieces[number].append(output.outputs[0].text)
        if output.finished:
            self._ended.add(number)
        while self._print_current():
            self._current += 1

    def _print_current(self) -> bool:
        """Print what is known of the current request; True when it is complete."""
        ended = self._current in self._ended
        if ended or (self._live and self._current in self._pieces):
            self._stream.write("".join(self._pieces[self._current]) + "\n" * ended)
            self._stream.flush()
            self._pieces[self._current].clear()
        return ended

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return self._llm.get_tokenizer().decode(output.prompt_token_ids or [], skip_special_tokens=True)


def _status(outputs: list[RequestOutput]) -> int:
    failed = [o for o in outputs if o.outputs[0].finish_reason in _FAILED]
    for output in failed:
        completion = output.outputs[0]
        reason = completion.stop_reason or completion.finish_reason
        sys.stderr.write(f"request {output.request_id} failed: {reason}\n")
    return EXIT_REQUEST_FAILED if failed else EXIT_OK
