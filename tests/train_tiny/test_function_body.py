"""Where a function's body ends, on cases written by hand, and what is counted in it."""

from __future__ import annotations

import pytest
from function_body import End, Statements, count_statements, cut_at_dedent, indentation

METHOD = "    def f(self):"
CUTS = {
    "the next function": ("def f():", "\n    return 1\n", "\ndef g():\n    pass\n"),
    "the next method": (METHOD, "\n        return 1\n", "\n    def g(self):\n"),
    "a line further out than the head": (METHOD, "\n        return 1\n", "x = 1\n"),
    "blank lines inside": ("def f():", "\n    a = 1\n\n   \n    b = 2\n", "\n\nx = 1\n"),
    "comments at column 0 inside": ("def f():", "\n    a = 1\n# b = 3\n    b = 2\n", "x = 1\n"),
    "comments behind the last statement": ("def f():", "\n    a = 1\n", "\n# ---\n    # more\n\nx = 1\n"),
    "a comment first": ("def f():", "  # why\n    # and how\n    a = 1\n", "# next\nx = 1\n"),
    "a string with newlines": ("def f():", '\n    """Text\nat column 0 # "\n"""\n    a = 1\n', "x = 1\n"),
    "a quote in a string": ("def f():", "\n    a = '\\'\"\"\"'\n", "x = 1\n"),
    "three quotes in a comment": ("def f():", "\n    a = 1  # '''\n", "x = 1\n"),
    "a string that looks like a comment": ("def f():", "\n    a = '''\n# '''\n", "x = 1\n"),
    "a string that a backslash carries on": ("def f():", "\n    a = 'b\\\nc'\n", "x = 1\n"),
    "a string that its line ends": ("def f():", "\n    a = 'b\n", "x = 1\n"),
    "a raw string": ("def f():", "\n    a = r'\\'\n    b = 1'\n", "x = 1\n"),
    "brackets": ("def f():", "\n    a = [\n1, (\n2)\n]\n", "x = 1\n"),
    "a bracket in a string": ("def f():", "\n    a = '('\n", "x = 1\n"),
    "a bracket too many": ("def f():", "\n    a = 1)\n", "x = (1\n"),
    "a joined line": ("def f():", "\n    a = 1 + \\\n2\n", "x = 1\n"),
    "tabs": ("\tdef f():", "\n\t\ta = 1\n", "\tdef g():\n"),
    "a tab is eight columns": ("       def f():", "\n\ta = 1\n", "       x = 1\n"),
    "a decorator of the next": (METHOD, "\n        return 1\n", "\n    @property\n    def g(self):\n"),
    "a decorator inside": ("def f():", "\n    @g\n    def h():\n        pass\n    return h\n", "@g\ndef i(): pass\n"),
    "the head's own decorator": ("@g\ndef f():", "\n    return 1\n", "x = 1\n"),
    "a head of several lines": ("    def f(\n        self,\n    ):", "\n        return 1\n", "    x = 1\n"),
    "one line": ("def f():", " return 1\n", "x = 1\n"),
    "nothing": ("def f():", "", "\nx = 1\n"),
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("finished", [True, False])
def test_the_body_ends_at_the_dedent(name: str, finished: bool) -> None:
    head, body, rest = CUTS[name]
    assert cut_at_dedent(head, body + rest, finished=finished) == (body, End.DEDENT)


def test_without_a_dedent_the_end_of_the_text_or_the_last_whole_line_ends_it() -> None:
    text = "\n    a = 1\n    b = fun"
    assert cut_at_dedent("def f():", text, finished=True) == (text, End.EOS)
    assert cut_at_dedent("def f():", text, finished=False) == ("\n    a = 1\n", End.LIMIT)
    assert cut_at_dedent("def f():", "\n    '''open\nx = 1\n", finished=False)[1] is End.LIMIT
    assert cut_at_dedent("def f():", "", finished=True) == ("", End.EOS)


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ("def f():", "\n    a = 1\n    return a\n", Statements(2, 2)),
        ("def f():", '\n    """Doc."""\n    return 1\n', Statements(1, 2)),
        (METHOD, "\n        for x in y:\n            if x:\n                a\n        return 2\n", Statements(4, 2)),
        (METHOD, '\n        """Doc\nat column 0."""\n        return 1\n', Statements(1, 2)),
        ("\tdef f():", "\n\t\ta = 1\n\t\treturn a\n", Statements(2, 2)),
        ("    async def f(self):", "\n        await g()\n", Statements(1, 1)),
        ("def f():", "\n    def g():\n        'Inner.'\n        pass\n    return g\n", Statements(3, 2)),
        ("@g\ndef f():", " return 1", Statements(1, 1)),
        ("def f():", "\n    a = (\n", None),
        ("def f():", "\n", None),
        ("def f():", "\n    a = 1\n  b = 2\n", None),
        ("def f():", "\n    a = '\0'\n", None),
        ("def f():", "\n    pass\nx = 1\n", None),
    ],
)  # fmt: skip
def test_statements_are_counted_where_it_parses(head: str, body: str, expected: Statements | None) -> None:
    assert count_statements(head, body) == expected


def test_indentation_counts_columns() -> None:
    assert [indentation(line) for line in ("a", "  a", "\ta", "   \ta", "\t a", "\f  a")] == [0, 2, 8, 8, 9, 3]
