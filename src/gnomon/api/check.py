"""A deployment held against limits and against an earlier run: for continuous integration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gnomon.api.result import Progress
from gnomon.api.serving import ScenarioLike, simulate
from gnomon.core.errors import ConfigError, DataError
from gnomon.report.blocks import Block, Line, Table, cell

_LIMIT = re.compile(r"(ttft|tpot|tbt|itl|e2e)_(mean|p50|p90|p95|p99|max)")
_COMPARED = {
    **{f"latency.{name}.{stat}": 1 for name in ("ttft_s", "tpot_s", "e2e_s") for stat in ("mean", "p50", "p99")},
    "throughput.output_tokens_per_s": -1,
    "cost.per_million_output_tokens": 1,
}
"""Figures that are held against an earlier run: 1 where less is better, -1 where more is."""


@dataclass(frozen=True)
class Finding:
    """One figure that was checked."""

    figure: str
    value: float | None
    limit: float
    """The most (or least) that passes."""
    against: str
    """What the limit is from."""
    passed: bool


@dataclass(frozen=True)
class Check:
    """What was checked, and how it went."""

    findings: list[Finding]

    @property
    def passed(self) -> bool:
        """Whether everything did."""
        return all(one.passed for one in self.findings)

    def rows(self) -> list[dict[str, Any]]:
        """A table of it."""
        return [
            {"figure": one.figure, "value": one.value, "limit": one.limit, "against": one.against,
             "result": "pass" if one.passed else "FAIL"}
            for one in self.findings
        ]  # fmt: skip

    def text(self) -> list[Block]:
        """The table and the verdict."""
        failed = sum(not one.passed for one in self.findings)
        verdict = f"{failed} of {len(self.findings)} figures fail." if failed else f"All {len(self.findings)} pass."
        return [Table(self.rows()), Line(verdict)]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"passed": self.passed, "figures": self.rows()}

    def markdown(self) -> str:
        """A table for a pull request."""
        lines = ["| figure | value | limit | against | |", "|---|---:|---:|---|---|"]
        for row in self.rows():
            lines.append(f"| {' | '.join(cell(value) for value in row.values())} |")
        return "\n".join(lines) + "\n"

    def junit(self) -> str:
        """As JUnit's XML, one case for each figure."""
        failed = str(sum(not one.passed for one in self.findings))
        suite = ElementTree.Element("testsuite", name="gnomon check", tests=str(len(self.findings)), failures=failed)
        for one in self.findings:
            case = ElementTree.SubElement(suite, "testcase", classname=one.against, name=one.figure)
            if not one.passed:
                ElementTree.SubElement(case, "failure", message=f"{one.value} against {one.limit} ({one.against})")
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def check(
    given: ScenarioLike = None, *, slo: Mapping[str, float] | None = None, baseline: str | Path | None = None,
    tolerance: float = 0.05, on_progress: Progress | None = None, **overrides: Any,
) -> Check:  # fmt: skip
    """Simulate a scenario and hold it against limits (`slo={"ttft_p99": 0.5}`, in seconds) and against the folder of an
    earlier run (`gnomon simulate --out`): no figure may be worse by more than `tolerance`. Every request must end."""
    if not slo and baseline is None:
        raise ConfigError("there is nothing to hold it against.", where="check", fix="Give --slo or --baseline.")
    for name in slo or {}:
        if not _LIMIT.fullmatch(name):
            raise ConfigError(f"{name} is no latency.", where="--slo", fix="Write it as ttft_p99=0.5 (in seconds).")
    before = None if baseline is None else _summary_of(Path(baseline))
    found = simulate(given, intervals=False, on_progress=on_progress, **overrides).summary.to_dict()
    unfinished = found["requests"]["offered"] - found["requests"]["finished"]
    findings = [Finding("requests that did not finish", unfinished, 0, "all finish", unfinished == 0)]
    for name, limit in (slo or {}).items():
        metric, _, statistic = name.partition("_")
        value = found["latency"][f"{'tbt' if metric == 'itl' else metric}_s"][statistic]
        findings.append(Finding(name, value, limit, "slo", value is not None and value <= limit))
    for place, sign in _COMPARED.items() if before is not None else ():
        value, then = _at(found, place), _at(before, place)
        if value is None or then is None:
            continue
        limit = then * (1.0 + sign * tolerance)
        findings.append(Finding(place, value, limit, "baseline", sign * value <= sign * limit))
    return Check(findings)


def _summary_of(folder: Path) -> Any:
    path = folder / "summary.json" if folder.is_dir() else folder
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("there is no run.", where=str(path), fix="Write one with gnomon simulate --out DIR.") from None
    except ValueError as error:
        raise DataError(f"is no summary of a run: {error}", where=str(path)) from None
    if not isinstance(found, dict) or "latency" not in found:
        raise DataError("is no summary of a run: it has no latency.", where=str(path))
    return found


def _at(summary: Any, place: str) -> float | None:
    for part in place.split("."):
        summary = summary.get(part) if isinstance(summary, dict) else None
    return summary if isinstance(summary, int | float) else None
