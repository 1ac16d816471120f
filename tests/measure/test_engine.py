"""The reference engine on a CPU: kernels' meaning, scheduling, blocks, stamps, records."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks import kernels as check  # noqa: E402

from gnomon.measure.engine import load, probe, record  # noqa: E402
from gnomon.measure.engine.__main__ import main  # noqa: E402
from gnomon.measure.engine.load import Workload  # noqa: E402
from gnomon.measure.engine.runner import Runner  # noqa: E402
from gnomon.measure.engine.scheduler import Request, Scheduler  # noqa: E402
from gnomon.measure.engine.serve import Served, make_requests, serve  # noqa: E402
from gnomon.measure.engine.shape import EngineConfig, ModelShape  # noqa: E402
from gnomon.measure.kernels.work import Layout, WorkList  # noqa: E402

TINY = ModelShape("tiny", 2, 64, 4, 2, 16, 96, 128, qk_norm=True)
WORK = Workload([0, 0, 0, 0.01, 0.02, 0.02], [20, 50, 3, 40, 17, 9], [5, 20, 30, 8, 1, 40])


def config(**given: float) -> EngineConfig:
    limits = {
        "max_num_batched_tokens": 32,
        "max_num_seqs": 4,
        "max_model_len": 128,
        "block_size": 8,
        "num_kv_blocks": 64,
    }
    return EngineConfig(**{**limits, **given})


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def served_with(blocks: int, **given: float) -> Served:
    limits = config(num_kv_blocks=blocks, **given)
    return serve(Runner(TINY, limits, "cpu", "float32"), make_requests(WORK, TINY.vocab_size, limits))


@pytest.mark.parametrize("blocks", [64, 12])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_batching_chunking_and_preemption_change_no_token(blocks: int, penalty: float) -> None:
    served = served_with(blocks, repetition_penalty=penalty)
    assert any(r.preemptions for r in served.requests) == (blocks == 12)
    alone = Runner(TINY, config(max_num_batched_tokens=128, repetition_penalty=penalty), "cpu", "float32")
    for request in served.requests:
        [one] = serve(alone, [Request(0, 0.0, request.prompt, request.output_tokens)]).requests
        assert request.output == one.output
        assert len(request.output) == len(request.stamps) == request.output_tokens
        assert request.stamps == sorted(request.stamps)
        assert request.stamps[0] >= request.arrived_s


def test_eager_prefill_changes_no_token_and_pads_no_prompt() -> None:
    eager, padded = served_with(64, eager_prefill=True), served_with(64)
    assert [r.output for r in eager.requests] == [r.output for r in padded.requests]
    runner = Runner(TINY, config(eager_prefill=True), "cpu", "float32")
    assert not any(with_chunks for _, with_chunks, _ in runner._bodies)
    assert all(step.iteration.launch_s > 0.0 for step in eager.steps)


def test_without_any_graph_tokens_are_the_same() -> None:
    eager = served_with(64, eager=True)
    assert [r.output for r in eager.requests] == [r.output for r in served_with(64).requests]
    assert not Runner(TINY, config(eager=True), "cpu", "float32")._bodies


def test_a_repetition_penalty_makes_what_was_said_less_likely() -> None:
    def words(penalty: float) -> list[int]:
        served = served_with(64, repetition_penalty=penalty)
        return [len(set(r.output) | set(r.prompt.tolist())) for r in served.requests]

    assert sum(words(1e4)) > sum(words(1.0))


def test_of_a_top_p_of_nothing_only_the_likeliest_token_is_left() -> None:
    likeliest = [r.output for r in served_with(64).requests]
    assert [r.output for r in served_with(64, temperature=1.0, top_p=1e-9).requests] == likeliest
    assert [r.output for r in served_with(64, temperature=50.0).requests] != likeliest


def test_top_p_of_the_likeliest_token_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="top_p needs a temperature"):
        config(top_p=0.9)


def test_every_token_is_computed_once_without_preemption() -> None:
    served = served_with(64)
    expected = sum(len(r.prompt) + r.output_tokens - 1 for r in served.requests)
    assert sum(step.iteration.tokens for step in served.steps) == expected
    assert all(step.iteration.tokens <= 32 for step in served.steps)
    ends = [step.end_s for step in served.steps]
    assert ends == sorted(ends)
    assert {stamp for r in served.requests for stamp in r.stamps} <= set(ends)


def test_running_requests_come_first_and_waiting_ones_share_what_is_left() -> None:
    limits = config(max_num_batched_tokens=16)
    scheduler = Scheduler(limits, 64, np.zeros((4, limits.blocks_per_sequence), np.int32))
    for index, prompt in enumerate((10, 12, 5)):
        scheduler.add(Request(index, 0.0, np.zeros(prompt, np.int32), 3))

    def step() -> list[tuple[int, int]]:
        batch = scheduler.plan()
        scheduler.admit(batch, 0.0)
        scheduler.advance(batch)
        scheduler.stamp(batch, [7] * len(batch.requests), 0.0)
        return [(request.index, count) for request, count in zip(batch.requests, batch.num_tokens, strict=True)]

    assert step() == [(0, 10), (1, 6)]
    assert step() == [(0, 1), (1, 6), (2, 5)]
    assert step() == [(0, 1), (1, 1), (2, 1)]
    assert step() == [(1, 1), (2, 1)]
    assert step() == []
    assert scheduler.num_free_blocks == 64


def test_the_latest_admitted_request_is_preempted_and_nobody_is_admitted_then() -> None:
    limits = config()
    scheduler = Scheduler(limits, 4, np.zeros((4, limits.blocks_per_sequence), np.int32))
    for index in range(3):
        scheduler.add(Request(index, 0.0, np.zeros(8, np.int32), 9))
    batch = scheduler.plan()
    scheduler.admit(batch, 0.0)
    assert len(batch.requests) == 3
    scheduler.advance(batch)
    batch = scheduler.plan()  # Each needs a second block; one is free.
    assert [request.index for request in batch.requests] == [0, 1]
    assert batch.preempted
    assert not scheduler.admit(batch, 0.0)
    assert scheduler.waiting[0].index == 2
    assert scheduler.waiting[0].preemptions == 1


def test_a_chunk_can_join_a_work_list_later() -> None:
    for heads, kv_heads in ((32, 8), (28, 4), (8, 8)):
        layout = Layout(16, 16, 2048, heads, kv_heads)
        joined, whole = np.zeros(layout.size, np.int32), np.zeros(layout.size, np.int32)
        work = WorkList(layout, joined)
        work.fill(ints(0, 1, 2), ints(1, 1, 1), ints(5, 9, 700), ints(0, 1, 2))
        work.append_chunk(3, 777, 50, 5)
        WorkList(layout, whole).fill(ints(0, 1, 2, 3), ints(1, 1, 1, 777), ints(5, 9, 700, 50), ints(0, 1, 2, 5))
        assert (joined == whole).all()


def test_decodes_are_cut_into_parts_that_cover_every_key_once() -> None:
    layout = Layout(8, 0, 8, 8, 8)
    memory = np.zeros(layout.size, np.int32)
    kv = ints(1, 256, 257, 5000)
    WorkList(layout, memory).fill(ints(0, 1, 2, 3), ints(1, 1, 1, 1), kv - 1, ints(0, 1, 2, 3))
    count, _, num_split, _ = memory[layout.fields["counts"]]
    items = memory[layout.fields["items"]].reshape(-1, 5)[:count]
    for row, length in enumerate(kv):
        parts = sorted((start, end) for r, _, start, end, _ in items.tolist() if r == row)
        assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])]
        assert parts[-1][1] == length
    slots = [slot for *_, slot in items.tolist() if slot >= 0]
    assert sorted(slots) == list(range(len(slots)))
    assert num_split == 2
    lengths = [end - start for _, _, start, end, _ in items.tolist()]
    assert lengths == sorted(lengths, reverse=True)


def test_attention_from_the_work_list_equals_attention_of_each_sequence() -> None:
    mixed = [(1, 0), (1, 300), (70, 0), (9, 40), (1, 17)]
    assert check.attention_error(8, 2, mixed, head_dim=32, dtype=torch.float32, device="cpu") < 1e-6
    assert max(check.elementwise_errors(torch.float32, "cpu").values()) == 0.0


def test_loads_are_reproducible() -> None:
    work = load.poisson("chat", 20.0, 10.0, seed=3)
    assert work == load.poisson("chat", 20.0, 10.0, seed=3)
    assert work != load.poisson("chat", 20.0, 10.0, seed=4)
    assert 140 < len(work) < 260


def test_a_ramp_rises_from_nothing_to_the_rate() -> None:
    work = load.poisson("chat", 20.0, 100.0, seed=3, ramp=True)
    early, late = (sum(a <= t < b for t in work.arrived_s) for a, b in ((0, 20), (80, 100)))
    assert 850 < len(work) < 1150
    assert early < 80
    assert 300 < late < 420


def test_arrivals_come_in_order_and_once() -> None:
    limits = config()
    runner = Runner(TINY, limits, "cpu", "float32")
    served = serve(runner, make_requests(Workload([0, 0, 0.05, 0.3], [9] * 4, [3] * 4), TINY.vocab_size, limits))
    admitted = [request.admitted_s for request in served.requests]
    assert admitted == sorted(admitted)
    assert all(r.arrived_s <= r.admitted_s < r.stamps[0] for r in served.requests)


def test_the_clock_is_read_from_lines_of_numbers() -> None:
    assert record.parse("1980, 500.5, 60\n1700, [N/A], 60\n1900, 600, 61\n19") == [(1980, 500.5, 60), (1900, 600, 61)]
    with record.Clocks() as watched:
        pass
    assert isinstance(watched.summary(), dict)


def test_a_run_leaves_its_stamps(tmp_path: Path) -> None:
    served = served_with(64)
    record.save(served, tmp_path / "run", {"model": "tiny"})
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["summary"]["num_requests"] == 6
    with gzip.open(tmp_path / "run" / "requests.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["first_token_s"]) for row in rows] == pytest.approx(
        [r.stamps[0] for r in served.requests], abs=1e-6
    )


def test_probes_know_the_bound() -> None:
    runner = Runner(TINY, config(max_num_batched_tokens=64), "cpu", "float32")
    one = probe.decode(runner, 4, 16, repeats=2)
    weights = TINY.weight_bytes - 2 * TINY.vocab_size * TINY.hidden_size
    assert one.bound_s == pytest.approx((weights + 4 * 16 * TINY.kv_bytes_per_token) / 4.8e12)
    assert 0 < one.share < 1


def test_requests_that_cannot_be_served_are_errors() -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        make_requests(Workload([0.0], [127], [2]), 128, config())
    with pytest.raises(ValueError, match="no requests"):
        make_requests(Workload([], [], []), 128, config())
    limits = config(num_kv_blocks=2)
    with pytest.raises(RuntimeError, match="more KV blocks"):
        serve(Runner(TINY, limits, "cpu", "float32"), make_requests(Workload([0.0], [30], [2]), 128, limits))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_is_clear(tmp_path: Path, capsys: pytest.CaptureFixture[str], cli) -> None:
    assert main(["probe", "--model", str(tmp_path / "model.json")]) == 2
    assert "needs a GPU" in capsys.readouterr().err
    cli("engine", "probe", "--model", "llama-3-8b", code=2)
    cli("engine", "probe", "--model", "qwen3-30b-a3b", code=2)
