"""How long `gnomon verify silicon` takes: a sample of 200 servers, and with --whole the whole file with its figures.

python -m benchmarks silicon
python -m benchmarks.silicon --whole     # ten minutes on two idle cores; prints recorded.yaml
"""

from __future__ import annotations

import argparse
import resource
import time
from importlib.util import find_spec

from gnomon.verify.silicon.choose import chosen
from gnomon.verify.silicon.predict import predict, score
from gnomon.verify.silicon.scores import errors_of
from gnomon.verify.silicon.verdict import FIGURES, RECORDED

SAMPLE = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", action="store_true", help="All servers instead of a sample.")
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
        for name, belongs in RECORDED.items():
            if errors := errors_of(filter(belongs, scored)):
                print(f"{name}: {{{', '.join(f'{figure}: {getattr(errors, figure):.3f}' for figure in FIGURES)}}}")


def _cpu_s() -> float:
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


if __name__ == "__main__":
    main()
