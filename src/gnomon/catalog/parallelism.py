"""How one copy of a model is spread over GPUs."""

from __future__ import annotations

from gnomon.catalog.shape import ModelShape
from gnomon.catalog.topology import Group
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.core.sizes import Degree


class Parallelism(Config):
    """Degrees of parallelism of one replica."""

    tensor_parallel: Degree = 1
    """GPUs that share every layer."""
    pipeline_parallel: Degree = 1
    """Stages into which the layers are cut."""
    data_parallel: Degree = 1
    """Attention groups that run in lockstep and share the experts of a mixture-of-experts model. (Independent copies
    of a model are replicas, not data parallelism.)"""
    expert_parallel: bool = False
    """Whole experts on each of the tensor_parallel x data_parallel ranks, instead of a slice of every expert."""

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def num_expert_ranks(self) -> int:
        """Ranks over which the experts of a layer are spread."""
        return self.tensor_parallel * self.data_parallel

    def tensor_group(self, stage: int) -> Group:
        """The (first) ranks that share every layer of a stage. Stages lie one behind the other."""
        first = stage * self.num_expert_ranks
        return Group(range(first, first + self.tensor_parallel))

    def expert_group(self, stage: int) -> Group:
        """The ranks over which the experts of a stage are spread: all of the stage."""
        first = stage * self.num_expert_ranks
        return Group(range(first, first + self.num_expert_ranks))

    def handover_group(self, stage: int) -> Group:
        """A rank of a stage and its counterpart in the next one."""
        width = self.num_expert_ranks
        return Group(range(stage * width, (stage + 2) * width, width), copies=width)

    def suited_to(self, model: ModelShape) -> Parallelism:
        """This parallelism for a model beside the main one (a draft), which shares experts only if it has any."""
        return self if model.is_moe else self.model_copy(update={"data_parallel": 1, "expert_parallel": False})

    def layers_of_stage(self, model: ModelShape, stage: int) -> range:
        """The layers of one pipeline stage. Leftover layers go to stages before the last, which has the head."""
        base, left = divmod(model.num_layers, self.pipeline_parallel)
        sizes = [base] * self.pipeline_parallel
        for extra in range(left):
            sizes[-(2 + extra) % self.pipeline_parallel] += 1
        first = sum(sizes[:stage])
        return range(first, first + sizes[stage])

    def check(self, model: ModelShape) -> None:
        """Refuse degrees that `model` cannot be cut into."""
        misfit = _misfit(model, self.tensor_parallel)
        if misfit:
            what = f"tensor parallelism {self.tensor_parallel} {misfit} of {model.name}."
            fix = f"Use one of {', '.join(map(str, tensor_degrees(model)))}."
            raise ConfigError(what, where="tensor_parallel", fix=fix)
        if self.pipeline_parallel > model.num_layers:
            what = f"{model.name} has {model.num_layers} layers, too few for {self.pipeline_parallel} pipeline stages."
            raise ConfigError(what, where="pipeline_parallel")
        self._check_experts(model)

    def _check_experts(self, model: ModelShape) -> None:
        if not model.num_experts:
            if self.data_parallel > 1 or self.expert_parallel:
                what = f"{model.name} has no experts to share."
                fix = "Run several replicas instead (num_replicas), with data_parallel 1 and expert_parallel false."
                raise ConfigError(what, where="data_parallel" if self.data_parallel > 1 else "expert_parallel", fix=fix)
        elif self.expert_parallel and model.num_experts % self.num_expert_ranks:
            what = f"{self.num_expert_ranks} ranks do not divide the {model.num_experts} experts of {model.name}."
            raise ConfigError(what, where="expert_parallel", fix="Change tensor_parallel or data_parallel.")


def tensor_degrees(model: ModelShape, up_to: int = 64) -> list[int]:
    """The tensor-parallel degrees that `model` allows, powers of two and others alike."""
    return [t for t in range(1, up_to + 1) if not _misfit(model, t)]


def _misfit(model: ModelShape, t: int) -> str:
    """Why `t` ranks cannot share the heads of `model`; empty where they can. Too few KV or key heads are repeated."""
    if model.num_heads % t:
        return f"does not divide the {model.num_heads} attention heads"
    if model.linear and model.linear.num_value_heads % t:
        return f"does not divide the {model.linear.num_value_heads} heads of linear attention"
    repeated = {"KV heads": model.num_kv_heads, "key heads": model.linear.num_key_heads if model.linear else t}
    for name, heads in repeated.items():
        if heads % t and t % heads:
            return f"neither divides nor is a multiple of the {heads} {name}"
    return ""
