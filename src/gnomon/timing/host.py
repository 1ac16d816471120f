"""Time of the engine's own code around an iteration: scheduling, input preparation, launching kernels, sampling.

An iteration takes `exposed + max(GPU, launching, hidden)`. What an engine does between two iterations is exposed; with
asynchronous scheduling it hides behind the GPU's work; and without CUDA graphs the GPU waits for its kernels to be
launched, however little there is to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.core.streams import stream

PHASES = ("prefill", "decode", "mixed")
COLUMNS = 12
"""Of one phase: exposed seconds, per sequence, per token; hidden seconds, per sequence, per token; launching; up to
what size (sequences of a decode, tokens of others) a CUDA graph launches everything at once; what share of a sequence
does not count, and beyond how many sequences; for each sequence, copying what it has said for the sampler, and choosing
its token on the GPU, which waits for launching and copying."""

WINDOW_S, NUM_WINDOWS = 0.5, 4096
"""How slow the host is stays the same for so long; windows after which it repeats itself."""

LONGEST_S = 1e4  # An engine whose own code takes longer than hours for one iteration is a typing error.
HostSeconds = Annotated[float, Field(ge=0, le=LONGEST_S)]
Seconds = HostSeconds | None


class HostPhase(Config):
    """Host time of iterations of one kind; what is not given is as for all iterations."""

    per_iteration_s: Seconds = None
    """Seconds per iteration."""
    per_sequence_s: Seconds = None
    """Seconds per sequence of the batch."""
    full_sequences: Annotated[int, Field(ge=0)] | None = None
    """As many sequences of a batch count in full."""
    further_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Each further one counts by this share."""
    per_token_s: Seconds = None
    """Seconds per token of the batch."""
    asynchronous: bool | None = None
    """The three above hide behind the GPU's work."""
    exposed_s: Seconds = None
    """Seconds per iteration that never hide."""
    exposed_per_layer_s: Seconds = None
    """Seconds per layer that never hide, on top: gaps between kernels, and small kernels that no source times."""
    collective_jitter_s: Seconds = None
    """Standard deviation of when a rank comes to a collective: all wait for the last of them, never hidden."""
    launch_s: Seconds = None
    """Launching the kernels takes this long: the GPU's part of an iteration cannot take less."""
    launch_per_layer_s: Seconds = None
    """Seconds per layer that launching takes, on top."""
    launch_per_kernel_s: Seconds = None
    """Seconds per kernel of the model (`gnomon.timing.operators.num_kernels`) that launching takes, on top."""
    launch_in_graphs: bool | None = None
    """Iterations inside a CUDA graph (`timing.graph_sizes`) wait for launching too."""


class HostConfig(Config):
    """Time of the engine's own code around an iteration: scheduling, input preparation, sampling, detokenising."""

    per_iteration_s: HostSeconds = 0.0
    """Seconds per iteration."""
    per_sequence_s: HostSeconds = 0.0
    """Seconds per sequence of the batch."""
    full_sequences: Annotated[int, Field(ge=0)] = 0
    """As many sequences of a batch count in full."""
    further_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Each further one counts by this share: work that is vectorised costs less in large batches."""
    per_token_s: HostSeconds = 0.0
    """Seconds per token of the batch."""
    asynchronous: bool = False
    """Hidden behind the GPU's work: an iteration takes the longer of the two rather than their sum."""
    exposed_s: HostSeconds = 0.0
    """Seconds per iteration that never hide."""
    exposed_per_layer_s: HostSeconds = 0.0
    """Seconds per layer that never hide, on top: gaps between kernels, and small kernels that no source times."""
    collective_jitter_s: HostSeconds = 0.0
    """Standard deviation of when a rank comes to a collective. All wait for the last of them, which a source that calls
    collectives in a loop does not see: 0.6 times as long for two ranks, 1.4 times for eight, never hidden."""
    draft_sequence_s: HostSeconds = 0.0
    """Seconds for each sequence whose drafted tokens an iteration verifies, never hidden: sorting out what was
    accepted, preparing the next drafts."""
    launch_s: HostSeconds = 0.0
    """Launching the kernels takes this long: the GPU's part of an iteration cannot take less."""
    launch_per_layer_s: HostSeconds = 0.0
    """Seconds per layer that launching takes, on top."""
    launch_per_kernel_s: HostSeconds = 0.0
    """Seconds per kernel of the model (`gnomon.timing.operators.num_kernels`) that launching takes, on top."""
    launch_in_graphs: bool = True
    """Iterations inside a CUDA graph (`timing.graph_sizes`) wait for launching too; false: only those outside do."""
    slow_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of time in which the host is slow: other work runs on it."""
    slow_factor: Annotated[float, Field(ge=1, le=100)] = 1.0
    """How many times longer its work and launching take then."""
    slow_spell_s: Annotated[float, Field(gt=0, le=1e6)] = 2.0
    """Mean length of such a spell, exponential."""
    prefill: HostPhase = HostPhase()
    """Iterations of prompts alone."""
    decode: HostPhase = HostPhase()
    """Iterations of decodes alone."""
    mixed: HostPhase = HostPhase()
    """Iterations with both."""

    def array(
        self, num_layers: int, num_kernels: int = 0, graphs: Sequence[int] = (0, 0, 0), waits: float = 0.0
    ) -> Floats:
        """[phase, column] as `gnomon.timing.lookup.with_host_s` reads it, for a stage of so many layers, kernels and
        waits (in units of a rank's jitter), and the largest iteration of each phase that is a CUDA graph."""
        sizes = (num_layers, num_kernels, waits)
        each = zip(PHASES, graphs, strict=True)
        return np.stack([_row(self, getattr(self, phase), *sizes, graph) for phase, graph in each])

    def of_stages(
        self, num_layers: Sequence[int], num_kernels: Sequence[int], graphs: Sequence[int] = (0, 0, 0),
        waits: Sequence[float] = (),
    ) -> Floats:  # fmt: skip
        """[stage, phase, column] of a pipeline. Every stage launches its own kernels; the engine's work around an
        iteration is done once, before the first."""
        kept = {name for name in HostPhase.model_fields if name.startswith(("exposed_per_", "launch_", "collective_"))}
        include = dict.fromkeys(kept, True) | dict.fromkeys(PHASES, kept)
        later = HostConfig.model_validate(self.model_dump(include=include))
        each = zip(num_layers, num_kernels, waits or [0.0] * len(num_layers), strict=True)
        return np.stack(
            [
                (later if i else self).array(layers, kernels, graphs, waited)
                for i, (layers, kernels, waited) in enumerate(each)
            ]
        )

    def paces(self, seed: int) -> Floats:
        """[window]: how many times longer the host takes, from a seed; empty where it is always the same."""
        if self.slow_share == 0.0 or self.slow_factor == 1.0:
            return np.zeros(0)
        rng = stream(seed, "host pace")
        mean_s = np.array([self.slow_spell_s * (1.0 / self.slow_share - 1.0), self.slow_spell_s])
        paces, ends, is_slow = np.ones(NUM_WINDOWS), 0.0, bool(rng.random() < self.slow_share)
        while ends < NUM_WINDOWS:
            begins, ends = ends, ends + rng.exponential(mean_s[int(is_slow)]) / WINDOW_S
            if is_slow:
                paces[round(begins) : round(ends)] = self.slow_factor
            is_slow = not is_slow
        return paces


def _row(common: HostConfig, phase: HostPhase, num_layers: int, num_kernels: int, waits: float, graph: int) -> Floats:
    def of(name: str) -> float:
        own = getattr(phase, name)
        return float(getattr(common, name) if own is None else own)

    work = [of("per_iteration_s"), of("per_sequence_s"), of("per_token_s")]
    exposed, hidden = ([0.0] * 3, work) if of("asynchronous") else (work, [0.0] * 3)
    gaps = num_layers * of("exposed_per_layer_s") + waits * of("collective_jitter_s")
    exposed = [exposed[0] + of("exposed_s") + gaps, *exposed[1:]]
    launch = of("launch_s") + num_layers * of("launch_per_layer_s") + num_kernels * of("launch_per_kernel_s")
    flattening = [1.0 - of("further_share"), of("full_sequences")]
    return np.array([*exposed, *hidden, launch, 0.0 if of("launch_in_graphs") else graph, *flattening, 0.0, 0.0])
