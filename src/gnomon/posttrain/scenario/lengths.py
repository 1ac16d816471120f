"""How long the prompts and responses of a step are: one draw per step, the same for every policy."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import DataError
from gnomon.core.streams import stream
from gnomon.posttrain.scenario.config import LengthsConfig

_PROBABILITIES = 65_536
_CDF, _QUANTILE = (np.vectorize(one, otypes=[float]) for one in (NormalDist().cdf, NormalDist().inv_cdf))


@dataclass(frozen=True, eq=False)
class Lengths:
    """[group, sample] tokens of a step's prompts and responses."""

    prompt: Ints
    response: Ints


def draw(config: LengthsConfig, num_groups: int, group_size: int, seed: int, step: int) -> Lengths:
    """The lengths of `num_groups` prompts of one step.

    Inside a group responses are correlated through a shared normal variable (a Gaussian copula).
    """
    rng = stream(seed, "lengths", step)
    shared = rng.standard_normal((num_groups, 1))
    own = rng.standard_normal((num_groups, group_size))
    rho = config.group_correlation
    uniform = _CDF(np.sqrt(rho) * shared + np.sqrt(1.0 - rho) * own)
    response = quantile(config, config.mean * (1.0 + config.drift) ** step, uniform)
    prompts = stream(seed, "prompts", step).gamma(4.0, config.prompt_mean / 4.0, (num_groups, 1))
    prompt = np.clip(np.rint(prompts), 1, config.max_prompt)
    return Lengths(
        np.broadcast_to(prompt, response.shape).astype(np.int64),
        np.clip(np.rint(response), 1, config.max_response).astype(np.int64),
    )


def quantile(config: LengthsConfig, mean: float, uniform: Floats) -> Floats:
    """Response lengths at these probabilities; the scale is such that the truncated mean is `mean`."""
    if config.distribution == "fixed":
        return np.full(uniform.shape, mean)
    if config.distribution == "empirical":
        values = _read(config.file)
        return np.quantile(values, uniform) * (mean / float(values.mean()))
    at, unit = _unit_quantiles(config.distribution, config.shape)
    low, high = 0.0, 64.0 * mean
    for _ in range(60):  # The mean of min(scale x, limit) grows with the scale.
        scale = 0.5 * (low + high)
        if np.minimum(scale * unit, config.max_response).mean() < mean:
            low = scale
        else:
            high = scale
    return np.interp(uniform, at, unit) * low


@lru_cache(maxsize=16)
def _unit_quantiles(distribution: str, shape: float) -> tuple[Floats, Floats]:
    """Equally likely probabilities and the quantiles there, with mean about one."""
    at = (np.arange(_PROBABILITIES) + 0.5) / _PROBABILITIES
    if distribution == "lognormal":
        sigma = np.sqrt(np.log1p(1.0 / shape))
        return at, np.exp(sigma * _QUANTILE(at) - 0.5 * sigma * sigma)
    return at, _gamma_quantile(at, shape)


def _gamma_quantile(at: Floats, shape: float) -> Floats:
    """By the trapezoidal cumulative of the density, over mean one; that of the logarithm where the density is too steep
    for equal steps."""
    if not 1.0 <= shape <= 100.0:
        low, high = (-40.0 / shape, np.log(40.0 / shape)) if shape < 1.0 else np.array([-20.0, 20.0]) / np.sqrt(shape)
        log = np.linspace(low, high, 400_001)
        exponent = shape * (log - np.exp(log))
        density = np.exp(exponent - exponent.max())
        cumulative = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        return np.exp(np.interp(at, cumulative / cumulative[-1], log))
    x = np.linspace(0.0, 40.0, 400_001)[1:]
    density = np.exp((shape - 1.0) * np.log(x) - shape * x)
    cumulative = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(x))])
    return np.interp(at, cumulative / cumulative[-1], x)


@lru_cache(maxsize=8)
def _read(path: str | None) -> Floats:
    if path is None or not Path(path).is_file():
        raise DataError("no such file.", where=str(path), fix="Set lengths.file to a text file of response lengths.")
    try:
        values = np.loadtxt(path, ndmin=1).ravel()
    except ValueError as error:
        raise DataError(f"cannot be read: {error}.", where=path, fix="One number per line.") from None
    if values.size == 0 or values.min() < 1:
        raise DataError("holds no lengths, or some below 1.", where=path, fix="One positive number per line.")
    return values
