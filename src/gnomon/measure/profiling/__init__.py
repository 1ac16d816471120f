"""Measures operators on a GPU and writes them in Gnomon's profile format (docs/profile-format.md).

Imports are PyTorch, Triton, NumPy and the standard library only, so that the folder `gnomon/measure` can be copied to a
bare GPU machine and run there: `python -m gnomon.measure.profiling all --shapes shapes.json --out my-gpu`.
"""
