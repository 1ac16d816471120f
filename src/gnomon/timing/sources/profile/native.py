"""Gnomon's own bundles: CSV files and a manifest, keyed by shapes (docs/profile-format.md)."""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.catalog.devices import DEVICES, Device
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.core.text import read_json
from gnomon.timing.host import PHASES, HostConfig
from gnomon.timing.sources.profile.csvfile import Columns, read_csv
from gnomon.timing.sources.profile.samples import NAMED, Bundle, Key, Samples, collective_key

FORMAT, VERSION = "gnomon-profile", 1

KEYS: dict[str, tuple[str, ...]] = {file: tuple(columns) for file, columns in NAMED["native"].items()}
"""The files of a bundle and their key columns."""

_SHAPED = {
    "gemm": ("gemm", ("n", "k"), ("m",)),
    "skew": ("skew", KEYS["skew"][1:4], KEYS["skew"][4:]),
    "moe": ("experts", KEYS["moe"][1:5], KEYS["moe"][5:]),
}
"""Files whose rows are grouped by shape: what samples are called, columns of the shape, columns of the sizes."""


def find_root(path: Path) -> Path | None:
    """The bundle's folder, where it has a manifest."""
    return path if (path / "manifest.json").is_file() else None


def read(root: Path, device: Device, dtype: str, kv_dtype: str) -> Bundle:
    """All shapes of the bundle that were measured in these number formats."""
    manifest = read_manifest(root)
    name = str(manifest["device"])
    if (DEVICES.resolve(name) or name) != device.name:
        fix = f"Use device {name}, or another one."
        raise DataError(f"was measured on {name}, not on {device.name}.", where=str(root), fix=fix)
    return _read(root, str(manifest["content_hash"]), dtype, kv_dtype)


@lru_cache(maxsize=4)
def _read(root: Path, content_hash: str, dtype: str, kv_dtype: str) -> Bundle:
    """Read once for all that ask: nobody changes it."""
    manifest, bundle = read_manifest(root), Bundle(str(root))
    for file in manifest["files"]:
        columns = _checked(root, file, manifest)
        match file.split(".")[0]:
            case "gemm" | "skew" | "moe" as kind:
                some = _of_dtype(columns, kv_dtype if kind == "skew" else dtype)
                if len(some):
                    name, shape, sizes = _SHAPED[kind]
                    _add_groups(bundle, some, name, some.sizes(*shape), *sizes)
            case "attention":
                _read_attention(bundle, columns, kv_dtype)
            case "elementwise":
                operators = columns.texts("operator")
                for operator in np.unique(operators):
                    part = columns.where(operators == operator)
                    _add_groups(bundle, part, str(operator), part.sizes("width"), "tokens")
            case "collective":
                _read_collectives(bundle, columns)
            case "host":
                bundle.host = _read_host(columns)
    return bundle


def read_manifest(root: Path) -> dict[str, Any]:
    """The manifest, checked for what the reader needs."""
    path = root / "manifest.json"
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f'is no manifest of a profile: "format" must be "{FORMAT}".', where=str(path))
    if manifest.get("version") != VERSION:
        fix = f"This Gnomon reads version {VERSION}."
        raise DataError(f"has version {manifest.get('version')!r}.", where=str(path), fix=fix)
    for key in ("device", "files", "content_hash"):
        if key not in manifest:
            raise DataError(f"has no key {key!r}.", where=str(path), fix="See the profile format in the documentation.")
    names = [file.split(".")[0] for file in manifest["files"]]
    if not names:
        raise DataError("lists no files.", where=str(path), fix=f"A bundle has one of: {', '.join(KEYS)}.")
    for name in names:
        if name not in KEYS:
            raise DataError(f"lists an unknown file {name!r}.", where=str(path), fix=f"Known: {', '.join(KEYS)}.")
    if content_hash(manifest["files"]) != manifest["content_hash"]:
        raise DataError("content_hash does not match its files.", where=str(path), fix="Write the bundle again.")
    return manifest


def content_hash(files: dict[str, dict[str, Any]]) -> str:
    lines = (f"{name} {files[name]['sha256']}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _checked(root: Path, file: str, manifest: dict[str, Any]) -> Columns:
    path = root / file
    stem = file.split(".")[0]
    columns = read_csv(path, (*KEYS[stem], "seconds"))
    if hashlib.sha256(path.read_bytes()).hexdigest() != manifest["files"][file]["sha256"]:
        raise DataError("was changed after its manifest was written.", where=str(path), fix="Write the bundle again.")
    unknown = set(columns.cells) - {*KEYS[stem], "seconds", "spread"}
    if unknown:
        known = ", ".join((*KEYS[stem], "seconds", "spread"))
        raise DataError(f"has an unknown column {min(unknown)!r}.", where=str(path), fix=f"Known: {known}.")
    return columns


def _of_dtype(columns: Columns, dtype: str) -> Columns:
    """Rows of one number format; fp16 and bf16 take the same time."""
    dtypes = columns.texts("dtype")
    same = ("bf16", "fp16") if dtype in ("bf16", "fp16") else (dtype,)
    return columns.where(np.isin(dtypes, same))


def _add_groups(bundle: Bundle, columns: Columns, kind: str, groups: Floats, *sizes: str) -> None:
    """One entry per distinct row of `groups`."""
    points, seconds, spread = columns.sizes(*sizes), columns.seconds("seconds"), columns.spread()
    shapes, which = np.unique(groups, axis=0, return_inverse=True)
    for index, shape in enumerate(shapes):
        rows = which.reshape(-1) == index
        key: Key = (kind, *(int(value) for value in shape))
        bundle.add(key, Samples(points[rows], seconds[rows], str(columns.path), spread[rows]))


def _read_attention(bundle: Bundle, columns: Columns, dtype: str) -> None:
    columns = _of_dtype(columns, dtype)
    if not len(columns):
        return
    chunk, decodes = columns.sizes("chunk", "decodes").T
    for kind, rows, sizes in (
        ("attention_prefill", (chunk > 0) & (decodes == 0), ("chunk", "kv")),
        ("attention_decode", (chunk == 0) & (decodes > 0), ("decodes", "decode_kv")),
        ("attention_mixed", (chunk > 0) & (decodes > 0), ("chunk", "kv", "decodes", "decode_kv")),
    ):
        if rows.any():
            part = columns.where(rows)
            _add_groups(bundle, part, kind, part.sizes("heads", "kv_heads", "head_dim"), *sizes)


def _read_collectives(bundle: Bundle, columns: Columns) -> None:
    """Ours count what one rank contributes: of a gathered result, its share."""
    names = columns.texts("collective")
    for name in np.unique(names):
        part = columns.where(names == name)
        ranks = part.sizes("num_ranks", "ranks_per_node")
        size = part.sizes("bytes") / (ranks[:, :1] if name == "all_gather" else 1.0)
        seconds = part.seconds("seconds")
        for count, per_node in np.unique(ranks, axis=0):
            rows = np.all(ranks == (count, per_node), axis=1)
            key = collective_key(str(name), int(count), int(per_node))
            bundle.add(key, Samples(size[rows], seconds[rows], str(part.path)))


_HOST_PARTS = ("schedule", "prepare", "sample", "detokenise")
_HOST_ROWS = ("iteration", *PHASES)


def _read_host(columns: Columns) -> HostConfig:
    """Host time by kind of iteration: a constant and a part per sequence."""
    names = columns.texts("operator")
    known = (*_HOST_ROWS, *(f"{one}_launch" for one in _HOST_ROWS), *_HOST_PARTS)
    if unknown := set(names.tolist()) - set(known):
        where, fix = str(columns.path), f"Known: {', '.join(known)}."
        raise DataError(f"has an unknown operator {min(unknown)!r}.", where=where, fix=fix)
    found: dict[str, Any] = {"iteration": {}}

    def line(name: str) -> tuple[float, float]:
        part = columns.where(names == name)
        return _line(part.sizes("sequences")[:, 0], part.seconds("seconds")) if len(part) else (0.0, 0.0)

    for one in _HOST_ROWS:
        values = found.setdefault(one, {})
        if one in names:
            values["per_iteration_s"], values["per_sequence_s"] = line(one)
        if f"{one}_launch" in names:
            values["launch_s"] = float(columns.where(names == f"{one}_launch").seconds("seconds").mean())
    if "iteration" not in names:  # It is the parts together.
        constant, slope = np.sum([line(part) for part in _HOST_PARTS], axis=0)
        found["iteration"].update(per_iteration_s=float(constant), per_sequence_s=float(slope))
    return HostConfig.model_validate({**found.pop("iteration"), **found})


def _line(at: Floats, seconds: Floats) -> tuple[float, float]:
    """Constant and slope, neither below zero."""
    if np.ptp(at) == 0:
        return float(seconds.mean()), 0.0
    slope, constant = np.polyfit(at, seconds, 1)
    if slope < 0 or constant < 0:
        return (float(seconds.mean()), 0.0) if slope < 0 else (0.0, float((at @ seconds) / (at @ at)))
    return float(constant), float(slope)
