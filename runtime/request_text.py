"""The text of one request: detokenised ids, cut at a stop string, with what may still be cut held back."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_gen.runtime.detokenizer import IncrementalDetokenizer
from deepinfer_gen.runtime.stop_strings import find_stop, held_back


class RequestText:
    """Text of a request so far. Without stop strings ids are buffered and decoded only when the text is read."""

    def __init__(self, detokenizer: IncrementalDetokenizer, stops: Sequence[str], *, include_stop: bool) -> None:
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._buffered: list[int] = []
        self._text = ""
        self._stopped = False

    def append(self, token_id: int, *, stoppable: bool) -> str | None:
        """Take one id; returns the stop string that its text completes, if ``stoppable``, and cuts the text there."""
        if not self._stops:
            self._buffered.append(token_id)
            return None
        before = len(self._text)
        self._text += self._detokenizer.append([token_id])
        match = find_stop(self._text, self._stops, before) if stoppable else None
        if match is None:
            return None
        self._text = self._text[: match.end if self._include_stop else match.start]
        self._stopped = True
        return match.stop

    def read(self, *, final: bool) -> str:
        """All text that is certain; with ``final`` also what was held back."""
        if self._buffered:
            self._text += self._detokenizer.append(self._buffered)
            self._buffered.clear()
        if self._stopped:
            return self._text
        if final:
            self._text += self._detokenizer.flush()
            return self._text
        return self._text[: len(self._text) - held_back(self._text, self._stops)]
