"""Thousands of random scenarios over all features, and what must hold of each: `python -m benchmarks.combinations`.

Every case is a number: the same seed and number give the same scenario, as long as the features stay the same. A
failing one is made smaller and printed as YAML.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from combinations.hunt import Hunt, log, logged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="Number of the first case.")
    parser.add_argument("--log", type=Path, default=Path("runs/combinations.jsonl"),
                        help="A line for every case; those that are there already are not run again.")  # fmt: skip
    parser.add_argument("--no-shrink", action="store_true", help="Print failing scenarios as they were drawn.")
    options = parser.parse_args()
    options.log.parent.mkdir(parents=True, exist_ok=True)
    known = logged(options.log)
    hunt = Hunt(options.log.parent / "traces", shrinks=not options.no_shrink)
    began, numbers = time.monotonic(), range(options.first, options.first + options.count)
    try:
        for number in numbers:
            if (options.seed, number) in known:
                continue
            row = known[options.seed, number] = hunt.case(options.seed, number)
            log(options.log, row)
            if row.status == "violation":
                print(f"--- {row.seed}:{number} {row.kind}: {row.what}\n{row.scenario}", flush=True)
    finally:
        hunt.close()
    rows = [known[options.seed, number] for number in numbers]
    found, checks = Counter(row.status for row in rows), Counter(one for row in rows for one in row.checks)
    share = found["refused"] / max(len(rows), 1)
    print(f"{len(rows):,} combinations in {time.monotonic() - began:.0f} s: {found['ok']:,} hold, ", end="")
    print(f"{found['refused']:,} refused ({share:.1%}), {found['violation']:,} violations")
    print("beside each run by itself and explained: " + ", ".join(f"{n:,} {name}" for name, n in checks.most_common()))
    for kind, count in Counter(row.kind for row in rows if row.status == "violation").most_common():
        print(f"  {count:5} {kind}")
    for what, count in Counter(row.what.split(".")[0][:100] for row in rows if row.status == "refused").most_common(15):
        print(f"  refused {count:4}: {what}")
    sys.exit(1 if found["violation"] else 0)


if __name__ == "__main__":
    main()
