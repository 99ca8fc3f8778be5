"""Triton twins of the operations in specbench.kernels: same names, same meaning, one operation a file.

A module here imports triton at its top and is itself imported only by the public operation, once
`specbench.kernels.dispatch.uses_triton` said so. It may list `VARIANTS` for `make kernels`, see `variant.py`.
"""
