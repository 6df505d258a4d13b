"""Incremental detokenisation: token ids in, text out, never a part of a character.

The text of a token depends on its neighbours (spaces, bytes of one character), so each update decodes a short window
that begins at an earlier boundary and returns what is new. All pieces together equal the text of all ids at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"
_FIRST_WINDOW = 6


class IncrementalDetokenizer:
    """Text of a growing list of ids.

    ``decode`` maps ids to text. The text of the prompt is context only: it decides the space before the first word.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt_token_ids: Sequence[int]) -> None:
        self._decode = decode
        self._window: list[int] = _context(decode, prompt_token_ids)
        self._clean = len(self._window)
        self._shown = len(_complete(decode(self._window)))

    def append(self, token_ids: Sequence[int]) -> str:
        """The text that the new ids complete; the end of it is held back while it may be part of a character."""
        self._window += token_ids
        text = self._decode(self._window)
        shown = _complete(text)
        new = shown[self._shown :]
        self._shown = max(self._shown, len(shown))
        if len(shown) == len(text):
            self._advance()
        return new

    def flush(self) -> str:
        """What was held back, for the end of the text."""
        text = self._decode(self._window)
        new = text[self._shown :]
        self._shown = len(text)
        return new

    def _advance(self) -> None:
        """Begin the window at the last boundary, unless what follows it has no text of its own yet."""
        text = self._decode(self._window[self._clean :])
        if not text:
            return
        del self._window[: self._clean]
        self._clean = len(self._window)
        self._shown = len(text)


def _complete(text: str) -> str:
    """``text`` without a trailing replacement character, which may become another character with more bytes."""
    return text[:-1] if text.endswith(UNFINISHED) else text


def _context(decode: Callable[[Sequence[int]], str], prompt_token_ids: Sequence[int]) -> list[int]:
    """The last ids of the prompt, enough of them to have text if the prompt has any."""
    size = _FIRST_WINDOW
    while True:
        window = list(prompt_token_ids[-size:])
        if size >= len(prompt_token_ids) or decode(window):
            return window
        size *= 2
