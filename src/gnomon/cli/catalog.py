"""`gnomon catalog`: what is built in."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.printing import json_option, print_rows

if TYPE_CHECKING:
    from gnomon.catalog import Model


@click.group()
def command() -> None:
    """List the devices, nodes, models, number formats and timing sources that are built in.

    \b
    Examples:
      gnomon catalog devices
      gnomon catalog models --json
    """


@command.command()
@json_option
def devices(as_json: bool) -> None:
    """GPUs: peak FLOP/s, memory, bandwidth, price (also: gpus).

    \b
    Example:
      gnomon catalog devices
    """
    from gnomon import catalog

    rows: list[dict[str, Any]] = []
    for name in catalog.device_names():
        d = catalog.device(name)
        if as_json:
            rows.append(d.model_dump(mode="json"))
            continue
        rows.append(
            {
                "device": d.name,
                "bf16 TFLOP/s": round(d.peak_flops["bf16"] / 1e12),
                "fp8 TFLOP/s": round(d.peak_flops["fp8"] / 1e12) if "fp8" in d.peak_flops else None,
                "memory GB": round(d.memory_gb),
                "GB/s": round(d.bandwidth_bytes_s / 1e9),
                "SMs": d.num_sms,
                "$/h": f"{d.price_per_hour:.2f}",
                "roofline error": f"{d.roofline_error:.0%}" if d.sources.get("roofline") else "not calibrated",
                "usual node": d.default_node,
            }
        )
    numbers = ("bf16 TFLOP/s", "fp8 TFLOP/s", "memory GB", "GB/s", "SMs", "$/h")
    print_rows(rows, as_json=as_json, right=numbers, caption="Dense FLOP/s. Sources of every number: --json.")


gpus = copy(devices)
gpus.hidden = True  # The same under the word that the flag has.
command.add_command(gpus, "gpus")


@command.command()
@json_option
def nodes(as_json: bool) -> None:
    """Servers: GPUs and the links between them.

    \b
    Example:
      gnomon catalog nodes
    """
    from gnomon import catalog

    rows: list[dict[str, Any]] = []
    for name in catalog.node_names():
        n = catalog.node(name)
        if as_json:
            rows.append(n.model_dump(mode="json"))
            continue
        rows.append(
            {
                "node": n.name,
                "device": n.device,
                "GPUs": n.num_gpus,
                "topology": n.topology,
                "link GB/s": round(n.link.bandwidth_bytes_s / 1e9, 1),
                "latency µs": round(n.link.latency_s * 1e6, 1),
                "far link GB/s": round(n.far_link.bandwidth_bytes_s / 1e9, 1) if n.far_link else None,
                "network GB/s": round(n.network.bandwidth_bytes_s / 1e9, 1),
            }
        )
    numbers = ("GPUs", "link GB/s", "latency µs", "far link GB/s", "network GB/s")
    print_rows(rows, as_json=as_json, right=numbers, caption="Bandwidth per GPU and direction that collectives reach.")


@command.command()
@json_option
def models(as_json: bool) -> None:
    """Language models: shape, parameters, KV cache.

    \b
    Example:
      gnomon catalog models
    """
    from gnomon import catalog

    rows: list[dict[str, Any]] = []
    for name in catalog.model_names():
        m = catalog.model(name)
        if as_json:
            weights = m.weight_bytes_per_rank(catalog.Parallelism())
            sizes = {"weight_bytes": weights, "state_bytes_per_sequence": m.state_bytes_per_sequence()}
            counts = {"num_parameters": m.num_parameters, "num_active_parameters": m.num_active_parameters}
            rows.append(m.model_dump(mode="json") | counts | sizes)
            continue
        rows.append(
            {
                "model": m.name,
                "billions": f"{m.num_parameters / 1e9:.2f}",
                "active": f"{m.num_active_parameters / 1e9:.2f}" if m.is_moe else None,
                "layers": m.num_layers,
                "hidden": m.hidden_size,
                "heads": f"{m.num_heads}/{1 if m.mla else m.num_kv_heads}",
                "attention": _attention(m),
                "KV KiB": round(m.kv_bytes_per_token("bf16") / 1024, 1),
                "weights": m.checkpoint.name,
                "context": m.max_context_tokens,
            }
        )
    numbers = ("billions", "active", "layers", "hidden", "heads", "KV KiB", "context")
    caption = (
        "Billions of parameters. Heads: query/KV. KV cache per token in 16 bits, of layers that keep every token. "
        "Weights: the checkpoint's own number format. Hugging Face names: --json. "
        "Any other model: give the path of its config.json instead of a name."
    )
    print_rows(rows, as_json=as_json, right=numbers, caption=caption)


def _attention(model: Model) -> str:
    """Kinds of a model's attention, e.g. `latent`, `1:3 linear` (one full layer for three linear ones)."""
    full = "sparse" if model.indexer else "latent" if model.mla else "full"
    others = [kind for kind in ("sliding", "linear") if kind in model.attention_layers]
    if not others:
        return full
    other = model.num_attention_layers(others[0])
    rest = model.num_layers - model.num_attention_layers("none") - other
    return f"{rest} {full}, {other} {others[0]}"


@command.command()
@json_option
def quantization(as_json: bool) -> None:
    """Number formats of weights that `dtype` may name, beside `auto`.

    \b
    Example:
      gnomon catalog quantization
    """
    from gnomon import catalog

    rows: list[dict[str, Any]] = []
    for name in catalog.scheme_names():
        scheme = catalog.scheme(name)
        if as_json:
            rows.append(scheme.model_dump(mode="json") | {"source": catalog.scheme_source(name)})
            continue
        rows.append(
            {
                "dtype": name,
                "attention": scheme["attention"].name,
                "dense MLP": scheme["dense_mlp"].name,
                "routed experts": scheme["routed_experts"].name,
                "bytes": f"{scheme['routed_experts'].bytes_per_weight:.3f}",
                "source": catalog.scheme_source(name),
            }
        )
    caption = "Bytes per weight of routed experts, scales included. Embedding, head, router and norms stay in 16 bits."
    print_rows(rows, as_json=as_json, right=("bytes",), caption=caption)


@command.command()
@json_option
def sources(as_json: bool) -> None:
    """Where the seconds of operators can come from.

    \b
    Example:
      gnomon catalog sources
    """
    from gnomon.api.time import source_names

    rows = [{"source": name, "what": what} for name, what in source_names().items()]
    print_rows(rows, as_json=as_json)
