"""Every command x every option x nasty values, and what must hold of each: exit code 0, 1 or 2, no traceback, no hang.

Cases run in forks of a process that has imported and compiled everything, so that thousands of them take minutes.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

EXAMPLES = Path(__file__).parent.parent / "examples"
LIMIT_S = 20.0
"""Processor seconds of a case; by the clock it may take several times as long, on a machine that is busy."""
MEMORY = 6 * 2**30

# Cheap runs to which an option is added. Paths are relative to the folder that `corpus` fills.
WORKLOAD = ("--workload.num-requests", "20")
EFFORT = ("--effort.min-requests", "20", "--effort.max-requests", "40", "--effort.num-sequences", "2")
TINY_DOMAIN = ("--domain.num-replicas", "[2, 2]", "--demos.steps-per-driver", "16", "--demos.num-environments", "2")
TINY_TRAINING = (
    "--start", "nothing", "--train.updates", "1", "--train.num-environments", "2", "--train.trace-group", "2",
    "--train.steps", "8", "--train.validation-environments", "2", "--train.validation-steps", "8",
)  # fmt: skip
TINY_COMPARISON = (
    "--compare.scenarios", "[mixed_bursty]", "--compare.routers", "[random]", "--compare.num-seeds", "2",
    "--compare.num-requests", "20",
)  # fmt: skip
TINY_TUNING = (
    "--generations", "1", "--population", "4", "--num-seeds", "1", "--num-requests", "20", "--held-out-seeds", "2",
)  # fmt: skip
ONE_CELL = ("--models", "[llama-3-8b]", "--workloads", "[chat-1m]", "--policies", "[vllm_v1]")
BASES: dict[str, tuple[str, ...]] = {
    "simulate": WORKLOAD,
    "capacity": WORKLOAD,
    "explain": ("small.yaml", "--no-advice"),
    "compare": (*WORKLOAD, "--vary", "batching.policy=vllm_v1,sarathi"),
    "workload show": WORKLOAD,
    "workload export": (*WORKLOAD, "--out", "out.csv"),
    "workload fit": ("long.csv", "--out", "out.yaml"),
    "search": ("search.yaml", *EFFORT, "--jobs", "1"),
    "bench": (*ONE_CELL, *EFFORT, "--jobs", "1"),
    "route demos": ("--config", "quick", "--out", "demos", *TINY_DOMAIN, "--jobs", "1"),
    "route clone": ("--config", "quick", "--out", "nothing"),
    "route train": ("--config", "quick", "--out", "trained", "--resume", "never", *TINY_DOMAIN, *TINY_TRAINING),
    "route all": ("--config", "quick", "--out", "all", *TINY_DOMAIN, *TINY_TRAINING, *TINY_COMPARISON, "--jobs", "1"),
    "route tune": ("mixed_bursty", *TINY_TUNING, "--jobs", "1"),
    "verify fetch": ("nothing",),
    "route compare": (
        "mixed_bursty",
        "--num-seeds",
        "2",
        "--num-requests",
        "20",
        "--routers",
        "[random]",
        "--jobs",
        "1",
    ),
    "pipeline run": ("--no-show",),
    "pipeline sweep": ("-c", "sweep.json", "--step", "0.5", "--no-show", "--output", "out.csv", "--jobs", "1"),
    "pipeline plot": ("sweep.csv", "--no-show", "--jobs", "1"),
    "pipeline all": ("-c", "sweep.json", "--step", "0.5", "--no-show", "--jobs", "1"),
    "pipeline convert": ("1f1b",),
    "posttrain run": ("posttrain.yaml",),
    "posttrain compare": ("posttrain.yaml", "--no-oracle", "--policies", "disaggregated"),
    "posttrain plan": ("posttrain.yaml", "--max-lag", "0"),
    "posttrain sweep": ("posttrain.yaml", "--nodes", "1", "--policies", "disaggregated"),
    "posttrain calibrate": ("posttrain.yaml", "--rollout-s", "10", "--inference-s", "2", "--actor-s", "5"),
    "posttrain decide": ("text.txt", "--policy", "disaggregated"),
    "profile import": (".", "--model", "llama-3-8b", "--device", "h100", "--out", "bundle"),
    "profile overhead": (".",),
    "profile own": ("text.txt", "--device", "h200", "--out", "bundle"),
    "profile quality": (".",),
    "profile shapes": ("--models", "llama-3-8b"),
    "verify vidur": (".",),
    "verify vllm": (".", "--profiles", "."),
    "verify pipeline": ("text.txt",),
    "verify posttrain": ("--only", "nothing"),
    "verify engine": ("text.txt",),
    "verify h200": ("--only", "nothing"),
    "verify fleet": ("--only", "nothing"),
    "check-policy": ("nothing.py",),
    "calibrate": ("text.txt",),
    "explain-gap": ("text.txt",),
    "verify disagg": ("text.txt",),
    "verify kernels": ("--device", "nothing"),
    "verify timing": ("--data", "."),
    "verify servers": ("text.txt",),
    "verify stages": ("text.txt",),
    "verify training": (".",),
    "train step": ("--model", "llama-3-8b", "--gpus", "8", "--batch", "8"),
    "train plan": ("--model", "llama-3-8b", "--gpus", "2", "--batch", "2", "--tp", "2", "--jobs", "1"),
    "check": ("small.yaml",),
    "manifest": ("small.yaml",),
    "verify silicon": ("--sample", "1", "--rows", "gpus == 0", "--jobs", "1"),
    "convert": ("vllm", "vllm serve meta-llama/Llama-3.1-8B"),
    "completion": ("bash",),
    "time": (),
    "ui": ("--no-browser", "--host", "203.0.113.1"),
}
SKIPPED = ("engine probe", "engine serve", "profile all", "profile attention", "profile collectives", "profile compute",
           "profile sampling", "serve", "verify prefixes")  # fmt: skip
"""They measure a GPU or serve: given good values they run for minutes."""

# What a field needs beside it to be looked at.
COMPANIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "--workload.lengths.": {
        "fixed": ("--workload.lengths.prompt", "10", "--workload.lengths.output", "5"),
        "uniform": ("--workload.lengths.prompt", "[10, 20]", "--workload.lengths.output", "[1, 5]"),
        "zipf": ("--workload.lengths.total", "[10, 100]"),
        "lognormal": (
            "--workload.lengths.prompt-median", "10", "--workload.lengths.prompt-p90", "20",
            "--workload.lengths.output-median", "5", "--workload.lengths.output-p90", "6",
        ),
        "normal": ("--workload.lengths.prompt", "[9, 2, 5, 20]", "--workload.lengths.output", "[5, 1, 1, 9]"),
        "mixture": ("--workload.lengths.parts", "[{share: 1, lengths: {distribution: fixed, prompt: 9, output: 9}}]"),
        "empirical": ("--workload.lengths.file", "trace.csv"),
    },
    "--workload.arrivals.": {
        "poisson": (), "gamma": (), "fixed_interval": (), "batch": (),
        "closed_loop": ("--workload.arrivals.concurrency", "4"),
        "piecewise": ("--workload.arrivals.segments", "[{until_s: 1, rate: 5}]"),
        "diurnal": (),
    },
    "--workload.trace.": {"": ("--workload.trace.file", "trace.csv")},
    "--workload.trace.columns.": {
        "": ("--workload.trace.file", "own.csv", "--workload.trace.columns.prompt", "p",
             "--workload.trace.columns.output", "o"),
    },
    "--replica.speculative.": {"": ("--replica.speculative.num-tokens", "3")},
    "--timing.table.": {"": ("--timing.source", "table")},
    "--timing.path": {"": ("--timing.source", "profile")},
}  # fmt: skip

WHOLE = ("0", "-1", "1", "3", "2147483648", "9223372036854775808", "1e30", "9" * 5000, "100000", "10000000")
REAL = ("0", "-1", "nan", "inf", "-inf", "1e308", "1e-308", "5e-324", "-0.0", "0.5")
OTHER = ("", " ", "abc", "1.5", "[]", "{}", "null", "true", "[[[[", "&a [*a]", "0x10", "1_0", "٣", "🎉", "\udcff",
         "x" * 3000, "[1, 2, 3]", "{a: b}", "2023-02-31", "!!python/name:os.system", "%s", "--", "a=b",
         "[" * 300)  # fmt: skip
PATHS = ("", ".", "/", "missing", "/dev/null", "/dev/full", "/proc/nothing", "text.txt", "empty.txt", "binary.csv",
         "deep.json", "bomb.yaml", "cut.csv.gz", "packed.csv", "list.yaml", "infinity.json", "config.json", "x" * 300,
         "x[1].csv", "tr*.csv", "tr #1.csv", "../up", "text.txt/below", "🎉.csv", "ragged.csv", "surrogate.yaml",
         "config_bad.json", "lines.jsonl")  # fmt: skip


SWEEP = (
    "n,sync_freq,fwd_len,bwd_len,prop_len,sync_base_len,fwd_impact,bwd_impact,p_fwd_prop,p_grad_prop,p_grad_sync,"
    "total_time\n4,1,1,2,1,1,0,0,0.5,0.5,0.5,10\n4,1,1,2,1,1,0,0,0.5,1.0,0.5,9\n"
)


def corpus(folder: Path) -> None:
    """Good and bad files that the cases name, and nothing that a case before left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()
    trace = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1,20,6\n2,30,7\n"
    levels = "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    texts = {
        "trace.csv": trace, "x[1].csv": trace, "tr #1.csv": trace, "🎉.csv": trace, "own.csv": "p,o\n10,5\n20,6\n",
        "long.csv": trace.splitlines(keepends=True)[0] + "".join(f"{n},{10 + n % 7},{5 + n % 3}\n" for n in range(30)),
        "text.txt": "nothing of use\n", "empty.txt": "", "deep.json": "[" * 20_000, "ragged.csv": trace + "1,2,3,4\n",
        "bomb.yaml": f"model: &a [x, x, x, x, x, x, x, x, x]\n{levels}", "list.yaml": "- 1\n- 2\n",
        "infinity.json": '{"hidden_size": Infinity}', "surrogate.yaml": 'model: "\\ud800"\n',
        "config.json": '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1000000, "layer_types": 5}',
        "config_bad.json": '{"architectures": 5, "hidden_size": "x", "num_attention_heads": -1, "rope_scaling": [1]}',
        "lines.jsonl": '{"a": 1}\n[1]\n',
        "small.yaml": "workload: {num_requests: 20}\n",
        "search.yaml": "model: llama-3-8b\nslo: {ttft_s: {p90: 0.05}}\nspace: {device: [h200]}\n",
        "sweep.json": (EXAMPLES / "pipeline/sweep.json").read_text(encoding="utf-8"),
        "posttrain.yaml": (EXAMPLES / "posttrain/small.yaml").read_text(encoding="utf-8")
        .replace("num_steps: 2", "num_steps: 1"),
        "sweep.csv": SWEEP,
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 20)
    packed = gzip.compress(trace.encode())
    (folder / "packed.csv").write_bytes(packed)
    (folder / "cut.csv.gz").write_bytes(packed[:-12])


def leaves(command: click.Command | None = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its words."""
    if command is None:
        from gnomon.cli.main import gnomon as command
    assert command is not None
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*words, name))


@dataclass(frozen=True)
class Case:
    """One command line."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(word if len(word) < 60 else f"{word[:40]}...({len(word)})" for word in self.words)


def all_cases(seed: int = 0, per_option: int | None = None) -> list[Case]:
    """Every command x every option x nasty values; `per_option` of them at random where given."""
    chooser = random.Random(seed)
    found: dict[tuple[str, ...], None] = {}
    for name, command in leaves():
        if name in SKIPPED:
            continue
        base = BASES.get(name, ())
        found[(*name.split(), *base)] = None
        for parameter in command.params:
            cases = list(_of_parameter(name, base, parameter))
            if per_option is not None and len(cases) > per_option:
                cases = chooser.sample(cases, per_option)
            found.update(dict.fromkeys(cases))
    return [Case(words) for words in found]


def _of_parameter(name: str, base: tuple[str, ...], parameter: click.Parameter) -> Iterator[tuple[str, ...]]:
    words = name.split()
    if isinstance(parameter, click.Argument):
        rest = base[1:] if base and not base[0].startswith("-") else base
        for value in (*PATHS, *OTHER):
            yield (*words, value, *rest)
        return
    assert isinstance(parameter, click.Option)
    flag = max(parameter.opts, key=len)
    if parameter.is_flag:
        yield (*words, *base, flag)
        return
    for value in _values(flag, parameter):
        for beside in _companions(flag):
            yield (*words, *base, *beside, flag, value)


def _values(flag: str, parameter: click.Option) -> tuple[str, ...]:
    kind = parameter.type
    if isinstance(kind, click.Path | click.File) or flag.endswith((".file", ".path", "-dir", ".checkpoint", "--path")):
        return (*PATHS, *OTHER[:6])
    if isinstance(kind, click.types.IntParamType):
        return (*WHOLE, *REAL[:4], *OTHER[:5])
    if isinstance(kind, click.types.FloatParamType):
        return (*REAL, *WHOLE[4:8], *OTHER[:5])
    if isinstance(kind, click.Choice):
        return (*OTHER[:6], *(str(one) for one in kind.choices))
    return (*WHOLE, *REAL, *OTHER, *PATHS[:8])


def _companions(flag: str) -> list[tuple[str, ...]]:
    for prefix in sorted(COMPANIONS, key=len, reverse=True):
        if flag.startswith(prefix):
            tag = {"--workload.lengths.": "distribution", "--workload.arrivals.": "process"}.get(prefix, "")
            return [
                (*((f"{prefix}{tag}", kind) if tag else ()), *_without(flag, words))
                for kind, words in COMPANIONS[prefix].items()
            ]
    return [()]


def _without(flag: str, words: tuple[str, ...]) -> tuple[str, ...]:
    pairs = list(zip(words[::2], words[1::2], strict=True))
    return tuple(word for name, value in pairs if name != flag for word in (name, value))


@dataclass(frozen=True)
class Ended:
    """How a case ended."""

    case: Case
    code: int
    """Exit code; minus the signal where it was killed."""
    seconds: float
    """Of the processor."""
    text: str

    @property
    def problem(self) -> str | None:
        """What must not happen, if it did."""
        if "Traceback (most recent call last)" in self.text:
            return "traceback: " + self.text.strip().splitlines()[-1][:200]
        if self.code == -signal.SIGXCPU or self.seconds > LIMIT_S:
            return f"took {self.seconds:.0f} s"
        if self.code == -signal.SIGKILL:
            return "hung, and was killed"
        stopped = self.case.words[0] == "ui" and self.code == 130
        if self.code not in (0, 1, 2) and not stopped:
            return f"exit code {self.code}"
        if self.code == 2 and not self.text.strip():
            return "refused without a word"
        return None


def warm_up() -> None:
    """Import and compile what cases need, before they fork; but nothing that starts the threads of Polars."""
    import polars  # noqa: F401

    from gnomon.cli.main import main

    with contextlib.suppress(ImportError):
        import torch  # noqa: F401

    for _ in leaves():
        pass
    # What a whole run compiles (accounts, intervals), in a process of its own: writing tables starts threads.
    with tempfile.TemporaryDirectory() as folder:
        words = (sys.executable, "-c", "from gnomon.cli.main import main; main()", "simulate", "--out", "run", "--csv")
        subprocess.run([*words, "--timing.source", "roofline"], cwd=folder, capture_output=True, check=False)
    # Given times: a source that reads tables would start the threads of Polars here, and forks of it hang.
    given = ("--timing.source", "table", "--timing.table.per-token", "0.001")
    for words in (("simulate", "--workload.num-requests", "20", *given), ("pipeline", "run")):
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(SystemExit):
            main(list(words))


def run_case(case: Case, folder: Path, kill_after_s: float = 12 * LIMIT_S) -> Ended:
    """Run it in a fork, in `folder`."""
    output = folder / f".output-{os.getpid()}"
    pid = os.fork()
    if pid == 0:
        _child(case, folder, output)
    deadline = time.monotonic() + kill_after_s
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    return Ended(case, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, text)


def _child(case: Case, folder: Path, output: Path) -> None:
    code = 3
    try:
        os.chdir(folder)
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, target in ((nothing, 0), (handle, 1), (handle, 2)):
            os.dup2(number, target)
        if case.words[0] == "ui":  # It serves until it is stopped.
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            signal.alarm(6)
        resource.setrlimit(resource.RLIMIT_CPU, (int(LIMIT_S) + 1, int(LIMIT_S) + 5))
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY,) * 2)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, m) for n, m in ((0, "r"), (1, "w"), (2, "w")))
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
        code = _called(case)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _called(case: Case) -> int:
    from gnomon.cli.main import main

    try:
        main(list(case.words))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
