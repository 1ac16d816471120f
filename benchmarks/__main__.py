"""All benchmarks: `python -m benchmarks [NAME...]`. Ratios are measured in one run, so that they hold anywhere."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

NAMES = (
    *(
        "start",
        "tables",
        "serving",
        "explain",
        "pools",
        "fleet",
        "large",
        "routing",
        "report",
        "silence",
        "pipeline",
        "train_plan",
        "search",
        "calibration",
        "posttrain",
        "silicon",
    ),
    "ui",
)


def main(chosen: list[str]) -> None:
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        sys.exit(f"unknown benchmark {unknown[0]!r}; known: {', '.join(NAMES)}")
    for name in chosen or NAMES:
        if find_spec(f"benchmarks.{name}"):
            print(f"\n== {name} ==", flush=True)
            import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
