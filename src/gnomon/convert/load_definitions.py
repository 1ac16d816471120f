"""Load definitions of inference-perf and guidellm as a scenario's workload, with an account of every key."""

import math
import shlex
from pathlib import Path
from typing import Any

import yaml

from gnomon import catalog
from gnomon.convert.conversion import Conversion
from gnomon.core.config import build, key_lines
from gnomon.core.errors import ConfigError, GnomonError, UnknownNameError
from gnomon.core.text import parse_yaml_with_nodes, read_text, to_yaml
from gnomon.serving.scenario.engine_presets import engine_names
from gnomon.workload.config import WorkloadConfig
from gnomon.workload.lengths import Fixed, Normal

BESIDE = "how it measures, not what it sends"


class _Definition:
    """A definition whose keys are taken one by one; what is left at the end has no counterpart."""

    def __init__(self, tool: str, content: Any, where: str, node: yaml.Node | None = None) -> None:
        self.result, self._where = Conversion(tool, {}), where
        self._lines = {".".join(map(str, key)): line for key, line in key_lines(node)}
        if not isinstance(content, dict):
            raise ConfigError("must have keys and values.", where=where)
        self._values = _flat(content)
        self._given = dict(self._values)

    def take(self, key: str, meaning: str = "", default: Any = None) -> Any:
        if key not in self._values:
            return default
        value = self._values.pop(key)
        self.result.mapped.append((f"{key} {value}", meaning or "workload"))
        return value

    def number(self, key: str, meaning: str, default: float | None = None) -> float | None:
        value = self.take(key, meaning, default)
        if value is None:
            return None
        if isinstance(value, str):
            value = yaml.safe_load(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise self.error(key, "must be a number that is not negative")
        return value

    def needed(self, key: str, meaning: str) -> float:
        value = self.number(key, meaning)
        if not value:
            raise self.error(key, "is needed here, and must be above 0")
        return value

    def error(self, key: str, problem: str, fix: str | None = None) -> ConfigError:
        parts = key.split(".")
        above = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        line = next((self._lines[one] for one in above if one in self._lines), None)
        place = self._where if line is None else f"{self._where}:{line}"
        shown = f" ({self._given[key]!r})" if key in self._given else ""
        return ConfigError(f"{key}{shown} {problem}.", where=place, fix=fix)

    def finished(self, workload: dict[str, Any]) -> Conversion:
        self.result.values["workload"] = workload
        self.result.without += [(f"{key} {value}", BESIDE) for key, value in self._values.items()]
        self.result.scenario  # noqa: B018  (A value that no scenario may have is named now.)
        return self.result

    def server(self, key: str) -> None:
        """The model by its name in the catalog, where it has one."""
        name = self.take(key, "model")
        try:
            if name is not None:
                self.result.values["model"] = catalog.model(str(name)).name
        except GnomonError:
            self.result.notes.append(f"the model {name} is not in the catalog: name one with --model.")


def inference_perf(text: str, where: str) -> Conversion:
    content, node = parse_yaml_with_nodes(text, where)
    one = _Definition("inference-perf", content, where, node)
    one.server("server.model_name")
    engine = one.take("server.type", "engine")
    if engine in engine_names():
        one.result.values["engine"] = engine
    workload = _stages(one)
    kind = one.take("data.type", "workload.lengths", "mock")
    sides = [_bell(one, f"data.{side}_distribution.") for side in ("input", "output")]
    if kind in ("synthetic", "random") and all(sides):
        workload["lengths"] = {"distribution": "normal", "prompt": sides[0], "output": sides[1]}
    elif kind == "shared_prefix":
        workload |= _shared_prefix(one, workload["num_requests"])
    elif kind == "shareGPT" and (path := one.take("data.path", "workload.trace.file")):
        workload |= {"trace": {"file": path}, "lengths": {"distribution": "trace"}}
    else:
        raise one.error(
            "data.type",
            "does not say how long requests are",
            "synthetic and random with both distributions, shared_prefix, and shareGPT with its path do.",
        )
    return one.finished(workload)


def _stages(one: _Definition) -> dict[str, Any]:
    """Arrivals, their rate and how many, of the stages of a load."""
    kind = one.take("load.type", "workload.arrivals", "constant")
    count = sum(key.startswith("load.stages.") and key.count(".") == 3 for key in one._given)
    numbers = sorted({int(key.split(".")[2]) for key in one._given if key.startswith("load.stages.")})
    if not count:
        raise one.error("load.stages", "must list what is sent", "A sweep finds its rates while it runs.")
    if kind == "concurrent":
        users = [one.needed(f"load.stages.{i}.concurrency_level", "workload.arrivals.concurrency") for i in numbers]
        requests = [one.needed(f"load.stages.{i}.num_requests", "workload.num_requests") for i in numbers]
        if len(numbers) > 1:
            one.result.notes.append(f"the first of {len(numbers)} stages: a closed loop has one concurrency.")
        arrivals = {"process": "closed_loop", "concurrency": int(users[0])}
        return {"arrivals": arrivals, "num_requests": int(requests[0])}
    if kind not in ("constant", "poisson"):
        raise UnknownNameError("load.type", str(kind), ["constant", "poisson", "concurrent"])
    rates = [one.needed(f"load.stages.{i}.rate", "workload.rate") for i in numbers]
    seconds = [one.needed(f"load.stages.{i}.duration", "workload.num_requests") for i in numbers]
    total = sum(rate * duration for rate, duration in zip(rates, seconds, strict=True))
    workload: dict[str, Any] = {"rate": total / sum(seconds), "num_requests": max(1, round(total))}
    if len(numbers) > 1:
        pieces = [[duration, rate] for rate, duration in zip(rates, seconds, strict=True)]
        one.result.notes.append("stages follow one another at once; within each, arrivals are independent.")
        return workload | {"arrivals": {"process": "piecewise", "pieces": pieces}}
    return workload | {"arrivals": {"process": "poisson", "even": kind == "constant"}}


def _bell(one: _Definition, prefix: str) -> list[float] | None:
    """Mean, deviation, least and most, with inference-perf's defaults."""
    if not any(key.startswith(prefix) for key in one._given):
        return None
    one.take(f"{prefix}total_count", "lengths are drawn anew for every request")
    spread = "std" if f"{prefix}std" in one._given else "std_dev"
    names = {"mean": 512.0, spread: 200.0, "min": 10.0, "max": 1024.0}
    found = [one.number(f"{prefix}{name}", "workload.lengths", default) for name, default in names.items()]
    mean, deviation, low, high = (float(value or 0) for value in found)
    return [mean, deviation, int(max(1, low)), int(high)]


def _shared_prefix(one: _Definition, num_requests: int) -> dict[str, Any]:
    at = "data.shared_prefix."
    say = "workload.sessions"
    groups = one.number(f"{at}num_unique_system_prompts", say) or one.number(f"{at}num_groups", say) or 10
    users = one.number(f"{at}num_users_per_system_prompt", say) or one.number(f"{at}num_prompts_per_group", say) or 10
    prefix = one.number(f"{at}system_prompt_len", say, 100)
    question, output = (one.number(f"{at}{side}_len", "workload.lengths", 50) for side in ("question", "output"))
    fixed = [[float(size or 1), 0.0, int(size or 1), int(size or 1)] for size in (question, output)]
    bells = [_bell(one, f"{at}{side}_distribution.") for side in ("question", "output")]
    prompt, answer = (bell or size for bell, size in zip(bells, fixed, strict=True))
    is_chat = one.take(f"{at}enable_multi_turn_chat", "workload.sessions.turns", False)
    active = int(groups * users)
    sessions = {"shared_prefix_tokens": int(prefix or 0), "num_shared_prefixes": int(groups), "num_active": active}
    sessions["turns"] = max(1, num_requests // active) if is_chat else 1
    return {"lengths": {"distribution": "normal", "prompt": prompt, "output": answer}, "sessions": sessions}


def guidellm(text: str, where: str) -> Conversion:
    """A scenario of guidellm (a file), or its command `guidellm run ...`."""
    if text.lstrip().startswith("guidellm"):
        content, node = {"spec": _flags(shlex.split(text), where)}, None
    else:
        content, node = parse_yaml_with_nodes(text, where)
    runs = content.get("benchmarks") if isinstance(content, dict) else None
    one = _Definition("guidellm", content, where, node)
    at = "spec." if any(key.startswith("spec.") for key in one._given) else ""
    if isinstance(runs, list) and runs:
        first = {f"{at}{key}": value for key, value in runs[0].items()}
        one._values = {key: value for key, value in one._values.items() if not key.startswith("benchmarks.")} | first
        one._given |= first
        if len(runs) > 1:
            one.result.notes.append(f"the first of {len(runs)} runs; the others: {runs[1:]}.")
    one.server(f"{at}backend.model")
    workload = _profile(one, at)
    data = f"{at}data.0." if f"{at}data.0.kind" in one._given else f"{at}data."
    if one.take(f"{data}kind", "workload.lengths", "synthetic_text") != "synthetic_text":
        raise one.error(f"{data}kind", "is not drawn", "synthetic_text is; traces are read with --workload.trace.file.")
    workload["lengths"] = {"distribution": "normal"}
    for side in ("prompt", "output"):
        mean = one.needed(f"{data}{side}_tokens", "workload.lengths")
        spread = one.number(f"{data}{side}_tokens_stdev", "workload.lengths") or 0.0
        low = one.number(f"{data}{side}_tokens_min", "workload.lengths") or (1 if spread else mean)
        high = one.number(f"{data}{side}_tokens_max", "workload.lengths") or (mean + 5 * spread)
        workload["lengths"][side] = [float(mean), float(spread), int(low), int(high)]
    turns, prefix = (one.number(f"{data}{name}", "workload.sessions") for name in ("turns", "prefix_tokens"))
    prefixes = one.number(f"{data}prefix_count", "workload.sessions", 1)
    if (turns or 1) > 1 or prefix:
        workload["sessions"] = {"turns": int(turns or 1), "shared_prefix_tokens": int(prefix or 0),
                                "num_shared_prefixes": int(prefixes or 1)}  # fmt: skip
        if workload["arrivals"]["process"] == "closed_loop":
            workload["sessions"]["num_active"] = workload["arrivals"]["concurrency"]
    return one.finished(workload)


def _profile(one: _Definition, at: str) -> dict[str, Any]:
    kind = one.take(f"{at}profile.kind", "workload.arrivals")
    seconds = most = None
    for i in range(sum(key.startswith(f"{at}constraints.") and key.endswith(".kind") for key in one._given)):
        which = one.take(f"{at}constraints.{i}.kind", "workload.num_requests")
        if which == "max_duration":
            seconds = one.needed(f"{at}constraints.{i}.seconds", "workload.num_requests")
        elif which == "max_requests":
            most = one.needed(f"{at}constraints.{i}.count", "workload.num_requests")
    if kind in ("constant", "poisson", "async"):
        rate = one.needed(f"{at}profile.rate", "workload.rate")
        process = "poisson" if kind == "poisson" else "fixed_interval"
        workload: dict[str, Any] = {"arrivals": {"process": process}, "rate": rate}
        most = most or (seconds and rate * seconds)
    elif kind in ("concurrent", "synchronous"):
        users = one.needed(f"{at}profile.streams", "workload.arrivals.concurrency") if kind == "concurrent" else 1
        workload = {"arrivals": {"process": "closed_loop", "concurrency": int(users)}}
    elif kind == "throughput":
        workload = {"arrivals": {"process": "batch"}}
    else:
        raise one.error(f"{at}profile.kind", "is several runs, or none that is drawn",
                        "constant, poisson, concurrent, synchronous and throughput are one.")  # fmt: skip
    if most is None:
        one.result.notes.append("how many requests it sends follows from how fast the server is: 1,000 are simulated.")
    return workload | {"num_requests": max(1, round(most or 1000))}


def _flags(words: list[str], where: str) -> dict[str, Any]:
    """`--profile kind=poisson,rate=2` as the file has it."""
    spec: dict[str, Any] = {"constraints": [], "data": []}
    flags = iter([one for word in words[1:] for one in (word.split("=", 1) if word.startswith("--") else [word])])
    for flag in flags:
        if not flag.startswith("--"):
            continue
        pairs = next(flags, "")
        name = {"--constraint": "constraints"}.get(flag, flag[2:])
        value = dict(part.partition("=")[::2] for part in pairs.split(",")) if "=" in pairs else pairs
        if name in ("constraints", "data"):
            spec[name].append(value)
        else:
            spec[name] = value
    if "profile" not in spec:
        raise ConfigError("has no --profile.", where=where)
    return spec


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    if not parts and prefix:
        return {prefix[:-1]: content}
    return {key: value for name, one in parts for key, value in _flat(one, f"{prefix}{name}.").items()}


READERS = {"inference-perf": inference_perf, "guidellm": guidellm}


def written_load(tool: str, workload: WorkloadConfig) -> str:
    """A workload as `tool` defines its load, which reads back as the same one; what it cannot say is refused."""
    lengths = workload.lengths
    if isinstance(lengths, Fixed):
        sides = [(float(size), 0.0, size, size) for size in (lengths.prompt, lengths.output)]
        workload = workload.model_copy(update={"lengths": Normal(prompt=sides[0], output=sides[1])})
    elif not isinstance(lengths, Normal):
        what = f"{tool} draws no {lengths.distribution} lengths."
        raise ConfigError(what, where="workload.lengths", fix="Use normal.")
    text = to_yaml(_WRITERS[tool](workload, workload.arrivals, workload.lengths))
    back = build(WorkloadConfig, READERS[tool](text, "what is written").values["workload"])
    lost = [name for name in WorkloadConfig.model_fields if getattr(back, name) != getattr(workload, name)]
    if lost:
        raise ConfigError(f"{tool} cannot say {' and '.join(lost)} as given.", where="workload")
    return text


def _inference_perf_text(workload: Any, arrivals: Any, lengths: Any) -> dict[str, Any]:
    kind, rate = arrivals.process, workload.rate or 1.0
    if kind == "closed_loop":
        stages = [{"concurrency_level": arrivals.concurrency, "num_requests": workload.num_requests}]
    elif kind == "piecewise":
        stages = [{"rate": rate, "duration": duration} for duration, rate in arrivals.pieces]
    else:
        stages = [{"rate": rate, "duration": (workload.num_requests or 1) / rate}]
    names = {"closed_loop": "concurrent", "poisson": "constant" if getattr(arrivals, "even", False) else "poisson"}
    load = {"type": names.get(kind, "poisson"), "stages": stages}
    bells = [dict(zip(("mean", "std", "min", "max"), side, strict=True)) for side in (lengths.prompt, lengths.output)]
    if workload.sessions is None:
        data = {"type": "random", "input_distribution": bells[0], "output_distribution": bells[1]}
        return {"load": load, "data": data}
    chat = workload.sessions
    shared = {
        "num_unique_system_prompts": chat.num_shared_prefixes, "system_prompt_len": chat.shared_prefix_tokens,
        "num_users_per_system_prompt": chat.num_active // chat.num_shared_prefixes,
        "question_distribution": bells[0], "output_distribution": bells[1], "enable_multi_turn_chat": chat.turns > 1,
    }  # fmt: skip
    return {"load": load, "data": {"type": "shared_prefix", "shared_prefix": shared}}


def _guidellm_text(workload: Any, arrivals: Any, lengths: Any) -> dict[str, Any]:
    kinds = {"poisson": "poisson", "fixed_interval": "constant", "closed_loop": "concurrent"}
    profile: dict[str, Any] = {"kind": kinds.get(arrivals.process, "throughput")}
    profile |= {"streams": arrivals.concurrency} if arrivals.process == "closed_loop" else {"rate": workload.rate}
    data: dict[str, Any] = {"kind": "synthetic_text"}
    for side, bell in (("prompt", lengths.prompt), ("output", lengths.output)):
        names = (f"{side}_tokens{end}" for end in ("", "_stdev", "_min", "_max"))
        data |= dict(zip(names, bell, strict=True))
    if chat := workload.sessions:
        data |= {"turns": chat.turns, "prefix_tokens": chat.shared_prefix_tokens}
        data["prefix_count"] = chat.num_shared_prefixes
    constraint = {"kind": "max_requests", "count": workload.num_requests}
    return {"spec": {"profile": profile, "data": [data], "constraints": [constraint]}}


_WRITERS = {"inference-perf": _inference_perf_text, "guidellm": _guidellm_text}


def convert_load(tool: str, given: str) -> Conversion:
    """A load definition of `tool`: the path of its file, or (guidellm) its command."""
    if tool == "guidellm" and given.lstrip().startswith("guidellm "):
        return guidellm(given, "the command")
    return READERS[tool](read_text(Path(given)), given)
