"""Finding one's way in C++ text: searches that skip comments and literals, matching brackets, whole statements."""

from __future__ import annotations

import re

_SKIPPED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'", re.DOTALL)
_CLOSING = {"(": ")", "{": "}", "[": "]"}


class CxxText:
    """A C++ text and a copy of equal length in which comments and literals are blank."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.code = _SKIPPED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)

    def search(self, pattern: re.Pattern[str], position: int) -> re.Match[str] | None:
        """The first match of ``pattern`` in code at or after ``position``."""
        return pattern.search(self.code, position)

    def matching(self, position: int) -> int:
        """The position of the bracket that closes the one at ``position``."""
        depth = 0
        opening, closing = self.code[position], _CLOSING[self.code[position]]
        for index in range(position, len(self.code)):
            depth += (self.code[index] == opening) - (self.code[index] == closing)
            if depth == 0:
                return index
        raise ValueError(f"'{opening}' at offset {position} is never closed")

    def statement(self, position: int) -> tuple[int, int]:
        """Start and end of the statement that begins at or after ``position``: a block, an ``if`` or up to ``;``."""
        start = position + len(self.code[position:]) - len(self.code[position:].lstrip())
        if self.code[start] == "{":
            return start, self.matching(start) + 1
        if branch := re.compile(r"if( constexpr)? \(").match(self.code, start):
            _, end = self.statement(self.matching(branch.end() - 1) + 1)
            if alternative := re.compile(r"\s*else\b").match(self.code, end):
                _, end = self.statement(alternative.end())
            return start, end
        index = start
        while self.code[index] != ";":
            index = self.matching(index) + 1 if self.code[index] in _CLOSING else index + 1
        return start, index + 1
