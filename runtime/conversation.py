"""Chat messages in vLLM's forms, made plain for a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer_gen.runtime.sampling_params import ParameterError

Message = Mapping[str, Any]


def parse_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[list[dict[str, Any]]]:
    """One conversation or a list of them; a message's content is text or a list of text parts."""
    conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
    return [[_plain(message) for message in conversation] for conversation in conversations]  # type: ignore[arg-type]


def _plain(message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ParameterError("a chat message needs a role.", parameter="messages", value=message)
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return dict(message)
    others = [part for part in content if not isinstance(part, Mapping) or part.get("type") != "text"]
    if others:
        raise ParameterError("chat messages take text only in this engine.", parameter="messages", value=others[0])
    return {**message, "content": "\n".join(part["text"] for part in content)}
