"""A scenario as manifests: Kubernetes Deployments, llm-d's kustomize overlay, docker compose.

The servers are those that `gnomon.convert.commands` writes a command for; the rest says how many of them there are, on
how many GPUs each, and how they scale where a fleet was simulated. What a format cannot say is in `Manifest.left`.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import yaml

from gnomon import catalog
from gnomon.convert.commands import ENGINES, server_command, sglang_flags, vllm_flags
from gnomon.convert.options import DATA
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.text import own_yaml
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pool import Pool

IMAGES = {"vllm": "vllm/vllm-openai:TAG", "sglang": "lmsysorg/sglang:TAG"}
"""Which version is deployed is not the simulator's to say: TAG is left to fill in."""
PORT = 8000
TEMPLATES: dict[str, Any] = own_yaml(DATA / "manifests.yaml")


@dataclass(frozen=True)
class Manifest:
    """Files by name, and what was simulated that they cannot say."""

    files: dict[str, str]
    left: list[str]


def manifest(scenario: Scenario, target: str) -> Manifest:
    """The files of a deployment for `kubernetes`, `llm-d` or `compose`."""
    makers = {"kubernetes": _kubernetes, "llm-d": _llmd, "compose": _compose}
    if target not in makers:
        raise UnknownNameError("target", target, list(makers), where="--for")
    engine, _ = server_command(scenario)  # It refuses what no engine's command can say.
    if engine not in IMAGES:
        raise ConfigError(f"manifests are written for vLLM and SGLang, not {ENGINES[engine].name}.", where="batching")
    return makers[target](scenario, engine)


def _servers(scenario: Scenario, engine: str) -> list[tuple[str, Pool, list[str]]]:
    base = re.sub(r"[^a-z0-9]+", "-", (catalog.model(scenario.model).hf_id or scenario.model).lower()).strip("-")[-40:]
    servers = []
    for pool in scenario.all_pools():
        one = replace(pool, num_replicas=1).as_written
        alone = scenario.model_copy(update={"pools": (one,), "num_replicas": 1})
        words = vllm_flags(alone) if engine == "vllm" else sglang_flags(alone)
        if scenario.has_roles:
            words += ["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}']
        words += ["--host", "0.0.0.0", "--port", str(PORT)]
        servers.append((base if pool.role == "both" else f"{base}-{pool.role}", pool, words))
    return servers


def _left(scenario: Scenario, target: str) -> list[str]:
    left = [f"{one.num_replicas} x {one.device_name}: which nodes have that GPU is the cluster's to say."
            for one in scenario.all_pools()]  # fmt: skip
    routed = {
        "kubernetes": "a Service spreads connections, it does not look at replicas.",
        "llm-d": "set the scorers of the endpoint picker to match it.",
        "compose": "every server has a port of its own, and nothing is in front of them.",
    }
    if sum(pool.num_replicas for pool in scenario.all_pools()) > 1 or target == "llm-d":
        left.append(f"the router {scenario.router.name}: {routed[target]}")
    if scenario.has_roles:
        left.append("who is prefilled where: that is the gateway's to decide.")
    if scenario.admission.name != "everyone":
        left.append(f"admission control ({scenario.admission.name}).")
    fleet = scenario.fleet
    if fleet is not None:
        left.append(f"cold starts, failures and the interval of {fleet.controller.interval_s:g} s.")
        if target == "compose":
            left.append("autoscaling: compose has none; as many servers as at the start are written.")
        elif fleet.controller.name != "fixed":
            left.append(f"the controller {fleet.controller.name}: the autoscaler follows the length of the queue.")
    return left


def _labels(name: str, pool: Pool) -> dict[str, str]:
    return {"app": name} | ({} if pool.role == "both" else {"llm-d.ai/role": pool.role})


def _filled(template: Any, values: dict[str, Any]) -> Any:
    """A part of `manifests.yaml` with what its words after $ stand for."""
    if isinstance(template, dict):
        return {key: _filled(one, values) for key, one in template.items()}
    if isinstance(template, list):
        return [_filled(one, values) for one in template]
    return values[template[1:]] if isinstance(template, str) and template.startswith("$") else template


def _deployment(name: str, pool: Pool, words: list[str], engine: str) -> dict[str, Any]:
    labels, gpus = _labels(name, pool), str(pool.replica.num_gpus)
    server = {"image": IMAGES[engine], "command": [words[0]], "args": words[1:], "port": PORT, "gpus": gpus}
    made: dict[str, Any] = _filled(
        TEMPLATES["deployment"], server | {"name": name, "labels": labels, "replicas": pool.num_replicas}
    )
    return made


def _autoscaler(scenario: Scenario, name: str, engine: str) -> list[Any]:
    """A HorizontalPodAutoscaler on the queue, with the limits of the fleet that was simulated."""
    fleet = scenario.fleet
    if fleet is None or fleet.controller.name == "fixed":
        return []
    limits = {"least": max(1, fleet.min_replicas), "most": fleet.max_replicas or max(1, scenario.num_replicas)}
    metric = {"vllm": "vllm:num_requests_waiting", "sglang": "sglang:num_queue_reqs"}[engine]
    target = f"{fleet.controller.options.get('target', 1.0):g}"
    return [_filled(TEMPLATES["autoscaler"], limits | {"name": name, "metric": metric, "target": target})]


def _text(documents: list[dict[str, Any]], left: list[str]) -> str:
    notes = "".join(f"# Not said here: {one}\n" for one in left)
    return notes + yaml.dump_all(documents, Dumper=_WithoutAliases, sort_keys=False, width=1000)


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _kubernetes(scenario: Scenario, engine: str) -> Manifest:
    left, documents = _left(scenario, "kubernetes"), []
    for name, pool, words in _servers(scenario, engine):
        service = _filled(TEMPLATES["service"], {"name": name, "labels": _labels(name, pool), "port": PORT})
        documents += [_deployment(name, pool, words, engine), service, *_autoscaler(scenario, name, engine)]
    return Manifest({"deployment.yaml": _text(documents, left)}, left)


def _llmd(scenario: Scenario, engine: str) -> Manifest:
    """An overlay: the servers with llm-d's labels, and an InferencePool that its gateway picks from."""
    left, files = _left(scenario, "llm-d"), {}
    servers = _servers(scenario, engine)
    pool_name = servers[0][0].removesuffix("-prefill").removesuffix("-decode")
    for name, pool, words in servers:
        made = _deployment(name, pool, words, engine)
        for part in (made["metadata"], made["spec"]["template"]["metadata"]):
            part["labels"] = part["labels"] | {"llm-d.ai/model": pool_name, "llm-d.ai/inferenceServing": "true"}
        files[f"{name}.yaml"] = _text([made, *_autoscaler(scenario, name, engine)], left)
    gateway = {"name": pool_name, "picker": f"{pool_name}-epp", "port": PORT}
    files["inferencepool.yaml"] = _text([_filled(TEMPLATES["pool"], gateway)], [])
    files["kustomization.yaml"] = _text([_filled(TEMPLATES["kustomization"], {"files": sorted(files)})], [])
    return Manifest(files, left)


def _compose(scenario: Scenario, engine: str) -> Manifest:
    services: dict[str, Any] = {}
    left, taken = _left(scenario, "compose"), 0
    for name, pool, words in _servers(scenario, engine):
        for number in range(pool.num_replicas):  # A count would be the machine's first GPUs for each of them.
            ids = [str(taken + gpu) for gpu in range(pool.replica.num_gpus)]
            taken += len(ids)
            server = {"image": IMAGES[engine], "command": [words[0]], "args": words[1:], "gpus": ids}
            ports = f"{PORT + len(services)}:{PORT}"
            one = f"{name}-{number}" if pool.num_replicas > 1 else name
            services[one] = _filled(TEMPLATES["compose"], server | {"ports": ports})
    if taken > 1:
        left.append(f"several machines: all {taken} GPUs are those of one.")
    return Manifest({"compose.yaml": _text([{"services": services}], left)}, left)
