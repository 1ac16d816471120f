"""`gnomon profile`: measure operators on a GPU, or say what to measure on a machine without Gnomon."""

import json
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from gnomon.cli.measure.reading import as_words, degrees_of, import_command, readable, shapes_of
from gnomon.cli.options import about, listed, verb
from gnomon.cli.printing import json_option, print_rows
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError, DataError, GnomonError, MissingExtraError
from gnomon.core.files import write_text


@click.command()
@click.argument("kernels", required=False, type=click.Path(path_type=Path))
@verb("profile own")
def own_command(
    kernels: Path | None, models: str, degrees: str, dtype: str, only: str, plan_file: Path | None,
    answers: Path | None, device: str | None, out: Path | None,
) -> None:  # fmt: skip
    from gnomon.measure.profiling import own

    if (kernels is None) + (plan_file is None) + (answers is None) != 2:
        raise ConfigError("give one of KERNELS, --plan and --answers.", fix="See gnomon profile own --help.")
    names = models.split(",")
    asked = []
    if answers is None:
        kinds = [one.strip() for one in only.split(",") if one.strip()] or list(own.KINDS)
        unknown = set(kinds) - set(own.KINDS)
        if unknown:
            raise ConfigError(f"unknown kind {unknown.pop()!r}.", where="--only", fix=f"Known: {', '.join(own.KINDS)}.")
        asked = list(own.plan(shapes_of(names, degrees_of(degrees), dtype), kinds))
    if plan_file is not None:
        write_text(plan_file, "".join(json.dumps(one) + "\n" for one in asked))
        click.echo(f"{len(asked):,} shapes in {plan_file}; add seconds to each line.")
        return
    if device is None or out is None:
        raise ConfigError("a bundle needs --device and --out.", fix="For example: --device h200 --out my-engine.")
    from gnomon.catalog import device as known_device

    facts = {"device": known_device(device).name, "dtype": dtype, "models": names, "method": "own kernels"}
    if kernels is not None:
        try:
            found = own.load(kernels)
            with progress("timing kernels") as on_progress:
                own.measure(found, asked, out, on_progress)
        except Exception as error:  # Whatever a user's file does.
            raise DataError(f"{type(error).__name__}: {error}.", where=str(kernels)) from None
    else:
        assert answers is not None
        with readable(answers, "Each line is one of the plan's, with seconds."):
            own.read_answers(answers, out)
    with readable(out, "Give a folder for the bundle."):
        manifest = own.write(out, facts)
    rows = {name: about["rows"] for name, about in json.loads(manifest.read_text(encoding="utf-8"))["files"].items()}
    click.echo(f"{out}: {', '.join(f'{count:,} rows in {name}' for name, count in rows.items())}")


command = click.Group("profile", help=about("profile"))


@command.command()
@listed("profile")
@verb("profile shapes")
def shapes(models: str, degrees: str, dtype: str, out: Path | None) -> None:
    text = json.dumps(asdict(shapes_of(models.split(","), degrees_of(degrees), dtype)), indent=1) + "\n"
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)


def _measuring(what: str, summary: str) -> None:
    @command.command(
        name=what,
        help=f"{summary}\n\n\b\nExample:\n  gnomon profile {what} --models llama-3-8b --device h200 --out my-h200",
    )
    @listed("profile", "profile bundle", "profile measure")
    @json_option
    def run(
        models: str, degrees: str, dtype: str, device: str, out: Path, num_gpus: int, ray: str | None, as_json: bool
    ) -> None:  # fmt: skip
        from gnomon.catalog import device as known_device

        known_device(device)
        wanted = shapes_of(models.split(","), degrees_of(degrees), dtype)
        main, limits = _profiler()
        try:
            if num_gpus == 1 and ray is None:
                verdict = main.measure(what, wanted, out, device, limits())
            else:
                verdict = measured_by_many(what, wanted.split(num_gpus), out, device, ray)
        except RuntimeError as error:
            fix = "Run it on a machine with an NVIDIA GPU and a CUDA build of PyTorch."
            raise GnomonError(str(error), fix=fix) from None
        print_rows(
            verdict["files"], as_json=as_json, title=f"{out}: held-out error {verdict['held_out']['median']:.1%}"
        )


def measured_by_many(what: str, parts: list[Any], out: Path, device: str, ray: str | None) -> dict[str, Any]:
    """Every part on a GPU of its own, into one bundle. A part keeps a journal in a folder of its own until all are
    there, so that what was interrupted goes on."""
    main, limits = _profiler()
    from gnomon.core.parallel import map_ordered
    from gnomon.measure.profiling.bundle import JOURNAL, Journal

    if ray is None:
        main.check_gpu(len(parts) - 1)
    jobs = [(i, what, part, out / f"gpu-{i}", limits(), ray is not None) for i, part in enumerate(parts)]
    outcomes = list(map_ordered(_one_part, jobs, jobs=len(jobs), ray=ray, num_gpus=1))
    if failed := next((one for one in outcomes if one.error is not None), None):
        raise RuntimeError(f"GPU {failed.index}: {failed.error}")
    journal, held_out = Journal(out), []
    for rows, errors, _ in (one.unwrap() for one in outcomes):
        for file, key, seconds, spread in rows:
            if journal.get(file, key) is None:
                journal.add(file, key, seconds, spread)
        held_out += errors
    whole = replace(parts[0], **{k: [one for part in parts for one in getattr(part, k)] for k in KINDS})
    about = {**outcomes[0].unwrap()[2], "num_gpus": len(parts)}
    verdict: dict[str, Any] = main.finish(journal, held_out, whole, out, device, about)
    for _, _, _, folder, _, _ in jobs:
        (folder / JOURNAL).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
    return verdict


KINDS = ("gemm", "head", "elementwise", "attention", "moe")


def _one_part(job: tuple[int, str, Any, Path, Any, bool]) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """What one GPU measured: rows, held-out errors, facts of its machine. On Ray a task sees one GPU, its own."""
    gpu, what, part, folder, limits, is_on_ray = job
    main, _ = _profiler()
    from gnomon.measure.profiling.machine import facts

    session = main.session_on(0 if is_on_ray else gpu, what, part, folder, limits)
    rows = [(file, key, *row) for file, kept in session.journal.rows.items() for key, row in kept.items()]
    return rows, session.held_out, facts()


_measuring("compute", "Token-level operators: GEMMs, norms, activations, experts, at every tensor-parallel degree.")
_measuring("attention", "Attention: prefill with KV history, decode (even and skewed lengths), over a paged cache.")
_measuring("all", "Compute and attention.")


@command.command()
@verb("profile collectives", "profile bundle")
def collectives(
    wanted: tuple[str, ...], workers: str, nodes: int, ray: str | None, dry_run: bool, backend: str | None,
    node: str | None, max_bytes: int, device: str, out: Path,
) -> None:  # fmt: skip
    if nodes > 1 and ray is None and not dry_run:
        raise ConfigError("several nodes need a launcher.", where="--nodes",
                          fix="Add --ray ADDRESS, or --dry-run for the torchrun commands.")  # fmt: skip
    degrees_of(workers, "--num-gpus")
    main, _ = _profiler()
    words = as_words({"nodes": nodes, "ray": ray, "dry_run": dry_run, "workers": workers, "max_bytes": max_bytes,
                      "device_name": device, "out": out, "backend": backend, "node": node})  # fmt: skip
    words += [word for name in wanted for word in ("--collective", name)]
    raise SystemExit(main.main(["collectives", *words]))


@command.command()
@verb("profile sampling")
def sampling(vocabularies: str, out: Path) -> None:
    sizes = [one.strip() for one in vocabularies.split(",")]
    if not all(one.isdigit() and int(one) > 1 for one in sizes):
        raise ConfigError(f"{vocabularies!r} are no sizes.", where="--vocabularies", fix="For example: 128256,151936.")
    _profiler()
    import torch

    from gnomon.measure.profiling.sampling import measure

    if not torch.cuda.is_available():
        raise GnomonError("no CUDA device: profiling needs a GPU.", fix="Run it on a machine with an NVIDIA GPU.")
    click.echo("\n".join(measure(out, [int(one) for one in sizes])))


@command.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@verb("profile overhead")
@json_option
def overhead(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    from gnomon.measure.profiling import overhead as fitted

    recorded: list[Any] = []
    by_degree: dict[int, Any] = {}
    for run in runs:
        with readable(run, "Give a folder that `gnomon engine serve` wrote, or Vidur's cpu_overheads.csv."):
            if run.is_file():
                by_degree |= fitted.read_vidur(run)
            else:
                recorded.append(fitted.read(run))
    if recorded and by_degree:
        raise ConfigError("runs and tables of Vidur do not mix.", where="RUNS", fix="Read one kind at a time.")
    fits = {degree: fitted.fit([rows], share=1.0) for degree, rows in by_degree.items()} or {0: fitted.fit(recorded)}
    if out is not None:
        if len(fits) > 1:
            raise ConfigError("the table has several degrees of tensor parallelism, a bundle one host.", where="--out",
                              fix="Leave --out away and write the row you need into timing.host.")  # fmt: skip
        with readable(out, "Give the folder of a bundle."):
            fitted.add_to(out, next(iter(fits.values())))
    rows = [({"tensor_parallel": degree} if degree else {}) | asdict(fit) for degree, fit in fits.items()]
    print_rows(rows, as_json=as_json, title="Host time outside the GPU's work")


@command.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@json_option
@verb("profile quality")
def quality(bundle: Path, as_json: bool) -> None:
    from gnomon.measure.profiling.bundle import read_rows
    from gnomon.measure.profiling.quality import assess

    with readable(bundle, "Give the folder of a bundle."):
        rows = [asdict(one) for one in assess(read_rows(bundle))]
    if not rows:
        raise ConfigError("holds no measurements.", where=str(bundle), fix="Give the folder of a bundle.")
    print_rows(rows, as_json=as_json, title=str(bundle))


command.add_command(import_command)
command.add_command(own_command, "own")


def _profiler() -> tuple[Any, Any]:
    try:
        from gnomon.measure.profiling import __main__ as main
        from gnomon.measure.profiling.session import Limits
    except ImportError:
        raise MissingExtraError("Profiling", "gpu") from None
    return main, Limits
