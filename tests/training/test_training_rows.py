"""Reading published training steps, and judging their prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gnomon.core.errors import DataError
from gnomon.verify.training import Figure, Row, Scored, _order, figures, read_rows, score

BRIDGE = """## 25.09 NeMo Container

### Pre-Training Performance

#### System: DGX-GB200

| Model | #-GPUs | GBS | MBS | Sequence Length | FSDP | TP | PP | CP | VP | EP | GA | Tokens / sec / GPU | Model TFLOP / sec / GPU |
|-------|--------|-----|-----|-----------------|------|----|----|----|----|----|----|------|------|
| LLAMA3_70B | 64 | 128 | 2 | 8192 | 64 (0) | 1 (2) | 1 (4) | 1 | 1 (5) | 1 | 1 (16) | 4000 (3500) | 1791 (1593) |

## 26.06 NeMo Container

### LoRA Performance

#### Model: LLAMA3_70B

| System | #-GPUs | Precision | GBS | MBS | Sequence Length | TP | PP | CP | VP | EP | Tokens / sec / GPU | Model TFLOP / sec / GPU |
|--------|--------|-----------|-----|-----|-----------------|----|----|----|----|----|------|------|
| DGX-H100 | 8 | FP8 | 32 | 1 | 4096 | 2 | 4 | 1 | 20 | n/a | 2643 | 735 |
"""  # noqa: E501


def test_rows_of_a_table_with_a_second_recipe_in_parentheses(tmp_path: Path) -> None:
    (tmp_path / "megatron_bridge_1.md").write_text(BRIDGE, encoding="utf-8")
    first, second, lora = read_rows(tmp_path)
    assert first.config["sharding"] == "parameters" and first.config["shard_gpus"] == 64
    assert first.step_s == pytest.approx(128 * 8192 / (4000 * 64))
    assert (second.config["tensor_parallel"], second.config["pipeline_parallel"]) == (2, 4)
    assert (second.config["virtual_stages"], second.config["precision"]) == (5, "mxfp8")
    assert second.config["sharding"] == "optimizer" and second.step_s == pytest.approx(128 * 8192 / (3500 * 64))
    assert first.is_fitted == second.is_fitted, "both are of one line"
    assert (lora.family, lora.config["lora_rank"], lora.config["device"]) == ("lora", 16, "h100")


def test_a_folder_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file of training steps"):
        read_rows(tmp_path)


def row(tokens_per_s: float, **change: object) -> Row:
    config = {"model": "llama-3.2-1b", "device": "h200", "gpus": 1, "framework": "transformers", "sharding": "none"}
    line = next(str(n) for n in range(99) if not Row("", "", "", {}, str(n)).is_fitted)
    return Row("test", "dense", "row", config | change, line, step_s=4096 / tokens_per_s)


def test_order_and_errors_by_hand() -> None:
    """Twice as fast without recomputation: predicted so; the other way round: not. 5 % apart says nothing."""
    plain, again = row(60000.0), row(40000.0, recompute="full")
    assert _order([score(plain), score(again)]) == (1, 1)
    assert _order([score(replace(plain, step_s=1.0)), score(replace(again, step_s=0.5))]) == (0, 1)
    assert _order([score(replace(plain, step_s=1.0)), score(replace(again, step_s=1.05))]) == (0, 0)
    assert _order([score(plain), score(replace(plain, step_s=1.0))]) == (0, 0), "one configuration"
    found = score(plain)
    assert found.step is not None
    exact = Scored(replace(plain, step_s=found.step.step_s / 1.5), found.step)
    dense = next(one for one in figures([exact]) if one.name == "step time, dense")
    assert dense.value == pytest.approx(0.5) and not dense.passed
    assert Figure("", 3, 0.95, 0.9, is_share=True).passed and not Figure("", 3, 0.85, 0.9, is_share=True).passed


def test_a_device_that_is_not_catalogued_is_told() -> None:
    assert "unknown device" in score(row(1.0, device="abacus")).problem
