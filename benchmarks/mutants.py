"""Mutation testing: change one operator, constant or comparison at a time, and see whether a test notices.

python -m benchmarks.mutants --sample 200 --seed 0 [--module timing/communication ...] [--results FILE]

Sources and tests are copied. First the test files that TESTS names run once, to note which test calls which function,
and for how long it runs. Each mutant then runs in a child of one process that has imported everything already, without
compiled code (GNOMON_JIT=0): its function gets another body, and those tests run that call it, the quickest first, to
the first failure, and no more of them than BUDGET_S seconds. Notes and results are kept in files: a run goes on where
the last one stopped, and looks again at a survivor when its tests have changed. A mutant is drawn by the hash of what
it changes, so that the sample stays nearly the same while other code changes.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import click
import pytest
import yaml

from benchmarks.mutations import Mutant, mutants_of

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "gnomon"
_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
TESTS: dict[str, list[str]] = _DATA["tests"]
OUTSIDE_FUNCTIONS: list[str] = _DATA["outside_functions"]
EQUIVALENT: dict[str, str] = {one["change"]: one["why"] for one in _DATA["equivalent"]}
FILES = {path.stem: path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
LONGEST_S = 300.0
BUSY = 20.0
"""How many times as long it may take by the clock."""
BUDGET_S = 30.0
"""Processor seconds of the tests that a mutant is shown to."""
SLOW_S = 3.0
"""Processor seconds beyond which a single test is not for mutants."""
LIBRARIES = ("click.testing", "hypothesis", "numba", "numpy", "polars", "pydantic", "pytest", "scipy.stats", "yaml")
"""Imported once, for all children."""


def tests_of(module: str) -> tuple[str, ...]:
    """The test files for a module; none where nothing is said about it."""
    parts = module.removesuffix(".py").split("/")
    for end in range(len(parts), 0, -1):
        if found := TESTS.get("/".join(parts[:end])):
            return tuple(FILES[f"test_{name}"] for name in (*found, *OUTSIDE_FUNCTIONS))
    return ()


class Watcher:
    """A pytest plugin that notes which test calls which functions of the sources, and its seconds."""

    def __init__(self, sources: Path, found: Path) -> None:
        self.sources, self.found = f"{sources}/", found
        self.shared: dict[str, set[Any]] = {}
        self.notes: dict[str, dict[str, Any]] = {}
        self.passed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        """What a fixture of many tests calls counts for all tests of its file."""
        if fixturedef.scope == "function" or not sys.gettrace():
            return (yield)
        outer, seen = sys.gettrace(), self.shared.setdefault(str(request.node.path), set())
        sys.settrace(lambda frame, *_: seen.add(frame.f_code))
        try:
            return (yield)
        finally:
            sys.settrace(outer)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        """Note the calls of one test."""
        seen: set[Any] = set()
        start = time.process_time()
        signal.signal(signal.SIGPROF, _too_slow)
        signal.setitimer(signal.ITIMER_PROF, SLOW_S)
        sys.settrace(lambda frame, *_: seen.add(frame.f_code))
        try:
            return (yield)
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_PROF, 0)
            codes = seen | self.shared.get(str(item.path), set())
            calls = sorted({self._name(code) for code in codes} - {""})
            if item.nodeid in self.passed:
                self.notes[item.nodeid] = {"seconds": round(time.process_time() - start, 2), "calls": calls}
                self.found.write_text(json.dumps(self.notes))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Only tests that pass say something about a change."""
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def _name(self, code: Any) -> str:
        if not code.co_filename.startswith(self.sources):
            return ""
        function = code.co_qualname
        for part in (".<locals>.<listcomp>", ".<locals>.<genexpr>", ".<locals>.<dictcomp>", ".<locals>.<setcomp>"):
            function = function.replace(part, "")
        return f"{code.co_filename.removeprefix(self.sources)}:{function.removesuffix('.<locals>.<lambda>')}"


def _too_slow(*_: object) -> None:
    raise TimeoutError("too slow for mutants")


def watch_tests(sources: Path, tests: tuple[str, ...], notes: Path, limit_s: float) -> None:
    """Add what the tests of these files call to the notes, each file in a child of its own."""
    known = json.loads(notes.read_text()) if notes.exists() else {}
    for test in tests:
        source = hashlib.sha256((sources.parent.parent / test).read_bytes()).hexdigest()[:12]
        if known.get(test, {}).get("source") == source:
            continue
        found = notes.with_suffix(".part")
        found.write_text("{}")
        outcome, seconds = run_tests(sources, (test,), limit_s, Watcher(sources, found))
        part = json.loads(found.read_text())
        known[test] = {"source": source, "outcome": outcome, "tests": part}
        notes.write_text(json.dumps(known))
        print(f"{test}: {outcome}, {len(part)} tests, in {seconds:.0f} s", flush=True)


def choose_tests(mutant: Mutant, files: tuple[str, ...], notes: dict[str, Any]) -> list[tuple[float, str]]:
    """Seconds and names of the tests in these files that call the mutant's function, the quickest first; where there is
    none, those that call any function of its file, or else all. The first of them however long it takes."""
    own = f"{mutant.module}:"
    exactly = own + mutant.function
    ways: list[Callable[[list[str]], bool]] = [
        lambda calls: bool(mutant.function) and exactly in calls,
        lambda calls: any(call.startswith(own) for call in calls),
        lambda calls: True,
    ]
    known = [(one["seconds"], test, one["calls"]) for name in files for test, one in notes[name]["tests"].items()]
    outside = tuple(FILES[f"test_{name}"] for name in OUTSIDE_FUNCTIONS)
    chosen: list[tuple[float, str]] = []
    for is_right in ways:
        chosen = chosen or [(seconds, test) for seconds, test, calls in known if is_right(calls)]
    if not mutant.function:
        chosen += [(seconds, test) for seconds, test, _ in known if test.startswith(outside)]
    chosen = sorted(set(chosen))
    spent = list(accumulate(seconds for seconds, _ in chosen))
    return [one for number, one in enumerate(chosen) if not number or spent[number] <= BUDGET_S]


def run_tests(
    sources: Path, tests: tuple[str, ...], limit_s: float, watcher: Watcher | None = None, mutant: Mutant | None = None
) -> tuple[str, float]:
    """Run tests on the sources in a child: what became of it (passed, failed, timeout), and seconds.

    `limit_s` is processor time; by the clock it may be far more, on a machine that is busy."""
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 5))
        _child(sources, tests, watcher, mutant)
    ended = 0
    try:
        while time.perf_counter() - start < BUSY * limit_s:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                outcome = {0: "passed", -signal.SIGXCPU: "timeout", -signal.SIGKILL: "timeout"}.get(code, "failed")
                return outcome, time.perf_counter() - start
            time.sleep(0.02)
        return "timeout", limit_s
    finally:  # Also when this process is told to stop.
        if not ended:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _child(sources: Path, tests: tuple[str, ...], watcher: Watcher | None, mutant: Mutant | None) -> None:
    """Never returns."""
    output = os.open(sources.parent.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path[:0] = [str(sources.parent), str(sources.parent.parent)]
    code = 3
    try:
        os.chdir(sources.parent.parent)
        if mutant:
            apply(mutant, sources)
        options = ["-q", *([] if watcher else ["-x"]), "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["--assert=plain"]  # Test files are imported already, and only whether they pass is asked.
        options += ["-p", "no:unraisableexception", "-p", "no:threadexception"]  # They collect garbage, for a second.
        code = int(pytest.main([*options, *tests], plugins=[watcher] if watcher else None))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def import_all(sources: Path) -> None:
    """The modules of the copy that mutants are in or that they use, so that children need not import them."""
    sys.path.insert(0, str(sources.parent))
    for wing in ("core", "catalog", "timing", "workload", "serving", "search", "pipeline", "report", "api"):
        for path in sorted((sources / wing).rglob("*.py")):
            name = ".".join(path.relative_to(sources.parent).with_suffix("").parts).removesuffix(".__init__")
            with suppress(ImportError):  # Extras that are not installed.
                import_module(name)


def import_tests(sources: Path, files: tuple[str, ...]) -> None:
    """The test files that mutants are shown to, and what they share."""
    root = sources.parent.parent
    for folder in dict.fromkeys([root / "tests", *((root / name).parent for name in files)]):
        sys.path.insert(0, str(folder))
    for name in files:
        import_module(Path(name).stem)
    pytest.main(["--version"])  # Imports pytest's own modules, too.


def check_unchanged(sources: Path, notes: dict[str, Any]) -> None:
    """A few tests of every file, with nothing changed: they must pass in a child as they did when they were noted."""
    ordered = [sorted((one["seconds"], test) for test, one in note["tests"].items()) for note in notes.values()]
    outcome, _ = run_tests(sources, tuple(test for tests in ordered for _, test in tests[:3]), LONGEST_S)
    if outcome != "passed":
        told = (sources.parent.parent / "output").read_text()[-2000:]
        sys.exit(f"{outcome} with nothing changed:\n{told}")


def apply(mutant: Mutant, sources: Path) -> None:
    """Give the mutant's function its other body; what is outside functions is imported anew, from a changed file."""
    path = sources / mutant.module
    text = path.read_bytes()
    first, last = mutant.span
    changed = text[:first] + f"({mutant.after})".encode() + text[last:]
    whole = compile(changed, str(path), "exec", dont_inherit=True)
    name = mutant.function.split(".<locals>")[0]
    codes = [code for code in _codes(whole) if code.co_qualname == name] if name else []
    known = [
        one
        for one in gc.get_objects()
        if type(one) is FunctionType and one.__code__.co_filename == str(path) and one.__code__.co_qualname == name
    ]
    if len(codes) == 1 and known:
        for function in known:
            function.__code__ = codes[0]
        return
    other = Path(tempfile.mkdtemp()) / "src"
    shutil.copytree(sources.parent, other)
    (other / "gnomon" / mutant.module).write_bytes(changed)
    sys.path.insert(0, str(other))
    tests = f"{sources.parent.parent / 'tests'}/"
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "gnomon" or (getattr(module, "__file__", None) or "").startswith(tests):
            del sys.modules[name]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def sample(count: int, seed: int, modules: tuple[str, ...]) -> list[Mutant]:
    """Mutants drawn evenly from all files that tests are named for, by the hash of what they change."""
    found: list[Mutant] = []
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if any(f"{name.removesuffix('.py')}/".startswith(f"{one}/") for one in modules or TESTS):
            found += mutants_of(name, path.read_text(encoding="utf-8"))
    return sorted(found, key=lambda one: hashlib.sha256(f"{seed}:{one.lot}".encode()).digest())[:count]


@click.command()
@click.option("--sample", "count", default=200, show_default=True, help="How many mutants.")
@click.option("--seed", default=0, show_default=True, help="Which ones.")
@click.option("--module", "modules", multiple=True, help="Only these files or folders, e.g. timing/communication.")
@click.option("--results", default="runs/mutants.jsonl", show_default=True, help="Where results are kept.")
def main(count: int, seed: int, modules: tuple[str, ...], results: str) -> None:
    """Run a sample of mutants and print those that no test noticed."""
    os.environ |= {"GNOMON_JIT": "0", "HYPOTHESIS_STORAGE_DIRECTORY": tempfile.gettempdir()}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    for library in LIBRARIES:
        import_module(library)

    mutants, kept = sample(count, seed, modules), Path(results).resolve()
    kept.parent.mkdir(parents=True, exist_ok=True)
    known = {row["key"]: row for row in map(json.loads, kept.read_text().splitlines())} if kept.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src" / "gnomon"
        for name in ("src", "tests", "benchmarks", "examples", "docs"):
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        files = tuple(dict.fromkeys(name for one in mutants for name in tests_of(one.module)))
        notes = kept.with_name(f"{kept.stem}-tests.json")
        watch_tests(sources, files, notes, LONGEST_S)
        noted = json.loads(notes.read_text())
        import_all(sources)
        import_tests(sources, files)
        check_unchanged(sources, {name: noted[name] for name in files})
        for number, mutant in enumerate(mutants, 1):
            chosen = choose_tests(mutant, tests_of(mutant.module), noted)
            shown = hashlib.sha256(
                json.dumps([(name, noted[name.split("::")[0]]["source"]) for _, name in chosen]).encode()
            )
            if mutant.key in known and known[mutant.key].get("shown") in (None, shown.hexdigest()[:12]):
                continue
            tests, limit_s = tuple(name for _, name in chosen), 3.0 * sum(seconds for seconds, _ in chosen) + 20.0
            outcome, seconds = "passed", 0.0
            if tests:
                outcome, seconds = run_tests(sources, tests, min(limit_s, LONGEST_S), mutant=mutant)
            row = asdict(mutant) | {"key": mutant.key, "outcome": outcome, "seconds": round(seconds, 1)}
            # What a survivor has not been shown may kill it.
            row["shown"] = shown.hexdigest()[:12] if outcome == "passed" else None
            known[mutant.key] = row
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{number}/{len(mutants)} {outcome} {seconds:.1f} s {mutant.module}:{mutant.line}", flush=True)
    _print_summary(mutants, known)


def _print_summary(mutants: list[Mutant], known: dict[str, dict[str, Any]]) -> None:
    seen = [one for one in mutants if one.key in known]
    alive = [one for one in seen if known[one.key]["outcome"] == "passed"]
    same = {one: why for one in alive for lot, why in EQUIVALENT.items() if f"{one.lot}:".startswith(f"{lot}:")}
    for one in alive:
        why = f"  (changes nothing: {same[one]})" if one in same else ""
        print(f"alive: {one.module}:{one.line}: {one.before}  ->  {one.after}{why}")
    seconds, count = sum(known[one.key]["seconds"] for one in seen), max(len(seen), 1)
    print(
        f"{len(alive)} of {len(seen)} mutants alive ({len(alive) / count:.0%}), {len(same)} of which change nothing; ",
        end="",
    )
    print(f"{seconds / count:.1f} s each")


if __name__ == "__main__":
    main()
