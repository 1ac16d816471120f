"""`gnomon catalog`: what is built in."""

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

from gnomon import catalog
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import about, listing

Row = dict[str, Any]

command = NearGroup("catalog", help=about("catalog"))


def _plain(one: Any) -> Row:
    return one.model_dump(mode="json")


def _device(d: catalog.Device) -> Row:
    return {
        "device": d.name, "bf16 TFLOP/s": round(d.peak_flops["bf16"] / 1e12),
        "fp8 TFLOP/s": round(d.peak_flops["fp8"] / 1e12) if "fp8" in d.peak_flops else None,
        "memory GB": round(d.memory_gb), "GB/s": round(d.bandwidth_bytes_s / 1e9), "SMs": d.num_sms,
        "$/h": f"{d.price_per_hour:.2f}",
        "roofline error": f"{d.roofline_error:.0%}" if d.sources.get("roofline") else "not calibrated",
        "usual node": d.default_node,
    }  # fmt: skip


def _node(n: catalog.Node) -> Row:
    return {
        "node": n.name, "device": n.device, "GPUs": n.num_gpus, "topology": n.topology,
        "link GB/s": round(n.link.bandwidth_bytes_s / 1e9, 1), "latency µs": round(n.link.latency_s * 1e6, 1),
        "far link GB/s": round(n.far_link.bandwidth_bytes_s / 1e9, 1) if n.far_link else None,
        "network GB/s": round(n.network.bandwidth_bytes_s / 1e9, 1),
    }  # fmt: skip


def _model(m: catalog.Model) -> Row:
    return {
        "model": m.name, "billions": f"{m.num_parameters / 1e9:.2f}",
        "active": f"{m.num_active_parameters / 1e9:.2f}" if m.is_moe else None, "layers": m.num_layers,
        "hidden": m.hidden_size, "heads": f"{m.num_heads}/{1 if m.mla else m.num_kv_heads}",
        "attention": _attention(m), "KV KiB": round(m.kv_bytes_per_token("bf16") / 1024, 1),
        "weights": m.checkpoint.name, "context": m.max_context_tokens,
    }  # fmt: skip


def _model_data(m: catalog.Model) -> Row:
    weights = m.weight_bytes_per_rank(catalog.Parallelism())
    sizes = {"weight_bytes": weights, "state_bytes_per_sequence": m.state_bytes_per_sequence()}
    counts = {"num_parameters": m.num_parameters, "num_active_parameters": m.num_active_parameters}
    return _plain(m) | counts | sizes


def _attention(model: catalog.Model) -> str:
    """Kinds of a model's attention, e.g. `latent`, `1:3 linear` (one full layer for three linear ones)."""
    full = "sparse" if model.indexer else "latent" if model.mla else "full"
    others = [kind for kind in ("sliding", "linear") if kind in model.attention_layers]
    if not others:
        return full
    other = model.num_attention_layers(others[0])
    rest = model.num_layers - model.num_attention_layers("none") - other
    return f"{rest} {full}, {other} {others[0]}"


def _scheme(name: str) -> Row:
    scheme = catalog.scheme(name)
    return {
        "dtype": name, "attention": scheme["attention"].name, "dense MLP": scheme["dense_mlp"].name,
        "routed experts": scheme["routed_experts"].name,
        "bytes": f"{scheme['routed_experts'].bytes_per_weight:.3f}", "source": catalog.scheme_source(name),
    }  # fmt: skip


def _scheme_data(name: str) -> Row:
    return _plain(catalog.scheme(name)) | {"source": catalog.scheme_source(name)}


def _sources(_: bool) -> list[Row]:
    from gnomon.api.time import source_names

    return [{"source": name, "what": what} for name, what in source_names().items()]


def _named(
    names: Callable[[], Iterable[str]], get: Callable[[str], Any], row: Callable[[Any], Row], data: Callable[[Any], Row]
) -> Callable[[bool], list[Row]]:
    return lambda as_json: [(data if as_json else row)(get(name)) for name in names()]


listing(command, "catalog devices", _named(catalog.device_names, catalog.device, _device, _plain))
listing(command, "catalog nodes", _named(catalog.node_names, catalog.node, _node, _plain))
listing(command, "catalog models", _named(catalog.model_names, catalog.model, _model, _model_data))
listing(command, "catalog quantization", _named(catalog.scheme_names, str, _scheme, _scheme_data))
listing(command, "catalog sources", _sources)
gpus = copy(command.commands["devices"])
gpus.hidden = True  # The same under the word that the flag has.
command.add_command(gpus, "gpus")
