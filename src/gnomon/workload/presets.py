"""Named length distributions: fitted once, to recorded lengths, shipped as small data files without a download."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator

from gnomon.catalog.library import Library
from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.core.errors import DataError
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
    return PRESETS.names


def presets() -> dict[str, Preset]:
    return {name: PRESETS[name] for name in PRESETS.names}


def preset(name: str) -> Preset:
    """One preset by its name, or by the path of a file that `gnomon workload fit` wrote."""
    return PRESETS[name]


def preset_lengths(chosen: Preset, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
    prompt_score, output_score = normal_scores(num_requests, seed, chosen.rank_correlation)
    output = np.minimum(marginal(chosen.output, output_score), chosen.max_tokens - 1)
    prompt = np.minimum(marginal(chosen.prompt, prompt_score), chosen.max_tokens - output)
    return prompt.astype(np.int32), output.astype(np.int32)


def marginal(knots: Knots, scores: Floats) -> Tokens:
    """Tokens of normal scores; beyond the last knots the length stays at the last knot's."""
    at, size = np.array(knots, dtype=np.float64).T
    return tokens(np.exp(np.interp(scores, at, np.log(size))))


NORMAL = NormalDist()
# Denser towards the ends, where the tails are decided.
PROBABILITIES = (*(0.001, 0.005, 0.01), *(round(0.02 * k, 2) for k in range(1, 50)), *(0.99, 0.995, 0.999))
# Fewer requests say little about a distribution.
FEWEST = 20
PERCENTILES = (1, 10, 25, 50, 75, 90, 95, 99)


def fit(prompt: Tokens, output: Tokens, *, description: str, source: str) -> Preset:
    """A preset whose marginals follow the quantiles of recorded lengths, with their correlation."""
    if len(prompt) < FEWEST:
        raise DataError(f"{len(prompt)} requests are too few for a fit.", where=source, fix=f"Give {FEWEST} or more.")
    scores = _scores(prompt), _scores(output)
    varies = all(one.std() for one in scores)  # Else there is nothing to go together.
    return Preset(
        description=description, source=source, prompt=_quantile_knots(prompt), output=_quantile_knots(output),
        rank_correlation=round(float(np.corrcoef(*scores)[0, 1]), 3) if varies else 0.0,
        max_tokens=int((prompt + output).max()),
    )  # fmt: skip


def preset_yaml(preset: Preset) -> str:
    """A preset as the YAML that `--workload.preset FILE.yaml` reads, one line of knots per marginal."""
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in preset.model_dump(mode="json").items()]
    return "\n".join(lines) + "\n"


def quality(preset: Preset, prompt: Tokens, output: Tokens, num_draws: int = 200_000) -> list[dict[str, Any]]:
    """How close draws of a preset are to recorded lengths: Kolmogorov-Smirnov distance, mean, percentiles."""
    drawn = preset_lengths(preset, num_draws, seed=0)
    rows: list[dict[str, Any]] = []
    for name, recorded, fitted in (("prompt", prompt, drawn[0]), ("output", output, drawn[1])):
        distance = ks_distance(recorded, fitted)
        rows.append({"length": name, "of": "recorded", "KS": None, **statistics(recorded)})
        rows.append({"length": name, "of": "preset", "KS": round(distance, 4), **statistics(fitted)})
    return rows


def statistics(lengths: Tokens) -> Mapping[str, float]:
    return {"mean": round(float(lengths.mean()), 1), **{f"p{q}": float(np.percentile(lengths, q)) for q in PERCENTILES}}


def ks_distance(one: Tokens, other: Tokens) -> float:
    """Largest difference of the two empirical distribution functions."""
    one, other = np.sort(one), np.sort(other)
    at = np.union1d(one, other)
    shares = [np.searchsorted(values, at, side="right") / len(values) for values in (one, other)]
    difference = shares[0] - shares[1]
    return float(np.abs(difference).max())


def _quantile_knots(lengths: Tokens) -> Knots:
    inner = [(NORMAL.inv_cdf(p), float(np.quantile(lengths, p))) for p in PROBABILITIES]
    edge = NORMAL.inv_cdf(0.5 / len(lengths))
    ends = [(edge, float(lengths.min())), (-edge, float(lengths.max()))]
    inside = [(z, x) for z, x in inner if edge < z < -edge]
    return tuple((round(z, 4), round(x, 1)) for z, x in [ends[0], *inside, ends[1]])


def _scores(lengths: Tokens) -> Floats:
    """Normal scores of mean ranks (equal lengths share a score)."""
    _, where, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - counts / 2
    at = np.array([NORMAL.inv_cdf(r / len(lengths)) for r in ranks])
    return at[where]
