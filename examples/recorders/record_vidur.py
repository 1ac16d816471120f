"""Record a run of Vidur in the form that `gnomon verify vidur` reads.

Run it where Vidur is installed, with Vidur's own flags; RECORD names the folder:

    RECORD=runs/mine python record_vidur.py --replica_config_device a100 --replica_scheduler_config_type sarathi ...
    gnomon verify vidur runs/mine

Reads objects of microsoft/vidur as of July 2025 (Batch, Request, the replica scheduler's allocation map).
"""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any


def main() -> None:
    """Run Vidur as its own main does, and write down what happened."""
    from vidur.config import SimulationConfig
    from vidur.events.batch_end_event import BatchEndEvent
    from vidur.events.batch_stage_end_event import BatchStageEndEvent
    from vidur.simulator import Simulator
    from vidur.utils.random import set_seeds

    config = SimulationConfig.create_from_cli_args()
    set_seeds(config.seed)
    simulator = Simulator(config)
    recorder = Recorder([event._request for _, event in simulator._event_queue])
    _after(BatchStageEndEvent, recorder.stage_ended)
    _after(BatchEndEvent, recorder.batch_ended)
    simulator.run()
    schedulers = simulator.scheduler._replica_schedulers
    recorder.write(Path(os.environ["RECORD"]), setup_of(config, next(iter(schedulers.values()))))


def _after(event: type, note: Any) -> None:
    """Call `note(event, scheduler)` once an event of this class was handled."""
    handle = event.handle_event

    def handled(self: Any, scheduler: Any, metrics: Any) -> Any:
        answer = handle(self, scheduler, metrics)
        note(self, scheduler)
        return answer

    event.handle_event = handled


class Recorder:
    """Every batch at its end, and the requests with the lengths that they came with (a restart changes them)."""

    def __init__(self, requests: list[Any]) -> None:
        self.requests = {one.id: (one, one.num_prefill_tokens, one.num_decode_tokens) for one in requests}
        self.batches: list[list[Any]] = []
        self.replica_of: dict[int, int] = {}
        self._stages: dict[int, list[float]] = defaultdict(list)

    def stage_ended(self, event: Any, scheduler: Any) -> None:
        """Keep how long a stage took; the stages of a batch end in their order."""
        self._stages[event._batch.id].append(event._batch_stage.execution_time)

    def batch_ended(self, event: Any, scheduler: Any) -> None:
        """Keep a batch and the blocks in use after it."""
        batch, replica = event._batch, scheduler.get_replica_scheduler(event._replica_id)
        self.replica_of |= dict.fromkeys(batch.request_ids, event._replica_id)
        self.batches.append([
            batch.id, event._replica_id, batch.scheduled_at, batch.completed_at, _listed(batch.request_ids),
            _listed(batch.num_tokens), sum(replica._allocation_map.values()), _listed(self._stages.pop(batch.id)),
        ])  # fmt: skip

    def write(self, folder: Path, setup: dict[str, Any]) -> None:
        """Write run.json, batches.csv.gz and requests.csv.gz."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(setup, indent=1))
        columns = (
            "batch_id,replica_id,scheduled_at_s,completed_at_s,request_ids,num_tokens,allocated_blocks_after,"
            "stage_times_s"
        )
        _write_table(folder / "batches.csv.gz", columns, self.batches)
        columns = (
            "request_id,replica_id,arrived_at_s,prompt_tokens,output_tokens,first_scheduled_at_s,first_token_at_s,"
            "completed_at_s,num_restarts"
        )
        rows = [
            [number, self.replica_of.get(number, -1), one.arrived_at, prompt, output, one._scheduled_at,
             one._prefill_completed_at, one._completed_at, one.num_restarts]
            for number, (one, prompt, output) in sorted(self.requests.items())
        ]  # fmt: skip
        _write_table(folder / "requests.csv.gz", columns, rows)


def setup_of(config: Any, scheduler: Any) -> dict[str, Any]:
    """What the run was, as run.json says it."""
    cluster = config.cluster_config
    replica, batching = cluster.replica_config, cluster.replica_scheduler_config
    return {
        "model": replica.model_name, "device": replica.device, "network": replica.network_device,
        "tensor_parallel": replica.tensor_parallel_size, "pipeline_parallel": replica.num_pipeline_stages,
        "memory_margin_fraction": replica.memory_margin_fraction, "num_replicas": cluster.num_replicas,
        "router": str(cluster.global_scheduler_config.get_type()).lower(),
        "scheduler": asdict(batching) | {"name": str(batching.get_type()).lower()},
        "num_kv_blocks": scheduler._config.num_blocks, "max_tokens": scheduler._request_generator_config.max_tokens,
    }  # fmt: skip


def _listed(values: list[Any]) -> str:
    return " ".join(repr(value) for value in values)


def _write_table(path: Path, columns: str, rows: list[list[Any]]) -> None:
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns.split(","))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
