"""A training step as it is asked for: a model, GPUs, a batch, and how they are divided."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from gnomon import catalog
from gnomon.catalog import Model, Node
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.core.sizes import Count, CountOrNone, Degree, Sequences, Tokens
from gnomon.pipeline.zoo import SCHEDULES
from gnomon.timing import TimingConfig

Sharding = Literal["none", "optimizer", "gradients", "parameters"]
SHARDED: dict[Sharding, int] = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}
"""What of the model's state data-parallel ranks divide: the stage of ZeRO."""
Precision = Literal["bf16", "fp8", "mxfp8", "nvfp4"]


class TrainConfig(Config):
    """One training step."""

    model: str = "llama-3-8b"
    """Built-in model (`gnomon catalog models`), or the path of a Hugging Face config.json."""
    device: str = "h100"
    """GPU, by its name in the catalog."""
    node: str | None = None
    """Links between GPUs; the device's usual node unless given."""
    gpus: Count = 8
    """All of them."""
    batch: Count | None = None
    """Sequences per step over all GPUs; one micro-batch per data-parallel rank and stage unless given."""
    micro_batch: Sequences = 1
    """Sequences that pass at once."""
    sequence: Tokens = 4096
    """Tokens per sequence."""
    packed_length: Tokens | None = None
    """Tokens of the documents that are packed into a sequence, which do not see each other; one unless given."""
    tensor_parallel: Degree = 1
    """GPUs that share every layer."""
    sequence_parallel: bool = True
    """Norms and their activations are divided over the tensor-parallel GPUs too."""
    pipeline_parallel: Degree = 1
    """GPUs one behind the other, each with some of the layers."""
    virtual_stages: Degree = 1
    """Pieces of the model on each of them (interleaved)."""
    schedule: str | None = None
    """A name of `gnomon pipeline schedules`; 1f1b, or interleaved with several virtual stages, unless given."""
    context_parallel: Degree = 1
    """GPUs that share every sequence."""
    context_exchange: Literal["ring", "all_gather", "all_to_all"] = "ring"
    """How they come by each other's keys and values: one after another beside attention, all at once before it, or by
    exchanging heads for tokens (Ulysses)."""
    expert_parallel: Degree = 1
    """GPUs over which whole experts are spread."""
    expert_tensor_parallel: Degree = 1
    """GPUs that share every expert."""
    expert_load: str = "balanced"
    """How tokens spread over experts: balanced, power_law_1.01, ... The busiest rank decides."""
    expert_capacity: NonNegativeFloat = 0.0
    """Tokens that an expert takes at most, over the mean; what is more is dropped. 0: dropless."""
    sharding: Sharding = "optimizer"
    """What data-parallel GPUs divide instead of holding it whole: ZeRO-1 (optimizer), ZeRO-2 (gradients), ZeRO-3 or
    FSDP (parameters)."""
    shard_gpus: Degree | None = None
    """GPUs over which it is divided; copies of such groups add up their gradients (HSDP). All unless given."""
    precision: Precision = "bf16"
    """Number format of the products of layers; the head stays in bf16."""
    gradients: Literal["fp32", "bf16"] = "fp32"
    """Number format in which Megatron-LM adds up and sends gradients (accumulate-allreduce-grads-in-fp32); NVIDIA's
    performance recipes take bf16."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What backward computes again: nothing, attention and activations, or whole layers from their inputs."""
    recompute_layers: CountOrNone | None = None
    """Layers of each (virtual) stage that are recomputed in full; all unless given."""
    offload: bool = False
    """Kept activations wait in the host's memory, to which they are copied beside the passes."""
    loading_tokens_s: NonNegativeFloat = 0.0
    """Tokens per second that all loaders of data deliver together, beside the step; 0 for as many as it takes."""
    lora_rank: CountOrNone = 0
    """Train adapters of this rank on frozen weights; 0 trains all weights."""
    framework: Literal["megatron", "fsdp", "torchtitan", "transformers"] = "megatron"
    """Whose kernels, buffers and number formats."""
    release: str = ""
    """The framework's release, e.g. 26.06 (torchtitan: 2024.12); the newest known unless given."""
    attention_kernel: Literal["newest", "fa2"] = "newest"
    """FlashAttention-3, cuDNN's or later; or FlashAttention-2, which uses half of a Hopper."""
    compile: bool = True
    """Layers go through torch.compile (fsdp and transformers)."""
    cuda_graphs: bool = True
    """Kernels are launched as graphs (megatron); else a layer takes no less than launching them one by one."""
    launching: PositiveFloat = 1.0
    """Seconds of launching kernels one by one, over those of the device's host."""
    tensor_overlap: bool = True
    """Tensor-parallel communication runs beside the products that need it (megatron)."""
    head_chunk: CountOrNone = 0
    """Tokens whose logits exist at a time; 0 for all."""
    timing: TimingConfig = TimingConfig()
    """Where the seconds of operators come from."""

    @property
    def shape(self) -> Model:
        return catalog.model(self.model)

    @property
    def family(self) -> str:
        """The framework under which its constants stand."""
        return "fsdp" if self.framework == "torchtitan" else self.framework

    @property
    def compiles_loss(self) -> bool:
        """Whether the loss is one compiled kernel over bf16 logits: torchtitan since 2025."""
        return self.framework == "torchtitan" and self.compile and not (self.release and self.release < "2025")

    @property
    def copy_gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def data_parallel(self) -> int:
        """Copies that see different sequences."""
        return self.gpus // self.copy_gpus

    @property
    def schedule_name(self) -> str:
        if self.pipeline_parallel == 1:
            return "1f1b"
        return self.schedule or ("interleaved" if self.virtual_stages > 1 else "1f1b")

    @property
    def num_stages(self) -> int:
        spec = SCHEDULES[self.schedule_name]
        return self.pipeline_parallel * (self.virtual_stages if spec.takes_chunks else spec.stages_per_rank)

    @property
    def batch_size(self) -> int:
        return self.batch or self.data_parallel * self.micro_batch * self.pipeline_parallel

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of each data-parallel rank."""
        return self.batch_size // (self.data_parallel * self.micro_batch)

    @property
    def tokens(self) -> float:
        """Of one micro-batch on one GPU, before tensor parallelism divides them."""
        return self.micro_batch * self.sequence / self.context_parallel

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.sequence

    @property
    def num_sharding(self) -> int:
        """GPUs over which state is divided: context-parallel GPUs hold the same weights and take part."""
        return self.shard_gpus or self.data_parallel * self.context_parallel

    @property
    def where(self) -> Node:
        """The node, with as many of its GPUs as divide the job evenly (64 of a rack of 72)."""
        node = catalog.node(self.node) if self.node else catalog.default_node(catalog.device(self.device))
        used = next(n for n in range(min(node.num_gpus, self.gpus), 0, -1) if self.gpus % n == 0)
        return node.model_copy(update={"num_gpus": used}) if self.gpus > node.num_gpus else node

    def check(self) -> TrainConfig:
        """Refuse what cannot be divided, each with what could."""
        model = self.shape
        catalog.Parallelism(tensor_parallel=self.tensor_parallel).check(model)
        if self.gpus % self.copy_gpus:
            raise ConfigError(
                f"tensor {self.tensor_parallel} x pipeline {self.pipeline_parallel} x context {self.context_parallel} ="
                f" {self.copy_gpus} GPUs do not divide {self.gpus}.",
                where="gpus",
                fix=f"Use {max(1, self.gpus // self.copy_gpus) * self.copy_gpus} GPUs, or other degrees.",
            )
        rows = self.data_parallel * self.micro_batch
        if self.batch_size % rows or not self.num_microbatches:
            raise ConfigError(
                f"{self.data_parallel} data-parallel ranks x {self.micro_batch} sequences do not divide a batch of"
                f" {self.batch_size}.",
                where="batch",
                fix=f"Use {max(1, round(self.batch_size / rows)) * rows}, or another micro_batch.",
            )
        if self.num_stages > model.num_layers + 2:
            what = f"{model.name} has {model.num_layers} layers, too few for {self.num_stages} stages."
            raise ConfigError(what, where="pipeline_parallel")
        if self.virtual_stages > 1 and self.pipeline_parallel == 1:
            raise ConfigError("virtual stages need pipeline parallelism.", where="virtual_stages", fix="Leave it out.")
        if self.virtual_stages > 1 and not SCHEDULES[self.schedule_name].takes_chunks:
            what = f"virtual_stages has no effect with the schedule {self.schedule}."
            raise ConfigError(what, where="virtual_stages", fix="Leave one of them out.")
        if self.sequence % (2 * self.context_parallel) and self.context_parallel > 1:
            what = f"{self.sequence} tokens do not divide into two chunks for each of {self.context_parallel} GPUs."
            raise ConfigError(what, where="context_parallel")
        ranks, stage = self.expert_parallel * self.expert_tensor_parallel, self.gpus // self.pipeline_parallel
        if not model.is_moe and ranks > 1:
            raise ConfigError(f"{model.name} has no experts.", where="expert_parallel", fix="Leave it out.")
        if model.is_moe and (model.num_experts % self.expert_parallel or stage % ranks):
            raise ConfigError(
                f"{ranks} GPUs for experts divide neither the {model.num_experts} experts of {model.name} nor the"
                f" {stage} GPUs of a stage.",
                where="expert_parallel",
            )
        if self.num_sharding > self.data_parallel * self.context_parallel or (
            self.data_parallel * self.context_parallel % self.num_sharding
        ):
            raise ConfigError(
                f"{self.num_sharding} GPUs do not divide the {self.data_parallel * self.context_parallel} that hold the"
                " same weights.",
                where="shard_gpus",
            )
        return self
