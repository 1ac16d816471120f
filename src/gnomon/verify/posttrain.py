"""The post-training simulator against published results A-D, verl, NeMo-RL and RLinf.

Gates: B, stage seconds of 7B at the two scales that were not used for calibration, within 10 %; D, speed-up of moving
GPUs, within 10 %; a step of 8,192 sequences in under half a CPU second. The rest is reported.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gnomon import catalog
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.posttrain.costs import sync_s
from gnomon.posttrain.policies import make_policy
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.simulator.record import RunRecord
from gnomon.posttrain.simulator.simulate import run
from gnomon.posttrain.studies.compare import placed
from gnomon.posttrain.studies.stages import StageCosts, calibrate, candidates, colocated_costs, with_efficiencies
from gnomon.report.blocks import Block, Line, Table
from gnomon.verify import posttrain_published as published
from gnomon.verify.findings import Findings, Progress, each, proof, reference
from gnomon.verify.posttrain_published import DATA

TOLERANCE = 0.10
MAX_STEP_S = 0.5
C_PLACEMENTS = 4
LOGPROB_OVER_TRAINING = 36 / 30
"""Efficiency of log-probabilities over that of training: B's published MFUs at 64 GPUs. D has no such figure."""
MAX_SECANTS, CALIBRATED_TO = 6, 0.001
RATIO_POINTS = 0.08  # verl v1: ratios of its three modes, gates.
VERL_TOLERANCE, NEMO_MEDIAN, NEMO_POINTS, ELASTIC_GAIN = 0.15, 0.20, 0.10, 1.2
NUM_STEPS = 8  # Every value is a mean over so many steps: one draw of the lengths moves a stage by several per cent.
STAGES = ("rollout", "inference", "actor")


@dataclass(frozen=True)
class Check:
    source: str
    what: str
    published: float
    ours: float
    role: str
    """calibrated, gate, or reported."""
    limit: float = TOLERANCE
    is_bound: bool = False
    """`published` is an upper limit rather than a value to meet."""

    @property
    def error(self) -> float:
        return self.ours / self.published - 1.0

    @property
    def ok(self) -> bool:
        """Gates only: within the limit."""
        if self.role != "gate":
            return True
        return self.ours <= self.published if self.is_bound else abs(self.error) <= self.limit


@dataclass(frozen=True)
class Study:
    """The checks with their one choice of calibration and of lengths."""

    calibrated_on: int
    seed: int
    folder: Path

    def _averaged(self, config: Posttrain) -> Posttrain:
        return config.model_copy(update={"seed": self.seed, "num_steps": NUM_STEPS})

    # B, and A and C with B's efficiencies.

    @cached_property
    def _b_efficiencies(self) -> dict[str, float]:
        measured = StageCosts(**DATA["B"]["stages"][self.calibrated_on])
        return calibrate(self._b_configuration("7B", self.calibrated_on), measured).efficiencies

    def _b_configuration(self, size: str, num_gpus: int) -> Posttrain:
        return self._averaged(published.taking_turns(size, num_gpus, published.b_mean_tokens(num_gpus)))

    def check_b(self) -> Iterator[Check]:
        """Calibrated: three efficiencies on 7B at one scale."""
        for num_gpus, stages in DATA["B"]["stages"].items():
            costs = colocated_costs(with_efficiencies(self._b_configuration("7B", num_gpus), **self._b_efficiencies))
            role = "calibrated" if num_gpus == self.calibrated_on else "gate"
            for name in STAGES:
                yield Check("B", f"7B@{num_gpus} {name} s", stages[name], getattr(costs, name), role)
        for size in ("1.5B", "32B"):
            for num_gpus, tokens_s in DATA["B"]["tokens_s"][size].items():
                config = with_efficiencies(self._b_configuration(size, num_gpus), **self._b_efficiencies)
                record = run(config, make_policy("colocated"))
                yield Check("B", f"{size}@{num_gpus} tokens/s", tokens_s, record.tokens_s, "reported")

    def check_a(self) -> Iterator[Check]:
        """Nothing calibrated on A itself: B's efficiencies, at another model size and scale."""
        a = DATA["A"]
        more = {"algorithm": {"rollout_batch_size": a["prompts"]}, "actor": {"recompute": a["recompute"]}}
        config = published.taking_turns("1.5B", 8, a["mean_tokens"], **more)
        costs = colocated_costs(with_efficiencies(self._averaged(config), **self._b_efficiencies))
        for name in STAGES:
            yield Check("A", f"1.5B@8 {name} s", a["stages"][name], getattr(costs, name), "reported")

    def check_c(self) -> Iterator[Check]:
        """C is unlabelled: only the gain of standing side by side is compared, with the best placement we find."""
        for row in DATA["C"]:
            size, num_gpus = row["size"], row["gpus"]
            config = with_efficiencies(self._b_configuration(size, num_gpus), **self._b_efficiencies)
            config = config.model_copy(update={"num_steps": 1})
            taking_turns = run(config, make_policy("colocated"))
            apart = [run(placed(config, *sizes), make_policy("disaggregated")) for sizes in _balanced(config)]
            ours = max(one.tokens_s for one in apart) / taking_turns.tokens_s
            yield Check("C", f"{size}@{num_gpus} pipelined / colocated", row["apart"] / row["turns"], ours, "reported")

    # D.

    def check_d(self) -> Iterator[Check]:
        """Calibrated: rollout on the median decode time of 1.5B, training on each model's static throughput at 64."""
        median = DATA["D"]["decode_median_s"]
        rollout = self._decode_median_s(1.0) / median
        yield Check("D", "1.5B@64 median decode s", median, self._decode_median_s(rollout), "calibrated")
        training = {row["size"]: self._d_training_efficiency(row, rollout) for row in DATA["D"]["rows"][::2]}
        for row in DATA["D"]["rows"]:
            size, num_gpus, slow = row["size"], row["gpus"], row["static"]
            config = self._d_configuration(size, num_gpus, rollout, training[size])
            static = run(config, make_policy("disaggregated")).tokens_s
            dynamic = run(config, make_policy("elastic")).tokens_s
            role = "calibrated" if num_gpus == 64 else "reported"
            yield Check("D", f"{size}@{num_gpus} static tokens/s", slow, static, role)
            ratio, role = row["dynamic"] / slow, row.get("role", "gate")
            yield Check("D", f"{size}@{num_gpus} dynamic / static", ratio, dynamic / static, role)

    def _d_configuration(self, size: str, num_gpus: int, rollout: float, training: float) -> Posttrain:
        config = self._averaged(published.side_by_side(size, num_gpus, DATA["D"]["mean_tokens"]))
        inference = training * LOGPROB_OVER_TRAINING
        return with_efficiencies(config, rollout=rollout, actor=training, inference=inference)

    def _decode_median_s(self, rollout: float) -> float:
        """From the submission to the end of a response, with every GPU generating."""
        record = run(self._d_configuration("1.5B", 64, rollout, 0.5), make_policy("colocated"))
        start_s = min(span.start_s for span in record.steps[0].spans if span.owner == "rollout")
        return float(np.median(np.concatenate([step.finished_s for step in record.steps]))) - start_s

    def _d_training_efficiency(self, row: dict[str, Any], rollout: float) -> float:
        """With which the static placement at 64 GPUs has its published throughput: secants on logarithms."""
        target = math.log(row["static"])

        def miss(log_efficiency: float) -> float:
            config = self._d_configuration(row["size"], row["gpus"], rollout, math.exp(log_efficiency))
            return math.log(run(config, make_policy("disaggregated")).tokens_s) - target

        before, here = math.log(0.4), math.log(0.7)
        miss_before, miss_here = miss(before), miss(here)
        for _ in range(MAX_SECANTS):
            if abs(miss_here) < CALIBRATED_TO:
                break
            slope = (miss_here - miss_before) / (here - before)
            before, miss_before, here = here, miss_here, here - miss_here / slope
            miss_here = miss(here)
        return math.exp(here)

    # verl and NeMo-RL, and the described system's own YAML.

    def check_y(self) -> Iterator[Check]:
        """Weight syncs that verl measured, on which the paths' constants are fitted."""
        for row in DATA["syncs"]:
            for path in ("nccl", "checkpoint_engine"):
                config = build(Posttrain, {"model": row["model"], "device": "h20", "transitions": {"sync": path}})
                ours = sync_s(config, catalog.model(row["model"]), row["ranks"], row["ranks"])
                yield Check("Y", f"{row['model']} {path} s", row[path], ours, "calibrated")

    def check_r(self) -> Iterator[Check]:
        """The described system's placement (7B, 64 GPUs, 16/40/8) with defaults: elastic over static."""
        config = published.side_by_side("7B", 64, DATA["D"]["mean_tokens"]).model_copy(update={"seed": self.seed})
        ratio = run(config, make_policy("elastic")).tokens_s / run(config, make_policy("disaggregated")).tokens_s
        yield Check("R", "7B@64 static / elastic (at most)", 1 / ELASTIC_GAIN, 1 / ratio, "gate", is_bound=True)

    def check_v(self) -> Iterator[Check]:
        """verl's tables: one mean length per run from its training time; the rest is predicted."""
        means: dict[str, float] = {}
        for one in published.VERL_RUNS:
            means[one.name] = means[one.same_lengths_as] if one.same_lengths_as else self._verl_mean(one)
            record = run(published.verl_configuration(one, means[one.name], self.seed, 3))
            yield Check("V", f"{one.name} step s", one.step_s, _settled_s(record), one.role, limit=VERL_TOLERANCE)

    def _verl_mean(self, one: published.VerlRun) -> float:
        """The mean length with which training takes as long as published: nearly proportional, so two rounds."""
        mean = 2000.0
        for _ in range(2):
            steps = run(published.verl_configuration(one, mean, self.seed, 3)).steps[1:]
            work = [w.end_s - w.start_s for step in steps for w in step.work if w.component == "actor"]
            mean *= one.training_s * len(steps) / sum(work)
        return mean

    def check_w(self) -> Iterator[Check]:
        """verl's v1 trainer: the two asynchronous modes over the synchronous one."""
        rows = published.verl_v1_rows(self.folder)
        ours = {mode: _settled_s(run(config)) for mode, _, config in rows}
        theirs = {mode: seconds for mode, seconds, _ in rows}
        for mode in list(ours)[1:]:
            ratio = theirs[mode] / theirs["sync"]
            yield Check("W", f"{mode} / sync", ratio, ours[mode] / ours["sync"], "gate", limit=RATIO_POINTS / ratio)

    def check_n(self) -> Iterator[Check]:
        """NeMo-RL: every step, their median error, and asynchronous over synchronous."""
        rows = published.nemo_rows(self.folder)
        ours: dict[str, float] = {}
        for row in rows:
            ours[row.name] = _settled_s(run(row.config))
            yield Check("N", f"{row.name} step s", row.step_s, ours[row.name], "reported")
        errors = [abs(ours[row.name] / row.step_s - 1.0) for row in rows]
        yield Check("N", "median error", NEMO_MEDIAN, float(np.median(errors)), "gate", is_bound=True)
        for row in rows:
            sync = [one for one in rows if (one.model, one.gpu, one.gpus, one.off) == (row.model, row.gpu, row.gpus, 0)]
            if row.off and sync and "BF16" in row.name:
                ratio = sync[0].step_s / row.step_s
                got = ours[sync[0].name] / ours[row.name]
                # Why not the other rows on GB200: docs/posttrain.md.
                role = "gate" if row.gpu.lower() == "h100" or ratio < 1.0 else "reported"
                yield Check("N", f"{row.name} speed-up", ratio, got, role, limit=NEMO_POINTS / ratio)

    def check_s(self) -> Iterator[Check]:
        """CPU seconds, the best of three after one run that compiles: others may use the machine meanwhile."""
        config = self._d_configuration("7B", 64, 1.0, 0.5).model_copy(update={"num_steps": 1})
        policy = make_policy("elastic")
        run(config, policy)
        seconds = []
        for _ in range(3):
            start = time.process_time()
            run(config, policy)
            seconds.append(time.process_time() - start)
        what = "CPU seconds for a step of 8,192 sequences"
        yield Check("S", what, MAX_STEP_S, min(seconds), "gate", is_bound=True)


def _settled_s(record: RunRecord) -> float:
    """Mean seconds of the steps but the first, which finds nothing generated."""
    steps = record.steps[1:] or record.steps
    return sum(step.duration_s for step in steps) / len(steps)


def _balanced(config: Posttrain) -> list[tuple[int, int, int]]:
    """Static placements whose shares are nearest to those of the stages' seconds."""
    costs = colocated_costs(config)
    seconds = [costs.actor, costs.rollout, costs.inference]
    shares = [one / sum(seconds) for one in seconds]

    def distance(sizes: tuple[int, int, int]) -> float:
        return sum(abs(size / config.cluster.num_gpus - share) for size, share in zip(sizes, shares, strict=True))

    return sorted(candidates(config), key=lambda sizes: (distance(sizes), -sizes[1], sizes[0]))[:C_PLACEMENTS]


@proof("posttrain")
def prove(
    *, only: str = "ABCDRSVWYN", data: str | None = None, calibrate_on: int = 64, seed: int = 0,
    on_progress: Progress | None = None,
) -> Findings:  # fmt: skip
    """RL post-training: published results A-D, verl (V, W, Y), NeMo-RL (N), RLinf's YAML (R), and our own speed (S)."""
    letters = only.upper()
    if not letters or set(letters) - set(NOTES):
        raise ConfigError(f"unknown source in {only!r}.", where="--only", fix=f"Known: {', '.join(NOTES)}.")
    if not data:  # What the package brings along.
        letters = "".join(letter for letter in letters if letter not in OF_REFERENCE)
    study = Study(calibrate_on, seed, Path(data or "") if letters else reference(data))
    found = (getattr(study, f"check_{letter.lower()}")() for letter in each(letters, on_progress))
    return findings([check for checks in found for check in checks], letters)


OF_REFERENCE = "WN"  # Sources that read the reference data.

CONSTANTS = {name: DATA[name]["constants"] for name in ("verl", "nemo")}
NOTES = {letter: note.format_map(CONSTANTS) for letter, note in DATA["notes"].items()}


def findings(checks: list[Check], letters: str) -> Findings:
    """One row per published value; printed, errors are in per cent, and gates say whether they hold."""
    rows: list[dict[str, Any]] = [
        {
            "source": one.source, "what": one.what, "published": one.published, "ours": one.ours,
            "error": None if one.is_bound else one.error, "role": one.role, "ok": one.ok,
        }
        for one in checks
    ]  # fmt: skip
    printed = [
        row | {"error": "" if row["error"] is None else f"{row['error']:+z.1%}",
               "ok": ("yes" if row["ok"] else "NO") if row["role"] == "gate" else ""}
        for row in rows
    ]  # fmt: skip
    table = Table(printed, "Published results of RL post-training", left=("source", "what", "role", "ok"))
    blocks: list[Block] = [table, *(Line(f"{letter}: {NOTES[letter]}") for letter in letters)]
    if set(NOTES) - set(letters) == set(OF_REFERENCE):
        blocks.append(Line("W and N read the reference data: --data, or $GNOMON_REFERENCE.", "note"))
    return Findings(
        checks, rows, {"checks": rows}, blocks, [f"{one.source} {one.what}" for one in checks if not one.ok]
    )
