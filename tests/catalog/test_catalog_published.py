"""The catalog beside the published `config.json` and `hf_quant_config.json` files that aiconfigurator-core brings.

They are copies from Hugging Face. Skipped where the extra [silicon] is not installed.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from gnomon.catalog.huggingface import parse_config
from gnomon.catalog.model_library import model
from gnomon.catalog.models import Model
from gnomon.catalog.parallelism import Parallelism
from gnomon.core.errors import ConfigError

_SPEC = find_spec("aiconfigurator_core")
_FOLDER = Path((_SPEC.submodule_search_locations or [""])[0]) / "model_configs" if _SPEC else Path()
_BESIDE = "_hf_quant_config.json"
FILES = sorted(one for one in _FOLDER.glob("*_config.json") if not one.name.endswith(_BESIDE)) if _SPEC else []

NOT_COMPARED = {"name", "hf_id", "schemes", "notes", "checkpoint", "model_type"}
KNOWN_DIFFERENCES = {
    "MiniMaxAI/MiniMax-M2.5": {"num_mtp_layers"},  # Named in config.json; no such weights are published.
    "MiniMaxAI/MiniMax-M2.7": {"num_mtp_layers", "max_context_tokens"},
    "nvidia/MiniMax-M2.5-NVFP4": {"num_mtp_layers"},
    "nvidia/MiniMax-M2.7-NVFP4": {"num_mtp_layers"},
    "MiniMaxAI/MiniMax-M3": {"mlp_layers"},  # The first three are dense, in other words.
    "nvidia/MiniMax-M3-NVFP4": {"mlp_layers", "num_dense_layers"},
    "nvidia/GLM-5.1-NVFP4": {"head_dim"},  # Of no meaning with latent attention.
}
# Copies under the older model_type "deepseek_ref", which the catalog does not know: read without the router's bias.
KNOWN_DIFFERENCES |= {f"sgl-project/DeepSeek-V4-{one}-FP8": {"router_bias"} for one in ("Pro", "Flash")}
NOT_READ = {"nvidia/Llama-3_3-Nemotron-Super-49B-v1"}  # Every layer has another shape.

pytestmark = pytest.mark.skipif(not FILES, reason="aiconfigurator-core is not installed")


def _name(path: Path) -> str:
    return path.name.removesuffix("_config.json").replace("--", "/")


def _published(path: Path) -> Model:
    config = json.loads(path.read_text(encoding="utf-8"))
    beside = path.with_name(path.name.replace("_config.json", _BESIDE))
    if "quantization_config" not in config and beside.is_file():
        config["quantization_config"] = json.loads(beside.read_text(encoding="utf-8"))
    return parse_config(config, name=_name(path), where=path.name)


@pytest.mark.parametrize("path", FILES, ids=[_name(one) for one in FILES])
def test_the_catalog_has_the_published_shape_and_formats(path: Path) -> None:
    name = _name(path)
    if name in NOT_READ:
        with pytest.raises(ConfigError):
            _published(path)
        return
    published = _published(path)
    assert published.num_parameters > 1e8
    try:
        ours = model(name)
    except ConfigError:
        return  # Not in the catalog; that it can be read is all.
    shape, expected = ours.model_dump(), published.model_dump()
    differing = {key for key in expected if expected[key] != shape[key]} - NOT_COMPARED
    assert differing == KNOWN_DIFFERENCES.get(name, set())
    alone = Parallelism()
    rel = 1e-6 if "router_bias" in differing else 1e-9
    assert ours.weight_bytes_per_rank(alone) == pytest.approx(published.weight_bytes_per_rank(alone), rel=rel)
    assert ours.kv_bytes_per_token() == published.kv_bytes_per_token()


def test_most_of_them_are_in_the_catalog() -> None:
    def is_there(name: str) -> bool:
        try:
            return bool(model(name))
        except ConfigError:
            return False

    assert sum(is_there(_name(one)) for one in FILES) >= 50
