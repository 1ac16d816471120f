"""From what requests ask of the sampler to what an engine of some version runs for it."""

from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt

from gnomon.catalog.library import DATA
from gnomon.catalog.model_library import model
from gnomon.core.config import Config
from gnomon.core.text import own_yaml, read_json
from gnomon.serving.scenario.engine_versions import order_of
from gnomon.timing.operators import SamplerConfig
from gnomon.workload import Requests
from gnomon.workload.lengths import SamplingConfig

KEYS = ("temperature", "top_k", "top_p", "repetition_penalty")


def generation_config(name_or_path: str) -> dict[str, float]:
    """What the model's generation_config.json sets of temperature, top_k, top_p and repetition_penalty: that of a
    built-in model, or the file beside a config.json; nothing where there is none."""
    path = Path(name_or_path)
    if path.suffix == ".json" or path.is_dir():
        beside = (path if path.is_dir() else path.parent) / "generation_config.json"
        return _kept(read_json(beside)) if beside.is_file() else {}
    published = model(name_or_path).hf_id.lower()
    return next((found for pattern, found in _known() if fnmatch(published, pattern)), {})


@cache
def _known() -> list[tuple[str, dict[str, float]]]:
    entries = own_yaml(DATA / "generation.yaml")["models"]
    return [(pattern.lower(), _kept(one)) for one in entries for pattern in one["like"]]


def _kept(config: Any) -> dict[str, float]:
    found = config if isinstance(config, dict) else {}
    return {key: float(found[key]) for key in KEYS if isinstance(found.get(key), int | float)}


GREEDY = SamplingConfig(temperature=0.0)  # What is simulated where neither an engine nor `sampling` is given.


class SamplerEra(Config):
    """How an engine chooses tokens, from some version on."""

    since: str
    filter: Literal["sort", "search"]
    """How it finds the tokens that top-k and top-p keep."""
    sorts_below: NonNegativeInt = 0
    """Batches of fewer sequences are sorted all the same."""
    penalties: Literal["recount", "kept"]
    """Whether it counts the words of all answers anew in every step, or keeps counts on the GPU."""
    defaults: Literal["model", "neutral"]
    """What a request that says nothing gets: the model's generation_config, or temperature 1."""
    source: str = Field(min_length=1)


def era_of(eras: tuple[SamplerEra, ...], version: str) -> SamplerEra:
    """The last of an engine's eras that had begun by a version, candidates of it included; without one, the last. What
    was before the first is not known, and taken as that."""
    return [eras[0], *(one for one in eras if order_of(one.since)[:3] <= order_of(version)[:3])][-1]


def asked_for(scenario: Any, era: SamplerEra | None) -> list[SamplingConfig]:
    """What the classes of users ask for, each with the defaults of engine and model filled in."""
    if era is None:
        default = GREEDY
    else:
        default = SamplingConfig.model_validate(generation_config(scenario.model) if era.defaults == "model" else {})
    common = (scenario.sampling or SamplingConfig()).over(default)
    classes = scenario.workload.classes
    return [(one.sampling or SamplingConfig()).over(common) for one in classes if one.share] or [common]


def sampler(asked: list[SamplingConfig], era: SamplerEra | None, requests: Requests | None) -> SamplerConfig:
    """What is run for a batch in which somebody asks for each: engines filter, penalise and report all its sequences
    where one needs it."""
    searches = era is None or era.filter == "search"
    has_top_p, has_top_k = any(one.has_top_p for one in asked), any(one.has_top_k for one in asked)
    kept = "search" if searches else "sort_top_k" if has_top_k and has_top_p else "sort" if has_top_p else "top_k"
    penalties = (era.penalties if era else "kept") if any(one.has_penalties for one in asked) else ""
    return SamplerConfig(
        is_random=any(one.is_random for one in asked), filter=kept if has_top_p or has_top_k else "",
        sorts_below=era.sorts_below if era and (has_top_p or has_top_k) else 0, penalties=penalties,
        logprobs=any(one.logprobs for one in asked),
        copied_tokens=_said_so_far(requests) if penalties == "recount" and requests is not None else 0.0,
    )  # fmt: skip


def _said_so_far(requests: Requests) -> float:
    """Output tokens that a running sequence has so far, in the mean over sequences and steps."""
    output = requests.output_tokens.astype(float)
    return float((output * output).sum() / (2.0 * output.sum())) if output.size and output.sum() else 0.0
