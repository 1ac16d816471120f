"""How long measured kernels take to load: a model's tables in a new process, and those of a second model after it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

MODELS = (("deepseek-r1", "b200", "trtllm"), ("llama-3.1-70b", "b200", "vllm"), ("glm-5", "h200", "vllm"))
READ = """
import json, sys, time
from gnomon.catalog import Parallelism, default_node, device, model
from gnomon.timing import Context, TimingConfig
from gnomon.timing.sources import make_source

name, gpu, engine = sys.argv[1:]
seconds = []
for _ in range(2):
    start, chosen = time.process_time(), device(gpu)
    config = TimingConfig(source="silicon", engine=engine)
    context = Context(model(name), chosen, default_node(chosen), Parallelism(tensor_parallel=8), config)
    source = make_source(context)
    for operator in context.operators():
        source.measured(operator)
    seconds.append(time.process_time() - start)
print(json.dumps(seconds))
"""


def main() -> None:
    if find_spec("aiconfigurator_core") is None:
        print("aiconfigurator-core is not installed (extra [silicon])")
        return
    for name, gpu, engine in MODELS:
        done = subprocess.run(
            [sys.executable, "-c", READ, name, gpu, engine], check=True, capture_output=True, text=True
        )
        first, again = json.loads(done.stdout)
        print(f"{name} on {gpu} in {engine}: {first:.2f} s of CPU time (aim: under 1 s), again {1e3 * again:.0f} ms")


if __name__ == "__main__":
    main()
