"""Fit the constants of training steps to published rows whose line has an even CRC-32; the others are never looked at.

`python -m benchmarks.fit_training --data reference [--write]` prints what it finds, and with `--write` puts it into
`src/gnomon/training/data/constants.yaml`. First the devices' rates, gaps between kernels and what copies cost beside
passes, on dense models and LoRA; then, with those as they are, experts by release of Megatron-Bridge. Steps are timed
anew in every round; inside a round their parts scale with the constants. Robust (soft L1), with priors where few rows
speak.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.training import TrainConfig, TrainStep, constants, train_step
from gnomon.verify.training import Row, read_rows

PRIOR = {"fp8": 0.88, "mxfp8": 0.78, "nvfp4": 0.52, "attention": 1.2, "layer_s": 2e-4, "fsdp_s": 1.3e-3,
         "beside_rate": 0.6, "beside_impact": 0.2, "tensor_impact": 0.1, "experts": 0.7, "permutation": 0.6,
         "exchange": 1.0, "exchange_interleaved": 0.3, "recurrence": 0.7}  # fmt: skip
"""Where a constant is without any row."""
SPREAD = {"layer_s": 0.5, "fsdp_s": 0.5, "beside_rate": 0.4, "beside_impact": 0.5, "tensor_impact": 0.7,
          "experts": 0.5, "permutation": 1.0, "exchange": 0.7, "exchange_interleaved": 0.7,
          "recurrence": 0.3}  # fmt: skip
"""How far a logarithm may be from it; 0.15 for the rates of devices."""
SOFT = 0.04
"""Relative error from which on a row counts less."""
MEASURED = ("h200",)
"""Devices whose attention and bf16 products are those of own steps."""
ROUNDS = 3
Key = tuple[str, ...]


class Fit:
    """Constants as a nested mapping, and rows to fit them to."""

    def __init__(self, file: Path) -> None:
        self.values: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
        self.work = Path(tempfile.mkdtemp()) / "constants.yaml"

    def get(self, key: Key) -> float:
        """One constant."""
        place: Any = self.values
        for name in key:
            place = place[name]
        return float(place)

    def set(self, key: Key, value: float) -> None:
        """Change one."""
        place = self.values
        for name in key[:-1]:
            place = place[name]
        place[key[-1]] = float(f"{value:.3g}")

    def timed(self, rows: Sequence[Row]) -> list[TrainStep]:
        """Every row with the constants as they are now."""
        self.work.write_text(yaml.safe_dump(self.values), encoding="utf-8")
        constants.FILE = self.work
        constants.constants.cache_clear()
        return [train_step(build(TrainConfig, row.config), check=False) for row in rows]

    def fit(
        self, rows: Sequence[Row], keys_of: Callable[[Row], dict[Key, tuple[str, ...]]], shifted: Sequence[Key]
    ) -> None:
        """`keys_of` names, for each constant of a row, the parts whose seconds go with its inverse (or, with a `*`,
        with it). Constants in `shifted` act in other ways: a second timing shows how."""
        every = sorted({key for row in rows for key in keys_of(row)} | set(shifted))
        for _ in range(ROUNDS):
            steps = self.timed(rows)
            start = np.array([self.get(key) for key in every])
            slopes = np.array([[_slope(step, keys_of(row).get(key, ())) for key in every]
                               for row, step in zip(rows, steps, strict=True)])  # fmt: skip
            for key in shifted:
                before = self.get(key)
                self.set(key, 1.1 * before)
                moved = self.timed(rows)
                self.set(key, before)
                slopes[:, every.index(key)] = [np.log(b.step_s / a.step_s) / np.log(1.1)
                                               for a, b in zip(steps, moved, strict=True)]  # fmt: skip
            error = np.log([step.step_s / row.step_s for row, step in zip(rows, steps, strict=True)])
            prior = np.log([PRIOR[_kind(key)] for key in every])
            spread = np.array([SPREAD.get(_kind(key), 0.15) for key in every])

            def residuals(logs: Any, error: Any = error, slopes: Any = slopes, start: Any = start, prior: Any = prior,
                          spread: Any = spread) -> Any:  # fmt: skip
                wrong = error + slopes @ (logs - np.log(start))
                robust = np.sign(wrong) * np.sqrt(2 * (np.sqrt(1 + (wrong / SOFT) ** 2) - 1))
                return np.concatenate([robust, (logs - prior) / spread])

            limits = np.log(start) - 0.35, np.log(start) + 0.35
            found = least_squares(residuals, np.log(start), bounds=limits).x
            for key, log in zip(every, found, strict=True):
                self.set(key, float(np.exp(log)))
            print(
                f"  median error {100 * np.median(np.abs(error)):.1f} %, mean {100 * error.mean():+.1f} %", flush=True
            )


def _kind(key: Key) -> str:
    if key == ("layer_s", "fsdp"):
        return "fsdp_s"
    return {"recurrence_rate": "recurrence"}.get(key[0], key[-1] if key[0] in ("devices", "releases") else key[0])


def _slope(step: TrainStep, parts: tuple[str, ...]) -> float:
    """How the logarithm of a step goes with that of a constant: by the share of its parts, and the bubble with them."""
    waiting = step.parts.get("bubble", 0.0) / step.step_s
    total = 0.0
    for part in parts:
        share = step.parts.get(part.lstrip("*"), 0.0) / step.step_s * (1.0 + max(0.0, waiting))
        total += share if part.startswith("*") else -share
    return total


def _dense(row: Row) -> dict[Key, tuple[str, ...]]:
    c = row.config
    precision, framework = c.get("precision", "bf16"), c.get("framework", "megatron")
    keys: dict[Key, tuple[str, ...]] = {("layer_s", framework): ("*host",)}
    if precision != "bf16":
        keys["devices", c["device"], "products", precision] = ("products",)
    if framework == "megatron" and c["device"] not in MEASURED:
        keys["devices", c["device"], "attention"] = ("attention",)
    return keys


def _experts(row: Row) -> dict[Key, tuple[str, ...]]:
    known = constants.constants().releases
    era = max((one for one in known if one <= str(row.config["release"])), default=min(known))
    exchange = {("releases", era, "exchange"): ("*expert_exchange",)}
    if row.config["virtual_stages"] > 1:
        exchange["releases", era, "exchange_interleaved"] = ("*expert_exchange",)
    return {
        ("releases", era, "experts"): ("experts",),
        ("releases", era, "permutation"): ("*permutation",),
        ("recurrence_rate",): ("recurrence",),
        **exchange,
    }


def _possible(row: Row) -> bool:
    try:
        build(TrainConfig, row.config).check()
    except GnomonError:
        return False
    return row.step_s is not None and row.is_fitted and row.is_gated


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--experts", action="store_true", help="experts only, with the devices as they are")
    given = parser.parse_args()
    file = constants.FILE
    fit = Fit(file)
    rows = [row for row in read_rows(given.data / "training") if _possible(row)]
    dense = [row for row in rows if row.family in ("dense", "lora")]
    if not given.experts:
        print(f"{len(dense)} rows of dense models and LoRA")
        fit.fit(dense, _dense, [("beside_rate",), ("beside_impact",), ("tensor_impact",)])
    experts = [row for row in rows if row.family == "moe"]
    print(f"{len(experts)} rows of mixtures of experts")
    fit.fit(experts, _experts, [])
    text = _written(file.read_text(encoding="utf-8"), fit.values)
    print(text)
    if given.write:
        file.write_text(text, encoding="utf-8")


def _written(text: str, values: dict[str, Any]) -> str:
    """The file with new numbers and its comments as they are."""
    lines = []
    section = ""
    for line in text.splitlines():
        name = line.split(":")[0].strip().strip('"')
        if not line.startswith(" "):
            section = name
        comment = "   #" + line.partition("   #")[2] if "   #" in line else ""
        if section in ("devices", "releases") and line.startswith(" "):
            lines.append(f"  {line.split(':')[0].strip()}: {_flow(values[section][name])}{comment}")
        elif section in ("beside_rate", "beside_impact", "tensor_impact", "recurrence_rate"):
            lines.append(f"{name}: {values[name]:.3g}{comment}")
        elif section == "layer_s":
            lines.append(f"{name}: {_flow(values[name])}{comment}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(one)}" for name, one in value.items()) + "}"
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:.2e}" if 0 < abs(value) < 1e-2 else f"{value:.3g}"


if __name__ == "__main__":
    main()
