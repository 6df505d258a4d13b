"""The attribution that goes with a model trained on Python's library."""

from __future__ import annotations

from pathlib import Path

_NOTICE = """\
The weights and the tokenizer of this model were trained on the sources of the standard library (with its test suite)
and on the documentation topics of pydoc, both of CPython {version}. They contain no file of it, but text that the model
completes can resemble it.

CPython: Copyright (c) 2001 and later, Python Software Foundation; All Rights Reserved (LICENSE.python has the years).
Copyright (c) 2000 BeOpen.com. All rights reserved. Copyright (c) 1995-2001 Corporation for National Research
Initiatives. All Rights Reserved. Copyright (c) 1991-1995 Stichting Mathematisch Centrum. All Rights Reserved.

It is used under the PSF License Agreement (Python Software Foundation License Version 2), whose text, with those of the
earlier licences that it builds on, stands in LICENSE.python beside this file, as CPython {version} carries it. Some
modules carry notices and permissions of their own authors; "Licenses and Acknowledgements for Incorporated Software" in
Python's documentation (https://docs.python.org/3/license.html) has them.
`python tools/train_tiny data` in the source repository says which files were read.
"""


def notice(version: str) -> str:
    """The attribution for a Python of ``version``."""
    return _NOTICE.format(version=version)


def licence_text(library: Path) -> str:
    """The licence that the installation of ``library`` carries, where ``license()`` looks for it too.

    Raises ``FileNotFoundError`` for an installation without: its sources must not be taken without their licence.
    """
    for folder in (library, library.parent):
        for name in ("LICENSE.txt", "LICENSE"):
            if (folder / name).is_file():
                return (folder / name).read_text(encoding="utf-8")
    raise FileNotFoundError(f"{library} has no LICENSE.txt; run this with a Python that carries its licence")
