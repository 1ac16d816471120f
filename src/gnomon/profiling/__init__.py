"""Measures operators on a GPU. Imports PyTorch, Triton, NumPy and the standard library only."""
