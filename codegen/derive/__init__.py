"""Derivation of the Plan: one module per subject, each a pure function of the resolved spec."""
