"""Seconds of one micro-batch through one layer, the head and the loss on one GPU, by part, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from gnomon import catalog
from gnomon.catalog import Parallelism
from gnomon.timing import Context, Timer
from gnomon.timing.operators import Elementwise, Experts, Gemm, Operator, Prefill, Recurrence
from gnomon.training.config import Precision, TrainConfig
from gnomon.training.constants import constants
from gnomon.training.stages import SCHEMES, LayerKind, layer_operators, recipe_of

ATTENTION_PRODUCTS = ("qkv_proj", "o_proj", "q_proj", "q_b_proj", "qkv_a_proj")
ADAPTED = {
    "megatron": ATTENTION_PRODUCTS,
    "fsdp": (*ATTENTION_PRODUCTS, "up_proj", "down_proj"),
    "transformers": ATTENTION_PRODUCTS,
}
"""Products that have adapters: NVIDIA's LoRA adapts attention, prime-rl every projection."""
Seconds = dict[str, float]  # By part of the step: products, attention, ...


@dataclass
class Pass:
    """One micro-batch through a piece of the model: seconds by part."""

    forward: Seconds = field(default_factory=dict)
    input_grad: Seconds = field(default_factory=dict)
    weight_grad: Seconds = field(default_factory=dict)
    flops: float = 0.0
    """Of the forward, on one GPU."""

    def add(self, part: str, forward: float, input_grad: float = 0.0, weight_grad: float = 0.0) -> None:
        for where, seconds in ((self.forward, forward), (self.input_grad, input_grad), (self.weight_grad, weight_grad)):
            if seconds:
                where[part] = where.get(part, 0.0) + seconds

    def plus(self, other: Pass, times: float = 1.0) -> None:
        for part in {*other.forward, *other.input_grad, *other.weight_grad}:
            values = (where.get(part, 0.0) for where in (other.forward, other.input_grad, other.weight_grad))
            self.add(part, *(times * value for value in values))
        self.flops += times * other.flops

    @property
    def forward_s(self) -> float:
        return sum(self.forward.values())

    @property
    def backward_s(self) -> float:
        return sum(self.input_grad.values()) + sum(self.weight_grad.values())


class Compute:
    """The kernels of one GPU."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.model = config, config.shape
        self.device = catalog.device(config.device)
        timing = config.timing
        if timing.source == "auto":
            timing = timing.model_copy(update={"source": "roofline"})
        timing = timing.model_copy(update={"dtype": SCHEMES[config.precision]})
        context = Context(self.model, self.device, config.where, Parallelism(), timing)
        self.timer = Timer(context)
        self.constants = constants()
        self.rates = self.constants.of("devices", config.device)
        self.release = self.constants.release(config.release)
        self.is_eager = not config.compile and config.framework != "megatron"

    def layer(self, kind: LayerKind) -> Pass:
        made = Pass()
        for operator in layer_operators(self.config, self.model, kind):
            for _ in range(operator.count):
                self._operator(made, operator)
        # Gaps between kernels; those that are launched one by one keep a layer busy for no less than that takes.
        c, constants = self.config, self.constants
        gap = constants.layer_s[c.family]
        made.add("host", gap, 2.0 * gap)
        least = (0.0, 0.0)
        if self.is_eager:
            least = constants.eager.forward_layer_s, constants.eager.backward_layer_s
        elif c.framework == "megatron" and not c.cuda_graphs:
            least = constants.launch_layer_s, 2.0 * constants.launch_layer_s
        forward, backward = (c.launching * constants.of("launch_factor", c.device) * one for one in least)
        made.add("host", max(0.0, forward - made.forward_s), max(0.0, backward - made.backward_s))
        return made

    def _operator(self, made: Pass, operator: Operator) -> None:
        c, tokens, work = self.config, self.config.tokens, operator.work
        match work:
            case Gemm():
                is_low = work.format.product != "bf16" and operator.name != "router"
                self._product(made, "products", operator, tokens, c.precision if is_low else "bf16")
            case Experts():
                self._experts(made, operator)
            case Prefill():
                length = float(c.packed_length or c.sequence)
                whole = c.micro_batch * c.sequence / length / c.context_parallel
                flops = float(operator.flops(np.array([length]), np.zeros(1))[0])
                fitted = self.rates.attention if c.framework == "megatron" else 1.0
                rate = fitted * (self.constants.small_heads if work.qk_dim <= 64 else 1.0)
                alone = self._s(operator, length, 0.0) / rate
                if c.attention_kernel == "fa2":
                    alone = max(alone, flops / self.constants.of("fa2_rate", c.device))
                seconds = whole * alone
                made.add("attention", seconds, self.constants.backward.attention * seconds)
                made.flops += whole * flops
            case Recurrence():
                seconds = self._s(operator, tokens) / self.constants.recurrence_rate
                made.add("recurrence", seconds, self.constants.backward.recurrence * seconds)
                made.flops += float(operator.flops(np.array([tokens]))[0])
            case Elementwise():
                self._elementwise(made, operator)

    def _product(self, made: Pass, part: str, operator: Operator, tokens: float, precision: Precision) -> None:
        """A product with its two backward ones, and what quantising their inputs takes."""
        work, factors = operator.work, self.constants.backward
        assert isinstance(work, Gemm)
        rate = self.rates.products[precision] * (self.release.experts if part == "experts" else 1.0)
        forward = self._s(operator, tokens) / rate
        transposed = replace(operator, work=replace(work, n=work.k, k=work.n))
        input_grad = factors.input_grad * self._s(transposed, tokens) / rate
        weight = replace(operator, work=replace(work, n=work.n, k=max(1, round(tokens))))
        weight_grad = factors.weight_grad * self._s(weight, float(work.k)) / rate
        rank = self.config.lora_rank
        made.add(part, forward, input_grad, 0.0 if rank else weight_grad)
        if self.config.framework == "megatron" and not rank:
            moved = 2.0 * recipe_of(self.config).gradient * work.n * work.k * work.batch
            made.add("accumulation", 0.0, 0.0, self._move_s(moved))
        made.flops += float(operator.flops(np.array([tokens]))[0])
        moved = self.constants.casts[precision] * work.batch * tokens
        if moved:
            made.add("casts", self._move_s(moved * work.k), self._move_s(moved * work.n))
        if rank and operator.name in ADAPTED[self.config.family]:
            moves = self.constants.adapter_moves[self.config.family]
            adapter = self._move_s(2.0 * moves * tokens * (work.k + work.n))
            adapter += self.constants.adapter_s[self.config.family]
            made.add("adapters", adapter, 2.0 * adapter)

    def _experts(self, made: Pass, operator: Operator) -> None:
        """Grouped products over the rows that reach the busiest rank, the activation between them, and rows permuted on
        their way there and back."""
        c, work = self.config, operator.work
        assert isinstance(work, Experts)
        local = work.num_experts // c.expert_parallel
        ffn = self.model.expert_ffn_size // c.expert_tensor_parallel
        here = replace(work, num_local=local, ffn=ffn)
        group = np.array([c.tokens / self._token_ranks * c.expert_parallel * c.expert_tensor_parallel])
        rows = float(here.routed(group)[0])
        if c.expert_capacity:
            rows = min(rows, c.expert_capacity * c.tokens / self._token_ranks * work.per_token)
        each = rows / local
        ups = work.projections - 1
        for n, k in ((ups * ffn, work.hidden), (work.hidden, ffn)):
            product = Operator("experts", "token", 1, Gemm(n, k, work.format, batch=local))
            self._product(made, "experts", product, each, c.precision)
        act = self._move_s(2.0 * (ups + 1) * ffn * rows)
        made.add("elementwise", act, self.constants.backward.elementwise * act)
        moves = 4 if c.expert_parallel > 1 else 2
        permute = self.release.permutation * self._move_s(2.0 * moves * 2.0 * rows * work.hidden)
        made.add("permutation", permute, permute)
        made.add("host", self.release.expert_layer_s, 2.0 * self.release.expert_layer_s)

    @property
    def _token_ranks(self) -> int:
        """Tensor-parallel ranks that divide the tokens between them."""
        return self.config.tensor_parallel if self.config.sequence_parallel else 1

    def _elementwise(self, made: Pass, operator: Operator) -> None:
        whole = operator.name in ("act", "rotary", "qk_norm", "output_gate", "shared_act", "linear_norm")
        tokens = self.config.tokens / (1 if whole else self._token_ranks)
        seconds, eager = self._s(operator, tokens), self.constants.eager
        backward = self.constants.backward.elementwise * seconds
        if self.is_eager:
            name = operator.name.replace("attn_norm", "norm").replace("mlp_norm", "norm")
            factors = eager.forward.get(name, eager.forward["other"]), eager.backward.get(name, eager.backward["other"])
            if self.config.framework == "torchtitan":  # Norms of PyTorch's own, without copies in float32.
                factors = (1.0 + factors[0]) / 2, (1.0 + factors[1]) / 2
            seconds, backward = seconds * factors[0], backward * factors[1]
        made.add("elementwise", seconds, backward)

    def embedding(self) -> Pass:
        """Looking tokens up, and adding up their gradients."""
        made, h = Pass(), self.model.hidden_size
        moved = self._move_s(4.0 * h * self.config.tokens / self._token_ranks)
        made.add("loss", moved, 0.0, moved)
        return made

    def head(self) -> Pass:
        """Last norm, head and loss over all tokens."""
        c, made = self.config, Pass()
        vocab = -(-self.model.vocab_size // c.tensor_parallel)
        operator = Operator("lm_head", "token", 1, Gemm(vocab, self.model.hidden_size))
        inner = Pass()
        self._product(inner, "loss", operator, c.tokens, "bf16")
        made.plus(inner)
        logits = vocab * c.tokens
        kind = "megatron" if c.compiles_loss else "fsdp" if c.head_chunk else c.family
        loss = self.constants.loss[kind]
        made.add("loss", self._move_s(loss.forward * logits), self._move_s(loss.backward * logits))
        return made

    def _move_s(self, moved: float) -> float:
        """Seconds in which a kernel moves so many bytes."""
        return self._s(Operator("move", "token", 1, Elementwise(moved)), 1.0)

    def _s(self, operator: Operator, *sizes: float) -> float:
        return float(self.timer.seconds(operator, *(np.array([size]) for size in sizes))[0])
