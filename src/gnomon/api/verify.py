"""Proofs: the simulator beside recorded and published results. Each is a module of `gnomon.verify`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.api.result import Progress, Result, TableResult
from gnomon.core.files import write_text
from gnomon.report.blocks import Table, View

if TYPE_CHECKING:
    from gnomon.verify.findings import Findings

__all__ = ["Verification", "fetch_data", "list_data", "silicon_scenario", "verify"]


def verify(check: str, *given: Any, **options: Any) -> Verification:
    """Run one check; what it takes beyond its name is written under each (`gnomon.verify.<check>.prove`).

    gnomon.verify("h200").passed
    gnomon.verify("vidur", "reference/vidur/runs/sarathi").text()
    """
    from gnomon.verify.findings import PROOFS

    return Verification(check, PROOFS[check](*given, **options))


@dataclass(frozen=True, eq=False)
class Verification(Result):
    """What a check found."""

    check: str
    findings: Findings = field(repr=False)

    @property
    def records(self) -> Sequence[Any]:
        """What was compared, as the check's own records."""
        return self.findings.records

    @property
    def pictures(self) -> Mapping[str, Callable[[Path], Path]]:
        """Files that can be drawn, by name."""
        return self.findings.pictures

    @property
    def passed(self) -> bool:
        """Whether everything that is judged is within its tolerance."""
        return not self.findings.failures

    @property
    def failures(self) -> list[str]:
        """What is beyond its tolerance."""
        return self.findings.failures

    @property
    def summary(self) -> dict[str, Any]:
        """The verdict, and what failed."""
        return {"check": self.check, "passed": self.passed, "failures": self.findings.failures}

    @property
    def shown(self) -> View:
        """Every figure beside what it is held against."""
        found = self.findings
        data = self.summary | found.data
        return View("verification", lambda: found.blocks, lambda: data, {"rows": lambda: found.rows})

    def save(self, folder: str | Path) -> Path:
        """Write verification.json and the pictures that there are."""
        folder = Path(folder)
        write_text(folder / "verification.json", json.dumps(self.to_dict(), indent=1, default=str))
        for name, write in self.pictures.items():
            write(folder / name)
        return folder


def silicon_scenario(server: str) -> dict[str, Any]:
    """One measured server as a scenario."""
    from gnomon.verify.silicon.choose import by_id
    from gnomon.verify.silicon.scenarios import settings_of

    return settings_of(by_id(server))


def list_data(folder: str | Path) -> TableResult:
    """The data sets that checks are held against, and which of them lie in `folder`."""
    from gnomon.verify.datasets import datasets, missing

    known = datasets()
    rows = []
    for name, one in known.items():
        row = {"data set": name, "what": one.title, "for": one.check, "licence": one.licence, "here": "–"}
        if one.files:
            row["here"] = f"{len(one.files) - len(missing(one, Path(folder)))} of {len(one.files)} files"
        rows.append(row | {"where": one.source, "how": f"gnomon verify fetch {name}" if one.files else one.how})
    return TableResult("data", known, rows, {"folder": str(folder), "sets": rows}, [Table(rows, "Data sets")])


def fetch_data(
    name: str, folder: str | Path, *, base: str | None = None, on_progress: Progress | None = None
) -> list[Path]:
    """Fetch a data set into `folder`, checked by its hashes; returns the files that were written."""
    from gnomon.verify.datasets import fetch

    return fetch(name, Path(folder), base=base, on_progress=on_progress)
