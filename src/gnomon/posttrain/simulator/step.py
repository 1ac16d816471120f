"""One step: generation, inference and training under a policy that is asked at every moment at which it may act.

Generation runs ahead on the serving engine up to the next such moment; groups stream through inference to the actor;
the actor trains mini-batches as soon as their groups are ready. All times are seconds since the start of the step.
Nothing depends on when a static policy is asked, so generation runs through at once; for any other, generation stops at
every check interval while the actor is idle, and at every mini-batch boundary.
"""

import heapq
import math

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.posttrain.policies.snapshot import Finish, Migrate, Point, Report, Scale, Submit, Wait
from gnomon.posttrain.simulator.allocation import PolicyError
from gnomon.posttrain.simulator.record import Decision, StepRecord, Work
from gnomon.posttrain.simulator.rollout import PromptQueue
from gnomon.posttrain.simulator.state import StepState, snapshot_of
from gnomon.posttrain.simulator.turns import rollouts_of

KV_HISTORY = 30


class Step(StepState):
    """Runs one step of a policy."""

    def run(self) -> StepRecord:
        a, rollout = self.config.algorithm, len(self.placement.rollout)
        self.is_synced = self.record.number % a.sync_every == 0
        self.now = self.costs.sync_s(self.has_inference, rollout) if self.is_synced else 0.0
        self.allocation.owners.hand_over(range(self.config.cluster.num_gpus), "free", self.now, meanwhile="transition")
        self._ask("start")
        self._submit()
        while not self.is_over:
            self._advance()
        return self._close()

    def _advance(self) -> None:
        """To the next moment at which somebody may act, and let them."""
        self._train_if_ready()
        until = self._next_moment()
        self.allocation.generate(until)
        if until < math.inf:
            self.now = max(self.now, until)
        self._collect()
        self._train_if_ready()
        if self.waiting_for is not None:
            if not self._must_wait():  # Generation ran out: the awaited component has no work left from now on.
                came_s = self.generated_s if self.waiting_for == "rollout" else self.allocation.inference.last_end_s
                self.waiting_for, self.now = None, max(self.now, came_s)
                self.actor_free_s = max(self.actor_free_s, self.now)
                self._ask("waited")
        elif self.actor_end_s < math.inf and self.actor_end_s <= max(until, self.now):
            self._end_minibatch()
        elif until < math.inf:
            use = self.rollouts.kv_use.round(4).tolist()
            for one in self.allocation.instances:
                self.kv_recent[one] = (*self.kv_recent[one][1 - KV_HISTORY :], use[one])
            if self.policy.spec.checks != "never":
                self._ask("check")
        elif self.actor_end_s == math.inf:
            self._ask("stalled")

    def _next_moment(self) -> float:
        is_through = self.policy.spec.is_static or self.waiting_for is not None
        if (is_through and not self.is_async) or self.waiting_for == "inference":
            return self.actor_end_s
        if not self.allocation.has_rollout_work:
            return self.actor_end_s
        if self.actor_end_s < math.inf and self.policy.spec.checks != "always":
            return self.actor_end_s
        settled = max(self.now, self.allocation.owners.settled_s)
        return min(self.actor_end_s, settled + self.config.transitions.check_interval_s)

    def _submit(self) -> None:
        """Queue the prompts for the instances; sequences that came complete need none."""
        if not self.allocation.instances:
            fix = "Scale rollout at 'start'."
            raise PolicyError(f"policy {self.policy.name!r} starts no rollout instance.", fix=fix)
        keep_kv = self.config.algorithm.keep_kv or not self.is_synced
        sequences = self.prompts.sequences(self.submitted, keep_kv=keep_kv)
        if sequences.processed is None:
            is_begun = (sequences.generated > 0) & (sequences.generated < sequences.response)
            again = (sequences.prompt + sequences.generated)[is_begun]
            self.record.tokens_prefilled_again += int(again.sum())
        count = self.config.cluster.num_gpus // self.config.rollout.num_gpus
        rollouts = rollouts_of(self.config, count, sequences, self.record.number)
        self.is_generated = np.zeros(self.submitted, bool)
        self.came_complete = sequences.generated >= sequences.response
        self.started_s = self.generated_s = self.now
        queue = PromptQueue(rollouts, np.flatnonzero(~self.came_complete), self.config, longest_first=self.balance)
        self.allocation.submit(rollouts, queue, self.now)

    def _finished_s(self) -> Floats:
        """When each sequence was generated: those that came complete, at the start; inf where it is not yet."""
        return np.where(self.came_complete, self.started_s, self.rollouts.finished_s)

    def _collect(self) -> None:
        """Hand groups that are complete to inference, or to the actor where there is none."""
        inference = self.allocation.inference
        if self.rollouts.num_finished != self.num_collected:
            self.num_collected = self.rollouts.num_finished
            done_s = self._finished_s().reshape(self.submitted, self.group_size).max(axis=1)
            new = np.flatnonzero((done_s < math.inf) & ~self.is_generated)
            self.is_generated[new] = True
            self.generated_s = max(self.generated_s, float(done_s[new].max(initial=0.0)))
            for group in new[np.lexsort((new, done_s[new]))].tolist():
                if self.has_inference:
                    inference.add(group, self.tokens[group], float(done_s[group]))
                else:
                    heapq.heappush(self.ready, (float(done_s[group]), group))
        for entry in inference.take_ready():
            heapq.heappush(self.ready, entry)

    def _train_if_ready(self) -> None:
        """Start the next mini-batch if the actor is free and the groups for it are known."""
        gpus = self.allocation.owners.of("actor")
        is_busy = self.actor_end_s < math.inf or self.waiting_for is not None
        if is_busy or not gpus or self.num_trained == self.needed or len(self.ready) < self.per_minibatch:
            return
        picked = self._pick()
        if picked is None:
            return
        groups, ready_s = picked
        start, end, busy = self._train(groups, ready_s, len(gpus))
        self.actor_end_s = end
        self.minibatches.append(Work("actor", len(self.trained), gpus, start, end, busy))
        self.trained.append(groups)

    def _train(self, groups: Ints, ready_s: Floats, num_gpus: int) -> tuple[float, float, float]:
        """Start, end and busy seconds of a mini-batch.

        Components that take turns find all groups there, and deal them to ranks beforehand. Side by side, ranks take
        groups as they come: training starts with the first one, and the step of the optimiser waits for the last.
        """
        tokens = self.tokens[groups]
        fetched = self.config.algorithm.fetch_minibatches
        self.record.flops += self.costs.train_flops(tokens)
        if self.policy.spec.takes_turns or fetched:
            start = max(float(ready_s.max()), self.actor_free_s)
            if not self.policy.spec.takes_turns:
                start += self.config.transitions.dispatch_s / self.num_minibatches
            seconds, busy = self.costs.train_at_once(tokens, num_gpus, max(1, fetched))
            return start, start + seconds, busy
        start = max(float(ready_s.min()), self.actor_free_s)
        return (start, *self.costs.train_stream(tokens, ready_s, start, num_gpus))

    def _pick(self) -> tuple[Ints, Floats] | None:
        """The first groups that are ready, with room left for those that must not get older; and when each is.

        One step off, they are those of the step before.
        """
        age = self.prompts.age[: self.submitted]
        bounds = self._room_by_age()
        is_ordered = self.config.algorithm.mode == "one_step_off"
        picked: list[int] = []
        ready_s: list[float] = []
        for at, group in sorted(self.ready):
            younger = [bound for bound in bounds if age[group] < bound[0]]
            if (is_ordered and group >= self.needed) or any(bound[1] <= 0 for bound in younger):
                continue
            for bound in younger:
                bound[1] -= 1
            picked.append(group)
            ready_s.append(at)
            if len(picked) == self.per_minibatch:
                chosen = set(picked)
                self.ready = [entry for entry in self.ready if entry[1] not in chosen]
                heapq.heapify(self.ready)
                return np.array(picked, np.int64), np.array(ready_s)
        return None

    def _room_by_age(self) -> list[list[int]]:
        """For every age that counts: how many groups below it the step may still train.

        Groups of the largest age are trained in this step, those one below in this or the next, and so on: what the
        steps to come cannot train must be trained now.
        """
        if self.max_age is None:
            return []
        age = self.prompts.age[: self.submitted].copy()
        for groups in self.trained:
            age[groups] = -1
        left = self.needed - self.num_trained
        found = []
        for later in range(self.max_age):
            must = int((age >= self.max_age - later).sum()) - later * self.needed
            found.append([self.max_age - later, left - max(0, must)])
        return found

    def _end_minibatch(self) -> None:
        self.now = self.actor_free_s = max(self.now, self.actor_end_s)
        self.actor_end_s = math.inf
        is_last = len(self.trained) == self.num_minibatches
        if is_last and self.carries:
            self._drain_or_go_on()
        self._ask("boundary")
        self.is_over = len(self.trained) == self.num_minibatches

    def _drain_or_go_on(self) -> None:
        """Before a sync: what cannot be interrupted is completed; no other prompts are begun."""
        algorithm = self.config.algorithm
        if self.is_async and (algorithm.interrupt or (self.record.number + 1) % algorithm.sync_every):
            return
        if self.is_async and self.allocation.prompts:
            self.allocation.prompts.clear()
        self.allocation.generate(math.inf)
        self._collect()
        self.now = self.actor_free_s = max(self.now, self.generated_s)

    def _must_wait(self) -> bool:
        """Whether generation goes on although the others wait: asynchronous ones only need enough for the step."""
        if self.waiting_for != "rollout" or not self.is_async or not self.allocation.has_rollout_work:
            return False
        if not self.config.algorithm.interrupt:
            return True
        oldest = math.inf if self.max_age is None else self.max_age
        is_needed = (self.prompts.age[: self.submitted] >= oldest) & ~self.is_generated
        return int(self.is_generated.sum()) < self.needed or bool(is_needed.any())

    def _ask(self, point: Point) -> None:
        """Let the policy decide, and do what it says, one action after another."""
        snapshot = snapshot_of(self, point)
        actions = self.policy.decide(snapshot)
        if self.keep_decisions:
            self.record.decisions.append(Decision(snapshot, actions))
        clock = max(self.now, self.allocation.owners.settled_s)
        for action in actions:
            match action:
                case Submit():
                    self._plan_submission(action)
                case Migrate():
                    clock = self.allocation.migrate(action.leave, clock)
                case Finish():
                    clock = self.allocation.finish(action, clock)
                case Scale():
                    clock = self.allocation.scale(action, clock, is_start=point == "start")
                case Wait():
                    self.waiting_for = action.component
                    break
                case Report():
                    pass
        if actions:
            self.actor_free_s = max(self.actor_free_s, clock)
        if point == "stalled" and all(isinstance(action, Report) for action in actions):
            raise PolicyError(
                f"policy {self.policy.name!r} leaves step {self.record.number} stuck at {self.now:.1f} s:"
                f" {len(self.trained)} of {self.num_minibatches} mini-batches are trained, {len(self.ready)} groups are"
                f" ready, the actor has {len(self.allocation.owners.of('actor'))} GPUs.",
                fix="Answer the point 'stalled' with scale, migrate or finish.",
            )
        if point != "start":
            self._collect()

    def _plan_submission(self, action: Submit) -> None:
        if self.carries and action.groups == self.needed:  # A plan for the prompts of one step: the mode has its own.
            self.balance = action.balance
            return
        if self.allocation.rollouts is not None or not self.needed <= action.groups <= len(self.prompts.age):
            what = f"policy {self.policy.name!r} submits {action.groups} prompts at {self.now:.1f} s."
            fix = f"Submit once, at the point 'start', {self.needed} to {len(self.prompts.age)} of them."
            raise PolicyError(what, fix=fix)
        self.submitted, self.max_age, self.balance = action.groups, action.max_age, action.balance

    def _close(self) -> StepRecord:
        """Close the books: the step lasts until the actor is back where it started."""
        record, rollouts, sequences = self.record, self.rollouts, self.rollouts.sequences
        record.work += self.minibatches
        if self.carries and self.allocation.instances:
            self.allocation.finish(Finish(component="rollout"), max(self.now, self.allocation.owners.settled_s))
            self._collect()
        left_s = self.allocation.left_s if self.carries else math.inf
        record.duration_s = max(self.actor_free_s, self.now, left_s if left_s < math.inf else 0.0)
        if self.carries:  # What inference has not done by now is for the next step.
            record.work = [one.until(record.duration_s) for one in record.work if one.start_s < record.duration_s]
        self.allocation.owners.close(record.duration_s)
        record.finished_s = self._finished_s()
        record.rollout_end_s = min(self.allocation.left_s, float(np.max(record.finished_s)))
        size = self.config.rollout.num_gpus
        record.instance_busy_s = {i: busy * size for i, busy in enumerate(rollouts.busy_s.tolist()) if busy > 0.0}
        record.num_preemptions = rollouts.num_preemptions
        left_at_s = min(self.allocation.left_s, record.duration_s)
        ends, seats = np.full(self.config.cluster.num_gpus, -math.inf), rollouts.seats
        for one in np.unique(seats[seats >= 0]).tolist():  # When its last sequence was complete, or left it.
            ends[one * size : (one + 1) * size] = np.minimum(record.finished_s[seats == one], left_at_s).max()
        record.instance_end_s = {gpu: float(end) for gpu, end in enumerate(ends) if end > -math.inf}
        waited = record.owned()["actor"] - record.working()["actor"]
        so_far = self.before.actor_waited_s if self.before else ()
        record.actor_waited_s = (*so_far, waited / max(1, len(self.placement.actor)))
        is_done = np.isfinite(record.finished_s)
        produced = np.where(is_done, sequences.response, rollouts.generated(np.arange(len(sequences))))
        record.tokens_brought = int(sequences.generated.sum())
        record.tokens_generated = int(produced.sum()) - record.tokens_brought
        trained = np.concatenate(self.trained)
        is_trained = np.zeros(self.submitted, bool)
        is_trained[trained] = True
        record.ages = self.prompts.age[trained]
        record.response_tokens_trained = int(self.prompts.response[trained].sum())
        record.tokens_trained = int(self.tokens[trained].sum())
        of_groups = produced.reshape(self.submitted, self.group_size)
        keep = self.allocation.keep_tokens or self.carries
        left = int(of_groups[~is_trained].sum())
        record.tokens_carried, record.tokens_discarded = (left, 0) if keep else (0, left)
        self.left_over = self.prompts.left_over(is_trained, of_groups, keep_tokens=keep)
        new = int(self.is_generated.sum()) - self.prompts.num_complete
        record.groups_s = new / max(1e-9, record.duration_s - self.started_s)
        lag = self.config.algorithm.max_lag
        if self.is_async and lag is not None and self.config.algorithm.stale == "drop":
            self.left_over, dropped = self.left_over.without_stale(lag)
            record.num_dropped = dropped.num_carried
            record.tokens_discarded += int(dropped.generated.sum())
            record.tokens_carried -= int(dropped.generated.sum())
        return record
