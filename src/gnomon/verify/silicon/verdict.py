"""What `gnomon verify silicon` finds: every server scored, the peers beside, and whether it got worse."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gnomon.verify.silicon.launch import data, doubt_about
from gnomon.verify.silicon.predict import Scored
from gnomon.verify.silicon.scenarios import facts_of, is_in_held_out_sweep
from gnomon.verify.silicon.scores import GROUPS, Errors, Ranking, errors_by, errors_of, ranking

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
    """Every server beside its prediction, with the figures that follow."""

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
            "doubtful": self.doubtful,
            "by": groups,
            "ranking": asdict(self.ranking) if self.ranking else None,
            "missing": self.missing,
            "peers": self.peers,
            "worse": self.worse,
        }
