"""What is made of measurements before anything is read between them, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.timing.config import CAPTURE_SIZES, TimingConfig
from gnomon.timing.operators import Gemm, Operator
from gnomon.timing.sources import ANY
from gnomon.timing.sources.profile.measured import Measured
from gnomon.timing.sources.profile.samples import Bundle, Samples
from gnomon.timing.sources.profile.servingsim import IN_SERVER, read_attention
from gnomon.timing.sources.profile.shapes import from_neighbours
from gnomon.timing.sources.silicon import latent
from gnomon.timing.sources.silicon.kernels import nearest


def samples(sizes: list[Any], seconds: list[float]) -> Samples:
    return Samples(np.array(sizes, float), np.array(seconds), "here")


def product(n: int, k: int) -> Operator:
    return Operator("product", "gemm", 1, Gemm(n, k))


def test_prompts_alone_decodes_alone_and_both_are_kept_apart(tmp_path: Path) -> None:
    rows = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", "16,0,0,0,1", "0,0,2,64,2", "16,0,2,64,3"]
    rows.append("0,0,0,0,4")  # Nothing at all: left out.
    (tmp_path / "attention.csv").write_text("\n".join(rows) + "\n")
    found = read_attention(tmp_path / "attention.csv")
    assert {name: one.sizes.tolist() for name, one in found.items()} == {
        "attention_prefill": [[16, 0]],
        "attention_decode": [[2, 64]],
        "attention_mixed": [[16, 0, 2, 64]],
    }
    assert found["attention_mixed"].seconds == pytest.approx([3e-6 * IN_SERVER])


def test_a_shape_that_was_measured_is_taken_as_it_is() -> None:
    bundle = Bundle("here")
    for n in (512, 1000, 1024):
        bundle.add(("gemm", n, 64), samples([[1], [2]], [n * 1e-6, n * 2e-6]))
    found = from_neighbours(bundle, product(1000, 64), lambda *_: np.ones(2))
    assert found is bundle.samples["gemm", 1000, 64]
    assert from_neighbours(bundle, product(1000, 256), lambda *_: np.ones(2)) is None, "four times as deep"


def test_neighbours_count_by_the_square_of_their_distance() -> None:
    """1024 lies one octave from 2048 and half an octave from 1448 (724 x 2): weights 1 to 4. The formula says 1 s for
    all of them, so that the answer is the mean of the logarithms."""
    bundle = Bundle("here")
    bundle.add(("gemm", 2048, 64), samples([[1], [2]], [8.0, 8.0]))
    bundle.add(("gemm", round(1024 * 2**0.5), 64), samples([[1], [4]], [1.0, 1.0]))
    found = from_neighbours(bundle, product(1024, 64), lambda *_: np.ones(1))
    assert found is not None
    assert found.is_between
    assert found.sizes.tolist() == [[1.0]], "where both were measured"
    assert found.seconds == pytest.approx([8.0**0.2], rel=1e-3)


def test_what_another_kernel_contains_has_any_size() -> None:
    source = SimpleNamespace(bundle=Bundle("here", included={"rotary", "attention_decode"}))
    assert Measured.measured(source, Operator("rotary", "elementwise", 1, Gemm(1, 1))) == (ANY,)  # type: ignore[arg-type]
    inside = Operator("attention_decode", "attention_decode", 1, Gemm(1, 1))
    assert Measured.measured(source, inside) == (ANY, ANY)  # type: ignore[arg-type]


@pytest.mark.parametrize(("third", "kept"), [(1.6, [3, 4, 5]), (1.7, [2, 3, 4, 5])])
def test_prompts_that_wait_for_launches_are_left_out(third: float, kept: list[int]) -> None:
    """Nothing changes up to 1.6 times the shortest: of those the longest stays. Another engine takes a tenth."""
    given = samples([[1, 0], [2, 0], [3, 0], [4, 0], [5, 0]], [1.0, 1.1, third, 3.0, 4.0])
    found, is_changed = latent._without_launches(given, 0.1)
    assert is_changed
    assert found.sizes[:, 0].tolist() == kept
    assert latent._without_launches(given, 0.9) == (given, False), "another engine takes as long"


@pytest.mark.parametrize(("jump", "kept"), [(4.1, [1, 2]), (4.0, [1, 2, 4])])
def test_batches_beyond_the_largest_graph_are_left_out(jump: float, kept: list[int]) -> None:
    """From two to four sequences, more than twice the batch's growth is a jump, seen where both have KV 8 and 16."""
    sizes = [(1, 8), (1, 16), (2, 8), (2, 16), (2, 32), (4, 8), (4, 16)]
    seconds = [1.0, 1.0, 1.0, 1.0, 9.0, jump, jump]
    found = latent._inside_graphs(samples(sizes, seconds))
    assert np.unique(found.sizes[:, 0]).tolist() == kept


def test_the_nearest_shape_is_scaled_by_the_roofline() -> None:
    """From 300 columns it is farther to 100 than to 400, whose times fall to three quarters."""
    bundle = Bundle("here")
    for n in (100, 400):
        bundle.add(("gemm", n, 64), samples([[1], [2]], [n * n * 1e-9, n * n * 2e-9]))
    kernels: Any = SimpleNamespace(bundle=bundle, left_out={})
    roofline: Any = SimpleNamespace(seconds=lambda operator, tokens: operator.work.n * tokens)
    table: Any = SimpleNamespace(name="a table")
    found = nearest(kernels, product(300, 64), table, roofline, lambda key: Gemm(int(key[1]), int(key[2])))
    assert found is not None
    assert found.samples.seconds == pytest.approx([0.75 * 160e-6, 0.75 * 320e-6])
    assert found.samples.is_between


def test_what_a_source_does_not_read_is_refused() -> None:
    for settings in ({"path": "x"}, {"table": {"per_token": 1}}):
        with pytest.raises(GnomonError, match=f"{next(iter(settings))} is not used"):
            build(TimingConfig, {"source": "roofline", **settings})
    with pytest.raises(GnomonError, match="free is not used"):
        build(TimingConfig, {"source": "table", "table": {"per_token": 1}, "free": ["network"]})
    assert build(TimingConfig, {"source": "roofline", "free": ["network"]}).free == ("network",)


def test_sizes_of_graphs() -> None:
    sizes = [build(TimingConfig, {"graph_sizes": one}).captured_sizes for one in ("vllm", [1, 8], [], None)]
    assert sizes == [CAPTURE_SIZES, (1, 8), (), ()]
