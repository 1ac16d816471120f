"""One step: the executor of a policy's actions over the generation engine, inference and the actor.

Generation runs ahead on the serving engine up to the next moment at which somebody may act; groups stream through
inference to the actor; the actor trains mini-batches as soon as their groups are ready. All times are seconds since the
start of the step. A static policy is asked only when nothing is going on, so generation runs through at once; for any
other, generation stops at every check interval while the actor is idle, and at every mini-batch boundary.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from gnomon.core.errors import GnomonError
from gnomon.posttrain.config import Posttrain
from gnomon.posttrain.costs import Costs
from gnomon.posttrain.inference import InferenceQueue
from gnomon.posttrain.lengths import Ints
from gnomon.posttrain.ownership import Ownership
from gnomon.posttrain.placement import Placement, valid_actor_sizes
from gnomon.posttrain.policies import Policy
from gnomon.posttrain.record import Decision, StepRecord, Work
from gnomon.posttrain.rollout import Rollouts, Sequences
from gnomon.posttrain.snapshot import (
    Finish,
    Instance,
    Migrate,
    Point,
    Rates,
    Report,
    Scale,
    Snapshot,
    Submit,
    Wait,
)

KV_HISTORY = 30


class PolicyError(GnomonError):
    """A policy's answer that cannot be carried out, or that leaves the step stuck."""


@dataclass(eq=False)
class Prompts:
    """Groups that may be generated in a step: those carried over first, then new ones."""

    prompt: Ints
    """[group, sample]"""
    response: Ints
    generated: Ints
    """Tokens that earlier steps have produced."""
    age: Ints
    """[group]: weight updates since the first token."""
    num_carried: int = 0


class Step:
    """Runs one step of a policy."""

    def __init__(
        self,
        config: Posttrain,
        placement: Placement,
        costs: Costs,
        policy: Policy,
        prompts: Prompts,
        number: int,
        *,
        keep_decisions: bool = False,
    ) -> None:
        self.config, self.placement, self.costs, self.policy = config, placement, costs, policy
        self.prompts, self.keep_decisions = prompts, keep_decisions
        self.tokens = prompts.prompt + prompts.response
        self.record = StepRecord(number)
        algorithm = config.algorithm
        self.group_size, self.needed = algorithm.group_size, algorithm.rollout_batch_size
        self.num_minibatches = algorithm.n_minibatches
        self.per_minibatch = self.needed // self.num_minibatches
        self.has_inference = algorithm.recompute_logprobs
        count = config.cluster.num_gpus
        self.owners = Ownership(count, self.record.spans)
        self.now = 0.0
        self.submitted = self.needed
        self.max_age: int | None = None
        self.balance = False
        self.instances: dict[int, tuple[int, ...]] = {}
        self.deliveries: list[tuple[float, int, Ints, Ints]] = []
        self.waiting_for: str | None = None
        self.actor_free_s = 0.0
        self.actor_end_s = math.inf
        self.trained: list[Ints] = []
        self.is_over = False
        self.kv_recent: list[list[float]] = [[] for _ in range(count)]
        self.keep_tokens = False
        self.left_s = math.inf
        self.inference = InferenceQueue(costs, self.record.work)
        self.ready: list[tuple[float, int]] = []
        self.rollouts: Rollouts | None = None
        self.started_s = self.generated_s = 0.0
        self.num_collected = -1

    # The course of a step.

    def run(self) -> StepRecord:
        """From the weight sync to the last mini-batch."""
        self.now = self.costs.sync_s(self.has_inference)
        self.owners.hand_over(range(self.config.cluster.num_gpus), "free", self.now, meanwhile="transition")
        self._ask("start")
        self._submit_all()
        while not self.is_over:
            self._advance()
        return self._close()

    def _advance(self) -> None:
        """To the next moment at which somebody may act, and let them."""
        until = self._next_moment()
        self._run_rollouts(until)
        self._train_if_ready()
        if self.waiting_for is not None:
            self._look_whether_it_came()
        elif self.actor_end_s <= max(until, self.now) and self.actor_end_s < math.inf:
            self._end_minibatch()
        elif until < math.inf:
            self._check(until)
        elif self.actor_end_s == math.inf:
            self._ask("stalled")

    def _next_moment(self) -> float:
        if self.waiting_for is not None or self.policy.is_static:
            return math.inf if self.actor_end_s == math.inf else self.actor_end_s
        if not self._has_rollout_work():
            return self.actor_end_s
        check = max(self.now, self.owners.settled_s) + self.config.transitions.check_interval_s
        is_training = self.actor_end_s < math.inf
        return self.actor_end_s if is_training and self.policy.checks != "always" else min(self.actor_end_s, check)

    def _run_rollouts(self, until: float) -> None:
        """Generate up to `until`, delivering moved sequences on the way; with no end given, until all is generated."""
        assert self.rollouts is not None
        while self.deliveries and self.deliveries[0][0] <= until:
            at, _, ids, instances = heapq.heappop(self.deliveries)
            self.rollouts.advance(at)
            self.rollouts.submit(ids, instances, at)
        self.rollouts.advance(until)
        if until < math.inf:
            self.now = max(self.now, until)
        self._collect()

    def _collect(self) -> None:
        """Hand groups that are complete to inference, or to the actor where there is none."""
        assert self.rollouts is not None
        if self.rollouts.num_finished == self.num_collected:
            return
        self.num_collected = self.rollouts.num_finished
        done = self.finish_s()[: self.submitted * self.group_size].reshape(self.submitted, self.group_size).max(axis=1)
        new = np.flatnonzero((done < math.inf) & ~self.is_generated[: self.submitted])
        for group in new[np.lexsort((new, done[new]))]:
            self.is_generated[group] = True
            self.generated_s = max(self.generated_s, float(done[group]))
            if self.has_inference:
                self.inference.add(int(group), self.tokens[group], float(done[group]))
            else:
                heapq.heappush(self.ready, (float(done[group]), int(group)))
        for ready_s, group in self.inference.take_ready():
            heapq.heappush(self.ready, (ready_s, group))

    def finish_s(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """When each sequence was generated; those that came complete, at the start."""
        assert self.rollouts is not None
        finished = self.rollouts.finished_s
        return np.where(self.came_complete, self.started_s, finished)

    def _train_if_ready(self) -> None:
        """Start the next mini-batch if the actor is free and the groups for it are known."""
        if self.actor_end_s < math.inf or not self.owners.of("actor") or self._num_trained() == self.needed:
            return
        if self.waiting_for is not None:
            return
        picked = self._pick()
        if picked is None:
            return
        groups, ready_s = picked
        start = max(ready_s, self.actor_free_s)
        gpus = self.owners.of("actor")
        self.actor_end_s = start + self.costs.train_s(self.tokens[groups], len(gpus))
        self.record.work.append(Work("actor", len(self.trained), gpus, start, self.actor_end_s))
        self.trained.append(groups)

    def _pick(self) -> tuple[Ints, float] | None:
        """The first groups that are ready, with room left for those that must not get older."""
        left = self.needed - self._num_trained()
        must = 0
        if self.max_age is not None:
            taken = np.concatenate([*self.trained, np.empty(0, np.int64)])
            old = np.flatnonzero(self.prompts.age[: self.submitted] >= self.max_age)
            must = len(np.setdiff1d(old, taken))
        others, groups, ready_s = left - must, [], 0.0
        for at, group in sorted(self.ready):
            is_old = self.max_age is not None and self.prompts.age[group] >= self.max_age
            if not is_old and others == 0:
                continue
            others -= not is_old
            groups.append(group)
            ready_s = at
            if len(groups) == self.per_minibatch:
                chosen = set(groups)
                self.ready = [one for one in self.ready if one[1] not in chosen]
                heapq.heapify(self.ready)
                return np.array(groups, np.int64), ready_s
        return None

    def _num_trained(self) -> int:
        return self.per_minibatch * len(self.trained)

    def _end_minibatch(self) -> None:
        self.now = max(self.now, self.actor_end_s)
        self.actor_free_s = self.now
        self.actor_end_s = math.inf
        self._ask("boundary")
        if len(self.trained) == self.num_minibatches:
            self.is_over = True

    def _look_whether_it_came(self) -> None:
        """After generation ran out: the awaited component has no work left from this moment on."""
        came = self.generated_s if self.waiting_for == "rollout" else self.inference.last_end_s
        self.waiting_for = None
        self.now = max(self.now, came)
        self.actor_free_s = max(self.actor_free_s, self.now)
        self._ask("waited")

    def _check(self, now: float) -> None:
        self.now = max(self.now, now)
        assert self.rollouts is not None
        use = self.rollouts.kv_use
        for instance in self.instances:
            self.kv_recent[instance] = [*self.kv_recent[instance][1 - KV_HISTORY :], round(float(use[instance]), 4)]
        if self.policy.checks != "never":
            self._ask("check")

    def _has_rollout_work(self) -> bool:
        assert self.rollouts is not None
        return bool(self.deliveries) or self.rollouts.next_event_s < math.inf

    # Asking the policy, and doing what it says.

    def _ask(self, point: Point) -> None:
        snapshot = self._snapshot(point)
        actions = self.policy.decide(snapshot)
        if self.keep_decisions:
            self.record.decisions.append(Decision(snapshot, actions))
        clock = max(self.now, self.owners.settled_s) if actions else self.now
        for action in actions:
            match action:
                case Submit():
                    self._plan_submission(action)
                case Migrate():
                    clock = self._migrate(action.leave, clock)
                case Finish():
                    clock = self._finish(action, clock)
                case Scale():
                    clock = self._scale(action, clock, is_start=point == "start")
                case Wait():
                    self.waiting_for = action.component
                    break
                case Report():
                    pass
        self.actor_free_s = max(self.actor_free_s, clock)
        changes = [action for action in actions if not isinstance(action, Report)]
        if point == "stalled" and not changes:
            raise PolicyError(
                f"policy {self.policy.name!r} leaves step {self.record.number} stuck at {self.now:.1f} s:"
                f" {len(self.trained)} of {self.num_minibatches} mini-batches are trained, {len(self.ready)} groups"
                f" are ready, the actor has {len(self.owners.of('actor'))} GPUs.",
                fix="Answer the point 'stalled' with scale, migrate or finish.",
            )

    def _plan_submission(self, action: Submit) -> None:
        if self.rollouts is not None or not self.needed <= action.groups <= len(self.prompts.age):
            raise PolicyError(
                f"policy {self.policy.name!r} submits {action.groups} prompts at {self.now:.1f} s.",
                fix=f"Submit once, at the point 'start', {self.needed} to {len(self.prompts.age)} of them.",
            )
        self.submitted, self.max_age, self.balance = action.groups, action.max_age, action.balance

    def _submit_all(self) -> None:
        """Deal whole groups to the instances in turn; a clairvoyant deals the longest to the least loaded."""
        prompts, size = self.prompts, self.group_size
        if not self.instances:
            raise PolicyError(
                f"policy {self.policy.name!r} starts no rollout instance.", fix="Scale rollout at 'start'."
            )
        sequences = Sequences(
            np.repeat(np.arange(self.submitted), size),
            prompts.prompt[: self.submitted].ravel(),
            prompts.response[: self.submitted].ravel(),
            prompts.generated[: self.submitted].ravel(),
        )
        self.rollouts = Rollouts(self.config, self.config.cluster.num_gpus // self.config.rollout.num_gpus, sequences)
        self.is_generated = np.zeros(self.submitted, bool)
        self.came_complete = sequences.generated >= sequences.response
        self.started_s, self.generated_s = self.now, self.now
        ids = np.flatnonzero(~self.came_complete)
        here = np.array(sorted(self.instances))
        if self.balance:
            chosen = _balanced(sequences.response - sequences.generated, sequences.group, here)
        else:
            chosen = here[sequences.group % len(here)]
        self.rollouts.submit(ids, chosen[ids], self.now)

    def _migrate(self, leave: tuple[int, ...], clock: float) -> float:
        """Instances stop at their next batch boundary; their groups go on elsewhere after the migration time."""
        stay = sorted(set(self.instances) - set(leave))
        unknown = set(leave) - set(self.instances)
        if unknown:
            raise PolicyError(f"policy {self.policy.name!r} migrates instance {min(unknown)}, which is not there.")
        ids, stop = self._stop_instances(leave, clock)
        if ids.size and not stay:
            raise PolicyError(f"policy {self.policy.name!r} releases the last instance while {ids.size} sequences run.")
        assert self.rollouts is not None
        freed = stop
        if ids.size:
            tokens = int((self.rollouts.sequences.prompt[ids] + self.rollouts.generated(ids)).sum())
            freed = stop + self.costs.migration_s(tokens)
            if self.config.rollout.migration == "reprefill":
                self.record.tokens_prefilled_again += tokens
            self.record.num_moved += ids.size
            targets = self._receivers(ids, stay)
            heapq.heappush(self.deliveries, (freed, len(self.record.spans), ids, targets))
        gpus = [gpu for one in leave for gpu in self.instances.pop(one)]
        self.owners.hand_over(gpus, "transition", stop)
        self.owners.hand_over(gpus, "free", freed)
        return max(clock, freed)

    def _stop_instances(self, leave: tuple[int, ...], clock: float) -> tuple[Ints, float]:
        assert self.rollouts is not None
        self._run_rollouts(clock)
        pairs = [self.rollouts.withdraw(one, clock) for one in sorted(leave)]
        on_the_way = [entry for entry in self.deliveries if np.isin(entry[3], leave).any()]
        assert not on_the_way, "sequences are on their way to an instance that leaves"
        ids = np.concatenate([np.empty(0, np.int64), *(pair[0] for pair in pairs)])
        self._collect()
        return ids, max([clock, *(pair[1] for pair in pairs)])

    def _receivers(self, ids: Ints, stay: list[int]) -> Ints:
        """Whole groups to receivers in id order, each up to an even share of what runs; the rest to the last."""
        assert self.rollouts is not None
        load = self.rollouts.unfinished
        share = (int(load[stay].sum()) + len(ids)) // len(stay)
        filled = {one: int(load[one]) for one in stay}
        groups = self.rollouts.sequences.group[ids]
        targets = np.empty(len(ids), np.int64)
        at = 0
        for group in np.unique(groups):
            mine = groups == group
            while at < len(stay) - 1 and filled[stay[at]] >= share:
                at += 1
            targets[mine] = stay[at]
            filled[stay[at]] += int(mine.sum())
        return targets

    def _finish(self, action: Finish, clock: float) -> float:
        """The component frees its GPUs; what rollout has not finished is left over."""
        name = action.component
        if name == "rollout" and self.instances:
            _, stop = self._stop_instances(tuple(self.instances), clock)
            self.left_s, self.keep_tokens = stop, action.keep_tokens
            gpus = [gpu for held in self.instances.values() for gpu in held]
            self.instances.clear()
            self.owners.hand_over(gpus, "free", stop)
            return max(clock, stop)
        if name == "inference":
            if self.inference.last_end_s > clock + 1e-9:
                raise PolicyError(
                    f"policy {self.policy.name!r} finishes inference while it has work.", fix="Wait first."
                )
            self.inference.stop()
        self.owners.hand_over(self.owners.of(name), "free", clock)
        return clock

    def _scale(self, action: Scale, clock: float, *, is_start: bool) -> float:
        """The component takes GPUs; costs follow from what changes."""
        name, gpus = action.component, tuple(sorted(action.gpus))
        before = self.owners.of(name)
        taken = [gpu for gpu in gpus if gpu not in before]
        busy = [gpu for gpu in taken if self.owners.owner(gpu) != "free"]
        if busy:
            raise PolicyError(
                f"policy {self.policy.name!r} gives GPU {busy[0]} to {name}, but {self.owners.owner(busy[0])} has it."
            )
        switch = self.config.transitions.switch_s if self.placement_is_shared and not is_start else 0.0
        if name == "rollout":
            self._start_instances(taken, clock)
            return clock
        if name == "inference":
            self.owners.hand_over(gpus, "inference", clock + switch, meanwhile="transition")
            copy = self.config.inference.num_gpus
            self.inference.start([gpus[i : i + copy] for i in range(0, len(gpus), copy)], clock + switch)
            for ready_s, group in self.inference.take_ready():
                heapq.heappush(self.ready, (ready_s, group))
            return clock + switch
        return self._scale_actor(gpus, clock, 0.0 if is_start else switch or self.costs.reshard_s)

    def _scale_actor(self, gpus: tuple[int, ...], clock: float, cost: float) -> float:
        before = self.owners.of("actor")
        if len(gpus) not in valid_actor_sizes(self.config):
            raise PolicyError(f"policy {self.policy.name!r} gives the actor {len(gpus)} GPUs, which is no valid size.")
        if gpus == before:
            return clock
        self.owners.hand_over([gpu for gpu in before if gpu not in gpus], "free", clock)
        self.owners.hand_over(gpus, "actor", clock + cost, meanwhile="transition", at=clock)
        return clock + cost

    @property
    def placement_is_shared(self) -> bool:
        """Whether components take turns on the same GPUs."""
        return self.policy.takes_turns

    def _start_instances(self, gpus: list[int], clock: float) -> None:
        size = self.config.rollout.num_gpus
        for i in range(0, len(gpus) // size * size, size):
            held = tuple(gpus[i : i + size])
            self.instances[held[0] // size] = held
            self.owners.hand_over(held, "rollout", clock)

    # What the policy sees.

    def _snapshot(self, point: Point) -> Snapshot:
        unfinished, use = (self.rollouts.unfinished, self.rollouts.kv_use) if self.rollouts else ((), ())
        instances = tuple(
            Instance(
                id=one,
                gpus=self.instances[one],
                unfinished=int(unfinished[one]) if self.rollouts else 0,
                kv_use=float(use[one]) if self.rollouts else 0.0,
                kv_recent=tuple(self.kv_recent[one]),
            )
            for one in sorted(self.instances)
        )
        generated = int(self.is_generated.sum()) if self.rollouts else 0
        ready = self._num_trained() + sum(at <= self.now for at, _ in self.ready)
        moving = sum(len(entry[2]) for entry in self.deliveries)
        return Snapshot(
            point=point,
            time_s=self.now,
            step=self.record.number,
            minibatch=len(self.trained) - 1,
            num_minibatches=self.num_minibatches,
            group_size=self.group_size,
            num_gpus=self.config.cluster.num_gpus,
            rollout_gpus=self.config.rollout.num_gpus,
            inference_gpus=self.config.inference.num_gpus if self.has_inference else 0,
            max_running=self.config.rollout.max_running_requests,
            valid_actor_sizes=tuple(valid_actor_sizes(self.config)),
            initial=self.placement.by_name(),
            actor=self.owners.of("actor"),
            inference=self.owners.of("inference"),
            free=self.owners.of("free"),
            instances=instances,
            groups_needed=self.needed,
            groups_submitted=self.submitted if self.rollouts else 0,
            groups_generated=generated,
            groups_ready=ready,
            sequences_unfinished=sum(one.unfinished for one in instances) + moving,
            carried=self.prompts.num_carried,
            stalest=self._stalest(),
            rates=self._rates(generated),
            reshard_s=self.costs.reshard_s,
            migration_s=self.config.transitions.migration_s,
        )

    def _stalest(self) -> int:
        if self.rollouts is None:
            return int(self.prompts.age[: self.prompts.num_carried].max(initial=-1))
        left = self.prompts.age[: self.submitted][~self.is_generated]
        return int(left.max(initial=-1))

    def _rates(self, generated: int) -> Rates:
        trained = [one for one in self.record.work if one.component == "actor" and one.end_s <= self.now]
        gpu_s = sum((one.end_s - one.start_s) * len(one.gpus) for one in trained)
        passed = self.now - self.started_s if self.rollouts else 0.0
        return Rates(
            rollout_groups_s=generated / passed if passed > 0 else 0.0,
            inference_groups_s=self.inference.groups_s,
            train_groups_s_per_gpu=self.per_minibatch * len(trained) / gpu_s if gpu_s > 0 else 0.0,
        )

    # The end.

    def _close(self) -> StepRecord:
        """Close the books: the step lasts until the actor is back where it started."""
        assert self.rollouts is not None
        record, rollouts = self.record, self.rollouts
        record.duration_s = max(self.actor_free_s, self.now)
        self.owners.close(record.duration_s)
        sequences = rollouts.sequences
        record.finished_s = np.minimum(self.finish_s(), math.inf)
        record.rollout_end_s = min(self.left_s, float(np.max(record.finished_s)))
        size = self.config.rollout.num_gpus
        busy = rollouts.busy_s
        record.instance_busy_s = {i: float(busy[i]) * size for i in range(len(busy)) if busy[i] > 0.0}
        record.num_preemptions = rollouts.num_preemptions
        done = np.where(np.isfinite(record.finished_s), sequences.response, 0)
        open_ids = np.flatnonzero(~np.isfinite(record.finished_s))
        produced = done.copy()
        produced[open_ids] = rollouts.generated(open_ids)
        record.tokens_brought = int(sequences.generated.sum())
        record.tokens_generated = int(produced.sum()) - record.tokens_brought
        trained = np.concatenate(self.trained)
        is_trained = np.zeros(self.submitted, bool)
        is_trained[trained] = True
        record.ages = self.prompts.age[trained]
        record.response_tokens_trained = int(self.prompts.response[trained].sum())
        record.tokens_trained = record.response_tokens_trained + int(self.prompts.prompt[trained].sum())
        left = produced.reshape(self.submitted, self.group_size)[~is_trained]
        record.tokens_carried = int(left.sum()) if self.keep_tokens else 0
        record.tokens_discarded = 0 if self.keep_tokens else int(left.sum())
        self.left_over = self._left_over(is_trained, produced)
        return record

    def _left_over(self, is_trained: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], produced: Ints) -> Prompts:
        """Groups for later steps: submitted ones that were not trained, and carried ones that were not submitted."""
        p = self.prompts
        again = np.flatnonzero(~is_trained)
        waiting = np.arange(self.submitted, max(self.submitted, p.num_carried))
        tokens = produced.reshape(self.submitted, self.group_size)[again]
        rows = np.concatenate([again, waiting])
        kept = tokens if self.keep_tokens else np.zeros_like(tokens)
        age = np.where(kept.sum(axis=1) > 0, p.age[again] + 1, 0)
        return Prompts(
            p.prompt[rows],
            p.response[rows],
            np.concatenate([kept, p.generated[waiting]]),
            np.concatenate([age, p.age[waiting] + (p.generated[waiting].sum(axis=1) > 0)]),
            len(rows),
        )


def _balanced(work: Ints, group: Ints, instances: Ints) -> Ints:
    """Whole groups, the longest first, to the instance with the least work."""
    total = np.bincount(group, weights=work)
    load = [(0.0, int(one)) for one in instances]
    heapq.heapify(load)
    chosen = np.empty(len(total), np.int64)
    for one in np.argsort(-total, kind="stable"):
        so_far, instance = heapq.heappop(load)
        chosen[one] = instance
        heapq.heappush(load, (so_far + float(total[one]), instance))
    return chosen[group]
