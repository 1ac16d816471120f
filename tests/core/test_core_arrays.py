"""Memory in small pages: what `np.zeros` gives, on systems with and without huge pages."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from gnomon.core.arrays import sparse_zeros


class WithoutHugePages(mmap.mmap):
    def madvise(self, *_: int) -> None:
        raise OSError(22, "Invalid argument")


@pytest.mark.parametrize("shape", [(3, 4), (0, 5), (1024, 1024)])
@pytest.mark.parametrize("memory", [mmap.mmap, WithoutHugePages])
def test_sparse_zeros(shape: tuple[int, ...], memory: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", memory)
    made = sparse_zeros(shape, np.int64)
    assert made.shape == shape and made.dtype == np.int64 and not made.any()
    made[...] = 7
    assert (made == 7).all()


def test_only_large_memory_is_mapped() -> None:
    """From four MiB on."""
    assert isinstance(sparse_zeros((1 << 20,), np.int64).base, np.ndarray)
    assert sparse_zeros((1 << 18,), np.int64).base is None
