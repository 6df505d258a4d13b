"""Operators behind names: a reference in torch for each, selected by the generated kernel table."""
