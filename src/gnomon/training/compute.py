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
from gnomon.training.layers import SCHEMES, LayerKind, layer_operators

Seconds = dict[str, float]
"""By part of the step: products, attention, ..."""


@dataclass
class Pass:
    """One micro-batch through a piece of the model: seconds by part."""

    forward: Seconds = field(default_factory=dict)
    input_grad: Seconds = field(default_factory=dict)
    weight_grad: Seconds = field(default_factory=dict)
    flops: float = 0.0
    """Of the forward, on one GPU."""

    def add(self, part: str, forward: float, input_grad: float = 0.0, weight_grad: float = 0.0) -> None:
        """Add to a part."""
        for where, seconds in ((self.forward, forward), (self.input_grad, input_grad), (self.weight_grad, weight_grad)):
            if seconds:
                where[part] = where.get(part, 0.0) + seconds

    def plus(self, other: Pass, times: float = 1.0) -> None:
        """Add all of another, several times."""
        for part in {*other.forward, *other.input_grad, *other.weight_grad}:
            values = (where.get(part, 0.0) for where in (other.forward, other.input_grad, other.weight_grad))
            self.add(part, *(times * value for value in values))
        self.flops += times * other.flops

    @property
    def forward_s(self) -> float:
        """Of the forward."""
        return sum(self.forward.values())

    @property
    def backward_s(self) -> float:
        """Of both gradients."""
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
        self.rates = self.constants.rates(config.device)

    def layer(self, kind: LayerKind) -> Pass:
        """One layer."""
        made = Pass()
        for operator in layer_operators(self.config, self.model, kind):
            for _ in range(operator.count):
                self._operator(made, operator)
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
                seconds = whole * self._s(operator, length, 0.0) / self.rates.attention
                made.add("attention", seconds, self.constants.backward.attention * seconds)
                made.flops += whole * float(operator.flops(np.array([length]), np.zeros(1))[0])
            case Recurrence():
                seconds = self._s(operator, tokens) / self.rates.attention
                made.add("attention", seconds, self.constants.backward.recurrence * seconds)
                made.flops += float(operator.flops(np.array([tokens]))[0])
            case Elementwise():
                self._elementwise(made, operator)

    def _product(self, made: Pass, part: str, operator: Operator, tokens: float, precision: Precision) -> None:
        """A product with its two backward ones, and what quantising their inputs takes."""
        work, factors = operator.work, self.constants.backward
        assert isinstance(work, Gemm)
        forward = self._s(operator, tokens) / self.rates.products[precision]
        transposed = replace(operator, work=replace(work, n=work.k, k=work.n))
        input_grad = factors.input_grad * self._s(transposed, tokens) / self.rates.products[precision]
        weight = replace(operator, work=replace(work, n=work.n, k=round(tokens)))
        weight_grad = factors.weight_grad * self._s(weight, float(work.k)) / self.rates.products[precision]
        rank = self.config.lora_rank
        made.add(part, forward, input_grad, 0.0 if rank else weight_grad)
        made.flops += float(operator.flops(np.array([tokens]))[0])
        moved = self.constants.casts[precision] * work.batch * tokens
        if moved:
            made.add("casts", self._move_s(moved * work.k), self._move_s(moved * work.n))
        if rank and "proj" in operator.name:  # The input again, the output read and written; twice that backward.
            adapter = self._move_s(2.0 * work.batch * tokens * (work.k + 2 * work.n))
            made.add("adapters", adapter, 2.0 * adapter)

    def _experts(self, made: Pass, operator: Operator) -> None:
        """Grouped products over the tokens of the expert-parallel group, which the busiest rank ends last."""
        c, work = self.config, operator.work
        assert isinstance(work, Experts)
        local = work.num_experts // c.expert_parallel
        ffn = self.model.expert_ffn_size // c.expert_tensor_parallel
        here = replace(operator, work=replace(work, num_local=local, ffn=ffn))
        group = c.tokens / self._token_ranks * c.expert_parallel * c.expert_tensor_parallel
        seconds = self._s(here, group) / self.rates.experts[c.precision]
        backward = self.constants.backward.experts * seconds / 2.0
        made.add("experts", seconds, backward, 0.0 if c.lora_rank else backward)
        made.flops += float(here.flops(np.array([group]))[0])
        rows = c.tokens / self._token_ranks * work.per_token
        moved = self.constants.casts[c.precision] * rows
        if moved:
            made.add("casts", self._move_s(moved * (work.hidden + ffn)), self._move_s(moved * (work.hidden + 2 * ffn)))

    @property
    def _token_ranks(self) -> int:
        """Tensor-parallel ranks that divide the tokens between them."""
        return self.config.tensor_parallel if self.config.sequence_parallel else 1

    def _elementwise(self, made: Pass, operator: Operator) -> None:
        whole = operator.name in ("act", "rotary", "qk_norm", "output_gate", "shared_act", "linear_norm")
        tokens = self.config.tokens / (1 if whole else self._token_ranks)
        seconds = self._s(operator, tokens) / self.rates.elementwise
        made.add("elementwise", seconds, self.constants.backward.elementwise * seconds)

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
        made.add("loss", self._move_s(8.0 * logits), self._move_s(8.0 * logits))
        return made

    def _move_s(self, moved: float) -> float:
        """Seconds in which a kernel moves so many bytes."""
        return self._s(Operator("move", "token", 1, Elementwise(moved)), 1.0) / self.rates.elementwise

    def _s(self, operator: Operator, *sizes: float) -> float:
        return float(self.timer.seconds(operator, *(np.array([size]) for size in sizes))[0])
