"""A minimal SVG writer: whole-pixel shapes and text in document order, so that equal pictures are equal bytes."""

from __future__ import annotations

from collections.abc import Sequence

FONT = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
INK = "#1f2933"
_GLYPH = 0.56  # mean glyph width of the font stack, in em; only decides whether a label fits


def text_width(text: str, size: int) -> int:
    """Estimated width of ``text`` in pixels, rounded up."""
    return int(len(text) * size * _GLYPH) + 1


class Canvas:
    """Collects SVG elements; ``svg`` closes the document."""

    def __init__(self, width: int, title: str) -> None:
        self._width = width
        self._title = title
        self._parts: list[str] = []

    def rect(
        self,
        x: int,
        y: int,
        width: int,
        height: int,
        fill: str,
        *,
        stroke: str = "none",
        weight: int = 1,
        tip: str = "",
    ) -> None:
        """A rectangle; ``tip`` shows when the pointer rests on it."""
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="{stroke}"'
            f' stroke-width="{weight}">{inside}</rect>'
        )

    def line(self, x1: int, y1: int, x2: int, y2: int, stroke: str, *, weight: int = 1) -> None:
        """A straight line."""
        self._parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" stroke-width="{weight}"/>')

    def polyline(self, points: Sequence[tuple[int, int]], stroke: str, *, weight: int = 1) -> None:
        """A line through ``points``."""
        text = " ".join(f"{x},{y}" for x, y in points)
        self._parts.append(
            f'<polyline points="{text}" fill="none" stroke="{stroke}" stroke-width="{weight}" stroke-linejoin="round"/>'
        )

    def polygon(self, points: Sequence[tuple[int, int]], fill: str) -> None:
        """A filled area without outline."""
        text = " ".join(f"{x},{y}" for x, y in points)
        self._parts.append(f'<polygon points="{text}" fill="{fill}"/>')

    def text(
        self,
        x: int,
        y: int,
        text: str,
        *,
        size: int = 12,
        fill: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Text with its baseline at ``y``; ``anchor`` is ``start``, ``middle`` or ``end``."""
        style = f'font-size="{size}" fill="{fill}" text-anchor="{anchor}"' + (' font-weight="600"' if bold else "")
        self._parts.append(f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>')

    def break_mark(self, x: int, y: int, paper: str, ink: str) -> None:
        """Two slanted strokes across the edge at ``y``: what stands here is wider than its share."""
        self.polygon([(x - 4, y + 4), (x, y - 4), (x + 4, y - 4), (x, y + 4)], paper)
        self.line(x - 4, y + 4, x, y - 4, ink)
        self.line(x, y + 4, x + 4, y - 4, ink)

    def svg(self, height: int, paper: str, hatch: str) -> str:
        """The document; ``hatch`` is the colour of the pattern ``url(#gap)``."""
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self._width}" height="{height}"'
            f' viewBox="0 0 {self._width} {height}" role="img" font-family="{FONT}">',
            f"<title>{escape(self._title)}</title>",
            '<defs><pattern id="gap" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<rect width="6" height="6" fill="{paper}"/><line x1="0" y1="0" x2="0" y2="6" stroke="{hatch}"'
            ' stroke-width="3"/></pattern></defs>',
            f'<rect width="{self._width}" height="{height}" fill="{paper}"/>',
        ]
        return "\n".join([*head, *self._parts, "</svg>"]) + "\n"


def escape(text: str) -> str:
    """Text for XML content and attributes."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
