"""Named length distributions: fitted once, shipped as small data files, so that they need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, field_validator

from gnomon.catalog.library import Library
from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.workload.lengths import Correlation, normal_scores, tokens
from gnomon.workload.requests import Tokens

Knots = tuple[tuple[float, float], ...]


class Preset(Config):
    """Two marginal distributions and their correlation.

    A marginal is a list of knots [normal score, tokens]: a standard normal draw is looked up between them, linearly in
    the logarithm of the tokens. Two knots are a log-normal distribution; more bend it to what was measured.
    """

    description: str
    """What the requests are."""
    source: str
    """Where the numbers come from."""
    prompt: Knots
    output: Knots
    rank_correlation: Correlation = 0.0
    """Correlation of the normal scores of prompt and output."""
    max_tokens: Annotated[int, Field(ge=2)]
    """Most prompt + output tokens; longer prompts are shortened."""

    @field_validator("prompt", "output")
    @classmethod
    def _increasing(cls, knots: Knots) -> Knots:
        scores = [score for score, _ in knots]
        if len(knots) < 2 or scores != sorted(set(scores)) or any(size <= 0 for _, size in knots):
            raise ValueError("knots need increasing scores and positive tokens, two knots at least")
        return knots


PRESETS = Library("workload preset", Path(__file__).parent / "presets_data", Preset)


def preset_names() -> list[str]:
    """The presets that are built in."""
    return PRESETS.names


def presets() -> dict[str, Preset]:
    """Every built-in preset by its name."""
    return {name: PRESETS[name] for name in PRESETS.names}


def preset(name: str) -> Preset:
    """One preset by its name, or by the path of a file that `gnomon workload fit` wrote."""
    return PRESETS[name]


def preset_lengths(chosen: Preset, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
    """Draw pairs of lengths from a preset."""
    prompt_score, output_score = normal_scores(num_requests, seed, chosen.rank_correlation)
    output = np.minimum(marginal(chosen.output, output_score), chosen.max_tokens - 1)
    prompt = np.minimum(marginal(chosen.prompt, prompt_score), chosen.max_tokens - output)
    return prompt.astype(np.int32), output.astype(np.int32)


def marginal(knots: Knots, scores: Floats) -> Tokens:
    """Tokens of normal scores; beyond the last knots the length stays at the last knot's."""
    at, size = np.array(knots, dtype=np.float64).T
    return tokens(np.exp(np.interp(scores, at, np.log(size))))
