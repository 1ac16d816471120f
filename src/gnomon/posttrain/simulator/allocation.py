"""What happens to GPUs and to the work on them when a policy acts: migration, release, growth, and what each costs."""

import heapq
import math
from collections.abc import Iterable

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.posttrain.costs import Costs
from gnomon.posttrain.policies import Policy
from gnomon.posttrain.policies.snapshot import Finish, Scale
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.placement import valid_actor_sizes
from gnomon.posttrain.simulator.record import Span, StepRecord, Work
from gnomon.posttrain.simulator.rollout import PromptQueue, Rollouts

MAX_LOOKS = 10_000  # Check intervals in one step: at the default of a second, nearly three hours.


class PolicyError(GnomonError):
    """A policy's answer that cannot be carried out, or that leaves the step stuck."""


class Allocation:
    """The GPUs of one step, the rollout instances on them, and sequences on their way between instances.

    Every verb starts at `clock` and returns when it is done; the actor blocks until then.
    """

    def __init__(self, config: Posttrain, costs: Costs, policy: Policy, record: StepRecord) -> None:
        self.config, self.costs, self.policy, self.record = config, costs, policy, record
        self.owners = Ownership(config.cluster.num_gpus, record.spans)
        self.inference = InferenceQueue(costs, record.work)
        self.instances: dict[int, tuple[int, ...]] = {}
        self.deliveries: list[tuple[float, int, Ints, Ints]] = []
        self.rollouts: Rollouts | None = None
        self.prompts: PromptQueue | None = None
        self._fed_s, self._num_looks = 0.0, 0
        self.left_s = math.inf
        """When rollout finished with work left over."""
        self.keep_tokens = False

    def submit(self, rollouts: Rollouts, prompts: PromptQueue, now: float) -> None:
        """Generation begins; instances that drain get more every check interval."""
        self.rollouts, self.prompts = rollouts, prompts
        self._feed(now)

    def _feed(self, now: float) -> None:
        assert self.prompts is not None
        self.prompts.feed(sorted(self.instances), now)
        self._fed_s = now

    @property
    def num_waiting(self) -> int:
        """Sequences that no instance has: to be handed out, or on their way between two."""
        moving = sum(len(entry[2]) for entry in self.deliveries)
        return moving + (self.prompts.num_sequences if self.prompts else 0)

    def generate(self, until: float) -> None:
        """Let rollout run up to `until`, with prompts and moved sequences handed to instances on the way."""
        assert self.rollouts is not None
        while True:
            self._num_looks += 1
            if self._num_looks > MAX_LOOKS:  # It would take minutes and more.
                interval_s = self.config.transitions.check_interval_s
                what = f"one step is looked at more than {MAX_LOOKS:,} times, every {interval_s:g} s."
                fix = f"Give a longer interval, such as {100 * interval_s:g} s, or see what makes the step so long."
                raise ConfigError(what, where="transitions.check_interval_s", fix=fix)
            moved_s = self.deliveries[0][0] if self.deliveries else math.inf
            is_waiting = bool(self.prompts) and bool(self.instances)
            fed_s = self._fed_s + self.config.transitions.check_interval_s if is_waiting else math.inf
            at = min(moved_s, fed_s)
            if at > until or at == math.inf:
                break
            self.rollouts.advance(at)
            if moved_s <= at:
                _, _, ids, instances = heapq.heappop(self.deliveries)
                self.rollouts.submit(ids, instances, at)
            else:
                self._feed(at)
        self.rollouts.advance(until)

    @property
    def has_rollout_work(self) -> bool:
        """Whether anything is being generated, or about to be."""
        assert self.rollouts is not None
        return self.num_waiting > 0 or self.rollouts.next_event_s < math.inf

    def migrate(self, leave: tuple[int, ...], clock: float) -> float:
        """Instances stop at their next batch boundary; their groups go on elsewhere after the migration time."""
        stay = sorted(set(self.instances) - set(leave))
        unknown = set(leave) - set(self.instances)
        if unknown:
            raise PolicyError(f"policy {self.policy.name!r} migrates instance {min(unknown)}, which is not there.")
        ids, stop = self._stop_instances(leave, clock)
        unfinished = ids.size + self.num_waiting
        if unfinished and not stay:
            raise PolicyError(
                f"policy {self.policy.name!r} releases the last instance while {unfinished} sequences are unfinished."
            )
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
        self.generate(clock)
        pairs = [self.rollouts.withdraw(one, clock) for one in sorted(leave)]
        on_the_way = [entry for entry in self.deliveries if np.isin(entry[3], leave).any()]
        assert not on_the_way, "sequences are on their way to an instance that leaves"
        ids = np.concatenate([np.empty(0, np.int64), *(pair[0] for pair in pairs)])
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

    def finish(self, action: Finish, clock: float) -> float:
        """The component frees its GPUs; what rollout has not finished is left over."""
        name = action.component
        if name == "rollout" and self.instances:
            _, stop = self._stop_instances(tuple(self.instances), clock)
            self.left_s, self.keep_tokens = stop, action.keep_tokens
            gpus = [gpu for held in self.instances.values() for gpu in held]
            self.instances.clear()
            if self.prompts:
                self.prompts.clear()
            self.owners.hand_over(gpus, "free", stop)
            return max(clock, stop)
        if name == "inference":
            if self.inference.last_end_s > clock + 1e-9 and not self.config.algorithm.carries:
                fix = "Wait first."
                raise PolicyError(f"policy {self.policy.name!r} finishes inference while it has work.", fix=fix)
            self.inference.stop()
        self.owners.hand_over(self.owners.of(name), "free", clock)
        return clock

    def scale(self, action: Scale, clock: float, *, is_start: bool) -> float:
        """The component takes GPUs; costs follow from what changes."""
        name, gpus = action.component, tuple(sorted(action.gpus))
        before = self.owners.of(name)
        taken = [gpu for gpu in gpus if gpu not in before]
        busy = [gpu for gpu in taken if self.owners.owner(gpu) != "free"]
        if busy:
            raise PolicyError(
                f"policy {self.policy.name!r} gives GPU {busy[0]} to {name}, but {self.owners.owner(busy[0])} has it."
            )
        switch = self.costs.switch_s(name) if self.policy.spec.takes_turns and not is_start else 0.0
        if name == "rollout":
            size = self.config.rollout.num_gpus
            for i in range(0, len(taken) // size * size, size):
                held = tuple(taken[i : i + size])
                self.instances[held[0] // size] = held
                self.owners.hand_over(held, "rollout", clock)
            return clock
        if name == "inference":
            self.owners.hand_over(gpus, "inference", clock + switch, meanwhile="transition")
            copy = self.config.inference.num_gpus
            self.inference.start([gpus[i : i + copy] for i in range(0, len(gpus), copy)], clock + switch)
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


class Ownership:
    """The present owner of every GPU. Changes of one GPU come in order of time, and may lie in the near future."""

    def __init__(self, num_gpus: int, spans: list[Span]) -> None:
        self._owner = ["transition"] * num_gpus
        self._since = [0.0] * num_gpus
        self._spans = spans
        self.settled_s = 0.0
        """From here on every GPU is with its present owner."""

    def owner(self, gpu: int) -> str:
        """The owner once everything has settled."""
        return self._owner[gpu]

    def of(self, owner: str) -> tuple[int, ...]:
        return tuple(gpu for gpu, name in enumerate(self._owner) if name == owner)

    def hand_over(
        self, gpus: Iterable[int], owner: str, when: float, *, meanwhile: str | None = None, at: float | None = None,
    ) -> None:  # fmt: skip
        """`owner` has the GPUs from `when` on; from `at` until then they are `meanwhile`'s."""
        for gpu in gpus:
            if meanwhile is not None:
                self._change(gpu, meanwhile, self._since[gpu] if at is None else at)
            self._change(gpu, owner, when)
            self.settled_s = max(self.settled_s, when)

    def _change(self, gpu: int, owner: str, when: float) -> None:
        when = max(when, self._since[gpu])
        if when > self._since[gpu]:
            self._spans.append(Span(gpu, self._owner[gpu], self._since[gpu], when))
        self._owner[gpu], self._since[gpu] = owner, when

    def close(self, end_s: float) -> None:
        for gpu in range(len(self._owner)):
            self._change(gpu, "free", end_s)


class InferenceQueue:
    """Groups in order of completion; while it has GPUs, each sequence goes to the copy that is free first.

    What has gathered before it gets GPUs (components that take turns) is split evenly over the copies in the order of
    the prompts, as one batch would be.
    """

    def __init__(self, costs: Costs, work: list[Work]) -> None:
        self._costs, self._work = costs, work
        self._copies: list[tuple[float, int]] = []
        self._gpus: list[tuple[int, ...]] = []
        self._backlog: list[tuple[float, int, Ints]] = []
        self._ready: list[tuple[float, int]] = []
        self._num_done = 0
        self.last_end_s = 0.0
        self._busy_s = 0.0

    def start(self, copies: list[tuple[int, ...]], now: float) -> None:
        self._gpus = copies
        self._copies = [(now, number) for number in range(len(copies))]
        heapq.heapify(self._copies)
        if len(self._backlog) > 1:  # All at once, in equal numbers of sequences, in the order of the prompts.
            self._backlog.sort(key=lambda entry: entry[1])
            tokens = np.concatenate([entry[2] for entry in self._backlog])
            seconds = [self._costs.logprob_s(part) for part in np.array_split(tokens, len(copies))]
            for number, spent in enumerate(seconds):
                self._note(number, now, now + spent)
            end = now + max(seconds)
            self._copies = [(end, number) for number in range(len(copies))]
            self._ready += [(end, entry[1]) for entry in self._backlog]
            self._num_done += len(self._backlog)
            self._backlog = []
        waiting, self._backlog = self._backlog, []
        for done_s, group, tokens in waiting:
            self.add(group, tokens, done_s)

    def stop(self) -> None:
        self._copies, self._gpus = [], []

    def add(self, group: int, tokens: Ints, done_s: float) -> None:
        if not self._copies:
            self._backlog.append((done_s, group, tokens))
            return
        ready_s = -math.inf
        for seconds in self._costs.logprob_each_s(tokens):
            free_s, number = heapq.heappop(self._copies)
            start = max(free_s, done_s)
            end = start + seconds
            self._note(number, start, end)
            heapq.heappush(self._copies, (end, number))
            ready_s = max(ready_s, end)
        self._ready.append((ready_s, group))
        self._num_done += 1

    def _note(self, number: int, start: float, end: float) -> None:
        self._busy_s += (end - start) / len(self._gpus)
        self.last_end_s = max(self.last_end_s, end)
        self._work.append(Work("inference", number, self._gpus[number], start, end, end - start))

    def take_ready(self) -> list[tuple[float, int]]:
        """Groups that are through since the last call, with the time at which each is."""
        ready, self._ready = self._ready, []
        return ready

    @property
    def groups_s(self) -> float:
        """Groups per second while busy, so far."""
        return self._num_done / self._busy_s if self._busy_s > 0.0 else 0.0
