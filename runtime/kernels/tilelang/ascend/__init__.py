"""Kernel bodies in the Ascend dialect, lowered to AscendC; compiling and running them needs CANN and an Ascend 950.

That dialect is another language than the one of ``dialect``: a one-dimensional grid, and every parallel loop inside a
vector function (``SimtVF`` for gathers, ``SimdVF`` for whole vectors). So a body here has a file of its own.
"""
