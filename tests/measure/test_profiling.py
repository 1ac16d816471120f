"""The profiler without a GPU: grids, journal, bundle, quality, every operator on the CPU with a faked clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gnomon.measure.profiling import bundle, grid, quality  # noqa: E402
from gnomon.measure.profiling.__main__ import finish, main  # noqa: E402
from gnomon.measure.profiling.pool import Pool  # noqa: E402
from gnomon.measure.profiling.session import (  # noqa: E402
    AttentionBatch,
    Limits,
    Progress,
    Session,
)
from gnomon.measure.profiling.shapes import Shapes  # noqa: E402
from gnomon.measure.profiling.timer import Timing, summarise  # noqa: E402

SHAPES = Shapes(
    dtype="fp32",
    head_dim=16,
    gemm=[(48, 32), (32, 16)],
    head=[(64, 32)],
    elementwise=[
        ("embedding", 32),
        ("norm", 32),
        ("add_norm", 32),
        ("qk_norm", 48),
        ("rotary", 48),
        ("kv_write", 32),
        ("activation", 24),
        ("sampler", 64),
    ],
    attention=[(4, 2, 16)],
    models=["tiny"],
    tensor_parallel=[1],
)
SMALL = Limits(max_tokens=64, max_sequences=16, points=9, attention_points=80, slowest_s=1.0)


class FakeTimer:
    """Runs the call once (so that it must work) and answers with the expected time: a formula, no clock."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, call, expected_s):
        call(0)
        call(1)
        self.count += 1
        return Timing(expected_s, 0.01)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    import gnomon.measure.profiling.session as module

    monkeypatch.setattr(module, "CHUNKS", (16, 32, 64))
    monkeypatch.setattr(module, "CHUNK_KV", (0, 32, 64))
    monkeypatch.setattr(module, "DECODES", (1, 2, 4, 8, 128))
    monkeypatch.setattr(module, "DECODE_KV", (16, 64, 128))
    monkeypatch.setattr(module, "MIXED", ((32, 16, 4, 32),))
    monkeypatch.setattr(module, "SKEWED", ((8, 1),))
    pool = Pool(torch.device("cpu"), "fp32", num_bytes=1 << 26)
    return Session(pool, FakeTimer(), bundle.Journal(tmp_path / "out"), SMALL)


def test_refine_measures_where_a_line_bends() -> None:
    def time(point: grid.Point) -> float:
        return max(100.0, point[0])  # Flat, then rising: only the knee needs more points.

    start = {(m,): time((m,)) for m in (1, 32, 64, 128, 512, 1024)}
    refined = grid.refine(time, start, most_points=12)
    new = sorted(point[0] for point in refined if point not in start)
    assert new
    assert all(32 <= m <= 512 for m in new)
    assert grid.interpolate(refined, (110,)) == pytest.approx(110, rel=0.05)
    assert grid.refine(time, {(m,): float(m) for m in (1, 10, 100)}, most_points=9) == {
        (1,): 1.0,
        (10,): 10.0,
        (100,): 100.0,
    }


def test_refine_works_on_surfaces() -> None:
    def time(point: grid.Point) -> float:
        return max(64.0, float(point[0])) * (1.0 + point[1])

    start = {(a, b): time((a, b)) for a in (1, 16, 256, 512) for b in (0, 8, 16)}
    refined = grid.refine(time, start, most_points=20)
    assert len(refined) == 20
    new = [point for point in refined if point not in start]
    assert all(16 < a < 512 and b in (0, 8, 16) for a, b in new)  # The knee at 64; it is straight along the other axis.


def test_every_operator_runs_and_each_shape_is_measured_once(session: Session) -> None:
    session.compute(SHAPES)
    session.attention(SHAPES)
    first = session.timer.count
    rows = session.journal.rows
    assert {key[1] for key in rows["elementwise"]} == {name for name, _ in SHAPES.elementwise}
    assert {key[2:] for key in rows["gemm"]} == {(48, 32), (32, 16), (64, 32)}
    assert not any(key[4] and key[6] for key in rows["attention"])
    assert quality.additivity(rows)
    assert rows["skew"]
    session.compute(SHAPES)
    session.attention(SHAPES)
    curves = len(SHAPES.gemm) + len(SHAPES.head) + len(SHAPES.elementwise)
    assert session.timer.count - first <= SMALL.held_out * curves  # Only new held-out points.


def test_an_interrupted_profile_resumes(session: Session, tmp_path: Path) -> None:
    session.compute(SHAPES)
    path = session.journal.path
    whole = path.read_text()
    path.write_text(whole[:-20])  # As after a crash in the middle of a line.
    resumed = bundle.Journal(tmp_path / "out")
    assert sum(map(len, resumed.rows.values())) == whole.count("\n") - 1
    resumed.add("gemm", ("bf16", 1, 2, 3), 1e-6, 0.0)
    assert bundle.Journal(tmp_path / "out").get("gemm", ("bf16", 1, 2, 3)) == 1e-6


def test_a_bundle_is_written_hashed_and_read_back(session: Session, tmp_path: Path) -> None:
    session.compute(SHAPES)
    session.attention(SHAPES)
    out = tmp_path / "bundle"
    verdict = finish(session.journal, session.held_out, SHAPES, out, "h200", {"took_s": 1.0})
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["content_hash"] == bundle.content_hash(manifest["files"])
    assert manifest["files"]["gemm.csv.gz"]["rows"] == len(session.journal.rows["gemm"])
    again = bundle.read_rows(out)
    assert {name: set(rows) for name, rows in again.items()} == {
        name: set(rows) for name, rows in session.journal.rows.items() if name in bundle.COLUMNS
    }
    before = (out / "gemm.csv.gz").read_bytes()
    bundle.write(out, again, {"device": "h200"})
    assert (out / "gemm.csv.gz").read_bytes() == before
    assert verdict["held_out"]["points"] > 0
    assert (out / "quality.json").exists()


def test_decodes_are_spread_around_their_mean() -> None:
    lengths = AttentionBatch(decodes=64, decode_kv=300).decode_lengths()
    assert sum(lengths) == pytest.approx(64 * 300, rel=0.01)
    assert (min(lengths) < 10, max(lengths) > 590) == (True, True)
    assert AttentionBatch(decodes=1, decode_kv=300).decode_lengths() == [300]
    skewed = AttentionBatch(decodes=8, decode_kv=256, long_decodes=1, long_kv=2048).decode_lengths()
    assert sorted(skewed) == [256] * 7 + [2048]


def test_weights_are_tensors_of_their_own(session: Session) -> None:
    weights = session.pool.weights(64, 32)
    assert len({weight.data_ptr() for weight in weights}) == len(weights) >= 8
    assert session.pool.weights(64, 32) is weights
    session.pool.release()
    assert session.pool.weights(64, 32) is not weights


def test_what_does_not_repeat_is_measured_again_and_left_out(session: Session, tmp_path: Path) -> None:
    spreads = iter([0.3, 0.02, 0.4, 0.5])
    session.timer = lambda call, expected_s: Timing(1e-5, next(spreads))
    for tokens in (1, 2):
        session._measured("gemm", ("fp32", tokens, 8, 8), lambda: (lambda index: None, 1e-5), Progress("test", 2))
    rows = session.journal.rows["gemm"]
    assert [spread for _, spread in rows.values()] == [0.02, 0.4]
    finish(session.journal, session.held_out, SHAPES, tmp_path / "bundle", "h200", {})
    assert list(bundle.read_rows(tmp_path / "bundle")["gemm"]) == [("fp32", 1, 8, 8)]


def test_quality_finds_noise_and_falling_times() -> None:
    rows = {"gemm": {("bf16", m, 8, 8): (m * 1e-6, 0.01) for m in (1, 2, 4, 8)}}
    [good] = quality.assess(rows)
    assert (good.noisy, good.falling) == (0, 0)
    assert good.left_out_mean == pytest.approx(0.0, abs=1e-9)
    rows["gemm"]["bf16", 4, 8, 8] = (1.0e-6, 0.5)
    [bad] = quality.assess(rows)
    assert (bad.noisy, bad.falling) == (1, 1)
    assert bad.left_out_mean > 0.5


def test_the_median_and_spread_of_repeats() -> None:
    timing = summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    assert timing == Timing(3.0, pytest.approx(2.0 / 3.0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_is_clear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps({"gemm": [[8, 8]]}))
    assert main(["all", "--shapes", str(shapes), "--out", str(tmp_path / "out"), "--device-name", "h200"]) == 2
    assert "needs a GPU" in capsys.readouterr().err
