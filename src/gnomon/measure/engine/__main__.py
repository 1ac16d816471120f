"""`python -m gnomon.measure.engine`: probe the engine on this machine's GPU, or serve loads and record every stamp."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from gnomon.measure.engine import load, probe, record
from gnomon.measure.engine.record import Clocks
from gnomon.measure.engine.runner import Runner
from gnomon.measure.engine.serve import make_requests, serve
from gnomon.measure.engine.shape import EngineConfig, ModelShape


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print("gnomon.measure.engine: no CUDA device: the engine needs a GPU (PyTorch sees none)", file=sys.stderr)
        return 2
    shape = ModelShape.of(json.loads(options.model.read_text(encoding="utf-8")))
    given = {f.name: getattr(options, f.name) for f in fields(EngineConfig) if getattr(options, f.name) is not None}
    try:
        runner = Runner(shape, EngineConfig(**given))
        print(f"{shape.name}: {runner.num_blocks} KV blocks, graphs captured in {runner.capture_s:.1f} s", flush=True)
        if options.what == "probe":
            _probe(runner, options.out)
        else:
            _serve(runner, options)
    except (OSError, ValueError) as error:
        print(f"gnomon.measure.engine: {error}", file=sys.stderr)
        return 2
    return 0


def _probe(runner: Runner, out: Path | None) -> None:
    probes = [probe.decode(runner, n, kv) for n in (1, 16, 64, 128) for kv in (512, 1024)]
    probes += [probe.prefill(runner, n, rest_s=rest_s) for n in (128, 512, 1024, 2048) for rest_s in (0.0, 0.1)]
    for one in probes:
        print(f"{one.name:22} {one.seconds * 1e3:8.3f} ms  GPU {one.gpu_s * 1e3:8.3f} ms  bound {one.share:.0%}")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        rows = [{**asdict(one), "share": one.share} for one in probes]
        (out / f"probe-{runner.shape.name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _serve(runner: Runner, options: argparse.Namespace) -> None:
    """One run per mix and load, each in a folder of its own."""
    for mix in options.mix:
        plain = f"{runner.shape.name}-{mix}"
        full = None if options.rate else probe.capacity(runner, mix)
        rates = {f"{plain}-{round(100 * share):02d}": share * full for share in options.load} if full else {}
        loads = [(options.name or name, rate) for name, rate in (rates or {plain: options.rate}).items()]
        for turn in range(options.repeats):  # Load by load, again and again: what drifts meanwhile falls on all alike.
            for name, rate in loads:
                work = load.poisson(mix, rate, options.duration_s, options.seed + turn, ramp=options.ramp)
                facts = {"mix": mix, "rate_per_s": rate, "capacity_per_s": full, "ramp": options.ramp}
                folder = options.out / (f"{name}.{turn + 1}" if turn else name)
                _one(runner, folder, work, {**facts, "seed": options.seed + turn}, options)


def _one(runner: Runner, folder: Path, work: load.Workload, facts: dict[str, Any], options: argparse.Namespace) -> None:
    requests = make_requests(work, runner.shape.vocab_size, runner.config, options.seed)
    with Clocks() as clocks:
        served = serve(runner, requests)
    sizes = runner.config.capture_sizes
    about = {
        "model": asdict(runner.shape),
        "engine": {**asdict(runner.config), "num_kv_blocks": runner.num_blocks, "capture_sizes": sizes},
        "device_name": torch.cuda.get_device_name(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda},
        "duration_s": options.duration_s, "seed": options.seed, **facts, "clocks": clocks.summary(),
    }  # fmt: skip
    record.save(served, folder, about)
    figures = record.summary(served)
    print(
        f"{folder.name}: {figures['num_requests']} requests in {figures['duration_s']:.1f} s, "
        f"TTFT {figures['ttft_mean_s'] * 1e3:.1f} ms, TPOT {figures['tpot_mean_s'] * 1e3:.2f} ms, "
        f"E2E {figures['e2e_mean_s']:.3f} s (means); GPU busy {figures['gpu_busy']:.0%}, "
        f"{figures['mean_sequences']:.1f} sequences",
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("gnomon.measure.engine", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for what in ("probe", "serve"):
        command = commands.add_parser(what)
        command.add_argument("--model", type=Path, required=True, help="JSON with the model's sizes")
        command.add_argument("--out", type=Path, required=what == "serve", help="folder for what is recorded")
        for field in fields(EngineConfig):
            flag = f"--{field.name.replace('_', '-')}"
            of_type = {"type": float if isinstance(field.default, float) else int}
            command.add_argument(flag, **({"action": "store_true"} if field.default is False else of_type))
        if what == "serve":
            command.add_argument("--mix", nargs="+", choices=sorted(load.MIXES), default=["chat"])
            command.add_argument("--load", nargs="+", type=float, default=[0.5], help="shares of the probed capacity")
            command.add_argument("--rate", type=float, help="requests per second, instead of --load")
            command.add_argument("--duration-s", type=float, default=25.0, help="seconds of arrivals")
            command.add_argument("--seed", type=int, default=1)
            command.add_argument("--repeats", type=int, default=1, help="rounds over all loads, each with its seed")
            command.add_argument("--ramp", action="store_true", help="the rate rises from nothing to what was given")
            command.add_argument("--name", help="name of the run's folder, for a single run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
