"""What a measured server was told when it was started: rules over the launch scripts, as data (`launch.yaml`, and
`launch_disagg.yaml` for the workers of disaggregated ones)."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from gnomon.core.errors import DataError


@dataclass(frozen=True)
class Launch:
    """The settings of a server that decide its scheduling and memory."""

    max_batch_tokens: int
    """Tokens of one iteration, or of one prefill batch where the engine prefills alone."""
    max_sequences: int
    kv_dtype: str
    memory: float
    """The share of memory that the engine's own option names: of the whole GPU (vllm, sglang), or of what weights
    leave free (trtllm)."""
    graph_batch: int
    """Largest batch for which CUDA graphs are captured."""
    stream_interval: int
    """Tokens between two messages to the client."""
    prompt_graphs: bool = False
    """Whether prompts run in piecewise CUDA graphs."""
    expert_kernel: str = ""
    """Family of the experts' kernels."""
    all_reduce: str = ""
    """flashinfer: its all-reduce was asked for."""
    receive_interval: int = 1
    """SGLang: decode steps between two looks for new requests."""
    draft_tokens: int = 0
    """Tokens drafted by the model's own head (multi-token prediction)."""
    attention: str = ""
    """tensor or data: how the script spreads attention over the GPUs, whatever the row says."""
    experts: str = ""
    """whole or sliced: how the script spreads experts over the GPUs, whatever the row says."""
    exchange: str = "auto"
    """How tokens get to their experts: all_gather or all_to_all; auto: as the engine does by default."""
    expert_load: str = ""
    """How tokens spread over the experts: power_law_1.01_eplb where the busiest are copied."""
    overlap: bool | None = None
    """Whether batches were formed while the one before ran; None: as the engine does by default."""
    expert_speed: float = 1.0
    """How fast its version's experts are over prompts beside the tables, which are of newer ones."""
    version: str = ""
    """The release that a build without one comes closest to."""
    prompt_growth: float = 1.0
    """Tokens that the server reads for each token of the client's prompts, where they tokenise differently."""
    compile_s: float = 0.0
    """How long its first batches compile kernels, where the client sends no warm-up before: all requests of the first
    wave wait for it."""
    router: str = ""
    """Which worker gets a request, where there are several."""
    batch_wait_iterations: int = 0
    """TensorRT-LLM: decode steps for which a prefill waits to be fuller."""
    batch_wait_ratio: float = 0.0
    """TensorRT-LLM: share of the token budget that ends this waiting."""


def launch_of(facts: Mapping[str, Any]) -> Launch:
    """The settings of the server that `facts` describe, or of one side of a disaggregated one: family, engine,
    version, model, device, precision, date, prompt, output, concurrency, gpus, attention_groups, expert_parallel,
    drafting, role, workers, each."""
    name = "launch" if facts["role"] == "both" else "launch_disagg"
    rules = data(name)
    settings: dict[str, Any] = dict(rules["defaults"][facts["engine"]])
    for rule in rules["rules"]:
        if all(_matches(facts[key], wanted) for key, wanted in rule["when"].items()):
            settings.update({key: _value(value, settings | dict(facts), name) for key, value in rule["set"].items()})
    return Launch(**settings)


def doubt_about(facts: Mapping[str, Any]) -> str | None:
    """Why the figures of the server that `facts` describe contradict each other, if they do."""
    found = (d for d in data("doubtful") if all(_matches(facts[key], wanted) for key, wanted in d["when"].items()))
    return next((str(one["reason"]) for one in found), None)


def data_text(file: str) -> str:
    return (files("gnomon.verify") / "data" / "silicon" / file).read_text(encoding="utf-8")


@cache
def data(name: str) -> Any:
    return yaml.safe_load(data_text(f"{name}.yaml"))


def _matches(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return bool(wanted.get("from", value) <= value <= wanted.get("to", value))
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)


def _value(value: Any, known: Mapping[str, Any], file: str) -> Any:
    """A number or a name as it stands, a formula of what is known computed."""
    is_formula = isinstance(value, str) and (set(value) & set("+*/(") or isinstance(known.get(value), int))
    if not is_formula:
        return value
    try:
        return evaluate(ast.parse(value, mode="eval").body, known.__getitem__)
    except (ValueError, KeyError):
        raise DataError(f"cannot compute {value!r}.", where=f"data/silicon/{file}.yaml") from None


_OPERATORS: dict[type[ast.operator] | type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def evaluate(node: ast.expr, value_of: Callable[[str], Any]) -> Any:
    """What an expression says of named values: comparisons, and arithmetic of whole numbers. A ValueError where it
    holds anything else."""

    def of(node: ast.expr) -> Any:
        return evaluate(node, value_of)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return value_of(name)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [of(part) for part in parts]
        case ast.BoolOp(op=op, values=parts):
            return (all if isinstance(op, ast.And) else any)(of(part) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not of(operand)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](of(left), of(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](int(of(left)), int(of(right)))
        case ast.Call(func=ast.Name(id="max"), args=arguments):
            return max(of(one) for one in arguments)
        case ast.Call(func=ast.Name(id="power_of_two"), args=[argument]):  # The largest that is not above it.
            return 1 << max(int(of(argument)).bit_length() - 1, 0)
    raise ValueError(ast.unparse(node))
