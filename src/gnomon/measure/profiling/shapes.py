"""What to measure, as plain data: written where Gnomon is, read where the GPU is. Needs no PyTorch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shapes:
    """What to measure, as plain data (one JSON file): shapes of one rank, gathered over models and degrees."""

    dtype: str = "bf16"
    head_dim: int = 128
    gemm: list[tuple[int, int]] = field(default_factory=list)
    """(n, k), by tokens."""
    head: list[tuple[int, int]] = field(default_factory=list)
    """(n, k) of language model heads, by sequences."""
    elementwise: list[tuple[str, int]] = field(default_factory=list)
    """(operator, width)."""
    attention: list[tuple[int, int, int]] = field(default_factory=list)
    """(heads, kv_heads, head_dim)."""
    moe: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(experts, top_k, hidden, intermediate)."""
    tokens: list[int] = field(default_factory=list)
    """Token counts to measure besides those of the grid, e.g. those for which an engine captures CUDA graphs."""
    models: list[str] = field(default_factory=list)
    tensor_parallel: list[int] = field(default_factory=list)

    def split(self, parts: int) -> list[Shapes]:
        """The same shapes dealt out to several GPUs, those of each kind in turn; none is empty unless all are."""
        kinds = ("gemm", "head", "elementwise", "attention", "moe")
        found = [replace(self, **{kind: getattr(self, kind)[i::parts] for kind in kinds}) for i in range(parts)]
        return [one for one in found if any(getattr(one, kind) for kind in kinds)] or found[:1]

    @classmethod
    def read(cls, path: Path) -> Shapes:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name, value in data.items():
            if isinstance(value, list):
                data[name] = [tuple(one) if isinstance(one, list) else one for one in value]
        return cls(**data)
