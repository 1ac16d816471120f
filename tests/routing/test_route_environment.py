"""The routing environment: the same simulation as `gnomon simulate`, stepped from decision to decision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnomon.routing.domain import DomainConfig, RewardConfig
from gnomon.routing.environment import VectorClusters
from gnomon.routing.traffic import RandomTraffic
from gnomon.serving.engine.state import FINISHED

SMALL = DomainConfig(num_replicas=(2, 4), warm_up=(10, 30), session_share=0.3)


def least_backlog(envs: VectorClusters) -> Any:
    backlog = envs.many.fleets.cluster.replicas["num_outstanding"][: envs.num_envs].astype(float)
    return np.where(envs.mask, backlog, np.inf).argmin(axis=1)


def test_everything_follows_from_the_seed_of_reset() -> None:
    def played(envs: VectorClusters) -> list[Any]:
        seen = [envs.reset(7)]
        seen += [envs.step(least_backlog(envs))[:4] for _ in range(70)]
        return [array for step in seen for array in step]

    used = VectorClusters(SMALL, 4, horizon=40)
    used.reset(1)
    used.step(least_backlog(used))
    for a, b in zip(played(used), played(VectorClusters(SMALL, 4, horizon=40)), strict=True):
        assert np.array_equal(a, b)


def test_observations_are_finite_and_missing_replicas_are_zero() -> None:
    envs = VectorClusters(SMALL, 8, horizon=64)
    observation, mask = envs.reset(3)
    assert observation.shape == (8, 4, envs.num_features)
    assert mask.any(axis=1).all() and not mask.all()
    for _ in range(40):
        observation, mask, reward, _, info = envs.step(least_backlog(envs))
        assert np.isfinite(observation).all() and np.abs(observation).max() < 50
        assert not observation[~mask].any()
        assert (reward <= 0).all() and np.isfinite(info["backlog"]).all()


def test_episodes_are_cut_and_the_last_observation_is_kept() -> None:
    envs = VectorClusters(SMALL, 2, horizon=5)
    envs.reset(0)
    for step in range(5):
        observation, _, _, done, info = envs.step(np.zeros(2, int))
        assert done.all() == (step == 4)
    assert not np.array_equal(info["final_observation"], observation), "observation is the next episode's first"
    assert info["final_observation"].any()


def test_a_group_shares_cluster_and_traffic() -> None:
    envs = VectorClusters(SMALL, 6, horizon=20, group=3)
    observation, _ = envs.reset(0)
    assert list(envs.trace) == [0, 0, 0, 1, 1, 1]
    for first in (0, 3):
        assert np.array_equal(observation[first], observation[first + 1])
        assert np.array_equal(observation[first], observation[first + 2])
    assert not np.array_equal(observation[0], observation[3])
    choices = np.array([0, 1, 0, 0, 1, 0])
    observation, *_ = envs.step(choices)
    assert np.array_equal(observation[0], observation[2])
    assert not np.array_equal(observation[0], observation[1]), "a choice makes a difference"


def test_rewards_sum_to_the_latency_of_all_requests() -> None:
    """Little's law: the integral of requests in the system is the sum of the times that each spends in it."""
    horizon = 60
    domain = SMALL.model_copy(update={"session_share": 0.0, "warm_up": (1, 1)})
    envs = VectorClusters(domain, 3, horizon=horizon, reward=RewardConfig(ttft_weight=0.0))
    envs.reset(5)
    unit, total = envs._unit_s.copy(), np.zeros(3)
    for _ in range(horizon - 1):
        total += envs.step(least_backlog(envs))[2]
    for env in range(3):
        requests = envs.many.fleets.cluster.requests[env]
        now = requests.arrival_s[envs.many.pending[env]]
        begin = requests.arrival_s[1]  # The first request is the warm-up's.
        arrived = requests[: envs.many.pending[env]]
        end = np.where(arrived.status == FINISHED, arrived.finished_s, now)
        spent = np.maximum(0.0, end - np.maximum(arrived.arrival_s, begin)).sum()
        assert -total[env] * unit[env] == pytest.approx(spent, rel=1e-9)


def test_waiting_for_first_tokens_and_missed_objectives_are_counted() -> None:
    domain = SMALL.model_copy(update={"load": (0.9, 0.95)})
    plain = VectorClusters(domain, 4, horizon=50, reward=RewardConfig(ttft_weight=0.0))
    strict = VectorClusters(
        domain, 4, horizon=50, reward=RewardConfig(ttft_weight=1.0, slo_ttft_s=0.05, slo_weight=2.0)
    )
    plain.reset(2)
    strict.reset(2)
    lost = np.zeros(4)
    for _ in range(45):
        choice = least_backlog(plain)
        a, b = plain.step(choice)[2], strict.step(choice)[2]
        assert (b <= a).all()
        lost += a - b
    assert (lost > 0).all()


@pytest.mark.parametrize("mode", ["delta", "instant", "hybrid"])
def test_other_rewards_are_there_to_compare_with(mode: Any) -> None:
    envs = VectorClusters(SMALL, 4, horizon=40, reward=RewardConfig(mode=mode))
    envs.reset(0)
    rewards = np.array([envs.step(np.zeros(4, int))[2] for _ in range(30)])
    assert np.isfinite(rewards).all() and np.ptp(rewards) > 0


def test_traffic_is_drawn_at_the_asked_load() -> None:
    """The busy share of replicas grows with the load, and stays below one in the mean."""

    def busy(load: float) -> float:
        domain = DomainConfig(
            num_replicas=(3, 3), load=(load, load), cv=(1.0, 1.0), spike_share=0.0, session_share=0.0, warm_up=(1, 1)
        )
        envs = VectorClusters(domain, 4, horizon=600)
        envs.reset(0)
        for _ in range(599):
            *_, info = envs.step(least_backlog(envs))
        return float(info["backlog"].mean())

    assert busy(0.5) < busy(0.95)


def test_an_episode_has_what_the_domain_says() -> None:
    random = np.random.default_rng(0)
    seen, traffic = set(), RandomTraffic(DomainConfig())
    for _ in range(60):
        episode = traffic.draw(100, random)
        assert 2 <= len(episode.pools) <= 8 and len(episode.requests) == episode.warm_up + 100
        assert np.all(np.diff(episode.requests.arrival_s) >= 0)
        assert episode.requests.total_tokens.max() <= DomainConfig().max_tokens
        seen.add((len({row for _, row in episode.pools}) > 1, len(episode.requests.prefix_hashes) > 0))
    assert len(seen) >= 3, "equal and unequal replicas, with and without conversations"


# One scenario, and teachers.


@pytest.mark.parametrize(
    "pools",
    [
        [{"num_replicas": 2}, {"num_replicas": 1, "timing": {"scale": 2.0}}],
        [{"replica": {"pipeline_parallel": 2}}, {"batching": "sarathi"}],
    ],
    ids=["slow", "stages and policies"],
)
def test_a_scenario_played_step_by_step_is_the_simulation(pools: list[dict[str, Any]]) -> None:
    """Environment and simulator are the same engine: the same choices give the same times, to the last bit."""
    from gnomon.routing.traffic import ScenarioTraffic
    from gnomon.serving.run.simulate import run
    from serving_kit import scenario

    base = scenario(
        pools=pools, timing={"source": "roofline", "table": None}, workload={"rate": 30.0, "num_requests": 200},
        engine="none",
    )  # fmt: skip
    traffic = ScenarioTraffic(base, 100)
    envs = VectorClusters(traffic, 1, horizon=100)
    envs.reset(4)
    drawn: list[Any] = []
    draw = traffic.draw
    traffic.draw = lambda *given: drawn.append(draw(*given)) or drawn[-1]  # type: ignore[method-assign, func-returns-value]
    envs.reset(4)
    for _ in range(99):
        envs.step(least_backlog(envs))
    played = envs.many.fleets.cluster.requests[0]
    routed = int(envs.many.pending[0])
    choices = played.replica[:routed].copy()
    some = drawn[0].requests.take(np.arange(routed))
    done = run(base, requests=some, forced_replicas=choices)
    finished = played.status[:routed] == FINISHED
    assert finished.sum() > 50
    assert np.array_equal(done.cluster.requests.finished_s[finished], played.finished_s[:routed][finished])
    assert np.array_equal(done.cluster.requests.first_token_s[finished], played.first_token_s[:routed][finished])


def test_scenarios_that_cannot_be_played_are_refused() -> None:
    from gnomon.core.errors import ConfigError
    from gnomon.routing.traffic import ScenarioTraffic
    from serving_kit import scenario

    loop = {"rate": None, "arrivals": {"process": "closed_loop", "concurrency": 4}}
    with pytest.raises(ConfigError, match="open loop"):
        ScenarioTraffic(scenario(workload=loop), 50)


def test_heuristic_teachers_are_the_routers() -> None:
    from gnomon.routing.demos import HeuristicTeacher

    envs = VectorClusters(SMALL, 6, horizon=30)
    envs.reset(1)
    teachers = {name: HeuristicTeacher(name) for name in ("least_outstanding", "round_robin", "lookahead", "learned")}
    turns = []
    for _ in range(12):
        chosen = {name: teacher.actions(envs) for name, teacher in teachers.items()}
        assert np.array_equal(chosen["least_outstanding"], least_backlog(envs))
        assert all((one < envs.many.num_replicas).all() for one in chosen.values())
        turns.append(chosen["round_robin"])
        envs.step(chosen["lookahead"])
    assert all(len(set(turn)) > 1 for turn in np.array(turns).T)


def test_the_rollout_teacher_leaves_the_clusters_alone_and_repeats_itself() -> None:
    from gnomon.routing.demos import RolloutTeacher

    teacher = RolloutTeacher("least_outstanding", horizon=10)
    other = VectorClusters(SMALL.model_copy(update={"num_replicas": (2, 2)}), 1, horizon=20)
    other.reset(0)
    assert teacher.costs(other).shape == (1, 2), "a teacher may be asked about clusters of any size"
    envs, untouched = (VectorClusters(SMALL, 4, horizon=30) for _ in range(2))
    envs.reset(1)
    untouched.reset(1)
    for _ in range(8):
        costs = teacher.costs(envs)
        assert np.array_equal(np.isfinite(costs), envs.mask)
        assert np.array_equal(costs, teacher.costs(envs))
        chosen = costs.argmin(axis=1)
        for a, b in zip(envs.step(chosen)[:4], untouched.step(chosen)[:4], strict=True):
            assert np.array_equal(a, b)


def test_the_cost_of_a_rollout_is_what_happens() -> None:
    """Following the base after the choice leads to exactly the latencies that the rollout foretold."""
    from gnomon.routing.demos import HeuristicTeacher, RolloutTeacher

    envs = VectorClusters(SMALL, 3, horizon=60)
    envs.reset(2)
    start, horizon, base = envs.many.pending.copy(), 20, HeuristicTeacher("least_outstanding")
    active = [list(envs.many.active[env, : envs.many.num_active[env]]) for env in range(3)]
    costs = RolloutTeacher("least_outstanding", horizon=horizon, ttft_weight=0.0).costs(envs)
    envs.step(np.ones(3, int))
    for _ in range(horizon):
        envs.step(base.actions(envs))
    for env in range(3):
        ids = [*active[env], *range(start[env], start[env] + horizon + 1)]
        requests = envs.many.fleets.cluster.requests[env][ids]
        ended = requests.status == FINISHED
        spent = (requests.finished_s - requests.arrival_s)[ended].sum()
        assert spent <= costs[env, 1], "what is not done yet comes on top"
        if ended.all():
            assert spent == pytest.approx(costs[env, 1], rel=1e-12)


def test_rollouts_improve_on_their_base() -> None:
    """Mixed lengths on unequal replicas: one step of policy improvement over round robin must be worth a lot."""
    from gnomon.routing.demos import HeuristicTeacher, RolloutTeacher

    short = {"output_median": (10.0, 20.0), "long_traces": 0.0, "max_sequences": (8,)}
    domain = SMALL.model_copy(update={"unequal_share": 1.0, "session_share": 0.0, "load": (0.8, 0.8), **short})

    def total(teacher: Any) -> float:
        envs = VectorClusters(domain, 4, horizon=150, reward=RewardConfig(ttft_weight=0.0))
        envs.reset(9)
        return sum(float(envs.step(teacher.actions(envs))[2].sum()) for _ in range(149))

    assert total(RolloutTeacher("round_robin", horizon=16)) > 0.9 * total(HeuristicTeacher("round_robin"))


# Gymnasium.


def test_gymnasium_and_stable_baselines_accept_the_environment() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    from gnomon.routing.gym import RoutingEnv

    env = RoutingEnv(SMALL, horizon=32)
    check_env(env, skip_render_check=True)
    observation, info = env.reset(seed=3)
    again, _ = RoutingEnv(SMALL, horizon=32).reset(seed=3)
    assert np.array_equal(observation, again)
    assert info["action_mask"].shape == (4,)
    for step in range(32):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert not terminated and truncated == (step == 31) and reward <= 0
    assert env.observation_space.contains(observation), "the last observation is that of the old episode"
    baselines = pytest.importorskip("stable_baselines3.common.env_checker")
    baselines.check_env(gymnasium.wrappers.FlattenObservation(RoutingEnv(SMALL, horizon=32)))
