"""Hold the roofline against every measured kernel, and fit its constants.

    GNOMON_REFERENCE=DIR python -m benchmarks.calibrate_roofline              # the error table of docs/timing.md
    GNOMON_REFERENCE=DIR python -m benchmarks.calibrate_roofline --fit h100   # constants for the catalog file

Needs the reference data (Vidur's CSVs, vLLM profiles) and the extra [silicon]. Fitting needs SciPy (extra [forest]).
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import click
import numpy as np

from benchmarks.measured_kernels import DEVICES, Sample, samples_of
from gnomon import catalog
from gnomon.catalog import Device, RooflineConstants
from gnomon.cli.printing import json_option, print_rows
from gnomon.core.arrays import Floats
from gnomon.timing.operators import Elementwise, Experts, Gemm
from gnomon.timing.sources.roofline import Roofline

# The constants that each group of operators decides, with their bounds.
GROUPS = {
    "gemm": {"gemm_efficiency": (0.1, 1.25), "gemm_bandwidth": (0.1, 1.0), "gemm_floor_s": (1e-7, 2e-5)},
    "elementwise": {
        "elementwise_bandwidth": (0.1, 1.0),
        "cache_bandwidth": (0.1, 10.0),
        "elementwise_floor_s": (1e-7, 2e-5),
    },
    "attention": {
        "prefill_efficiency": (0.1, 1.25),
        "decode_bandwidth": (0.1, 1.0),
        "attention_floor_s": (1e-7, 3e-5),
    },
}
PREFILL_TILES = (64, 128)


def _group(sample: Sample) -> str:
    match sample.operator.work:
        case Gemm():
            return "gemm"
        case Elementwise():
            return "elementwise"
        case Experts():
            return "experts"
        case _:
            return "attention"


def _roofline(device: Device, constants: RooflineConstants) -> Roofline:
    return Roofline(device.model_copy(update={"roofline": constants}), catalog.default_node(device))


def relative_errors(roofline: Roofline, sample: Sample) -> Floats:
    """Predicted over measured, minus one."""
    return roofline.seconds(sample.operator, *sample.sizes) / sample.seconds - 1.0


def _thinned(samples: list[Sample], group: str, seed: int = 0) -> list[Sample]:
    """At most 150 points of at most 150 samples of a group, so that a fit takes seconds."""
    rng = np.random.default_rng(seed)
    chosen = [s for s in samples if _group(s) == group and s.operator.kind != "attention_mixed"]
    if len(chosen) > 150:
        chosen = [chosen[i] for i in rng.choice(len(chosen), 150, replace=False)]
    out = []
    for s in chosen:
        at = rng.permutation(s.seconds.size)[:150]
        out.append(Sample(s.data, s.operator, tuple(size[at] for size in s.sizes), s.seconds[at]))
    return out


def fitted(device: Device, samples: list[Sample]) -> RooflineConstants:
    """The constants with the least mean absolute log error, group by group; every operator and shape counts alike."""
    from scipy.optimize import minimize

    constants = device.roofline
    for group, bounds in GROUPS.items():
        chosen = _thinned(samples, group)
        if not chosen:
            continue
        candidates = []
        for tile in PREFILL_TILES if group == "attention" else (constants.prefill_tile,):
            start = constants.model_copy(update={"prefill_tile": tile})

            def loss(
                logs: Floats, start: RooflineConstants = start, bounds: dict = bounds, chosen: list = chosen
            ) -> float:
                values = dict(zip(bounds, np.exp(logs).tolist(), strict=True))
                roofline = _roofline(device, start.model_copy(update=values))
                return float(np.mean([np.abs(np.log1p(relative_errors(roofline, s))).mean() for s in chosen]))

            x0 = np.clip(np.log([max(getattr(start, n), 1e-7) for n in bounds]), *np.log(list(bounds.values())).T)
            best = minimize(
                loss, x0, method="Nelder-Mead", bounds=np.log(list(bounds.values())), options={"maxiter": 200}
            )
            values = dict(zip(bounds, np.exp(best.x).tolist(), strict=True))
            candidates.append((best.fun, start.model_copy(update=values)))
        constants = min(candidates, key=lambda one: one[0])[1]
    return constants


def error_rows(device: Device, samples: list[Sample]) -> list[dict[str, object]]:
    """Median and 90th-percentile errors by data set and group, and over all points of the device."""
    roofline = Roofline(device, catalog.default_node(device))
    found: dict[tuple[str, str], list[Floats]] = defaultdict(list)
    for sample in samples:
        errors = relative_errors(roofline, sample)
        for key in (
            (sample.data, sample.operator.kind if _group(sample) == "attention" else _group(sample)),
            ("all", "all"),
        ):
            found[key].append(errors)
    rows = []
    for (data, group), parts in found.items():
        errors = np.concatenate(parts)
        rows.append(
            {
                "device": device.name,
                "data": data,
                "operators": group,
                "points": errors.size,
                "median error": f"{np.median(np.abs(errors)):.1%}",
                "90th percentile": f"{np.quantile(np.abs(errors), 0.9):.1%}",
                "bias (median)": f"{np.median(errors):+.1%}",
            }
        )
    return rows


@click.command()
@click.option("--fit", "to_fit", multiple=True, help="Fit this device and print its constants as YAML.")
@json_option
def main(to_fit: tuple[str, ...], as_json: bool) -> None:
    reference = Path(os.environ.get("GNOMON_REFERENCE", "reference"))
    for name in to_fit:
        device = catalog.device(name)
        constants = fitted(device, samples_of(device.name, reference))
        click.echo(f"# {device.name}\nroofline:")
        for key, value in constants.model_dump().items():
            click.echo(f"  {key}: {value if isinstance(value, int) else f'{value:.3g}'}")
    if to_fit:
        return
    rows = [row for name in DEVICES for row in error_rows(catalog.device(name), samples_of(name, reference))]
    print_rows(rows, as_json=as_json, right=("points", "median error", "90th percentile", "bias (median)"))


if __name__ == "__main__":
    main()
