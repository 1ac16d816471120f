"""A draft model takes time over prompts and decodes, and memory for weights and KV."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon import catalog
from gnomon.catalog import Parallelism
from gnomon.core.config import build
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pools import resolve
from gnomon.timing import Context, Timer, TimingConfig, iteration_tables
from gnomon.timing.iteration import IterationTables, with_draft
from gnomon.timing.lookup import Shape, stage_s, with_host_s


def tables(name: str, device: str = "h100", **degrees: int) -> IterationTables:
    cut = Parallelism(**degrees)
    sizes = {"max_tokens": 2048, "max_sequences": 64, "max_kv_tokens": 4096}
    config = TimingConfig(source="roofline")
    return iteration_tables(catalog.model(name), catalog.device(device), cut, config=config, **sizes).tables


def seconds(of: IterationTables, shape: Shape) -> float:
    return sum(stage_s(of, stage, shape, shape.tokens) for stage in range(len(of.token_s)))


def decodes(count: int, tokens_each: int) -> Shape:
    tokens = count * tokens_each
    return Shape(tokens, tokens, 0.0, 0.0, count, count * 1024.0, 1024.0, tokens, 0.0)


PROMPT = Shape(1024, 0, 1024.0**2, 0.0, 0, 0.0, 0.0, 0, 0.0)  # No head: that one's tokens are the target's own.


@pytest.mark.parametrize("device", ["h100", "rtx-4090"])  # The second has chunks and decodes in one kernel.
@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v2-lite"])
def test_a_draft_model_reads_every_prompt(device: str, name: str) -> None:
    target, draft = tables(name, device), tables("llama-3.2-1b", device)
    both = with_draft(target, draft, 3)
    assert seconds(both, PROMPT) == pytest.approx(seconds(target, PROMPT) + seconds(draft, PROMPT))


def test_a_round_is_one_pass_of_the_draft_over_the_tokens_and_then_one_for_each_further_token() -> None:
    target, draft = tables("llama-3-8b"), tables("llama-3.2-1b")
    both = with_draft(target, draft, 3)
    verified = decodes(8, 4)
    first = draft.token_s[0, 32] + draft.sequence_s[0, 8] + seconds(draft, decodes(8, 1)._replace(sequences=0))
    first -= draft.token_s[0, 8]
    expected = seconds(target, verified) + first + 2 * seconds(draft, decodes(8, 1))
    assert seconds(both, verified) == pytest.approx(expected)


def test_further_draft_passes_wait_for_the_experts_that_groups_share() -> None:
    """Two data-parallel groups: eight decodes here are sixteen tokens for the experts of each further pass."""
    moe = tables("qwen3-30b-a3b", data_parallel=2, expert_parallel=True)
    one, three = (with_draft(moe, moe, drafted, num_groups=2) for drafted in (1, 3))
    verified = decodes(8, 4)
    further = moe.expert_s[0, 16] + seconds(moe._replace(expert_s=moe.expert_s[:, :0]), decodes(8, 1))
    assert moe.expert_s[0, 16] > 0
    assert seconds(three, verified) - seconds(one, verified) == pytest.approx(2 * further)


def test_every_drafting_sequence_takes_the_hosts_time() -> None:
    target, draft = tables("llama-3-8b"), tables("llama-3.2-1b")
    plain, hosted = (with_draft(target, draft, 3, sequence_s=each_s) for each_s in (0.0, 1e-3))
    mixed = decodes(8, 4)._replace(chunks_squared=4.0)
    assert with_host_s(hosted, 0, 1.0, decodes(8, 4)) - with_host_s(plain, 0, 1.0, decodes(8, 4)) == pytest.approx(8e-3)
    assert with_host_s(hosted, 0, 1.0, mixed) - with_host_s(plain, 0, 1.0, mixed) == pytest.approx(8e-3)
    assert with_host_s(hosted, 0, 1.0, PROMPT) == with_host_s(plain, 0, 1.0, PROMPT)


def test_verified_tokens_are_no_prompt_and_pass_what_decodes_pass() -> None:
    """Latent attention expands the KV of prompts only, and absorbs the products of all that a decode computes."""
    sizes = {"max_tokens": 2048, "max_sequences": 64, "max_kv_tokens": 4096}
    model, config, cut = catalog.model("deepseek-v2-lite"), TimingConfig(source="roofline"), Parallelism()
    one, four = (
        iteration_tables(model, catalog.device("h100"), cut, config=config, tokens_per_decode=each, **sizes).tables
        for each in (1, 4)
    )
    verified = decodes(8, 4)
    assert one.prompt_s[0, 24] > 0
    assert seconds(one, verified) == pytest.approx(seconds(one._replace(prompt_s=one.prompt_s[:, :0]), verified))
    timer = Timer(Context(model, catalog.device("h100"), catalog.default_node(catalog.device("h100")), cut, config))
    absorbed = [one for one in timer.operators(0) if one.kind == "decode"]
    more = sum(o.count * float(np.diff(timer.seconds(o, np.array([8.0, 32.0])))[0]) for o in absorbed)
    assert more > 0
    assert seconds(four, verified) - seconds(one, verified) == pytest.approx(more)


def test_all_stages_of_the_draft_run_before_the_target() -> None:
    target = tables("llama-3-8b", pipeline_parallel=2)
    both = with_draft(target, tables("llama-3.2-1b", pipeline_parallel=2), 2)
    assert (both.token_s[1] == target.token_s[1]).all()
    assert (both.token_s[0, 1:] > target.token_s[0, 1:]).all()


def test_a_draft_model_leaves_fewer_blocks() -> None:
    drafting = {"speculative": {"num_tokens": 3, "draft_model": "llama-3.2-1b"}}
    (alone,), (both,) = (
        resolve(build(Scenario, {"model": "llama-3-70b", "device": "h100", "replica": {"tensor_parallel": 4, **more}}))
        for more in ({}, drafting)
    )
    assert alone.plan is not None and both.plan is not None
    # 1.24 G parameters in bf16 over four ranks; KV in 80 and 16 layers, two of eight heads each, of 128 and 64.
    assert both.plan.weight_bytes - alone.plan.weight_bytes == pytest.approx(2 * 1.2358e9 / 4, rel=1e-3)
    assert alone.plan.block_bytes == 16 * 80 * 2 * 2 * 128 * 2
    assert both.plan.block_bytes == 16 * (80 * 2 * 2 * 128 + 16 * 2 * 2 * 64) * 2
    assert both.num_kv_blocks < alone.num_kv_blocks


def test_layers_that_draft_leave_fewer_blocks() -> None:
    """One more layer on the last stage, and what joins embedding and hidden state before it, whole on every rank."""
    drafting = {"speculative": {"num_tokens": 3, "draft_layers": 1}}
    (alone,), (both,) = (
        resolve(build(Scenario, {"model": "llama-3-70b", "device": "h100", "replica": {"tensor_parallel": 4, **more}}))
        for more in ({}, drafting)
    )
    assert alone.plan is not None and both.plan is not None
    attention, mlp = 2 * 8192 * 8192 + 2 * 8192 * 1024, 3 * 8192 * 28672
    norms, join = 2 * 8192, 2 * 8192 * 8192 + 3 * 8192
    assert both.plan.weight_bytes - alone.plan.weight_bytes == 2 * ((attention + mlp) / 4 + norms + join)
    assert both.plan.block_bytes - alone.plan.block_bytes == 16 * 2 * 2 * 128 * 2
    assert both.num_kv_blocks < alone.num_kv_blocks
    # With two stages, the last one, which has the head already, holds it.
    cut, llama, h100 = Parallelism(pipeline_parallel=2), catalog.model("llama-3-8b"), catalog.device("h100")
    plain, head = (catalog.plan_memory(llama, h100, cut, draft_layers=count) for count in (0, 1))
    assert llama.weight_bytes_of_stage(cut, 0) < plain.weight_bytes < head.weight_bytes


def test_layers_that_draft_keep_what_the_model_keeps() -> None:
    """DeepSeek-V3: 576 numbers of a latent vector on every rank; 256 experts of 3 x 7168 x 2048 bytes over eight."""
    model, cut = catalog.model("deepseek-v3"), Parallelism(tensor_parallel=8)
    assert model.drafting_sequence_bytes(10, "bf16", 8) == 10 * 576 * 2
    assert model.drafting_layer_bytes(cut) == pytest.approx(256 * 3 * 7168 * 2048 / 8, rel=0.2)


def test_a_dense_draft_beside_shared_experts() -> None:
    cut = Parallelism(tensor_parallel=2, data_parallel=4, expert_parallel=True)
    dense, moe = catalog.model("llama-3.2-1b"), catalog.model("qwen3-30b-a3b")
    assert cut.suited_to(dense) == Parallelism(tensor_parallel=2)
    assert cut.suited_to(moe) == cut
    assert catalog.plan_memory(moe, catalog.device("h100"), cut, draft=dense).num_kv_blocks > 0


def test_more_sequences_than_tokens_of_an_iteration() -> None:
    """A batch cap of 2,048 under a budget of 1,152 tokens, as TensorRT-LLM has it by default."""
    sizes = {"max_tokens": 16, "max_sequences": 64, "max_kv_tokens": 256}
    config, cut = TimingConfig(source="roofline"), Parallelism()
    target, draft = (
        iteration_tables(catalog.model(name), catalog.device("h100"), cut, config=config, **sizes).tables
        for name in ("llama-3-8b", "llama-3.2-1b")
    )
    both = with_draft(target, draft, 3)
    assert seconds(both, decodes(4, 4)) > seconds(target, decodes(4, 4))
