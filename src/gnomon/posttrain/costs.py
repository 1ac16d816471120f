"""Seconds of everything but generation: log-probabilities, training, and what moves in between.

Training and its forward pass are those of `gnomon.training`: a micro-batch takes what its tokens take, and what
attention takes for the length of each of its sequences. `efficiency` of the component divides both, but no layer is
faster than its kernels are launched.
"""

import heapq
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files

import numpy as np

from gnomon import catalog
from gnomon.catalog import Model
from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.core.text import own_yaml
from gnomon.core.units import GB
from gnomon.posttrain.scenario.config import ActorConfig, Posttrain, TrainingConfig
from gnomon.training import TrainConfig, train_step
from gnomon.training.memory import memory_of
from gnomon.training.stages import stages_of

_SIZES = np.geomspace(32, 524_288, 22)


@dataclass(frozen=True, eq=False)
class PassGrid:
    """Seconds on the slowest stage by tokens of a micro-batch, for [forward, recomputation and both gradients].

    `base` is what the tokens take, `attention` what attention takes for one sequence of so many. Between the sizes they
    lie on straight lines.
    """

    tokens: Floats
    base: Floats
    attention: Floats
    flops: Floats
    """Of forward and backward by tokens of a sequence, over all GPUs of a copy."""

    def base_s(self, tokens: float, forwards: int, trainings: int, again: float = 0.0) -> float:
        """A micro-batch of so many tokens without attention: forward passes, and trainings."""
        return float(_mixed(self.tokens, self.base, np.array([tokens]), forwards, trainings, again)[0])

    def attention_s(self, tokens: Ints, forwards: int, trainings: int, again: float = 0.0) -> Floats:
        """Attention of each of these sequences."""
        return _mixed(self.tokens, self.attention, tokens, forwards, trainings, again)

    def each_s(self, tokens: Ints, forwards: int, trainings: int, again: float = 0.0) -> Floats:
        """Each of these sequences as a micro-batch of its own."""
        return _mixed(self.tokens, self.base + self.attention, tokens, forwards, trainings, again)


def _mixed(at: Floats, rows: Floats, tokens: Floats | Ints, forwards: int, trainings: int, again: float) -> Floats:
    """Trainings are a forward, the share `again` of a second one, and a backward pass."""
    row = (forwards + trainings * (1.0 + again)) * rows[0] + trainings * rows[1]
    return np.interp(tokens, at, row)


@lru_cache(maxsize=128)
def pass_grid(config: TrainConfig) -> PassGrid:
    """Whatever the batch of `config`: its layout counts. Attention is what halving its documents saves, twice."""
    unit = 2 * config.context_parallel
    sizes = np.unique([max(unit, round(size / unit) * unit) for size in _SIZES])
    base, attention, flops = [], [], []
    for size in sizes.tolist():
        update = {"sequence": size, "batch": None, "recompute": "none", "recompute_layers": None}
        steps = [
            train_step(config.model_copy(update=update | {"packed_length": packed}), check=False)
            for packed in (size, max(1, size // 2))
        ]
        whole, halves = (np.array([one.phases["forward"], one.phases["backward"]]) for one in steps)
        attention.append(2.0 * np.maximum(whole - halves, 0.0))
        base.append(whole - attention[-1])
        flops.append(steps[0].flops / steps[0].config.batch_size)
    return PassGrid(sizes.astype(float), np.array(base).T, np.array(attention).T, np.array(flops))


@lru_cache(maxsize=256)
def update_s(config: TrainConfig) -> float:
    """What a mini-batch takes beside its passes: data-parallel communication that nothing hides, and the optimizer."""
    step = train_step(config.model_copy(update={"batch": None}), check=False)
    return step.parts.get("data", 0.0) + step.parts.get("optimizer", 0.0)


HEAD_CHUNK = 1024  # Tokens whose logits exist at a time: RL needs one log-probability of each.
RESHARD_PARAMETERS = (1.54e9, 7.6e9, 32.8e9)
RESHARD_S = (0.5, 1.3, 2.8)  # Published resharding times of the actor by model size (Qwen2.5 1.5B, 7B, 32B).


class Costs:
    """The seconds of one configuration."""

    def __init__(self, config: Posttrain, num_actor: int | None = None) -> None:
        self.config = config
        self.model = catalog.model(config.model)
        self.num_actor = num_actor or config.actor.num_gpus
        self.recompute = recompute_of(config, self.num_actor)
        self._train = pass_grid(train_config(config, config.actor, self.num_actor, self.recompute))
        self._forward = (
            pass_grid(train_config(config, config.inference, config.inference.num_gpus))
            if config.algorithm.recompute_logprobs
            else self._train
        )

    def logprob_s(self, tokens: Ints) -> float:
        """Log-probabilities of these sequences on one copy, as one batch."""
        return self._passes_s(self.config.inference, self._forward, tokens, 1, 0)

    def logprob_each_s(self, tokens: Ints) -> list[float]:
        """Log-probabilities of each of these sequences alone on one copy."""
        return (self._forward.each_s(tokens, 1, 0) / self.config.inference.efficiency).tolist()

    def train_s(self, tokens: Ints) -> float:
        """A copy of the actor over these sequences: its forward passes, and training (of a critic, too)."""
        a, actor = self.config.algorithm, self.config.actor
        times = 2 if a.critic else 1
        forwards = a.actor_passes + times - 1
        before_s = self._passes_s(actor, self._train, tokens, forwards, 0, room=actor.pass_tokens) if forwards else 0.0
        return before_s + self._passes_s(actor, self._train, tokens, 0, times, self.recompute)

    def train_flops(self, tokens: Ints) -> float:
        """Model FLOPs of training on these sequences, without recomputation."""
        times = 2 if self.config.algorithm.critic else 1
        return times * float(np.interp(tokens, self._train.tokens, self._train.flops).sum())

    @property
    def peak_flops(self) -> float:
        """Of one GPU in the number format of training."""
        return catalog.device(self.config.device).flops(self.config.actor.precision)

    def train_at_once(self, tokens: Ints, num_gpus: int, updates: int = 1) -> tuple[float, float]:
        """Mini-batches ([group, sample] tokens) that are there as a whole, dealt to the ranks beforehand.

        Seconds of the slowest rank of each and of the updates; seconds in which a GPU computes, on average.
        """
        copies = num_gpus // self.config.actor.num_gpus
        whole_s = busy_s = 0.0
        for part in np.array_split(tokens, updates):
            ranks = [self.train_s(rank) for rank in self._deal(part, copies)]
            update = self._update_s(num_gpus)
            whole_s += max(ranks) + update
            busy_s += sum(ranks) / copies + update
        return whole_s, busy_s

    def train_stream(self, tokens: Ints, ready_s: Floats, start_s: float, num_gpus: int) -> tuple[float, float]:
        """One mini-batch whose groups come one after another: a rank that is free takes the next one.

        Every rank takes equally many. Returns the end, and the seconds in which a GPU computes, on average.
        """
        copies = num_gpus // self.config.actor.num_gpus
        share = -(-len(tokens) // copies)
        ranks = [(start_s, rank, share) for rank in range(copies)]
        end_s = busy_s = 0.0
        for group in np.argsort(ready_s, kind="stable"):
            free_s, rank, room = heapq.heappop(ranks)
            seconds = self.train_s(tokens[group])
            done_s = max(free_s, float(ready_s[group])) + seconds
            busy_s += seconds
            end_s = max(end_s, done_s)
            if room > 1:
                heapq.heappush(ranks, (done_s, rank, room - 1))
        update = self._update_s(num_gpus)
        return end_s + update, busy_s / copies + update

    def _deal(self, tokens: Ints, copies: int) -> list[Ints]:
        """Groups or sequences to data-parallel ranks: in order, or the longest to the least loaded rank with room."""
        items = tokens if self.config.actor.deal == "groups" else tokens.T.reshape(-1, 1)
        if not self.config.actor.balance:
            return [part.ravel() for part in np.array_split(items, copies)]
        room = -(-len(items) // copies)
        ranks: list[list[int]] = [[] for _ in range(copies)]
        load = np.zeros(copies)
        weight = self._train.each_s(items, 0, 1).sum(axis=1)
        for item in np.argsort(-weight, kind="stable"):
            open_ranks = [r for r in range(copies) if len(ranks[r]) < room]
            rank = min(open_ranks, key=lambda r: (load[r], r))
            ranks[rank].append(int(item))
            load[rank] += weight[item]
        return [items[rank].ravel() for rank in ranks]

    def _passes_s(
        self, part: TrainingConfig, grid: PassGrid, tokens: Ints, forwards: int, trainings: int, again: float = 0.0,
        room: int | None = None,
    ) -> float:  # fmt: skip
        """Micro-batches one after another through the stages of one copy, with the pipeline's fill and drain."""
        if not tokens.size:
            return 0.0
        room = room or part.max_tokens
        count = num_packed(tokens, room) if room else tokens.size
        if room:
            seconds = count * grid.base_s(float(tokens.sum()) / count, forwards, trainings, again)
            seconds += float(grid.attention_s(tokens, forwards, trainings, again).sum())
        else:
            seconds = float(grid.each_s(tokens, forwards, trainings, again).sum())
        return seconds * (1.0 + (part.pipeline_parallel - 1) / count) / part.efficiency

    def _update_s(self, num_gpus: int) -> float:
        """Gradients' reduction, the optimizer's step, parameters gathered again."""
        update = update_s(train_config(self.config, self.config.actor, num_gpus, self.recompute))
        return update * (2 if self.config.algorithm.critic else 1)

    def sync_s(self, has_inference: bool, num_rollout: int | None = None) -> float:
        """The blocking weight syncs actor -> rollout and, where there is one, actor -> inference."""
        count = 2 if has_inference else 1
        rollout = num_rollout or self.config.rollout.num_gpus
        return count * sync_s(self.config, self.model, self.num_actor, rollout)

    @cached_property
    def reshard_s(self) -> float:
        given = self.config.transitions.reshard_s
        if given is not None:
            return given
        return float(np.interp(self.model.num_parameters, RESHARD_PARAMETERS, RESHARD_S))

    def switch_s(self, component: str) -> float:
        """Components that take turns: what the one before leaves, and what this one loads, over the host's link."""
        t = self.config.transitions
        if t.switch_s is not None:
            return t.switch_s + t.dispatch_s
        if component == "actor":
            parts = memory_of(train_config(self.config, self.config.actor, self.num_actor, self.recompute)).parts
            moved = parts["weights"] + (parts["optimizer"] if self.config.actor.offload else 0.0)
            return 2.0 * moved / t.host_bandwidth_bytes_s + t.dispatch_s
        weights = WEIGHT_BYTES * self.model.num_parameters / self.config.inference.num_gpus
        return weights / t.host_bandwidth_bytes_s + t.dispatch_s

    def migration_s(self, kv_tokens: int) -> float:
        """From the stop of instances to their sequences' going on elsewhere."""
        t = self.config.transitions
        if self.config.rollout.migration == "reprefill":
            return t.migration_s
        return t.migration_s + kv_tokens * self.model.kv_bytes_per_token("bf16", 1) / t.kv_bandwidth_bytes_s


def num_packed(tokens: Ints, room: int) -> int:
    """Micro-batches of at most `room` tokens that hold these sequences: the longest first, each into the first with
    room; what is longer has one of its own."""
    left = np.full(tokens.size, room)
    for size in -np.sort(-tokens, axis=None):
        left[np.argmax((left >= size) | (left == room))] -= size
    return int((left < room).sum())


_SAME = (
    "tensor_parallel", "pipeline_parallel", "context_parallel", "shard_gpus", "precision", "framework", "release",
    "compile",
)  # fmt: skip
"""Settings that are called alike in `gnomon train step`."""


def train_config(config: Posttrain, part: TrainingConfig, num_gpus: int, recompute: float = 0.0) -> TrainConfig:
    """A layout as `gnomon train step` knows it. Its micro-batch is the longest sequence, or what is packed of a rank's
    share of a mini-batch."""
    longest, a = config.lengths.max_prompt + config.lengths.max_response, config.algorithm
    each = config.lengths.mean + config.lengths.prompt_mean
    share = a.num_sequences / a.n_minibatches * part.num_gpus / num_gpus * each
    tokens = max(longest, min(part.max_tokens or 0, round(share)))
    unit = 2 * part.context_parallel
    is_sharded = part.framework == "fsdp"
    layers = catalog.model(config.model).num_layers
    experts = math.gcd(part.expert_parallel, num_gpus // part.pipeline_parallel)
    return TrainConfig(
        model=config.model,
        device=config.device,
        node=config.node,
        gpus=num_gpus,
        sequence=-(-tokens // unit) * unit,
        packed_length=-(-longest // unit) * unit,
        **{name: getattr(part, name) for name in _SAME},
        context_exchange="all_to_all" if is_sharded else "ring",
        expert_parallel=experts,
        sharding="parameters" if is_sharded else "optimizer",
        recompute="full" if recompute else "none",
        recompute_layers=round(recompute * layers / part.pipeline_parallel) if 0 < recompute < 1 else None,
        cuda_graphs=False,
        launching=part.efficiency,  # All is divided by it, but launching takes what it takes.
        attention_kernel="fa2" if is_sharded else "newest",
        head_chunk=HEAD_CHUNK,
    )


def reward_copies(config: Posttrain) -> int:
    """Copies of the reward model; 0 where there is none."""
    environment = config.environment
    if environment.reward_model is None:
        return 0
    if environment.reward_gpus % environment.reward_tensor_parallel:
        what = f"{environment.reward_gpus} GPUs do not hold whole copies of {environment.reward_tensor_parallel} GPUs."
        fix = f"Use a multiple of {environment.reward_tensor_parallel}."
        raise ConfigError(what, where="environment.reward_gpus", fix=fix)
    return environment.reward_gpus // environment.reward_tensor_parallel


def reward_s(config: Posttrain, tokens: int) -> float:
    """The reward model over one sequence: a forward pass on one copy."""
    tensor = config.environment.reward_tensor_parallel
    judge = config.model_copy(update={"model": config.environment.reward_model})
    grid = pass_grid(train_config(judge, TrainingConfig(tensor_parallel=tensor), tensor))
    return float(grid.each_s(np.array([tokens]), 1, 0)[0])


def recompute_of(config: Posttrain, num_gpus: int) -> float:
    """The share that is recomputed: the given one, or none if that fits, else all."""
    if config.actor.recompute is not None:
        return config.actor.recompute
    return 0.0 if memory_of(train_config(config, config.actor, num_gpus).check()).fits else 1.0


def check_actor_memory(config: Posttrain, num_gpus: int) -> None:
    """Refuse an actor that no GPU holds: state, activations of the longest sequence, buffers."""
    memory = memory_of(train_config(config, config.actor, num_gpus, recompute_of(config, num_gpus)).check())
    if memory.fits:
        return
    what = (
        f"the actor needs {memory.reserved_bytes / GB:.1f} GB on each GPU ({memory.words}),"
        f" {(memory.reserved_bytes - memory.device_bytes) / GB:.1f} GB more than a {config.device} has."
    )
    raise DoesNotFitError(what, where="actor.tensor_parallel", fix=_what_fits(config, num_gpus))


def _what_fits(config: Posttrain, num_gpus: int) -> str:
    """The smallest copy that fits with everything recomputed; more GPUs where none does."""
    for size in (2**i for i in range(12)):
        gpus = max(num_gpus, size)
        for tensor in (min(size, 8), 1):
            update = {"tensor_parallel": tensor, "pipeline_parallel": size // tensor, "context_parallel": 1}
            actor = ActorConfig(**{**config.actor.model_dump(), **update, "recompute": 1.0})
            try:
                fits = memory_of(train_config(config, actor, gpus // size * size, 1.0).check()).fits
            except ConfigError:
                continue
            if fits:
                more = f" on {gpus} GPUs" if gpus > num_gpus else ""
                return f"Use tensor_parallel {tensor} x pipeline_parallel {size // tensor}{more}, recompute 1."
    return "Use more GPUs, or shorter sequences."


# Weight sync: every tensor is gathered from the actor's layout, sent, and loaded into the engine's.

WEIGHT_BYTES = 2  # Of a parameter as it is sent: bf16; verl and NeMo-RL quantise where it arrives.
DENSE_TENSORS = 10  # Of a layer: projections, norms and biases; a router or shared experts take the places of others.
PATHS: dict[str, dict[str, float]] = own_yaml(files("gnomon.posttrain") / "weight_sync.yaml")
DISK_BYTES_S = 5e9  # Of a shared file system, written once and read by all: an assumption.


def num_tensors(model: Model) -> tuple[int, int]:
    """Dense tensors and those of experts."""
    kinds = dict(stages_of(model, 1)[0].kinds)
    routed = sum(count for kind, count in kinds.items() if kind[1] == "experts")
    return DENSE_TENSORS * model.num_layers + 3, routed * model.num_experts * model.num_projections


def sync_s(config: Posttrain, model: Model, num_actor: int, num_rollout: int) -> float:
    t, path = config.transitions, PATHS[config.transitions.sync]
    node = catalog.node(config.node) if config.node else catalog.default_node(catalog.device(config.device))
    is_near = num_actor + num_rollout <= node.num_gpus or t.sync == "shared_memory"
    bandwidth = node.link.bandwidth_bytes_s if is_near else path["share"] * node.network.bandwidth_bytes_s
    if t.sync == "rdma" and not is_near:
        bandwidth *= max(1, num_actor // node.num_gpus)
    if t.sync == "checkpoint_engine" and is_near:  # Every rank sends the part that it holds.
        bandwidth *= min(num_actor, num_rollout)
    if t.sync == "disk":
        bandwidth = DISK_BYTES_S / 2.0
    dense, experts = num_tensors(model)
    moved = model.num_parameters * WEIGHT_BYTES / (t.sync_bandwidth_bytes_s or bandwidth)
    return t.sync_fixed_s + dense * path["tensor_s"] + experts * path["expert_s"] + moved
