"""The GPU kernels that the reference engine runs and the profiler measures: the same code in both.

Only PyTorch, Triton and NumPy are imported here. On a CPU every kernel falls back to a plain PyTorch version
(`gnomon.measure.kernels.plain`), which is also what the Triton versions are tested against.
"""
