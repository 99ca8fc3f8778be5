"""Servers that `specbench run --launch NAME` can start: one module each, which sets ``PLUGIN``."""
