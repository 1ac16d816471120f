"""Manifests: the command that was converted, as many GPUs and replicas as simulated, and nothing invented."""

from __future__ import annotations

import shlex

import pytest
import yaml

from gnomon.api.serving import scenario
from gnomon.convert import convert
from gnomon.convert.manifests import manifest
from gnomon.core.errors import ConfigError, UnknownNameError

GIVEN = {"model": "llama-3-70b", "device": "h100", "num_replicas": 3, "replica.tensor_parallel": 4,
         "batching.max_sequences": 128, "router": "least_outstanding"}  # fmt: skip
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: meta-llama-meta-llama-3-70b
  labels:
    app: meta-llama-meta-llama-3-70b
spec:
  replicas: 3
  selector:
    matchLabels:
      app: meta-llama-meta-llama-3-70b
  template:
    metadata:
      labels:
        app: meta-llama-meta-llama-3-70b
    spec:
      containers:
      - name: server
        image: vllm/vllm-openai:TAG
        command:
        - vllm
        args:
"""


def documents(given, target, file):
    made = manifest(scenario(given), target)
    return made, list(yaml.safe_load_all(made.files[file]))


def test_a_deployment_of_vllm():
    made, (deployment, service) = documents(GIVEN, "kubernetes", "deployment.yaml")
    text = made.files["deployment.yaml"]
    assert DEPLOYMENT in text
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert any("least_outstanding" in one for one in made.left)
    assert all(f"# Not said here: {one}" in text for one in made.left)


def test_its_command_means_the_same_scenario():
    _, (deployment, _) = documents(GIVEN, "kubernetes", "deployment.yaml")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    words = [*container["command"], *container["args"]]
    at = words.index("--host")
    back = convert("vllm", shlex.join(words[:at]), device="h100").values
    assert back["replica"]["tensor_parallel"] == 4
    assert back["batching"]["max_sequences"] == 128


def test_a_fleet_gets_an_autoscaler():
    fleet = {"controller": {"name": "queue_driven", "options": {}}, "min_replicas": 2, "max_replicas": 7}
    _, (_, _, scaler) = documents({**GIVEN, "fleet": fleet}, "kubernetes", "deployment.yaml")
    assert scaler["kind"] == "HorizontalPodAutoscaler"
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 7)


def test_prefill_and_decode_apart_for_llmd():
    pools = [{"role": "prefill", "num_replicas": 2}, {"role": "decode"}]
    made = manifest(scenario({"model": "llama-3-8b", "device": "h100", "pools": pools}), "llm-d")
    listed = yaml.safe_load(made.files["kustomization.yaml"])["resources"]
    assert sorted(listed) == sorted(name for name in made.files if name != "kustomization.yaml")
    servers = [
        yaml.safe_load(text) for name, text in made.files.items() if name.endswith(("-prefill.yaml", "-decode.yaml"))
    ]
    assert [one["spec"]["replicas"] for one in servers] == [2, 1]
    assert [one["metadata"]["labels"]["llm-d.ai/role"] for one in servers] == ["prefill", "decode"]
    pool = yaml.safe_load(made.files["inferencepool.yaml"])
    wanted = pool["spec"]["selector"]["matchLabels"].items()
    assert all(wanted <= one["spec"]["template"]["metadata"]["labels"].items() for one in servers)


KINDS = {
    "plain": {},
    "sglang": {"batching": "sglang"},
    "fleet": {"fleet": {"controller": {"name": "queue_driven", "options": {}}, "min_replicas": 2, "max_replicas": 7}},
    "apart": {"model": "llama-3-8b", "pools": [{"role": "prefill", "num_replicas": 2}, {"role": "decode"}],
              "num_replicas": 1, "replica.tensor_parallel": 1},
}  # fmt: skip


@pytest.mark.parametrize("target", ["kubernetes", "llm-d"])
@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
def test_objects_of_kubernetes_fit_its_schemas(given, target):
    """Strictly: a key that Kubernetes does not have is an error. Objects of others' APIs have no schema there."""
    checker = pytest.importorskip("kubernetes_validate")
    made = manifest(scenario({**GIVEN, **given}), target)
    checked = []
    for name, text in made.files.items():
        for one in yaml.safe_load_all(text):
            if one["apiVersion"].partition("/")[0] in ("v1", "apps", "autoscaling"):
                checker.validate(one, checker.latest_version(), strict=True)
                checked.append(one["kind"])
            else:
                assert target == "llm-d" and name in ("kustomization.yaml", "inferencepool.yaml")
    assert "Deployment" in checked and ("HorizontalPodAutoscaler" in checked) == ("fleet" in given)


def test_a_key_that_kubernetes_does_not_have_is_noticed():
    checker = pytest.importorskip("kubernetes_validate")
    _, (deployment, _) = documents(GIVEN, "kubernetes", "deployment.yaml")
    deployment["spec"]["replica"] = 3
    with pytest.raises(checker.ValidationError):
        checker.validate(deployment, checker.latest_version(), strict=True)


@pytest.mark.parametrize("given", [KINDS["plain"], KINDS["sglang"], KINDS["apart"]], ids=["plain", "sglang", "apart"])
def test_compose_files_fit_the_specification(given):
    PyCompose = pytest.importorskip("compose_spec").PyCompose
    text = manifest(scenario({**GIVEN, **given}), "compose").files["compose.yaml"]
    PyCompose.from_yaml(text)
    with pytest.raises(ValueError, match=r"unknown field|services"):
        PyCompose.from_yaml(text.replace("command:", "comand:"))


def test_compose_has_a_service_for_each_replica():
    _, (made,) = documents({**GIVEN, "batching": "sglang"}, "compose", "compose.yaml")
    assert len(made["services"]) == 3
    ports = [one["ports"][0] for one in made["services"].values()]
    assert ports == ["8000:8000", "8001:8000", "8002:8000"]
    first = next(iter(made["services"].values()))
    assert first["command"][:2] == ["-m", "sglang.launch_server"]
    gpus = [one["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for one in made["services"].values()]
    assert gpus == [[str(4 * server + one) for one in range(4)] for server in range(3)]


def test_what_cannot_be_written_is_refused(cli, tmp_path):
    with pytest.raises(UnknownNameError, match="kubernetes"):
        manifest(scenario(GIVEN), "kubernets")
    with pytest.raises(ConfigError, match="no engine schedules"):
        manifest(scenario({**GIVEN, "batching": "sarathi"}), "kubernetes")
    with pytest.raises(ConfigError, match="not TensorRT-LLM"):
        manifest(scenario({**GIVEN, "batching": "trtllm"}), "kubernetes")
    cli("manifest", "--model", "llama-3-8b", "--for", "compose", "--out", str(tmp_path / "made"))
    assert (tmp_path / "made" / "compose.yaml").is_file()


def test_the_winner_of_a_search_by_its_folder(cli, tmp_path):
    from gnomon.api.search import search
    from search_kit import question

    found = search(question(space={"device": ["h100"], "tensor_parallel": [2], "batching": ["vllm_v1"]}), jobs=1)
    found.save(tmp_path / "search")
    text = cli("manifest", str(tmp_path / "search"), "--for", "kubernetes").output
    assert "nvidia.com/gpu: '2'" in text and "--tensor-parallel-size" in text
