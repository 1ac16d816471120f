"""Published effects of fleets: distances by hand, verdicts, and the quick ones of them."""

from __future__ import annotations

import numpy as np
import pytest

import gnomon
from gnomon.core.errors import UnknownNameError
from gnomon.verify import fleet
from gnomon.verify.fleet import CLIENTS, DOCUMENT_TOKENS, DOCUMENTS, QUESTIONS, Effect, _questions, findings, per_rank


def effect(*simulated: float) -> Effect:
    return Effect("name", "figure", 100.0, simulated, "setting", "source")


def test_an_effect_is_reproduced_within_its_tolerance() -> None:
    assert effect(109.0).distance == pytest.approx(0.09) and effect(109.0).is_reproduced
    assert not effect(89.0).is_reproduced
    found = findings([effect(109.0), effect(89.0)])
    assert len(found.failures) == 1 and "89" in found.failures[0] and "-11%" in found.failures[0]
    assert [row["is_reproduced"] for row in found.rows] == [True, False]


def test_where_something_is_not_published_the_figure_must_lie_among_the_simulated() -> None:
    assert effect(80.0, 130.0).distance == 0 and effect(80.0, 130.0).is_reproduced
    assert effect(115.0, 109.0).distance == pytest.approx(0.09) and effect(115.0, 109.0).is_reproduced
    assert effect(70.0, 85.0).distance == pytest.approx(-0.15) and not effect(70.0, 85.0).is_reproduced


def test_of_a_system_simulated_in_part_the_direction_is_judged() -> None:
    def part(simulated: float, holds: bool = True) -> Effect:
        return Effect("name", "figure", 2.0, (simulated,), "setting", "source", None, nothing=1.0, holds=holds)

    assert part(1.1).is_reproduced and part(9.0).is_reproduced
    assert not part(1.0).is_reproduced and not part(1.5, holds=False).is_reproduced
    assert "above 1" in str(findings([part(1.1)]).blocks[0])


def test_requests_of_a_rank_by_littles_law() -> None:
    assert [per_rank(lost) for lost in (1, 2, 4, 8, 16)] == [17, 17, 17, 15, 12]


def test_lost_ranks_are_held_by_a_time_that_the_published_throughput_does_not_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were every token to take as long as with one lost rank, TPOT would stay where it is."""
    monkeypatch.setattr(fleet, "_group_tpot_s", lambda ranks, requests, lengths: 0.03)
    found = fleet.elastic_experts()
    assert [one.published for one in found] == [92.0, 89.0, 79.0, 68.0]
    assert [one.simulated for one in found] == [pytest.approx((96.0, 96.0))] * 4


def test_a_cold_start_of_a_trillion_parameters() -> None:
    found = gnomon.verify("fleet", only=["cold-start"])
    assert found.passed
    seconds = {one.figure: one.simulated[0] for one in found.records}
    assert seconds["seconds in all"] == pytest.approx(seconds["seconds for weights"] + 32.0)


def test_the_questions_share_documents_within_a_client() -> None:
    made = _questions()
    assert len(made) == CLIENTS * DOCUMENTS * QUESTIONS
    firsts = {(int(made.user_class[i]), int(made.prefix(i)[0])) for i in range(len(made))}
    assert len(firsts) == CLIENTS * DOCUMENTS
    assert len(made.prefix(0)) == DOCUMENT_TOKENS // 16


def test_unknown_effects_are_named() -> None:
    with pytest.raises(UnknownNameError, match="dlpm"):
        gnomon.verify("fleet", only=["dlmp"])


@pytest.mark.slow
def test_fair_scheduling_that_knows_prefixes() -> None:
    """The published figure lies among those of three sizes of the cache, each of which is faster."""
    (found,) = gnomon.verify("fleet", only=["dlpm"]).records
    assert found.distance == 0 and min(found.simulated) > 1.1


@pytest.mark.parametrize(("mean", "half"), [(128, 34), (256, 30), (512, 55)])
def test_lengths_by_a_power_law_are_mostly_short(mean: int, half: int) -> None:
    """Half of them are shorter than an eighth of the mean or so, and a few have thousands of tokens."""
    lengths = fleet._skewed(mean, 20_000, np.random.default_rng(0))
    assert lengths.mean() == pytest.approx(mean, rel=0.02) and lengths.min() >= 1 and 5500 < lengths.max() <= 6144
    assert np.median(lengths) == pytest.approx(half, rel=0.1)


def test_what_migration_saves_is_relative_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.4 of 2.0 s are lost with it, and the first token comes after 1 instead of 6 s."""
    monkeypatch.setattr(fleet, "_losses", lambda *_: (0.4, 1.0) if _[-1] else (2.0, 6.0))
    loss, first = fleet.migration()
    assert loss.simulated == pytest.approx((0.8,) * 3) and first.simulated == (6.0,)
    assert not loss.is_reproduced and first.is_reproduced


def test_what_sending_by_prefix_gains_is_relative_to_round_robin(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the four loads round robin takes 2, 4, 8 and 16 times as long; in P99 half of that."""
    asked: list[tuple[str, float | None]] = []

    def documents(router: str, rate: float | None) -> tuple[float, float, float]:
        asked.append((router, rate))
        times = 1.0 if rate is None or router == "prefix_aware" else 2.0 ** (len(asked) // 2)
        return times, times / 2 if times > 1 else times, 2.0

    monkeypatch.setattr(fleet, "_documents", documents)
    mean, p99 = fleet.prefixes()
    assert [rate for router, rate in asked if router == "prefix_aware"] == [2.0 * load for load in fleet.OF_CAPACITY]
    assert mean.simulated == (2.0, 4.0, 8.0, 16.0) and p99.simulated == (1.0, 2.0, 4.0, 8.0)
    assert mean.is_reproduced and not p99.is_reproduced
