"""How long `gnomon verify silicon` takes: a sample of 200 servers, and with --whole the whole file with its figures.

python -m benchmarks silicon
python -m benchmarks.silicon --whole     # minutes on two idle cores; recorded.yaml, docs/accuracy.md's tables, coverage
python -m benchmarks.silicon --whole --picture docs/images/accuracy.png
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

import numpy as np

from gnomon import catalog
from gnomon.timing.sources.silicon import server_errors
from gnomon.verify.silicon.choose import chosen
from gnomon.verify.silicon.launch import data
from gnomon.verify.silicon.predict import Scored, predict, score
from gnomon.verify.silicon.say import ENGINES, error_row
from gnomon.verify.silicon.scenarios import is_in_held_out_sweep, model_of
from gnomon.verify.silicon.verdict import FIGURES, GROUPS, SETS, Verdict, errors_by, errors_of, ranking

SAMPLE = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", action="store_true", help="All servers instead of a sample.")
    parser.add_argument(
        "--picture", metavar="FILE", help="Draw InferenceX's aggregated servers, measured and predicted."
    )
    given = parser.parse_known_args()[0]
    if find_spec("aiconfigurator_core") is None:
        print("silicon: needs the extra [silicon]")
        return
    servers = chosen(sample=None if given.whole else SAMPLE)
    predict(next(s for s in servers if s.problem is None))  # Compiles.
    wall, cpu = time.perf_counter(), _cpu_s()
    scored = score(servers)
    wall, cpu = time.perf_counter() - wall, _cpu_s() - cpu
    print(f"silicon: {len(servers):,} servers in {wall:.0f} s, {cpu:.0f} s of CPU time in this process and its workers")
    if given.whole:
        _print_record(scored)
        _print_tables(scored)
        _print_coverage(scored)
    if given.picture:
        _draw([s for s in scored if s.server.mode == "agg" and s.server.family == "inferencex"], given.picture)


def _print_record(scored: Sequence[Scored]) -> None:
    """The lines of recorded.yaml."""
    for name in data("recorded"):
        if errors := errors_of(filter(SETS[name], scored)):
            figures = ", ".join(f"{figure}: {getattr(errors, figure):.3f}" for figure in FIGURES)
            print(f"{name}: {{covered: {errors.covered}, {figures}}}")


def _print_tables(scored: Sequence[Scored]) -> None:
    """The tables of docs/accuracy.md, in its order."""
    verdict = Verdict(scored, is_whole=True)
    aggregated = [s for s in scored if s.server.mode == "agg"]
    known = [s for s in aggregated if s.server.family == "inferencex"]
    held_out = [s for s in known if s.server.is_held_out]
    apart = [s for s in scored if s.server.mode == "disagg" and s.server.num_prefill]
    doubtful = verdict.doubtful
    print("\n| servers | predicted | TPOT | median | bias | TTFT | median | bias |\n|---|---|---|---|---|---|---|---|")
    _print_row("all aggregated", aggregated)
    _print_row("InferenceX", known)
    _print_row("InferenceX, held out (odd)", held_out)
    _print_row("InferenceX, fitted on (even)", [s for s in known if not s.server.is_held_out])
    _print_row("InferenceX, held out by sweeps", [s for s in known if is_in_held_out_sweep(s.server)])
    _print_row("... and odd", [s for s in held_out if is_in_held_out_sweep(s.server)])
    _print_row("NVIDIA's sweeps", [s for s in aggregated if s.server.family == "sweeps"])
    _print_row("NVIDIA's sweeps, odd", [s for s in aggregated if s.server.family == "sweeps" and s.server.is_held_out])
    _print_row("disaggregated", apart)
    _print_row("disaggregated, odd", [s for s in apart if s.server.is_held_out])
    _print_row("... without those in doubt", [s for s in apart if s.server.is_held_out and s.server.id not in doubtful])
    _print_row("... without those that do not say their load", [s for s in apart if s.server.says_load])
    for group in (held_out, apart):
        for name in ("engine", "system", "model"):
            print(f"\n| {name} |")
            for value in errors_by(group, name):
                _print_row(value, (s for s in group if GROUPS[name](s) == value))
    print(ranking(scored), {reason: count for reason, count in verdict.missing.items() if "workers" not in reason})
    print(f"{len({s.server.key for s in scored if s.server.problem is None}):,} configurations; worse: {verdict.worse}")


KERNELS_ERROR, STUDENT, RESPONSES = 0.037, 1.89, (0.95, 0.91)
"""What kernels are off by themselves; Student's t of eight runs; how far TPOT and TTFT follow iterations (medians)."""


def _print_coverage(scored: Sequence[Scored]) -> None:
    """How many servers of the odd half lie inside the stated 90 % intervals, how wide these are, and the errors with
    which 90 % of the even half would."""
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for one in scored:
        if one.prediction.problem is None and one.server.mode == "agg" and one.server.family == "inferencex":
            groups[one.server.engine, catalog.model(model_of(one.server)).attention_family].append(one)
    print("\n| engine, attention | TPOT inside | reach | TTFT inside | reach | errors by the even half |")
    print("|---|---|---|---|---|---|")
    inside = []
    for (engine, attention), members in sorted(groups.items()):
        server, first = server_errors(engine, attention)
        spread = math.hypot(KERNELS_ERROR, server)
        reach = (STUDENT * RESPONSES[0] * spread, STUDENT * math.hypot(RESPONSES[1] * spread, first))
        odd, even = (
            np.array([_off(one) for one in members if one.server.is_held_out is half]) for half in (True, False)
        )
        inside.append(odd <= reach)
        tpot, ttft = np.quantile(even, 0.9, axis=0) / STUDENT
        needed = math.sqrt(max(0.0, (tpot / RESPONSES[0]) ** 2 - KERNELS_ERROR**2))
        beside = math.sqrt(max(0.0, ttft**2 - (RESPONSES[1] * math.hypot(KERNELS_ERROR, needed)) ** 2))
        print(
            f"| {engine}, {attention} ({len(odd)}) | {inside[-1][:, 0].mean():.0%} | ±{math.expm1(reach[0]):.0%} "
            f"| {inside[-1][:, 1].mean():.0%} | x{math.exp(reach[1]):.2f} | {needed:.2f}, {beside:.2f} |"
        )
    print("all: TPOT {:.0%}, TTFT {:.0%}".format(*np.concatenate(inside).mean(axis=0)))


def _off(one: Scored) -> tuple[float, float]:
    return abs(math.log1p(one.tpot_error)), abs(math.log1p(one.ttft_error))


def _print_row(name: str, group: Iterable[Scored]) -> None:
    if errors := errors_of(group):
        print(f"| {name} | {' | '.join(error_row(errors).values())} |")


def _draw(scored: Sequence[Scored], path: str) -> None:
    """README's picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.4), layout="constrained")
    for name, plot in zip(("tpot_s", "ttft_s"), figure.subplots(1, 2), strict=True):
        known = [s for s in scored if s.prediction.problem is None]
        for engine, colour in ENGINES.items():
            group = [s for s in known if s.server.engine == engine]
            measured = [1e3 * getattr(s.server, name) for s in group]
            predicted = [1e3 * getattr(s.prediction, name) for s in group]
            plot.scatter(measured, predicted, s=8, alpha=0.5, color=colour, linewidths=0, label=engine)
        ends = [f(1e3 * getattr(s.server, name) for s in known) for f in (min, max)]
        plot.plot(ends, ends, color="black", linewidth=0.8)
        plot.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
        plot.set_title(f"{name[:4].upper()}: InferenceX's aggregated servers")
        plot.grid(alpha=0.3)
    figure.axes[0].legend(loc="upper left")
    figure.savefig(path, dpi=100)


def _cpu_s() -> float:
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


if __name__ == "__main__":
    main()
