"""A compact real serving engine to be held against. Imports PyTorch, Triton, NumPy and the standard library only."""
