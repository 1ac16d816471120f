"""The source itself: finds the measurements of each operator and says where they come from."""

from dataclasses import replace

import numpy as np

from gnomon.catalog.quantization import weight_format
from gnomon.core.arrays import Floats
from gnomon.timing import operators
from gnomon.timing.sources import Context
from gnomon.timing.sources.profile.measured import MIN_ROWS, Measured
from gnomon.timing.sources.profile.samples import Bundle, Samples
from gnomon.timing.sources.roofline import Roofline
from gnomon.timing.sources.silicon import latent
from gnomon.timing.sources.silicon.attention import ONE_BLOCK, find_attention, waiting_for_the_longest
from gnomon.timing.sources.silicon.collectives import find_collective
from gnomon.timing.sources.silicon.elementwise import find_elementwise
from gnomon.timing.sources.silicon.exchange import find_exchange
from gnomon.timing.sources.silicon.experts import find_experts
from gnomon.timing.sources.silicon.kernels import Found, Query
from gnomon.timing.sources.silicon.linear import find_recurrence
from gnomon.timing.sources.silicon.products import find_absorbed, find_gemm
from gnomon.timing.sources.silicon.quantizing import find_quantize
from gnomon.timing.sources.silicon.streams import find_streams
from gnomon.timing.sources.silicon.tables import SYSTEMS, data_folder

_SPARSE_MODULES = {7168: "DeepseekV32ForCausalLM", 6144: "GlmMoeDsaForCausalLM"}
"""Width of a model -> the module of its sparse attention, as the tables call it."""
_WITH_HEADS = {"trtllm": {"rotary", "kv_write"}, "sglang": {"kv_write"}}
"""What was measured with attention over heads: TensorRT-LLM's rotates and writes KV itself, SGLang's writes it."""
_COMPRESSED_MODELS = {7168: "Pro", 4096: "Flash"}  # Width of a DeepSeek-V4 -> which of them it is.


class Silicon(Measured):
    """Kernels of one device in one engine, between measured points."""

    def __init__(self, context: Context) -> None:
        system, c = SYSTEMS[context.device.name], context.config
        roofline = Roofline(context.device, context.node)
        super().__init__("silicon", Bundle(str(data_folder() / system)), roofline, c.estimator)
        self._query = Query(
            system, c.engine, c.engine_version, context.kv_dtype, roofline, c.expert_kernel, c.all_reduce
        )
        self._context = context
        self._found: dict[operators.Operator, Found | None] = {}
        self._names = {one.name for one in context.operators()}
        self._note_module()

    def samples(self, operator: operators.Operator) -> Samples | None:
        """What was measured of an operator, or of the shapes nearest to it."""
        found = self._find(operator)
        return found.samples if found else None

    def provenance(self, operator: operators.Operator) -> str:
        """Which engine and version measured it, and what stood in for what."""
        if operator.name in self.bundle.included:
            return "part of attention"
        found = self._find(operator)
        return found.provenance if found else self._roofline.name

    def skew(self, decodes: Floats) -> Floats | None:
        """How far unequal KV lengths move a decode towards its longest, where kernels leave a sequence to one SM."""
        whole = [
            one.work
            for one in self._context.operators()
            if isinstance(one.work, operators.Decode) and not one.work.window
        ]
        if self._has_modules or not whole or self._query.system not in ONE_BLOCK:
            return None
        return waiting_for_the_longest(decodes, whole[0].num_kv_heads, self._context.device.num_sms)

    def notes(self) -> list[str]:
        """Which tables answered, the points that were left out, by operator, and the settings of what was trained."""
        c, by_itself = self._context.config, []
        if c.source == "auto":
            by_itself = [f"Times are measured kernels of {c.engine} (timing.source: auto found aiconfigurator-core)."]
        return [*by_itself, *self._note_origins(), *self._note_left_out(), *super().notes()]

    def _note_origins(self) -> list[str]:
        """One sentence: where most operators come from, and which ones from elsewhere."""
        origins: dict[str, list[str]] = {}
        for one, found in self._found.items():
            takes_time = one.name not in self.bundle.included and (found is not None or not one.is_fused)
            if one.name in self._names and takes_time:
                names = origins.setdefault(_origin(self.provenance(one)), [])
                names += [one.name] if one.name not in names else []
        if not origins:
            return []
        main = max(origins, key=lambda origin: (origin.startswith("measured in"), len(origins[origin])))
        others = [f"{', '.join(names)} {origin}" for origin, names in origins.items() if origin != main]
        return [f"silicon: {'; '.join([f'{main} unless said otherwise', *others])}."]

    def _note_left_out(self) -> list[str]:
        odd = [
            f"{one.name} at {_listing(found.left_out)}"
            for one, found in self._found.items()
            if found and found.left_out
        ]
        if not odd:
            return []
        return [f"silicon: left out points whose time falls when work grows: {'; '.join(dict.fromkeys(odd))}."]

    def _find(self, operator: operators.Operator) -> Found | None:
        if operator not in self._found:
            found = self._look_up(operator)
            self._found[operator] = found if found and len(found.samples.seconds) >= MIN_ROWS else None
        return self._found[operator]

    def _look_up(self, operator: operators.Operator) -> Found | None:
        query, work = self._query, operator.work
        match work:
            case operators.Gemm(batch=1):
                return find_gemm(query, operator, work)
            case operators.Gemm():
                return find_absorbed(query, operator, work) if self._context.model.mla else None
            case operators.Experts():
                return find_experts(query, operator, work)
            case operators.Prefill() | operators.Decode() if self._has_modules:
                held = None if _is_indexer(operator) else latent.find_latent(query, operator, work, self._latent)
                return held[0] if held else None
            case operators.Prefill() | operators.Decode():
                return find_attention(query, operator, work)
            case operators.Recurrence():
                return find_recurrence(query, operator, work)
            case operators.Communication(collective="all_to_all"):
                found = find_exchange(query, operator.name, work, self._context.model)
                return found or find_collective(query, operator, work)
            case operators.Communication():
                return find_collective(query, operator, work)
            case operators.Elementwise() if operator.name.endswith("quantize"):
                return find_quantize(query, operator, work)
            case operators.Elementwise() if operator.name.startswith("streams"):
                return find_streams(query, operator, self._context.model)
            case operators.Elementwise():
                return find_elementwise(query, operator, work)
        return None

    def _note_module(self) -> None:
        """Where latent attention was measured as a module, its small kernels take no time of their own."""
        if not self._has_modules:
            self.bundle.included |= self._with_heads()
            return
        graph = {one.name: one for one in self._context.operators()}
        self._graph = graph
        both = [
            latent.find_latent(self._query, one, one.work, self._latent)
            for one in graph.values()
            if isinstance(one.work, operators.Prefill | operators.Decode) and not _is_indexer(one)
        ]
        if all(found and found[1] for found in both):
            self.bundle.included |= latent.INSIDE

    def _with_heads(self) -> set[str]:
        """What the tables of attention over heads contain, where all of them are one engine's."""
        both = [one for one in self._context.operators() if isinstance(one.work, operators.Prefill | operators.Decode)]
        engines = {self.provenance(one).split()[2] for one in both if self._find(one)}
        return _WITH_HEADS.get(engines.pop(), set()) if len(engines) == 1 else set()

    @property
    def _has_modules(self) -> bool:
        """Whether attention is over latents or over what an index picks."""
        return self._context.model.mla is not None or self._context.model.indexer is not None

    @property
    def _latent(self) -> latent.LatentQuery:
        model = self._context.model
        architecture = _SPARSE_MODULES.get(model.hidden_size, "none") if model.indexer else ""
        if model.compressed:
            architecture = f"{latent.COMPRESSED_MODULE}/{_COMPRESSED_MODELS.get(model.hidden_size, 'none')}"
        elif model.mla is None:
            architecture = latent.BLOCKS_MODULE if model.model_type == "minimax_m3" else "none"
        has_module = model.mla is not None and (model.hidden_size, model.mla.q_rank) == (7168, 1536)
        return latent.LatentQuery(architecture, has_module, self._projections_s)

    def _projections_s(self, is_prompt: bool, tokens: Floats, dtype: str) -> Floats:
        """Seconds of the module's projections in a number format."""
        total = np.zeros_like(tokens)
        for name in latent.PROJECTIONS:
            one = self._graph.get(name)
            if one is None or (one.kind == "prompt_token" and not is_prompt):
                continue
            assert isinstance(one.work, operators.Gemm)
            one = replace(one, work=replace(one.work, format=weight_format(dtype)))
            covered = self.measured(one)
            if covered is not None:
                (low, high), *_ = covered
                total += self.seconds(one, np.clip(tokens, low, high)) * np.maximum(tokens / high, 1.0)
        return total


def _origin(provenance: str) -> str:
    """The table alone, without what was made of it: "measured in sglang 0.5.14"."""
    return provenance.split(",")[0].split(" (")[0].replace("roofline", "by the roofline")


def _is_indexer(operator: operators.Operator) -> bool:
    return operator.name.startswith("indexer")


def _listing(sizes: tuple[float, ...]) -> str:
    shown = ", ".join(f"{size:,.0f}" for size in sizes[:6])
    return f"{shown} and {len(sizes) - 6} more" if len(sizes) > 6 else shown
