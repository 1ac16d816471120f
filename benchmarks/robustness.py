"""Thousands of nasty command lines, and runs killed at random: `python -m benchmarks.robustness --help`.

No traceback, no hang beyond 20 processor seconds, no exit code but 0, 1 and 2, nothing half-written. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from nasty_kit import Case, all_cases, corpus, run_case, warm_up

RUN = ("simulate", "--timing.source", "roofline", "--out", "run", "--csv", "--workload.num-requests")
WHOLE = {"scenario.yaml", "summary.json", "trace.json.gz", "report.html",
         *(f"{table}.{kind}" for table in ("requests", "iterations") for kind in ("csv", "parquet"))}  # fmt: skip


def kill_at_random(count: int, seed: int) -> None:
    """Runs that overwrite each other's folder, killed at a random moment: what is left must be of one run."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-kills-"))
    warm_up()
    began = time.monotonic()
    assert run_case(Case((*RUN, "50")), folder).code == 0
    length, chooser, found = time.monotonic() - began, random.Random(seed), Counter[str]()
    for number in range(count):
        run_case(Case((*RUN, str(51 + number))), folder, kill_after_s=chooser.uniform(0.2, 1.1) * length)
        found[_state(folder / "run")] += 1
    print(f"{count} runs killed at random: {dict(found)}")
    sys.exit(1 if found["half-written"] else 0)


def _state(run: Path) -> str:
    if not run.exists():
        return "nothing"
    names = {file.name for file in run.iterdir()}
    rows = len((run / "requests.csv").read_text().splitlines()) - 1 if names == WHOLE else -1
    asked = f"num_requests: {rows}\n" in (run / "scenario.yaml").read_text() if names == WHOLE else False
    return "whole" if asked else "half-written"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-option", type=int, help="Values of each option, at random; all if not given.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Command lines that begin with this.")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th case from the I-th on.")
    parser.add_argument("--kills", type=int, help="Kill so many runs at random instead.")
    parser.add_argument(
        "--log", type=Path, help="A line for every case; those that are there already are not run again."
    )
    options = parser.parse_args()
    if options.kills:
        kill_at_random(options.kills, options.seed)
    cases = [one for one in all_cases(options.seed, options.per_option) if str(one).startswith(options.only)]
    number, count = (int(word) for word in options.part.split("/"))
    cases = cases[number::count]
    random.Random(options.seed).shuffle(cases)  # So that a part of them is a fair sample.
    folder = Path(tempfile.mkdtemp(prefix="gnomon-robustness-")) / "cases"
    corpus(folder)
    warm_up()
    known = _logged(options.log) if options.log else {}
    rows = {name: known[name] for one in cases if (name := _name(one)) in known}
    for case in cases:
        if _name(case) in rows:
            continue
        ended = run_case(case, folder)
        corpus(folder)
        said = " | ".join(ended.text.strip().splitlines()[-3:])[-300:]
        rows[_name(case)] = (str(ended.code), f"{ended.seconds:.2f}", _name(case), ended.problem or "", said)
        if options.log:
            with options.log.open("a", encoding="utf-8", errors="replace") as log:
                log.write("\t".join(" ".join(cell.split()) for cell in rows[_name(case)]) + "\n")
        if ended.problem:
            print(f"{ended.problem}\n    gnomon {case}", flush=True)
    problems = sum(bool(row[3]) for row in rows.values())
    codes, seconds = Counter(int(row[0]) for row in rows.values()), [float(row[1]) for row in rows.values()]
    print(f"{len(rows):,} command lines, {problems} problems; exit codes {dict(sorted(codes.items()))}; "
          f"{sum(seconds) / 60:.1f} min of the processor, {max(seconds, default=0.0):.1f} s at most")  # fmt: skip
    sys.exit(1 if problems else 0)


def _name(case: Case) -> str:
    text = f"{case} {hashlib.sha256(repr(case.words).encode()).hexdigest()[:8]}"
    return " ".join(text.encode("utf-8", "replace").decode().split())


def _logged(path: Path) -> dict[str, tuple[str, ...]]:
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    rows = [tuple(line.split("\t")) for line in text.split("\n") if line.count("\t") == 4]
    return {row[2]: row for row in rows}


if __name__ == "__main__":
    main()
