"""A trained policy on disk: one npz without pickles, holding weights, normaliser, and what they were made for.

The network (`gnomon.serving.routers.learned` runs it, `gnomon.routing` trains it) scores every replica's row x:

    h_i = relu(phi1 relu(phi0 clip((x_i - mean) / std)))         score_i = rho1 relu(rho0 [h_i, mean h, max h]) - 20 g_i

g_i is what the rule `gateway` counts there: a network whose last layer is zero is that rule. Weights are as torch's
`Linear` stores them. A recurrent one has a GRU, as `GRUCell` stores it: its input is [mean h, max h], and its memory
joins these in every score.
"""

import io
import json
import zipfile
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.core.files import written_whole
from gnomon.serving.routers.observation import FEATURES, NUM_FEATURES, SCHEMA_HASH
from gnomon.serving.scenario.config import QUEUE_DEPTH, LengthsKnown

FORMAT = 1
SHARPNESS = 20.0  # Weight of the rule in every score: e to one where a replica costs a twentieth more.
CLIP = 10.0  # Normalised features are cut off here.
LAYERS = ("phi0", "phi1", "rho0", "rho1")


@dataclass(frozen=True, eq=False)
class Policy:
    """A policy as it is in its file."""

    arrays: dict[str, NDArray[np.float32]]
    """`phi0.weight`, `phi0.bias`, ... `rho1.bias`."""
    mean: Floats
    std: Floats
    lengths: str
    """What it was told about output lengths in training: none, noisy or oracle."""
    made: dict[str, Any]
    """How it was made: command, seed, configuration."""

    @property
    def hidden(self) -> int:
        """Width of the hidden layers."""
        return int(self.arrays["phi0.bias"].size)

    @property
    def recurrent(self) -> bool:
        """Whether it carries a memory from decision to decision."""
        return "gru.weight_ih" in self.arrays

    @property
    def queue_depth(self) -> int:
        """How many requests of every queue it looks at, as the configuration that made it says."""
        return int(queue_depth_of(self.made))


def queue_depth_of(made: Any) -> Any:
    """The queue depth in what a file says of how it was made; the usual one where it says nothing."""
    config = made.get("config") if isinstance(made, dict) else None
    return config.get("queue_depth", QUEUE_DEPTH) if isinstance(config, dict) else QUEUE_DEPTH


def shapes(hidden: int, recurrent: bool = False) -> dict[str, tuple[int, ...]]:
    """The shape of every array of a network of that width."""
    sizes = {
        "phi0": (NUM_FEATURES, hidden), "phi1": (hidden, hidden), "rho0": ((4 if recurrent else 3) * hidden, hidden),
        "rho1": (hidden, 1),
    }  # fmt: skip
    gru = {"weight_ih": (2 * hidden,), "weight_hh": (hidden,), "bias_ih": (), "bias_hh": ()} if recurrent else {}
    return {
        f"{layer}.{part}": (out, into) if part == "weight" else (out,)
        for layer, (into, out) in sizes.items()
        for part in ("weight", "bias")
    } | {f"gru.{part}": (3 * hidden, *into) for part, into in gru.items()}


def save_policy(
    path: str | Path, arrays: dict[str, Any], mean: Any, std: Any, lengths: str, made: dict[str, Any],
) -> Path:  # fmt: skip
    """Write a policy; `made` says how it came about and must be plain data."""
    about = {
        "format": FORMAT, "schema": SCHEMA_HASH, "features": FEATURES,
        "hidden": int(np.asarray(arrays["phi0.bias"]).size), "lengths": lengths, "made": made,
    }  # fmt: skip
    stored: dict[str, Any] = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    stored |= {"about": np.array(json.dumps(about)), "mean": np.asarray(mean, float), "std": np.asarray(std, float)}
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **stored)
    load_policy(path)  # What was written can be read.
    return Path(path)


def load_policy(path: str | Path) -> Policy:
    """Read a policy; anything that does not fit this version's network and features is a DataError."""
    stored = _read(Path(path))
    about = _about(stored, str(path))
    weights = shapes(about["hidden"], "gru.weight_ih" in stored)
    expected: dict[str, tuple[int, ...]] = {"mean": (NUM_FEATURES,), "std": (NUM_FEATURES,), **weights}
    if set(stored) != {"about", *expected}:
        odd = ", ".join(sorted(set(stored) ^ {"about", *expected}))
        raise DataError(f"arrays missing or unknown: {odd}.", where=str(path), fix="Export the policy again.")
    for name, shape in expected.items():
        array = stored[name]
        if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise DataError(f"{name} is not a finite array of shape {shape}.", where=str(path))
    if not (stored["std"] > 0).all():
        raise DataError("std must be above 0.", where=str(path))
    arrays = {name: stored[name].astype(np.float32) for name in weights}
    return Policy(arrays, stored["mean"], stored["std"], about["lengths"], about["made"])


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        stored = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        if not hasattr(stored, "files"):
            raise DataError("is one array, not a policy.", where=str(path))
        return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise DataError("no such file.", where=str(path), fix="Train one with `gnomon route all`.") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        what = "is no policy file, or a damaged one."
        raise DataError(what, where=str(path), fix="Train or export it again.") from None


def _about(stored: dict[str, NDArray[Any]], where: str) -> dict[str, Any]:
    """The description inside the file, checked against this version."""
    try:
        about: dict[str, Any] = json.loads(str(stored["about"]))
        known = {"format", "schema", "features", "hidden", "lengths", "made"}
        if not isinstance(about, dict) or set(about) != known:
            raise ValueError
    except (KeyError, ValueError):
        raise DataError("holds no description of a policy.", where=where) from None
    if about["format"] != FORMAT:
        raise DataError(f"is of format {about['format']}, this version reads {FORMAT}.", where=where)
    if about["schema"] != SCHEMA_HASH:
        differing = sorted(set(about["features"]) ^ set(FEATURES))
        what = f" ({', '.join(differing[:4])})" if differing else ""
        fix = "Train it again."
        raise DataError(f"was trained on other features{what} than this version observes.", where=where, fix=fix)
    if about["lengths"] not in get_args(LengthsKnown):
        raise DataError(f"unknown length information {about['lengths']!r}.", where=where)
    if not isinstance(about["hidden"], int) or about["hidden"] < 1:
        raise DataError("hidden must be a whole number above 0.", where=where)
    depth = queue_depth_of(about["made"])
    if not isinstance(depth, int) or depth < 1:
        raise DataError("queue_depth must be a whole number above 0.", where=where)
    return about


def shipped_policy(lengths: str) -> Policy:
    """The policy that comes with Gnomon for this kind of length information."""
    file = files("gnomon.serving.routers") / "data" / f"{lengths}.npz"
    if not file.is_file():
        fix = f"Train one with `gnomon route all --lengths {lengths}`, and name its policy.npz."
        raise DataError(f"no policy comes with Gnomon for lengths {lengths!r}.", where="router.lengths", fix=fix)
    with as_file(file) as path:
        return load_policy(path)


def packed(policy: Policy) -> Floats:
    """The policy as one row of numbers, as the compiled router reads it: hidden width, queue depth, whether it is
    recurrent, normaliser, then per layer the weights [in, out] and the biases; of a GRU the same, then its memory,
    which is empty."""
    parts = [np.array([policy.hidden, policy.queue_depth, policy.recurrent]), policy.mean, policy.std]
    for layer in LAYERS:
        parts += [policy.arrays[f"{layer}.weight"].T.ravel(), policy.arrays[f"{layer}.bias"]]
    if policy.recurrent:
        for side in ("ih", "hh"):
            parts += [policy.arrays[f"gru.weight_{side}"].T.ravel(), policy.arrays[f"gru.bias_{side}"]]
        parts.append(np.zeros(policy.hidden))
    return np.concatenate([np.asarray(part, np.float64) for part in parts])
