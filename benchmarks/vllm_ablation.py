"""What each mechanism is worth on recorded vLLM servers: errors as mechanisms are added one by one.

python benchmarks/vllm_ablation.py reference/vllm/runs/* --profiles reference/vllm/profiles
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import yaml

from gnomon import catalog
from gnomon.catalog.nodes import default_node
from gnomon.cli.printing import print_rows
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.verify.vllm import device_of, errors_of, read_recording, scenario_of

STEPS = ("kernels alone", "+ collectives", "+ prefix cache", "+ padding to CUDA graphs", "+ skewed KV lengths")


def main() -> None:
    """Print one table per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dirs", nargs="+")
    parser.add_argument("--profiles", required=True, type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        unskewed = without_skew(given.profiles, Path(scratch) / "profiles")
        for folder in given.run_dirs:
            recording = read_recording(folder)
            model = catalog.model(recording.model)
            device = device_of(recording, model, given.profiles, None)
            whole = scenario_of(recording, model, given.profiles, device)
            rows = []
            for number, name in enumerate(STEPS):
                simulated = run(reduced(whole, number, unskewed, Path(scratch)), requests=recording.requests)
                errors = errors_of(recording, simulated)
                means = {e.metric: f"{e.relative:+.1%}" for e in errors if e.statistic == "mean"}
                rows.append({"mechanisms": name, **means})
            print_rows(rows, title=f"{recording.name}: error of the mean")


def reduced(whole: Scenario, steps: int, unskewed: Path, scratch: Path) -> Scenario:
    """The scenario with only the first `steps` mechanisms beyond kernels."""
    batching = whole.batching.model_copy(update={} if steps >= 2 else {"prefix_cache": False})
    timing = whole.timing.model_copy(
        update=({} if steps >= 3 else {"graph_sizes": None}) | ({} if steps >= 4 else {"path": str(unskewed)})
    )
    node = None if steps >= 1 else free_links(whole.device, scratch)
    return whole.model_copy(update={"batching": batching, "timing": timing, "node": node})


def free_links(device: str, scratch: Path) -> str:
    """The device's usual node with links that take no time."""
    node = default_node(catalog.device(device)).model_dump()
    node["link"] = {"bandwidth_bytes_s": 1e18, "latency_s": 0.0}
    path = scratch / f"{device}.yaml"
    path.write_text(yaml.safe_dump(node))
    return str(path)


def without_skew(profiles: Path, target: Path) -> Path:
    """The same measurements but for skew.csv."""
    for path in profiles.resolve().glob("**/*.csv"):
        if path.name != "skew.csv":
            link = target / path.relative_to(profiles.resolve())
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    return target


if __name__ == "__main__":
    main()
