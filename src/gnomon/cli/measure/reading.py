"""What the verbs of `gnomon profile` read: folders of measurements, lists of degrees, and the shapes of models."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.options import verb
from gnomon.cli.printing import print_rows
from gnomon.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from gnomon.catalog.nodes import Node
    from gnomon.measure.profiling.shapes import Shapes
    from gnomon.timing.operators import Operator
    from gnomon.timing.sources.profile.samples import Samples


@contextmanager
def readable(path: Path, fix: str) -> Iterator[None]:
    """What the measuring code cannot read, in its own words (it stands alone and has no errors of Gnomon)."""
    try:
        yield
    except KeyError as error:
        raise DataError(f"there is no column or key {error}.", where=str(path), fix=fix) from None
    except (OSError, ValueError, TypeError, EOFError, zlib.error, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        what = f"cannot be read: {reason}."
        raise DataError(what, where=getattr(error, "filename", None) or str(path), fix=fix) from None


def as_words(given: dict[str, Any]) -> list[str]:
    """Options as the command line of a program that stands alone has them."""
    words: list[str] = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, tuple):
            words += [flag, *map(str, value)]
        elif value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


def degrees_of(text: str, where: str = "--tensor-parallel") -> list[int]:
    """Degrees of tensor parallelism, or numbers of GPUs, by commas."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        what = f"cannot read {text[:100]!r}."
        raise ConfigError(what, where=where, fix="Give whole numbers from 1 on, e.g. 1,2,4,8.")
    return numbers


def shapes_of(models: list[str], degrees: list[int], dtype: str = "bf16") -> Shapes:
    """The shapes of one rank of every model at every degree it allows, each once."""
    from gnomon import catalog
    from gnomon.measure.profiling.shapes import Shapes
    from gnomon.timing.operators import Communication, Elementwise, Experts, Gemm, Prefill, stage_operators
    from gnomon.timing.sources.profile.samples import shape_keys

    found: dict[str, dict[Any, None]] = {k: {} for k in ("gemm", "head", "elementwise", "attention", "moe")}
    head_dims = set()
    for name in models:
        model = catalog.model(name)
        head_dims.add(model.head_dim)
        for degree in degrees:
            if degree not in catalog.tensor_degrees(model):
                continue
            for one in stage_operators(model, catalog.Parallelism(tensor_parallel=degree), dtype=dtype):
                if isinstance(one.work, Communication):
                    continue  # `gnomon profile collectives` measures them by their bytes.
                key = shape_keys(one)[0]
                match one.work:
                    case Gemm():
                        found["head" if one.kind == "sequence" else "gemm"][key[1:]] = None
                    case Elementwise() if not one.is_fused:
                        found["elementwise"][key] = None
                    case Prefill() if len(key) == 4:
                        found["attention"][key[1:]] = None
                    case Experts():
                        found["moe"][key[1:]] = None
    if len(head_dims) > 1:
        what = f"models with head dimensions {sorted(head_dims)} in one bundle."
        raise ConfigError(what, fix="Profile them one by one.")
    names = [catalog.model(name).name for name in models]
    kinds: dict[str, Any] = {kind: list(shapes) for kind, shapes in found.items()}
    return Shapes(dtype=dtype, head_dim=head_dims.pop(), models=names, tensor_parallel=degrees, **kinds)


ELEMENTWISE = ("embedding", "norm", "add_norm", "qk_norm", "rotary", "kv_write", "activation", "activation_plain",
               "add", "sampler")  # fmt: skip
"""Operators that docs/profile-format.md knows."""


@click.command(name="import")
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@verb("profile import")
def import_command(source: Path, model: str, device: str, node: str | None, degrees: str, out: Path) -> None:
    from gnomon import catalog
    from gnomon.measure.profiling import bundle
    from gnomon.timing.config import TimingConfig
    from gnomon.timing.operators import stage_operators
    from gnomon.timing.sources import Context
    from gnomon.timing.sources.profile import read_bundle

    about, card = catalog.model(model), catalog.device(device)
    rows: dict[str, dict[bundle.Key, tuple[float, float]]] = {}
    report: list[dict[str, Any]] = []
    allowed = catalog.tensor_degrees(about)
    where = catalog.node(node) if node else catalog.default_node(card)
    for degree in degrees_of(degrees):
        if degree not in allowed:
            continue
        split = catalog.Parallelism(tensor_parallel=degree)
        try:
            found = read_bundle(source, Context(about, card, where, split, TimingConfig()))
        except DataError as error:
            report.append({"tensor parallel": degree, "rows": 0, "left out": str(error)})
            continue
        count, left_out = 0, []
        for operator in stage_operators(about, split):
            samples = None if operator.name in found.included else found.find(operator, where)
            new = list(_rows(operator, samples, where)) if samples is not None else []
            for file, key, seconds in new:
                rows.setdefault(file, {})[key] = (seconds, 0.0)
            count += len(new)
            left_out += [] if new or operator.is_fused else [operator.name]
        report.append({"tensor parallel": degree, "rows": count, "left out": ", ".join(left_out)})
    if not report:
        fix = f"Use some of {', '.join(map(str, allowed))}."
        raise ConfigError(f"{about.name} cannot be split so.", where="--tensor-parallel", fix=fix)
    if "gemm" not in rows:
        raise DataError("has no matrix products of this model.", where=str(source), fix=str(report[0]["left out"]))
    with readable(out, "Give another folder with --out."):
        old = bundle.read_rows(out) if (out / "manifest.json").exists() else {}
        facts = {"device": card.name, "dtype": "bf16", "models": [about.name], "method": f"imported from {source.name}"}
        bundle.write(out, bundle.merge([old, rows]), facts)
    print_rows(report, title=str(out))
    if others := _other_nodes(source, where):
        told = f"Collectives of {', '.join(others)} were left out: those of {where.name} were looked for."
        click.echo(f"{told} Give --node for others.", err=True)


def _other_nodes(source: Path, node: Node) -> list[str]:
    """Nodes of Vidur's layout whose collectives are not of `node`."""
    from gnomon.catalog.nodes import NODES
    from gnomon.timing.sources.profile.vidur import find_root

    root = find_root(source)
    folders = sorted((root / "network").glob("*/")) if root else []
    return [folder.name for folder in folders if NODES.resolve(folder.name) != node.name]


def _rows(operator: Operator, samples: Samples, node: Node) -> Iterator[tuple[str, tuple[Any, ...], float]]:
    """(file, key, seconds) of every sample of an operator, in the profile format."""
    from gnomon.timing.sources.profile.samples import shape_keys

    kind, *shape = shape_keys(operator, node)[0]
    for sizes, seconds in zip(samples.sizes.astype(int).tolist(), samples.seconds.tolist(), strict=True):
        match kind:
            case "gemm":
                yield "gemm", ("bf16", *sizes, *shape), seconds
            case "attention_prefill" if len(shape) == 3:
                yield "attention", ("bf16", *shape, *sizes, 0, 0), seconds
            case "attention_decode" if len(shape) == 3:
                yield "attention", ("bf16", *shape, 0, 0, *sizes), seconds
            case "all_reduce" | "send_recv" | "reduce_scatter" | "all_to_all":
                yield "collective", (kind, shape[0], shape[-1], *sizes), seconds
            case name if name in ELEMENTWISE:
                yield "elementwise", ("bf16", name, *sizes, *shape), seconds
