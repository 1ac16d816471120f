"""Policies on a cluster of real actors: the object that decides in the simulator decides here, on Ray (extra `ray`).

Every rollout instance, every copy of the inference component, and the actor's group, is a Ray actor that does synthetic
work on a CPU: an instance gives each of its sequences a token every `token_s`, a scorer takes `score_s` a group, the
trainer `train_s` GPU seconds a group. Migration and resharding are messages. Snapshots and answers are recorded as
`gnomon posttrain run --record` does, so that they replay in the simulator.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gnomon.core.errors import ConfigError
from gnomon.posttrain.policies import Policy
from gnomon.posttrain.policies.snapshot import Finish, Instance, Migrate, Point, Rates, Scale, Snapshot, Wait
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.lengths import draw
from gnomon.posttrain.scenario.placement import placement_of
from gnomon.posttrain.simulator.record import Decision
from gnomon.posttrain.simulator.state import settings_of

Sequence = tuple[int, float]  # Its number, and the tokens it still needs.


class Generator:
    """One rollout instance."""

    def __init__(self, token_s: float) -> None:
        self._token_s, self._running = token_s, dict[int, float]()

    def submit(self, sequences: list[Sequence]) -> None:
        now = time.monotonic()
        self._running |= {number: now + left * self._token_s for number, left in sequences}

    def finished(self) -> list[int]:
        now = time.monotonic()
        ended = [number for number, end in self._running.items() if end <= now]
        for number in ended:
            del self._running[number]
        return ended

    def withdraw(self) -> list[Sequence]:
        now, left = time.monotonic(), self._running
        self._running = {}
        return [(number, max(0.0, end - now) / self._token_s) for number, end in left.items()]


class Scorer:
    """One copy of the inference component."""

    def score(self, group: int, score_s: float) -> int:
        time.sleep(score_s)
        return group


class Trainer:
    """The actor's group."""

    def train(self, groups: int, num_gpus: int, train_s: float) -> int:
        time.sleep(groups * train_s / num_gpus)
        return groups


@dataclass
class LiveRun:
    """One step on the cluster."""

    config: Posttrain
    policy: Policy
    token_s: float = 1e-4
    train_s: float = 0.05
    score_s: float = 0.02
    decisions: list[Decision] = field(default_factory=list)
    deaths: int = 0
    """Workers that were lost and replaced."""

    def __post_init__(self) -> None:
        if self.policy.spec.takes_turns:
            fix = "Use a policy that moves GPUs or leaves them."
            raise ConfigError("a live cluster has its components side by side.", where="policy.name", fix=fix)
        import ray

        self._ray = ray
        self._generator, self._scorer, trainer = (ray.remote(num_cpus=0)(one) for one in (Generator, Scorer, Trainer))
        self._trainer = trainer.remote()
        self._placement, a = placement_of(self.config), self.config.algorithm
        lengths = draw(self.config.lengths, a.rollout_batch_size, a.group_size, self.config.seed, 0)
        self._response = lengths.response.ravel()
        self._waiting = deque(range(a.num_sequences))
        self._seats: dict[int, dict[int, None]] = {}
        self.workers: dict[int, Any] = {}
        self._gpus: dict[int, tuple[int, ...]] = {}
        self._done = [0] * a.rollout_batch_size
        self._actor: tuple[int, ...] = ()
        self._inference: tuple[int, ...] = ()
        self.scorers: list[Any] = []
        self._scored, self._jobs = set[int](), dict[Any, tuple[Any, int]]()
        self._waiting_for = ""
        self._left = {number: float(self._response[number]) for number in self._waiting}
        self._trained, self._job, self._busy_s = 0, None, 0.0
        self._start_s = time.monotonic()

    def run(self, timeout_s: float = 60.0, on_check: Callable[[LiveRun], None] = lambda live: None) -> LiveRun:
        """Until every mini-batch is trained; `on_check` sees the cluster at every check interval."""
        a = self.config.algorithm
        self._ask("start")
        while self._trained < a.num_fetches:
            if time.monotonic() - self._start_s > timeout_s:
                raise ConfigError(f"the step is not over after {timeout_s:g} s.", fix="Give a longer timeout_s.")
            time.sleep(self.config.transitions.check_interval_s)
            self._feed()
            on_check(self)
            self._collect()
            self._score()
            is_over = not self._waiting and not any(self._seats.values())
            if self._waiting_for and (is_over if self._waiting_for == "rollout" else self._ready == self._generated):
                self._waiting_for = ""
                self._ask("waited")
            self._train()
            if self._job is None and not self._waiting_for and self._trained < a.num_fetches:
                self._ask("check")
        return self

    def _feed(self) -> None:
        cap, size = self.config.rollout.max_running_requests, self.config.algorithm.group_size
        while self._waiting and self.workers:
            least = min(self.workers, key=lambda one: (len(self._seats[one]), one))
            if len(self._seats[least]) >= cap:
                return
            self._send(least, [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))])

    def _send(self, one: int, numbers: list[int]) -> None:
        self._seats[one] |= dict.fromkeys(numbers)
        self.workers[one].submit.remote([(number, self._left[number]) for number in numbers])

    def _collect(self) -> None:
        for one in list(self.workers):
            try:
                ended = self._ray.get(self.workers[one].finished.remote())
            except self._ray.exceptions.RayActorError:
                self._replace(one)
                continue
            for number in ended:
                del self._seats[one][number]
                self._done[number // self.config.algorithm.group_size] += 1

    def _replace(self, one: int) -> None:
        """A worker has died: a new one generates what it had from the beginning."""
        self.deaths += 1
        lost = list(self._seats[one])
        for number in lost:
            self._left[number] = float(self._response[number])
        self.workers[one], self._seats[one] = self._generator.remote(self.token_s), {}
        self._send(one, lost)

    @property
    def _generated(self) -> int:
        return sum(done == self.config.algorithm.group_size for done in self._done)

    @property
    def _ready(self) -> int:
        """Groups that can be trained on: also scored, where there is inference."""
        return len(self._scored) if self.config.algorithm.recompute_logprobs else self._generated

    def _score(self) -> None:
        """Hand complete groups to scorers that are free, and take what they have done; a lost one is replaced."""
        done, _ = self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=0) if self._jobs else ([], [])
        for job in done:
            worker, group = self._jobs.pop(job)
            try:
                self._scored.add(self._ray.get(job))
            except self._ray.exceptions.RayActorError:
                self.deaths += 1
                self.scorers[self.scorers.index(worker)] = self._scorer.remote()
        busy = [worker for worker, _ in self._jobs.values()]
        under_way = {group for _, group in self._jobs.values()} | self._scored
        size = self.config.algorithm.group_size
        todo = [group for group, count in enumerate(self._done) if count == size and group not in under_way]
        for worker, group in zip([one for one in self.scorers if one not in busy], todo, strict=False):
            self._jobs[worker.score.remote(group, self.score_s)] = worker, group

    def _train(self) -> None:
        a = self.config.algorithm
        size = a.rollout_batch_size // a.num_fetches
        if self._job is not None:
            done, _ = self._ray.wait([self._job], timeout=0)
            if done:
                self._job, self._trained = None, self._trained + 1
                self._busy_s += size * self.train_s
                self._ask("boundary")
        is_next = self._trained < a.num_fetches and self._ready >= (self._trained + 1) * size
        if self._job is None and self._actor and is_next and not self._waiting_for:
            self._job = self._trainer.train.remote(size, len(self._actor), self.train_s)

    def _ask(self, point: Point) -> None:
        snapshot = self._snapshot(point)
        actions = self.policy.decide(snapshot)
        self.decisions.append(Decision(snapshot, actions))
        for action in actions:
            match action:
                case Migrate():
                    for number in sorted(self._stop(action.leave)):
                        least = min(self.workers, key=lambda one: (len(self._seats[one]), one))
                        self._send(least, [number])
                case Finish(component="rollout"):
                    self._stop(tuple(self.workers))
                case Finish(component="inference"):
                    self._scale_inference(())
                case Scale(component="inference"):
                    self._scale_inference(tuple(sorted(action.gpus)))
                case Scale(component="rollout"):
                    size = self.config.rollout.num_gpus
                    for i in range(0, len(action.gpus) // size * size, size):
                        one = action.gpus[i] // size
                        if one not in self.workers:
                            self.workers[one], self._seats[one] = self._generator.remote(self.token_s), {}
                            self._gpus[one] = action.gpus[i : i + size]
                case Scale(component="actor"):
                    time.sleep(self.config.transitions.reshard_s or 0.0)
                    self._actor = tuple(sorted(action.gpus))
                case Wait():
                    self._waiting_for = action.component
                    break
                case _:
                    pass

    def _scale_inference(self, gpus: tuple[int, ...]) -> None:
        """As many copies as these GPUs hold; those that are too many go."""
        count = len(gpus) // self.config.inference.num_gpus
        kept, gone = self.scorers[:count], self.scorers[count:]
        for worker in gone:
            self._ray.kill(worker)
        self._jobs = {job: work for job, work in self._jobs.items() if work[0] in kept}
        self.scorers = kept + [self._scorer.remote() for _ in range(count - len(kept))]
        self._inference = gpus

    def _stop(self, leave: tuple[int, ...]) -> list[int]:
        self._collect()
        moved = []
        for one in leave:
            for number, left in self._ray.get(self.workers[one].withdraw.remote()):
                self._left[number] = left
                moved.append(number)
            self._ray.kill(self.workers.pop(one))
            del self._seats[one], self._gpus[one]
        return moved

    def _snapshot(self, point: Point) -> Snapshot:
        a, c = self.config.algorithm, self.config
        passed = time.monotonic() - self._start_s
        held = {gpu for gpus in self._gpus.values() for gpu in gpus} | set(self._actor) | set(self._inference)
        instances = tuple(
            Instance(id=one, gpus=self._gpus[one], unfinished=len(self._seats[one]), kv_use=0.0)
            for one in sorted(self.workers)
        )
        groups = self._trained * a.rollout_batch_size // a.num_fetches
        return Snapshot(
            **settings_of(c, self._placement),
            point=point,
            time_s=passed,
            step=0,
            minibatch=self._trained - 1,
            actor=self._actor,
            inference=self._inference,
            free=tuple(gpu for gpu in range(c.cluster.num_gpus) if gpu not in held),
            instances=instances,
            groups_submitted=a.rollout_batch_size,
            groups_generated=self._generated,
            groups_ready=self._ready,
            sequences_unfinished=sum(one.unfinished for one in instances) + len(self._waiting),
            sequences_waiting=len(self._waiting),
            carried=0,
            stalest=-1,
            rates=Rates(
                rollout_groups_s=self._generated / passed if passed > 0 else 0.0,
                inference_groups_s=0.0,
                train_groups_s_per_gpu=groups / self._busy_s if self._busy_s else 0.0,
            ),
            reshard_s=c.transitions.reshard_s or 0.0,
        )
