"""Chat templates: a conversation becomes the prompt text the checkpoint was trained on.

Templates come with a checkpoint, so they run in jinja2's sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from deepinfer_gen.diagnostics import Diagnostic, InputError

_FINAL_MARK = "\ue000final message\ue001"


def render_chat(
    template: str | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: Mapping[str, Any],
) -> str:
    """Render ``messages``; raises ``InputError`` (DI312 no template, DI313 the template or its arguments failed).

    With ``continue_final_message`` the text ends inside the last message, so that generation continues it.
    """
    if template is None:
        raise InputError(
            Diagnostic(
                "DI312",
                "the checkpoint has no chat template",
                help="pass chat_template=..., or render the conversation yourself and call generate()",
            )
        )
    if continue_final_message:
        if add_generation_prompt or not messages:
            raise _fault("continue_final_message needs a last message and add_generation_prompt=False")
        last = messages[-1]
        messages = [*messages[:-1], {**last, "content": str(last.get("content", "")) + _FINAL_MARK}]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        text = environment.from_string(template).render(
            messages=messages, add_generation_prompt=add_generation_prompt, **variables
        )
    except TemplateError as fault:
        raise _fault(f"the chat template failed: {fault}") from fault
    if not continue_final_message:
        return text
    if _FINAL_MARK not in text:
        raise _fault("the chat template does not keep the end of the last message, so it cannot be continued")
    return text[: text.rindex(_FINAL_MARK)]


def _to_json(value: Any, indent: int | None = None) -> str:
    """Plain JSON; jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _fault(message: str) -> InputError:
    return InputError(Diagnostic("DI313", message))
