"""The stages of learned routing, each from files to files in one folder.

demos.npz                     what teachers did            (gnomon route demos)
clone.npz, clone.csv          the cloned policy            (gnomon route clone)
checkpoints/, metrics.csv, metrics.parquet, tensorboard/, policy.npz       (gnomon route train)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon import __version__
from gnomon.core.config import dump, save
from gnomon.core.errors import ConfigError, MissingExtraError
from gnomon.core.files import write_frame, write_text
from gnomon.core.parallel import map_ordered
from gnomon.core.text import own_yaml
from gnomon.routing import demos as demonstrations
from gnomon.routing.config import RouteConfig

if TYPE_CHECKING:
    from gnomon.routing.network import Scorer
    from gnomon.routing.online import Block
    from gnomon.routing.ppo import Trainer


SCALARS: dict[str, str] = own_yaml(files("gnomon.routing") / "scalars.yaml")
COLUMNS = ["update", "decisions", "gradient_steps", *SCALARS]


class MetricsLog:
    """Writes rows of metrics to `metrics.csv` and TensorBoard as they come, and to `metrics.parquet` at the end.

    After a resume, rows that the resumed run will write again are taken out first.
    """

    def __init__(self, folder: Path, resumed_at: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("training a router", "learn") from None
        self.path = folder / "metrics.csv"
        self.rows = [row for row in read_metrics(self.path) if row["update"] <= resumed_at] if resumed_at else []
        write_text(self.path, as_csv(self.rows, COLUMNS))
        self.board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_at + 1 if resumed_at else None)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.board.close()
        if self.rows:
            import polars as pl

            write_frame(self.path.with_suffix(".parquet"), pl.DataFrame(self.rows, infer_schema_length=None))

    def add(self, metrics: dict[str, float]) -> None:
        for name in SCALARS.keys() & metrics.keys():
            self.board.add_scalar(name, metrics[name], int(metrics["update"]))
        row = {name: metrics.get(name) for name in COLUMNS}
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.csv`; none where there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: float(value) if value else None for name, value in row.items()} for row in csv.DictReader(file)]


def as_csv(rows: Sequence[Mapping[str, Any]], columns: list[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@dataclass(frozen=True)
class Watcher:
    """How a stage tells what it does; by default it says nothing."""

    begin: Callable[[str, int], None] = lambda what, total: None
    """A part of a stage begins, of so many steps."""
    advance: Callable[[dict[str, float]], None] = lambda metrics: None
    """One step is done; what was measured in it."""
    warn: Callable[[str], None] = lambda text: None


class Folder:
    """The files of a run: demonstrations, the cloned and the trained policy, checkpoints."""

    def __init__(self, root: Path) -> None:
        self.root, self.checkpoints = root, root / "checkpoints"
        self.demos, self.clone, self.policy = (root / f"{name}.npz" for name in ("demos", "clone", "policy"))


def use_torch() -> None:
    """Load PyTorch; say how to install it where it is missing.

    One thread: the matrices are so small that more would mostly wait for each other, and sums do not depend on how many
    cores there are.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("training a router", "learn") from None
    torch.set_num_threads(1)


def collect_demos(
    config: RouteConfig, folder: Folder, watch: Watcher, jobs: int | None = None, ray: str | None = None
) -> int:
    """Let every driver act and write what the teacher says; returns the number of decisions."""
    demonstrations.check_names(config)
    save(config, folder.root / "config.yaml")
    found = _collected(demonstrations.collections(config), "demonstrations", watch, jobs, ray)
    demonstrations.write(found, folder.demos, config)
    return len(found)


def _collected(orders: list[Any], what: str, watch: Watcher, jobs: int | None, ray: str | None) -> demonstrations.Demos:
    watch.begin(what, len(orders))
    parts = []
    for outcome in map_ordered(demonstrations.collect, orders, jobs=jobs, ray=ray):
        parts.append(outcome.unwrap())
        watch.advance({"decisions": sum(len(part) for part in parts)})
    return demonstrations.joined(parts)


def clone_teacher(
    config: RouteConfig, folder: Folder, watch: Watcher, jobs: int | None = None, ray: str | None = None
) -> list[dict[str, float]]:
    """Clone the teacher from the demonstrations, then let the clone act and learn from its own mistakes (DAgger)."""
    use_torch()
    from gnomon.routing.network import Scorer, initialize, save_scorer

    found = demonstrations.read(folder.demos, config)
    scorer = Scorer(found.rows.shape[-1], config.network.hidden, config.network.recurrent)
    initialize(scorer, config.seed)
    scorer.normalizer.fit(found.rows[found.mask])
    history = _cloned(scorer, found, config, 0, watch)
    made = _made(config, "gnomon route clone")
    save_scorer(scorer, folder.clone, config.lengths, made)
    for number in range(1, config.demos.dagger_rounds + 1):
        orders = demonstrations.collections(config, folder.clone, number)
        more = _collected(orders, f"DAgger {number}: the clone acts", watch, jobs, ray)
        found = demonstrations.joined([found, more])
        history += _cloned(scorer, found, config, number, watch)
        save_scorer(scorer, folder.clone, config.lengths, made)
    write_text(folder.clone.with_suffix(".csv"), as_csv(history, list(history[0])))
    return history


def _cloned(
    scorer: Scorer, found: demonstrations.Demos, config: RouteConfig, number: int, watch: Watcher
) -> list[dict[str, float]]:
    from gnomon.routing.clone import clone

    watch.begin(f"DAgger {number}: cloning" if number else "cloning", config.clone.epochs)
    history = clone(found, config.clone, scorer, config.seed, watch.advance)
    return [{"round": number, **row} for row in history]


def new_trainer(config: RouteConfig, folder: Folder, state: dict[str, Any] | None = None) -> Trainer:
    """A trainer that starts from the clone, or goes on from the state of a checkpoint (and needs no clone then)."""
    from gnomon.routing.environment import new_clusters
    from gnomon.routing.network import Scorer
    from gnomon.routing.ppo import Trainer
    from gnomon.serving.routers.observation import NUM_FEATURES

    train = config.train
    if state is None:
        _check_first_policy(config, folder)
    clusters = new_clusters(config, train.num_environments, horizon=train.steps, group=train.trace_group)
    validation = new_clusters(config, train.validation_environments, horizon=train.validation_steps)
    if state is None:
        scorer = _first_policy(config, folder, clusters)
    else:
        kept = state["scorer"]
        scorer = Scorer(NUM_FEATURES, kept["phi1.bias"].numel(), recurrent="gru.weight_ih" in kept)
    trainer = Trainer(train, clusters, validation, scorer, config.seed)
    if state is not None:
        trainer.load_state(state)
    return trainer


def _first_policy(config: RouteConfig, folder: Folder, clusters: Any) -> Scorer:
    """The policy that training starts from: the folder's clone, one at random, or that of a file."""
    from gnomon.routing.network import Scorer, initialize, load_scorer

    if config.start == "nothing":
        rows, mask = clusters.reset(config.seed)
        scorer = Scorer(rows.shape[-1], config.network.hidden, config.network.recurrent)
        initialize(scorer, config.seed)
        scorer.normalizer.fit(rows[mask])
        return scorer
    return load_scorer(_first_path(config, folder))


def _first_path(config: RouteConfig, folder: Folder) -> Path:
    return folder.clone if config.start == "clone" else Path(config.start)


def _check_first_policy(config: RouteConfig, folder: Folder) -> None:
    """Before anything is compiled for it."""
    from gnomon.serving.routers.policy_file import load_policy

    if config.start == "nothing":
        return
    path = _first_path(config, folder)
    if not path.is_file():
        if config.start == "clone":
            raise ConfigError("there is no clone.", where=str(path), fix="Run `gnomon route clone` first.")
        raise ConfigError("no such policy file.", where=config.start, fix="Use clone, nothing, or the path of one.")
    policy = load_policy(path)
    for name in ("lengths", "queue_depth"):
        theirs, ours = getattr(policy, name), getattr(config, name)
        if theirs != ours:
            fix = f"Use --{name.replace('_', '-')} {theirs}."
            raise ConfigError(f"the policy was made for {name} {theirs!r}, not {ours!r}.", where=str(path), fix=fix)


def train(config: RouteConfig, folder: Folder, watch: Watcher, checkpoint: Path | None = None) -> Path:
    """Train from the clone, or go on from a checkpoint; returns the policy file."""
    use_torch()
    from gnomon.routing import checkpoint as checkpoints
    from gnomon.routing.network import save_scorer

    state = None
    if checkpoint is not None:
        state = checkpoints.load(checkpoint)
        _same_run(config, state["config"], checkpoint)
    trainer = new_trainer(config, folder, state)
    save(config, folder.root / "config.yaml")
    watch.begin("training", config.train.updates - trainer.update)
    with MetricsLog(folder.root, trainer.update) as log:
        for metrics in trainer.train():
            log.add(metrics)
            watch.advance(metrics)
            if trainer.update % config.train.checkpoint_every == 0 or trainer.update == config.train.updates:
                state = trainer.state() | {"config": dump(config)}
                checkpoints.save(folder.checkpoints, trainer.update, state, config.train.keep)
    made = _made(config, "gnomon route train") | {"decisions": trainer.decisions, "updates": trainer.update}
    return save_scorer(trainer.best_scorer(), folder.policy, config.lengths, made)


def train_online(config: RouteConfig, folder: Folder, watch: Watcher) -> tuple[Path, list[Block]]:
    """Let a policy learn while one long simulation runs; returns its file, and what became of every block."""
    use_torch()
    from gnomon.routing.environment import new_clusters
    from gnomon.routing.network import save_scorer
    from gnomon.routing.online import check, learn

    check(config)
    _check_first_policy(config, folder)
    scorer = _first_policy(config, folder, new_clusters(config, config.train.num_environments, horizon=64))
    save(config, folder.root / "config.yaml")
    watch.begin("learning online", config.online.decisions // config.train.steps)
    blocks = []
    for block in learn(config, scorer):
        blocks.append(block)
        watch.advance({"reward/mean": block.reward, "decisions": block.decisions})
    write_text(folder.root / "online.csv", as_csv([asdict(one) for one in blocks], list(asdict(blocks[0]))))
    made = _made(config, "gnomon route train --online") | {"decisions": blocks[-1].decisions}
    return save_scorer(scorer, folder.policy, config.lengths, made), blocks


def _same_run(config: RouteConfig, recorded: str, checkpoint: Path) -> None:
    """Refuse to resume under a configuration that would not have led here; only the number of updates may grow."""
    import yaml

    ours, theirs = config.model_dump(mode="json"), yaml.safe_load(recorded)
    for one in (ours, theirs):
        one.pop("compare")
        one.pop("online", None)
        for name in ("updates", "checkpoint_every", "keep"):
            one["train"].pop(name)
    sections = {part: own for part, own in ours.items() if isinstance(own, dict)}
    differing = [f"{part}.{k}" for part, own in sections.items() for k in own if own[k] != theirs[part].get(k)]
    differing += [part for part in ours if not isinstance(ours[part], dict) and ours[part] != theirs.get(part)]
    if differing:
        fix = "Use the same configuration, or start over with --resume never."
        raise ConfigError(f"the checkpoint was made with another {differing[0]}.", where=str(checkpoint), fix=fix)


def _made(config: RouteConfig, command: str) -> dict[str, Any]:
    return {"gnomon": __version__, "command": command, "seed": config.seed, "config": config.model_dump(mode="json")}
