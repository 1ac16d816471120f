"""What `gnomon verify silicon` finds: errors by group, whether the best layout is found, and whether it got worse."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gnomon.verify.silicon.launch import data, doubt_about
from gnomon.verify.silicon.predict import Scored
from gnomon.verify.silicon.scenarios import facts_of, is_in_held_out_sweep

TPOT_LIMITS_S = (0.010, 0.020, 0.030, 0.050, 0.100)
"""Interactivity at which layouts are ranked: 100 to 10 tokens per second and user."""
MIN_SERVERS = 5  # Servers that a group needs to be ranked.

GROUPS: dict[str, Callable[[Scored], str]] = {
    "family": lambda s: s.server.family,
    "engine": lambda s: s.server.engine,
    "system": lambda s: s.server.device,
    "model": lambda s: s.server.model.split("/")[-1],
    "precision": lambda s: s.server.precision or "as the checkpoint",
    "mode": lambda s: s.server.mode,
}


@dataclass(frozen=True)
class Errors:
    """Relative errors of one group of servers."""

    servers: int
    """All of the group."""
    covered: int
    """Those with a prediction."""
    ttft_mape: float
    ttft_median: float
    ttft_bias: float
    tpot_mape: float
    tpot_median: float
    tpot_bias: float


def errors_of(scored: Iterable[Scored]) -> Errors | None:
    """Mean and median absolute error and mean error of a group; None where nothing of it was predicted."""
    group = list(scored)
    covered = [s for s in group if s.prediction.problem is None]
    if not covered:
        return None
    ttft = np.array([s.ttft_error for s in covered])
    tpot = np.array([s.tpot_error for s in covered])
    figures = [f for x in (ttft, tpot) for f in (np.abs(x).mean(), np.median(np.abs(x)), x.mean())]
    return Errors(len(group), len(covered), *(float(value) for value in figures))


def errors_by(scored: Iterable[Scored], name: str) -> dict[str, Errors]:
    """The errors of each group of `GROUPS[name]`, the largest group first."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        groups[GROUPS[name](one)].append(one)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return {group: errors for group, members in ordered if (errors := errors_of(members)) is not None}


@dataclass(frozen=True)
class Ranking:
    """How good the layout is that the simulator would choose."""

    choices: int
    """(model, system, engine, precision, lengths) x TPOT limit with at least two layouts."""
    agreement: float
    """Share of them in which the predicted best layout is the measured best."""
    median_regret: float
    """Measured throughput per GPU lost by following the prediction."""
    mean_regret: float


def ranking(scored: Iterable[Scored]) -> Ranking | None:
    """Does the predicted best aggregated layout under a TPOT limit match the measured best?"""
    regrets = np.array([regret for group in _comparable(scored) for regret in _regrets(group)])
    if not regrets.size:
        return None
    return Ranking(regrets.size, float((regrets == 0).mean()), float(np.median(regrets)), float(regrets.mean()))


def _comparable(scored: Iterable[Scored]) -> list[list[Scored]]:
    groups: dict[object, list[Scored]] = defaultdict(list)
    for one in scored:
        s = one.server
        if s.mode == "agg" and one.prediction.problem is None:
            place = (s.family, s.model, s.device, s.engine, s.precision, s.prompt_tokens, s.output_tokens)
            groups[place].append(one)
    return [group for group in groups.values() if len(group) >= MIN_SERVERS]


def _regrets(group: list[Scored]) -> Iterable[float]:
    for limit_s in TPOT_LIMITS_S:
        measured: dict[object, float] = {}
        predicted: dict[object, float] = {}
        for one in group:
            s, p = one.server, one.prediction
            layout = (s.layout, s.version)
            for best, ttft_s, tpot_s in ((measured, s.ttft_s, s.tpot_s), (predicted, p.ttft_s, p.tpot_s)):
                if tpot_s <= limit_s:
                    best[layout] = max(best.get(layout, 0.0), per_gpu(one, ttft_s, tpot_s))
        if len(measured) >= 2 and predicted:
            chosen = max(predicted, key=lambda layout: predicted[layout])
            yield 1.0 - measured.get(chosen, 0.0) / max(measured.values())


def per_gpu(scored: Scored, ttft_s: float, tpot_s: float) -> float:
    """Output tokens per second and GPU of a closed loop with these latencies."""
    s = scored.server
    per_request_s = ttft_s + tpot_s * (s.output_tokens - 1)
    return s.concurrency * s.output_tokens / per_request_s / s.num_gpus


SLACK = 0.002
"""How much a figure may differ from the recorded one without being called worse: other versions of NumPy, say."""


def _is_known(one: Scored) -> bool:
    return one.server.mode == "agg" and one.server.family == "inferencex"


SETS: dict[str, Callable[[Scored], bool]] = {
    "aggregated": lambda s: s.server.mode == "agg",
    "InferenceX, held out (odd)": lambda s: _is_known(s) and s.server.is_held_out,
    "InferenceX, fitted on (even)": lambda s: _is_known(s) and not s.server.is_held_out,
    "InferenceX, held out by sweeps": lambda s: _is_known(s) and is_in_held_out_sweep(s.server),
    "NVIDIA's sweeps": lambda s: s.server.mode == "agg" and s.server.family == "sweeps",
    "disaggregated": lambda s: s.server.mode == "disagg",
}
"""Servers whose figures are told together; `recorded.yaml` has those of some, as they were with a release."""
FIGURES = ("tpot_mape", "tpot_median", "ttft_mape", "ttft_median")
"""The errors that are recorded of each, beside the number of servers covered."""


@dataclass(frozen=True)
class Verdict:
    scored: Sequence[Scored]
    is_whole: bool
    """Whether all servers of the file were scored: only then are figures held against the recorded ones."""

    @property
    def errors(self) -> Errors | None:
        return errors_of(self.scored)

    @property
    def held_out(self) -> Errors | None:
        """Of the half on which nothing was fitted."""
        return errors_of(s for s in self.scored if s.server.is_held_out)

    @property
    def doubtful(self) -> dict[str, str]:
        """Servers whose figures contradict each other, with the reason."""
        found = ((s.server.id, doubt_about(facts_of(s.server))) for s in self.scored)
        return {name: reason for name, reason in found if reason}

    @property
    def without_doubtful(self) -> Errors | None:
        doubtful = self.doubtful
        return errors_of(s for s in self.scored if s.server.id not in doubtful)

    @property
    def ranking(self) -> Ranking | None:
        """Whether the predicted best layout is the measured best."""
        return ranking(self.scored)

    @property
    def missing(self) -> dict[str, int]:
        """Reasons for which there is no prediction, with their numbers of servers."""
        return dict(Counter(s.prediction.problem for s in self.scored if s.prediction.problem).most_common())

    @property
    def peers(self) -> list[dict[str, Any]]:
        """Published scores of other simulators on servers of this file."""
        return list(data("peers"))

    @property
    def worse(self) -> list[str]:
        """Figures that are worse than those recorded with the release."""
        if not self.is_whole:
            return []
        return [line for name, recorded in data("recorded").items() for line in self._worse(name, recorded)]

    def _worse(self, name: str, recorded: dict[str, float]) -> list[str]:
        errors = errors_of(filter(SETS[name], self.scored))
        found = asdict(errors) if errors else {"covered": 0}
        lines = [
            f"{name}: {figure} is {found[figure]:.1%}, worse than the recorded {recorded[figure]:.1%}."
            for figure in FIGURES
            if figure in found and found[figure] > recorded[figure] + SLACK
        ]
        if found["covered"] < recorded["covered"]:
            lines.append(
                f"{name}: {found['covered']:,} servers are predicted, fewer than the recorded {recorded['covered']:,}."
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        groups = {name: {g: asdict(e) for g, e in errors_by(self.scored, name).items()} for name in GROUPS}
        return {
            "errors": asdict(self.errors) if self.errors else None,
            "held_out": asdict(self.held_out) if self.held_out else None,
            "without_doubtful": asdict(self.without_doubtful) if self.without_doubtful else None,
            "doubtful": self.doubtful, "by": groups, "ranking": asdict(self.ranking) if self.ranking else None,
            "missing": self.missing, "peers": self.peers, "worse": self.worse,
        }  # fmt: skip
