"""The trainer and its traps, on clusters small enough to reason about."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gnomon.routing import ppo  # noqa: E402
from gnomon.routing.config import TrainConfig  # noqa: E402
from gnomon.routing.network import Critic, Scorer, initialize, log_probabilities  # noqa: E402
from route_kit import NUM_FEATURES, ToyClusters  # noqa: E402

SMALL = TrainConfig(
    updates=6, num_environments=8, trace_group=4, steps=16, epochs=2, minibatch=32, critic_warmup=1, validate_every=2,
    validation_environments=4, validation_steps=16, discount=0.9, entropy_warmup_steps=4,
)  # fmt: skip


def scorer(seed: int = 0) -> Scorer:
    made = Scorer(NUM_FEATURES, 16)
    initialize(made, seed)
    return made


def trainer(config: TrainConfig = SMALL, seed: int = 0) -> ppo.Trainer:
    clusters = ToyClusters(config.num_environments, config.steps, config.trace_group)
    return ppo.Trainer(config, clusters, ToyClusters(config.validation_environments), scorer(), seed)


def experience(seed: int = 0, num_steps: int = 16) -> ppo.Experience:
    t = trainer()
    return ppo.collect(t.clusters, t.scorer, t.critic, t.generator, num_steps, seed)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_probability_ratio_is_one_before_the_first_update():
    t = trainer()
    e = ppo.collect(t.clusters, t.scorer, t.critic, t.generator, 16, 0)
    log_p = log_probabilities(t.scorer(e.rows.flatten(0, 1), e.mask.flatten(0, 1)))
    ratio = (log_p.gather(1, e.actions.flatten().unsqueeze(1)).squeeze(1) - e.log_p.flatten()).exp()
    assert torch.allclose(ratio, torch.ones_like(ratio), atol=1e-5)


def test_a_recurrent_policy_learns_with_the_memory_it_acted_with():
    made = Scorer(NUM_FEATURES, 16, recurrent=True)
    initialize(made, 0)
    made.rho1.reset_parameters()  # Else the memory has no say yet.
    clusters = ToyClusters(SMALL.num_environments, SMALL.steps, SMALL.trace_group)
    t = ppo.Trainer(SMALL, clusters, ToyClusters(SMALL.validation_environments), made, 0)
    e = ppo.collect(t.clusters, t.scorer, t.critic, t.generator, 16, 0)
    assert not e.memory[0].any() and e.memory[1].abs().max() > 0
    flat = e.rows.flatten(0, 1), e.mask.flatten(0, 1)
    for memory, is_one in ((e.memory.flatten(0, 1), True), (None, False)):
        log_p = log_probabilities(t.scorer(*flat, memory))
        ratio = (log_p.gather(1, e.actions.flatten().unsqueeze(1)).squeeze(1) - e.log_p.flatten()).exp()
        assert torch.allclose(ratio, torch.ones_like(ratio), atol=1e-5) == is_one
    before = copy.deepcopy(t.scorer.gru.state_dict())
    list(t.train())
    assert not same(before, t.scorer.gru.state_dict()), "the memory is trained, too"


def test_acting_samples_the_policy_itself_at_temperature_one():
    """Frequencies of the sampled actions are the probabilities that the loss divides by."""
    t = trainer()
    rows, mask = torch.rand(1, 4, NUM_FEATURES).expand(4000, -1, -1), torch.ones(4000, 4, dtype=torch.bool)

    class Frozen(ToyClusters):
        def reset(self, seed):
            return rows.numpy(), mask.numpy()

        def step(self, actions):
            return rows.numpy(), mask.numpy(), np.zeros(4000), np.zeros(4000, bool), {"backlog": np.ones(4000)}

    e = ppo.collect(Frozen(4000), t.scorer, t.critic, t.generator, 1, 0)
    expected = log_probabilities(t.scorer(rows[:1], mask[:1])).exp()[0]
    seen = torch.bincount(e.actions.flatten(), minlength=4) / 4000
    assert torch.allclose(seen, expected.detach(), atol=0.03)


def test_the_last_transition_is_bootstrapped_and_a_cut_only_ends_the_sum():
    """By hand: two steps, a cut after the second. Both add the value of what followed; nothing is zeroed."""
    e = replace(
        experience(num_steps=2),
        rewards=torch.tensor([[1.0], [2.0]]),
        values=torch.tensor([[10.0], [20.0]]),
        next_values=torch.tensor([[20.0], [30.0]]),
        cut=torch.tensor([[False], [True]]),
    )
    last = 2.0 + 0.5 * 30.0 - 20.0
    first = 1.0 + 0.5 * 20.0 - 10.0 + 0.5 * 0.8 * last
    assert ppo.advantages(e, discount=0.5, trace_decay=0.8).flatten().tolist() == pytest.approx([first, last])


def test_nothing_flows_over_a_cut():
    e = experience(num_steps=4)
    cut = torch.zeros_like(e.cut)
    cut[1] = True
    e = replace(e, cut=cut)
    later = replace(e, rewards=torch.cat([e.rewards[:2], e.rewards[2:] + 100.0]))
    found, shifted = (ppo.advantages(one, 0.9, 0.9) for one in (e, later))
    assert torch.equal(found[:2], shifted[:2])
    assert not torch.equal(found[2:], shifted[2:])


def test_the_value_after_a_cut_is_that_of_the_state_before_the_reset():
    """The toy empties its queues at the cut; the value that is added must be that of the full ones."""
    t = trainer()
    clusters = ToyClusters(num_envs=4, horizon=8)
    e = ppo.collect(clusters, t.scorer, t.critic, t.generator, 8, 0)
    assert e.cut[-1].all()
    empty = t.critic(torch.tensor(clusters._observed(), dtype=torch.float32), torch.tensor(clusters.mask))
    assert not torch.allclose(e.next_values[-1], empty)


def test_clusters_with_the_same_arrivals_are_compared_with_each_other():
    """Luck that all members of a group share at a decision leaves no trace."""
    advantage = torch.randn(10, 8)
    luck = torch.randn(10, 2, 1).expand(-1, -1, 4).reshape(10, 8) * 50
    assert torch.allclose(ppo.merit(advantage, 4), ppo.merit(advantage + luck, 4), atol=1e-4)
    assert ppo.merit(advantage, 4).view(10, 2, 4).mean(-1).abs().max() < 1e-5


def test_every_group_counts_the_same():
    advantage = torch.randn(50, 8)
    advantage[:, 4:] *= 1000
    spread = ppo.merit(advantage, 4).view(50, 2, 4).pow(2).mean((0, 2)).sqrt()
    assert spread.tolist() == pytest.approx([1.0, 1.0], rel=1e-3)


def test_the_leash_decays_and_holds_its_last_value():
    config = TrainConfig(kl_start=0.6, kl_end=0.1, kl_decay_steps=3000)
    assert ppo.kl_weight(config, 0) == pytest.approx(0.6)
    assert ppo.kl_weight(config, 1500) == pytest.approx(0.35)
    for late in (3000, 3001, 10**9):
        assert ppo.kl_weight(config, late) == pytest.approx(0.1)


def test_entropy_warms_up_then_decays_and_holds():
    config = TrainConfig(
        entropy_warmup=0.0, entropy_warmup_steps=10, entropy_start=0.02, entropy_end=0.002, entropy_decay_steps=100
    )
    weights = [ppo.entropy_weight(config, step) for step in (0, 9, 10, 60, 110, 10**6)]
    assert weights == pytest.approx([0.0, 0.0, 0.02, 0.011, 0.002, 0.002])


def test_the_leash_holds_the_policy_back():
    """With a heavy leash the policy stays where it was; without, it moves."""
    moved = {}
    for weight in (0.0, 10.0):
        leash = {"kl_start": weight, "kl_end": weight, "target_kl": 1e9, "learning_rate": 3e-3}
        moved[weight] = list(trainer(SMALL.model_copy(update=leash)).train())[-1]["policy/kl_reference"]
    assert moved[10.0] < 0.2 * moved[0.0], moved


def test_an_update_ends_early_where_the_policy_has_moved_too_far():
    config = SMALL.model_copy(update={"target_kl": 1e-9, "critic_warmup": 0, "learning_rate": 0.01})
    passes = [metrics["policy/passes"] for metrics in trainer(config).train()]
    assert max(passes) <= 2 < 2 * 128 / 32


def test_only_the_critic_learns_at_first():
    t = trainer()
    before = copy.deepcopy(t.scorer.state_dict())
    t.one_update()
    assert same(before, t.scorer.state_dict())
    t.one_update()
    assert not same(before, t.scorer.state_dict())


def test_training_learns_to_take_the_short_queue():
    config = SMALL.model_copy(
        update={
            "updates": 15, "num_environments": 16, "steps": 32, "learning_rate": 1e-2, "kl_start": 0.0, "kl_end": 0.0,
            "epochs": 4, "minibatch": 128, "validation_environments": 16,
            "target_kl": 0.1,
        }
    )  # fmt: skip
    metrics = list(trainer(config).train())
    gains = [one["validation/gain"] for one in metrics if "validation/gain" in one]
    assert max(gains) > 0.3, gains


def test_a_run_that_stops_and_resumes_equals_one_that_does_not():
    whole, first = trainer(), trainer()
    whole_metrics = list(whole.train())
    for _ in range(3):
        first.one_update()
    resumed = trainer(seed=0)
    with torch.no_grad():  # Whatever it started from must not matter.
        for parameter in (*resumed.scorer.parameters(), *resumed.reference.parameters(), *resumed.critic.parameters()):
            parameter.add_(1.0)
    resumed.load_state(first.state())
    rest = list(resumed.train())
    for name in ("scorer", "critic", "reference"):
        assert same(getattr(whole, name).state_dict(), getattr(resumed, name).state_dict()), name
    assert same(whole.best, resumed.best)
    for ours, theirs in zip(rest, whole_metrics[3:], strict=True):
        assert {k: v for k, v in ours.items() if "speed" not in k} == {
            k: v for k, v in theirs.items() if "speed" not in k
        }


def test_two_runs_with_one_seed_are_equal_and_with_another_not():
    a, b, c = trainer(seed=1), trainer(seed=1), trainer(seed=2)
    for one in (a, b, c):
        list(one.train())
    assert same(a.scorer.state_dict(), b.scorer.state_dict())
    assert not same(a.scorer.state_dict(), c.scorer.state_dict())


def test_a_collapse_on_a_growing_backlog_raises_the_alarm():
    alarm = ppo.Alarm(share=0.9, patience=3)
    collapsed = replace(experience(), top_share=0.99, backlog=5.0)
    for _ in range(2):
        alarm.watch(collapsed)
    with pytest.raises(ppo.CollapseError, match="collapsed"):
        alarm.watch(collapsed)


@pytest.mark.parametrize(("top_share", "backlog"), [(0.99, 1.0), (0.5, 5.0)])
def test_no_alarm_without_both(top_share, backlog):
    alarm = ppo.Alarm(share=0.9, patience=1)
    alarm.watch(replace(experience(), top_share=top_share, backlog=backlog))
    assert alarm.strikes == 0
    with pytest.raises(ppo.CollapseError):
        alarm.watch(replace(experience(), top_share=0.99, backlog=5.0))


def test_a_policy_that_always_takes_the_first_replica_is_seen_as_collapsed():
    t = trainer()
    with torch.no_grad():
        t.scorer.rho1.weight.zero_()
        t.scorer.phi0.weight.zero_()

    class First(Scorer):
        def step(self, rows, mask, memory=None):
            logits = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
            logits[:, 0] = 50.0
            return logits, memory

    e = ppo.collect(ToyClusters(8, 64), First(NUM_FEATURES, 4), t.critic, t.generator, 64, 0)
    assert e.top_share == 1.0
    assert e.backlog > 1.5


def test_the_score_does_not_depend_on_the_order_of_the_replicas_or_on_absent_ones():
    made, critic = scorer(), Critic(NUM_FEATURES, 16)
    rows, mask = torch.randn(5, 4, NUM_FEATURES), torch.ones(5, 4, dtype=torch.bool)
    order = torch.tensor([2, 0, 3, 1])
    assert torch.allclose(made(rows, mask)[:, order], made(rows[:, order], mask), atol=1e-6)
    wider = torch.cat([rows, torch.randn(5, 3, NUM_FEATURES)], 1)
    wide_mask = torch.cat([mask, torch.zeros(5, 3, dtype=torch.bool)], 1)
    assert torch.allclose(made(wider, wide_mask)[:, :4], made(rows, mask), atol=1e-6)
    assert torch.isneginf(made(wider, wide_mask)[:, 4:]).all()
    assert torch.allclose(critic(wider, wide_mask), critic(rows, mask), atol=1e-6)


def test_discount_and_reward_weights_are_different_names():
    from gnomon.routing.config import RouteConfig

    assert "gamma" not in TrainConfig.model_fields
    assert not set(TrainConfig.model_fields) & set(RouteConfig.model_fields["reward"].annotation.model_fields)
