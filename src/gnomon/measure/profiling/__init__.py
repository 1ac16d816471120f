"""Measures operators on a GPU and writes them in Gnomon's profile format (docs/profile-format.md).

Imports are PyTorch, Triton, NumPy and the standard library only, so that `gnomon/profiling` and `gnomon/kernels` can be
copied to a bare GPU machine and run there: `python -m gnomon.measure.profiling all --shapes shapes.json --out my-gpu`.
"""
