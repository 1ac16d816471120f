"""Named random streams of one seed.

Every draw comes from a stream named after what it decides, so that adding a new kind of randomness never
changes the draws of the others, and two runs with the same seed are identical.
"""

import zlib

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The random generator for one purpose, e.g. `stream(seed, "arrivals")` or `stream(seed, "router", 3)`."""
    key = [zlib.crc32(name.encode()) if isinstance(name, str) else int(name) for name in names]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
