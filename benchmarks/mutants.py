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

import ast
import copy
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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import click
import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "gnomon"
TESTS: dict[str, tuple[str, ...]] = {
    "catalog": ("catalog", "catalog_by_hand", "catalog_layers", "catalog_memory", "catalog_published",
                "catalog_quantization", "timing_golden", "timing_topology", "recorded_catalog"),
    "timing/operators": ("timing_golden", "recorded_catalog", "timing_operators", "catalog_layers", "timing_families"),
    "timing/passes": ("timing_passes", "recorded_pipeline"),
    "timing/estimators": ("lookup_by_hand", "timing_estimators", "timing_profile"),
    "timing/sources/profile": ("measured_by_hand", "timing_profile", "timing_estimators", "timing_baking"),
    "timing/sources/silicon": ("measured_by_hand", "timing_silicon", "recorded_silicon"),
    "timing/sources": ("timing_roofline", "recorded_catalog", "timing_golden", "timing_baking", "timing_profile"),
    "timing": ("measured_by_hand", "timing_baking", "recorded_catalog",
               "timing_golden", "timing_passes", "timing_speculative", "timing_profile", "front_end",
               "timing_roofline", "timing_topology", "timing_operators", "lookup_by_hand"),
    "serving/policies": ("policy_decisions", "policy_options", "trtllm", "classes", "recorded_serving"),
    "serving/routers": ("router_decisions", "routers_by_hand", "recorded_serving", "adapters", "learned_router"),
    "search": ("search_by_hand",),
    "pipeline": ("pipeline_by_hand", "recorded_pipeline", "timing_passes"),
}  # fmt: skip
"""Module (or folder) -> test files that matter for it; the most specific entry counts."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
LONGEST_S = 300.0
BUSY = 20.0
"""How many times as long it may take by the clock."""
BUDGET_S = 12.0
"""Processor seconds of the tests that a mutant is shown to."""
SLOW_S = 3.0
"""Processor seconds beyond which a single test is not for mutants."""
NO_DECISIONS = ("strict", "frozen", "slots", "kw_only", "maxsize", "order", "repr", "compare")
"""Arguments of `zip`, `dataclass`, `field` and `lru_cache` that no result depends on; they are left alone."""
EQUIVALENT = {
    "serving/routers/observation.py:observe:1e+300:2e+300": "stands for infinity",
    "serving/routers/adapter_aware.py:adapter_aware:1e+300:2e+300": "stands for infinity",
    "serving/routers/observation.py:remember_choice:mine + _ARRIVALS:mine - _ARRIVALS": "_ARRIVALS is 0",
    "timing/timer.py:Timer.exposed:1e-12:2e-12": "only keeps 0 / 0 away: no kernel takes picoseconds",
    "serving/routers/lookahead.py:lookahead:weight > 0.0:weight >= 0.0": (
        "with a weight of 0, playing on to the end finds the same time for the request itself"
    ),
    "serving/policies/lightllm.py:lightllm:state.batch_size > 0:state.batch_size >= 0:0": (
        "the counter is set again before it is read: what runs next was admitted by the same branch"
    ),
    (
        "serving/policies/trtllm.py:_waits_for_more:given[_WAIT] == 0.0 and given[_WAIT_RATIO] == 0.0"
        ":given[_WAIT] == 0.0 or given[_WAIT_RATIO] == 0.0"
    ): "where one of the two is 0, what follows answers the same",
    "pipeline/sweep_config.py:priority_grid:1:2:3": "one turn more of a loop whose inner loop is then empty",
}
"""Changes that cannot change a result (module:function:before:after[:number]), and why: survivors that were looked at.
They count as alive, and are named apart."""
LIBRARIES = ("numba", "numpy", "polars", "pydantic", "pytest", "scipy.stats", "yaml")
"""Imported once, for all children."""


@dataclass(frozen=True)
class Mutant:
    """One change of one expression of one module."""

    module: str
    line: int
    before: str
    after: str
    span: tuple[int, int]
    """First and last character in the file."""
    source: str
    """Hash of the function it is in, or of the file."""
    function: str = ""
    """The function it is in (`Class.method`), or nothing."""
    number: int = 0
    """Which one, of equal changes in one function."""

    @property
    def key(self) -> str:
        """What a result is kept under: it holds as long as the function is the same."""
        return f"{self.source}:{self.lot}"

    @property
    def lot(self) -> str:
        """What it is drawn by."""
        return f"{self.module}:{self.function}:{self.before}:{self.after}:{self.number}"


class _Finder(ast.NodeVisitor):
    """Every expression that can be changed, with its changed form; annotations, messages and docs are left alone."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.expr, ast.expr, str, ast.AST | None]] = []
        self.scope: list[str] = []
        self.function = ""
        self.body: ast.AST | None = None

    def _note(self, node: ast.expr, other: ast.expr) -> None:
        self.found.append((node, other, self.function, self.body))

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in NO_DECISIONS:
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, op in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[i] = COMPARISONS[type(op)]()
            self._note(node, other)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_type = isinstance(node.op, ast.BitOr)
        if type(node.op) in OPERATORS and not _is_text(node):
            self._note(node, ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))
        if not is_type:
            self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._note(node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._note(node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._note(node, ast.Constant(not value))
        elif isinstance(value, int | float):
            self._note(node, ast.Constant(value + 1 if isinstance(value, int) else value * 2.0 or 1.0))

    def visit_Raise(self, node: ast.Raise) -> None:
        """What a message says is not held by tests."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.append(node.name)
        self.generic_visit(node)
        self.scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)):
            self.visit(part)
        outer, self.function, body = self.function, ".".join([*self.scope, node.name]), self.body
        self.body = body or node
        self.scope += [node.name, "<locals>"]
        for part in node.body:
            self.visit(part)
        self.scope, self.function, self.body = self.scope[:-2], outer, body

    def visit_Assert(self, node: ast.Assert) -> None:
        """Never fails as long as the code is right."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text."""


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


def mutants_of(module: str, text: str) -> Iterator[Mutant]:
    """Every mutant of one file."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    finder = _Finder()
    finder.visit(ast.parse(text))
    seen: Counter[tuple[str, str, str]] = Counter()
    for node, other, function, body in finder.found:
        assert node.end_lineno is not None and node.end_col_offset is not None
        span = (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
        before, after = ast.unparse(node), ast.unparse(ast.fix_missing_locations(other))
        if before != after:
            source = hashlib.sha256((ast.unparse(body) if body else text).encode()).hexdigest()[:12]
            yield Mutant(module, node.lineno, before, after, span, source, function, seen[function, before, after])
            seen[function, before, after] += 1


def tests_of(module: str) -> tuple[str, ...]:
    """The test files for a module; none where nothing is said about it."""
    parts = module.removesuffix(".py").split("/")
    for end in range(len(parts), 0, -1):
        if found := TESTS.get("/".join(parts[:end])):
            names = (f"tests/test_{name}.py" for name in found)
            return tuple(name for name in names if (ROOT / name).is_file())
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
    chosen: list[tuple[float, str]] = []
    for is_right in ways:
        chosen = chosen or [(seconds, test) for seconds, test, calls in known if is_right(calls)]
    chosen.sort()
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
    for wing in ("core", "catalog", "timing", "workload", "serving", "search", "pipeline"):
        for path in sorted((sources / wing).rglob("*.py")):
            name = ".".join(path.relative_to(sources.parent).with_suffix("").parts).removesuffix(".__init__")
            with suppress(ImportError):  # Extras that are not installed.
                import_module(name)


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
    for module in [one for one in sys.modules if one.split(".")[0] == "gnomon"]:
        del sys.modules[module]


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
