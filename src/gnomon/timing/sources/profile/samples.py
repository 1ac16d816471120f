"""The one in-memory form of measurements: what was measured, at which sizes, how long it took."""

from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from gnomon.catalog.nodes import Node
from gnomon.core.arrays import Floats
from gnomon.core.text import own_yaml
from gnomon.timing import operators
from gnomon.timing.host import HostConfig

Key = tuple[str | int, ...]  # A name of the operator graph, ("name", ...), or a shape, e.g. ("gemm", n, k).


@dataclass(frozen=True)
class Samples:
    """Measurements of one operator."""

    sizes: Floats
    """[rows, sizes]: the sizes of the operator's kind; tokens and touched experts for experts."""
    seconds: Floats
    where: str
    """The file they come from."""
    spread: Floats | None = None
    """Relative spread of the repeats behind each row."""
    measured_as: operators.Work | None = None
    """The shape that was measured, where the operator's own is a slice of it."""
    is_between: bool = False
    """Not measured itself, but made from measured shapes around it."""


@dataclass(frozen=True)
class SkewSamples:
    """Decodes of unequal KV lengths: times at the mean length, at the longest, and of the skewed batch itself."""

    decodes: Floats
    mean_kv: Floats
    max_kv: Floats
    at_mean_s: Floats
    at_max_s: Floats
    skewed_s: Floats
    chunk: Floats
    long_share: Floats
    """Share of the decodes that are long; the others are equally short."""
    splits_below: float | None = None
    """Number of decodes from which on the kernel no longer cuts a sequence's KV over several SMs; None where it is not
    known to stop."""


@dataclass
class Bundle:
    """All measurements that one source has for one rank of one deployment."""

    where: str
    samples: dict[Key, Samples] = field(default_factory=dict)
    included: set[str] = field(default_factory=set)
    """Operators that another one's measurement contains: they take no time of their own."""
    skew: SkewSamples | None = None
    host: HostConfig | None = None
    """Time of the engine's own code, where the bundle has it."""

    def add(self, key: Key, samples: Samples) -> None:
        """Keep samples; rows of a key that is there already are joined."""
        known = self.samples.get(key)
        if known is not None:
            has_spread = known.spread is not None and samples.spread is not None
            names = ("sizes", "seconds", *(("spread",) if has_spread else ()))
            both: dict[str, Any] = {
                name: np.concatenate([getattr(known, name), getattr(samples, name)]) for name in names
            }
            samples = Samples(**both, where=known.where, measured_as=known.measured_as)
        self.samples[key] = samples

    def find(self, operator: operators.Operator, node: Node) -> Samples | None:
        """The measurements of an operator, by its name or else by its shape (and its group's place on `node`)."""
        for key in (("name", operator.name), *shape_keys(operator, node)):
            if key in self.samples:
                return self.samples[key]
        return None


NAMED: dict[str, Any] = own_yaml(files("gnomon.timing.sources.profile") / "operators.yaml")
"""Operators by the names that files of measurements have for them."""


def shape_keys(operator: operators.Operator, node: Node | None = None) -> tuple[Key, ...]:
    """What an operator is called where shapes, not models, are measured; the first that was measured counts.

    Collectives need the node on which their group lies.
    """
    work = operator.work
    match work:
        case operators.Gemm():
            return (("gemm", work.n, work.k),) if work.batch == 1 else (("bmm", work.batch, work.n, work.k),)
        case operators.Elementwise():
            return _elementwise_keys(operator.name, work.bytes_each)
        case operators.Prefill() | operators.Decode() | operators.Mixed():
            if work.window:
                return ((f"{operator.kind}/{work.window}", work.num_heads, work.num_kv_heads, work.qk_dim),)
            heads = (work.num_heads, work.num_kv_heads, work.qk_dim)
            # Latent attention is another kernel: no ordinary shape may stand in for it.
            return ((operator.kind, *heads),) if work.qk_dim == work.v_dim else ((operator.kind, *heads, work.v_dim),)
        case operators.Experts():
            return (("experts", work.num_local, work.per_token, work.hidden, work.ffn),)
        case operators.Recurrence():
            return ((work.kernel, work.num_k_heads, work.num_v_heads, work.k_dim, work.v_dim),)
        case operators.Sampling():
            return ()
        case operators.Communication():
            assert node is not None, "a collective is called by its group's place"
            at = work.group.on(node)
            # Two GPUs were measured side by side: that says nothing of two in different pairs.
            is_elsewhere = at.is_across_pairs and at.per_node == 2
            return () if is_elsewhere else (collective_key(work.collective, work.group.size, at.per_node),)


def collective_key(collective: str, num_ranks: int, per_node: int) -> Key:
    """What a measured collective is called: by its ranks alone inside one node, else also by those on each node."""
    return (collective, num_ranks) if num_ranks == per_node else (collective, num_ranks, per_node)


def _elementwise_keys(name: str, bytes_each: float) -> tuple[Key, ...]:
    """The kernel and its width. A gated activation reads two and writes one, a plain one reads one and writes one."""
    if name in ("act", "shared_act"):
        return (("activation", round(bytes_each / 6.0)), ("activation_plain", round(bytes_each / 4.0)))
    kind, per_element = NAMED["elementwise"].get(name, (name, 4.0))
    width = round(bytes_each / per_element)
    return ((kind, width), ("norm", width)) if kind == "add_norm" else ((kind, width),)
