"""Proofs: the simulator beside recorded and published results.

A check is a function below that ends in a `Verification`, its figures and text in `gnomon.report.verify`, and a
command with its options in `gnomon.cli.verify`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gnomon.api.result import Progress, Result, TableResult
from gnomon.core.errors import ConfigError, DataError, UnknownNameError
from gnomon.core.files import write_text
from gnomon.core.registry import Registry

if TYPE_CHECKING:
    import polars as pl

    from gnomon.report.blocks import Block
    from gnomon.report.verify.told import Told

__all__ = ["CHECKS", "Verification", "fetch_data", "list_data", "silicon_scenario", "verify"]

Check = Callable[..., "Verification"]
CHECKS: Registry[Check] = Registry("check")
Item = TypeVar("Item")


def verify(check: str, *given: Any, **options: Any) -> Verification:
    """Run one check; what it takes beyond its name is written under each.

    gnomon.verify("h200").passed
    gnomon.verify("vidur", "reference/vidur/runs/sarathi").text()
    """
    return CHECKS[check](*given, **options)


@dataclass(frozen=True, eq=False)
class Verification(Result):
    """What a check found."""

    check: str
    records: Sequence[Any] = field(repr=False)
    """What was compared, as the check's own records."""
    told: Told = field(repr=False)
    pictures: Mapping[str, Callable[[Path], Path]] = field(default_factory=dict, repr=False)
    """Files that can be drawn, by name."""

    @property
    def passed(self) -> bool:
        """Whether everything that is judged is within its tolerance."""
        return not self.told.failures

    @property
    def summary(self) -> dict[str, Any]:
        """The verdict, and what failed."""
        return {"check": self.check, "passed": self.passed, "failures": self.told.failures}

    def to_dict(self) -> dict[str, Any]:
        """The verdict and every figure."""
        return self.summary | self.told.data

    def text(self) -> list[Block]:
        """Every figure beside what it is held against."""
        return self.told.blocks

    def _frames(self) -> Mapping[str, Callable[[], pl.DataFrame]]:
        import polars as pl

        return {"rows": lambda: pl.DataFrame(self.told.rows, infer_schema_length=None, strict=False)}

    def save(self, folder: str | Path) -> Path:
        """Write verification.json and the pictures that there are."""
        folder = Path(folder)
        write_text(folder / "verification.json", json.dumps(self.to_dict(), indent=1, default=str))
        for name, write in self.pictures.items():
            write(folder / name)
        return folder


def _each(items: Sequence[Item], on_progress: Progress | None) -> Iterable[Item]:
    """The items one by one, reporting."""
    for number, item in enumerate(items):
        if on_progress:
            on_progress(number, len(items))
        yield item
    if on_progress:
        on_progress(len(items), len(items))


@CHECKS.register("timing")
def timing(
    *, data: str | Path | None = None, forests: bool = False, each_table: bool = False,
    on_progress: Progress | None = None,
) -> Verification:  # fmt: skip
    """Operator times: the held-out error of the estimators on the measured tables below `data`.

    `forests` trains random forests too, on a sample of the tables. `each_table` lists tables rather than operators.
    """
    from gnomon.report.verify.timing import told
    from gnomon.verify.timing import sample, score, vidur_tables

    tables = vidur_tables(_reference(data))
    names = ["grid", "linear", "polynomial"]
    if forests:
        tables, names = sample(tables), ["grid", "forest"]
    scores = [score(table, name) for table in _each(tables, on_progress) for name in names]
    return Verification("timing", scores, told(scores, each_table=each_table))


@CHECKS.register("roofline")
def roofline(*, data: str | Path | None = None, on_progress: Progress | None = None) -> Verification:
    """The roofline alone against every measured table below `data`; it has no gate."""
    from gnomon.report.verify.timing import told_of_roofline
    from gnomon.verify.roofline import roofline_errors

    rows = [row for folder in _each([_reference(data)], on_progress) for row in roofline_errors(folder)]
    return Verification("roofline", rows, told_of_roofline(rows))


@CHECKS.register("kernels")
def kernels(*devices: str, one_in: int = 16, on_progress: Progress | None = None) -> Verification:
    """Every table of the silicon source, its points held out, and the roofline beside it; one in so many shapes."""
    from gnomon.report.verify.kernels import told
    from gnomon.verify.kernels import kernel_scores

    names = _each(devices or ("h200", "b200"), on_progress)
    scores = [one for name in names for one in kernel_scores(name, one_in)]
    return Verification("kernels", scores, told(scores))


def _reference(data: str | Path | None) -> Path:
    if data is None:
        fix = "Name its folder with --data or $GNOMON_REFERENCE."
        raise ConfigError("no reference data given.", where="--data", fix=fix)
    return Path(data)


@CHECKS.register("vidur")
def vidur(*runs: str | Path, on_progress: Progress | None = None) -> Verification:
    """Scheduling semantics: recorded Vidur runs, batch by batch."""
    from gnomon.report.verify.vidur import told
    from gnomon.verify.vidur import compare

    found = [compare(folder) for folder in _each(runs, on_progress)]
    return Verification("vidur", found, told(found))


@CHECKS.register("vllm")
def vllm(
    *runs: str | Path, profiles: str | Path, device: str | None = None, tolerances: Mapping[str, float] | None = None,
    on_progress: Progress | None = None,
) -> Verification:  # fmt: skip
    """Latencies: recorded vLLM servers, simulated from the kernels in `profiles`.

    `tolerances` of ttft, tpot, e2e and throughput are relative: 3 % for the first and 1 % for the others if not given.
    """
    from gnomon.report.verify.vllm import told, write_page
    from gnomon.verify.vllm import TOLERANCES, compare

    found = [compare(folder, profiles, device) for folder in _each(runs, on_progress)]
    allowed = {metric: (tolerances or {}).get(metric, usual) for metric, usual in TOLERANCES.items()}
    return Verification("vllm", found, told(found, allowed), {"over_time.html": partial(write_page, found)})


@CHECKS.register("engine")
def engine(
    *runs: str | Path, scenario: str | Path | None = None, calibration: str | None = None,
    tolerances: Mapping[str, float] | None = None, on_progress: Progress | None = None,
) -> Verification:  # fmt: skip
    """Latencies: recorded runs of any engine, simulated with the settings of `scenario` and a `calibration`."""
    from gnomon.report.verify.engine import told
    from gnomon.verify.engine import TOLERANCES, compare

    found = [one for logs in _each([runs], on_progress) for one in compare(logs, scenario, calibration)]
    allowed = {metric: (tolerances or {}).get(metric, usual) for metric, usual in TOLERANCES.items()}
    return Verification("engine", found, told(found, allowed))


@CHECKS.register("pipeline")
def pipeline(*files: str | Path, most_rows: int | None = None, on_progress: Progress | None = None) -> Verification:
    """Training pipelines: recorded runs and sweeps, published bubble tables, PyTorch schedules.

    Of a file with more than `most_rows` values only those that are off are listed.
    """
    from gnomon.report.verify.pipeline import told
    from gnomon.verify.pipeline import is_sweep_config, verify

    # A sweep's configuration is read together with its CSV.
    chosen = [str(path) for path in files if not (str(path).endswith(".json") and is_sweep_config(path))]
    if not chosen:
        raise DataError("there are only configurations here, and no results.", fix="Name the CSV of the sweep.")
    found = {path: verify(path) for path in _each(chosen, on_progress)}
    return Verification("pipeline", [one for checks in found.values() for one in checks], told(found, most_rows))


@CHECKS.register("posttrain")
def posttrain(
    *, only: str = "ABCDES", calibrate_on: int = 64, seed: int = 0, on_progress: Progress | None = None
) -> Verification:
    """RL post-training: published results A-E, and the simulator's own speed (S)."""
    from gnomon.report.verify.posttrain import NOTES, told
    from gnomon.verify.posttrain import verify

    letters = only.upper()
    if not letters or set(letters) - set(NOTES):
        raise ConfigError(f"unknown source in {only!r}.", where="--only", fix=f"Known: {', '.join(NOTES)}.")
    checks = list(verify(letters, calibrated_on=calibrate_on, seed=seed, on_progress=on_progress))
    return Verification("posttrain", checks, told(checks, letters))


@CHECKS.register("h200")
def h200(
    *, runs: str | Path | None = None, profile: str | Path | None = None, only: str = "", full_clock: bool = False,
    on_progress: Progress | None = None,
) -> Verification:  # fmt: skip
    """The reference engine on an H200: recorded `runs` (the shipped ones unless given) beside their simulation."""
    from gnomon.report.verify.h200 import told, write_cdfs
    from gnomon.verify import h200 as check

    folder, bundle = Path(runs or check.RUNS), Path(profile or check.PROFILE)
    recorded = check.runs_in(folder)
    wanted = [one for one in recorded if only in one[0].name]
    if not wanted:
        known = ", ".join(one[0].name for one in recorded)
        raise ConfigError(f"no run is called like {only!r}.", where="--only", fix=f"Known: {known}.")
    host = check.calibrate(check.Recording(folder / check.CALIBRATION), bundle, full_clock=full_clock)
    found = [check.compare(one, host, bundle, full_clock=full_clock) for one in _each(wanted, on_progress)]
    return Verification("h200", found, told(found, host), {"cdf.svg": partial(write_cdfs, found)})


@CHECKS.register("disagg")
def disagg(
    file: str | Path,
    *,
    only: str = "",
    concurrency: Sequence[int] = (),
    as_labelled: bool = False,
    metrics_age_s: float | None = None,
    on_progress: Progress | None = None,
) -> Verification:
    """Aggregated and disaggregated layouts that llm-d measured; `only` those whose name contains it. The latter as they
    ran, or `as_labelled`; `metrics_age_s` is how old the picker's metrics become, if not 50 ms."""
    from gnomon.report.verify.disagg import told
    from gnomon.verify.disagg import fit_site, predict, read_runs

    runs = read_runs(file)
    wanted = [one for one in runs if only in one.layout and (not concurrency or one.concurrency in concurrency)]
    if not wanted:
        raise ConfigError(
            "no layout is left.", where="--only", fix=f"Known: {', '.join(sorted({one.layout for one in runs}))}."
        )
    added_s = fit_site(runs)
    found = [
        predict(one, added_s, as_labelled=as_labelled, metrics_age_s=metrics_age_s)
        for one in _each(wanted, on_progress)
    ]
    return Verification("disagg", found, told(found, added_s))


@CHECKS.register("prefixes")
def prefixes(*, on_progress: Progress | None = None) -> Verification:
    """Routing by prefixes and KV in host memory, as llm-d published it."""
    from gnomon.report.verify.prefixes import told
    from gnomon.verify.prefixes import offloading_rows, routing_rows

    found = [row for part in _each([routing_rows, offloading_rows], on_progress) for row in part()]
    return Verification("prefixes", found, told(found))


@CHECKS.register("fleet")
def fleet(*, only: Sequence[str] = (), on_progress: Progress | None = None) -> Verification:
    """Published effects of fleets; `only` those named (cold-start, elastic-experts, dlpm)."""
    from gnomon.report.verify.fleet import told
    from gnomon.verify.fleet import EFFECTS

    for name in only:
        if name not in EFFECTS:
            raise UnknownNameError("effect", name, EFFECTS)
    wanted = [EFFECTS[name] for name in EFFECTS if not only or name in only]
    found = [one for effect in _each(wanted, on_progress) for one in effect()]
    return Verification("fleet", found, told(found))


@CHECKS.register("training")
def training(*, data: str | Path | None = None, on_progress: Progress | None = None) -> Verification:
    """Published training steps in the folder `training` of `data` (or in `data` itself) beside their prediction."""
    from gnomon.report.verify.training import told
    from gnomon.verify.training import score
    from gnomon.verify.training_rows import read_rows

    folder = _reference(data)
    rows = read_rows(folder / "training" if (folder / "training").is_dir() else folder)
    scored = [score(row) for row in _each(rows, on_progress)]
    return Verification("training", scored, told(scored))


@CHECKS.register("silicon")
def silicon(
    *, rows: str | None = None, sample: int | None = None, seed: int = 0, jobs: int | None = None,
    ray: str | None = None, on_progress: Progress | None = None,
) -> Verification:  # fmt: skip
    """Measured servers of aiconfigurator-core (extra [silicon]) beside their simulation.

    `rows` is a condition over their fields, `sample` a number to draw with `seed`. Figures are judged only where all
    servers were simulated.
    """
    from gnomon.report.verify.silicon import told, write_page
    from gnomon.verify.silicon.choose import chosen
    from gnomon.verify.silicon.predict import score
    from gnomon.verify.silicon.verdict import Verdict

    scored = score(chosen(rows, sample, seed), jobs=jobs, ray=ray, on_progress=on_progress)
    verdict = Verdict(scored, rows is None and sample is None)
    return Verification("silicon", scored, told(verdict), {"leaderboard.html": partial(write_page, verdict)})


@CHECKS.register("servers")
def servers(
    file: str | Path, *, only: str = "", jobs: int | None = None, on_progress: Progress | None = None
) -> Verification:
    """Measured vLLM servers of the ML.ENERGY leaderboard beside their simulation; `only` those whose name has it."""
    from gnomon.report.verify.servers import told
    from gnomon.verify.servers import read_servers, score

    known = read_servers(file)
    wanted = [one for one in known if only in one.name]
    if not wanted:
        raise ConfigError(f"no server is called like {only!r}.", where="--only", fix=f"One is {known[0].name!r}.")
    scored = score(wanted, jobs=jobs, on_progress=on_progress)
    return Verification("servers", scored, told(scored, is_whole=not only))


@CHECKS.register("stages")
def stages(file: str | Path, *, on_progress: Progress | None = None) -> Verification:
    """Load stages of vLLM servers, as inference-perf sent them, beside their simulation."""
    from gnomon.report.verify.stages import told
    from gnomon.verify.stages import predict, read_stages

    found = [predict(one) for one in _each(read_stages(file), on_progress)]
    return Verification("stages", found, told(found))


def silicon_scenario(server: str) -> dict[str, Any]:
    """One measured server as a scenario."""
    from gnomon.verify.silicon.choose import by_id
    from gnomon.verify.silicon.scenarios import settings_of

    return settings_of(by_id(server))


def list_data(folder: str | Path) -> TableResult:
    """The data sets that checks are held against, and which of them lie in `folder`."""
    from gnomon.report.blocks import Table
    from gnomon.verify.datasets import datasets, missing

    known = datasets()
    rows = [
        {
            "data set": name,
            "what": one.title,
            "for": one.check,
            "licence": one.licence,
            "here": _presence(len(one.files), len(missing(one, Path(folder)))),
            "where": one.source,
            "how": f"gnomon verify fetch {name}" if one.files else one.how,
        }
        for name, one in known.items()
    ]
    return TableResult("data", known, rows, {"folder": str(folder), "sets": rows}, [Table(rows, "Data sets")])


def _presence(count: int, missing: int) -> str:
    return f"{count - missing} of {count} files" if count else "–"


def fetch_data(
    name: str, folder: str | Path, *, base: str | None = None, on_progress: Progress | None = None
) -> list[Path]:
    """Fetch a data set into `folder`, checked by its hashes; returns the files that were written."""
    from gnomon.verify.datasets import fetch

    return fetch(name, Path(folder), base=base, on_progress=on_progress)
