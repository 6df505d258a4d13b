"""Deployment specs: schema, loading with positions, model configs, hardware tables, and the shipped specs."""
