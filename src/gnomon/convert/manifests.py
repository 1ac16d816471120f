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
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pool import Pool

IMAGES = {"vllm": "vllm/vllm-openai:TAG", "sglang": "lmsysorg/sglang:TAG"}
"""Which version is deployed is not the simulator's to say: TAG is left to fill in."""
PORT = 8000


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
    """Name, pool and words of every server."""
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


def _deployment(name: str, pool: Pool, words: list[str], engine: str) -> dict[str, Any]:
    container = {
        "name": "server", "image": IMAGES[engine], "command": [words[0]], "args": words[1:],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "failureThreshold": 360, "periodSeconds": 5},
        "resources": {"limits": {"nvidia.com/gpu": str(pool.replica.num_gpus)}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    pod = {"containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}
    labels = _labels(name, pool)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": pool.num_replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _autoscaler(scenario: Scenario, name: str, engine: str) -> dict[str, Any] | None:
    """A HorizontalPodAutoscaler on the queue, with the limits of the fleet that was simulated."""
    fleet = scenario.fleet
    if fleet is None or fleet.controller.name == "fixed":
        return None
    metric = {"vllm": "vllm:num_requests_waiting", "sglang": "sglang:num_queue_reqs"}[engine]
    target = fleet.controller.options.get("target", 1.0)
    pods = {"metric": {"name": metric}, "target": {"type": "AverageValue", "averageValue": f"{target:g}"}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": max(1, fleet.min_replicas),
            "maxReplicas": fleet.max_replicas or max(1, scenario.num_replicas),
            "metrics": [{"type": "Pods", "pods": pods}],
        },
    }


def _text(documents: list[dict[str, Any]], left: list[str]) -> str:
    notes = "".join(f"# Not said here: {one}\n" for one in left)
    return notes + yaml.dump_all(documents, Dumper=_WithoutAliases, sort_keys=False, width=1000)


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _kubernetes(scenario: Scenario, engine: str) -> Manifest:
    left, documents = _left(scenario, "kubernetes"), []
    for name, pool, words in _servers(scenario, engine):
        documents.append(_deployment(name, pool, words, engine))
        spec = {"selector": _labels(name, pool), "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]}
        documents.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
        scaler = _autoscaler(scenario, name, engine)
        documents += [scaler] if scaler else []
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
        scaler = _autoscaler(scenario, name, engine)
        files[f"{name}.yaml"] = _text([made, *([scaler] if scaler else [])], left)
    gateway = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": pool_name},
            "spec": {"selector": {"matchLabels": {"llm-d.ai/model": pool_name}},
                     "targetPorts": [{"number": PORT}], "endpointPickerRef": {"name": f"{pool_name}-epp",
                                                                             "port": {"number": 9002}}}}  # fmt: skip
    files["inferencepool.yaml"] = _text([gateway], [])
    listed = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": sorted(files)}
    files["kustomization.yaml"] = _text([listed], [])
    return Manifest(files, left)


def _compose(scenario: Scenario, engine: str) -> Manifest:
    services: dict[str, Any] = {}
    left, taken = _left(scenario, "compose"), 0
    for name, pool, words in _servers(scenario, engine):
        for number in range(pool.num_replicas):  # A count would be the machine's first GPUs for each of them.
            ids = [str(taken + one) for one in range(pool.replica.num_gpus)]
            taken += len(ids)
            gpus = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
            services[f"{name}-{number}" if pool.num_replicas > 1 else name] = {
                "image": IMAGES[engine], "entrypoint": [words[0]], "command": words[1:], "ipc": "host",
                "ports": [f"{PORT + len(services)}:{PORT}"],
                "deploy": {"resources": {"reservations": {"devices": [gpus]}}},
            }  # fmt: skip
    if taken > 1:
        left.append(f"several machines: all {taken} GPUs are those of one.")
    return Manifest({"compose.yaml": _text([{"services": services}], left)}, left)
