"""The learned router: what it sees, its policy file, and that it runs the network that was trained."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DataError
from gnomon.jit import borrow, jit
from gnomon.serving.routers.learned import _temperature, choose, score
from gnomon.serving.routers.observation import FEATURES, GATEWAY_VS, NUM_FEATURES, SCHEMA_HASH, observe
from gnomon.serving.routers.policy_file import CLIP, Policy, load_policy, packed, save_policy, shapes, shipped_policy
from gnomon.serving.run.compilation import _example
from gnomon.workload import WorkloadConfig
from serving_kit import check_invariants, run, scenario


def random_policy(path: Path, seed: int = 0, hidden: int = 16, lengths: str = "none", recurrent: bool = False) -> Path:
    random = np.random.default_rng(seed)
    arrays = {name: random.standard_normal(shape) * 0.5 for name, shape in shapes(hidden, recurrent).items()}
    mean, std = random.random(NUM_FEATURES), 0.5 + random.random(NUM_FEATURES)
    return save_policy(path, arrays, mean, std, lengths, {"command": "test", "seed": seed})


def plain_scores(policy: Policy, rows: Any, memory: Any = None) -> Any:
    """The network in NumPy, as `policy_file` describes it."""

    def linear(layer: str, x: Any) -> Any:
        return x @ policy.arrays[f"{layer}.weight"].astype(np.float64).T + policy.arrays[f"{layer}.bias"]

    x = np.clip((rows - policy.mean) / policy.std, -CLIP, CLIP)
    h = np.maximum(linear("phi1", np.maximum(linear("phi0", x), 0)), 0)
    context = np.concatenate([h.mean(axis=0), h.max(axis=0)])
    if policy.recurrent:
        memory[:] = gated(policy, context, memory)
        context = np.concatenate([context, memory])
    every = np.concatenate([h, np.repeat(context[None], len(h), axis=0)], axis=1)
    return linear("rho1", np.maximum(linear("rho0", every), 0))[:, 0] - 20 * rows[:, GATEWAY_VS]


def gated(policy: Policy, x: Any, memory: Any) -> Any:
    """A gated recurrent unit: reset, kept and new (Cho et al. 2014, as PyTorch arranges it)."""
    sides = [(policy.arrays[f"gru.weight_{side}"].astype(np.float64), policy.arrays[f"gru.bias_{side}"])
             for side in ("ih", "hh")]  # fmt: skip
    of_input, of_memory = (np.split(w @ given + b, 3) for (w, b), given in zip(sides, (x, memory), strict=True))
    reset, kept = (1 / (1 + np.exp(-of_input[i] - of_memory[i])) for i in (0, 1))
    return (1 - kept) * np.tanh(of_input[2] + reset * of_memory[2]) + kept * memory


@jit
def compiled_scores(numbers: Any, rows: Any, out: Any) -> None:
    score(numbers, 0, rows, rows.shape[0], out)


@jit
def compiled_observation(fleet: Any, request_id: int, out: Any, queue_depth: int) -> None:
    observe(borrow(fleet), request_id, out, queue_depth)


def test_features_are_named_once_and_hashed() -> None:
    assert len(set(FEATURES)) == NUM_FEATURES
    assert len(SCHEMA_HASH) == 16


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_the_compiled_network_is_the_one_in_the_file(tmp_path: Path, count: int) -> None:
    policy = load_policy(random_policy(tmp_path / "p.npz"))
    rows = np.random.default_rng(count).standard_normal((count, NUM_FEATURES)) * 4
    out = np.zeros(count)
    compiled_scores(packed(policy), rows.copy(), out)
    np.testing.assert_allclose(out, plain_scores(policy, rows), rtol=1e-9, atol=1e-9)


def test_a_network_that_adds_nothing_is_the_rule(tmp_path: Path) -> None:
    policy = load_policy(random_policy(tmp_path / "p.npz"))
    arrays = policy.arrays | {name: 0 * policy.arrays[name] for name in ("rho1.weight", "rho1.bias")}
    path = save_policy(tmp_path / "zero.npz", arrays, policy.mean, policy.std, "none", {})
    sent = []
    for router in ({"name": "gateway"}, {"name": "learned", "checkpoint": str(path)}):
        pools = [{"num_replicas": 3}, {"num_replicas": 2, "replica": {"num_kv_blocks": 100, "max_request_tokens": 500}}]
        done = run(scenario(pools=pools, router=router, workload={"rate": 60.0, "num_requests": 400}))
        sent.append(done.cluster.requests.replica.tolist())
    assert sent[0] == sent[1]


def test_a_recurrent_network_is_the_one_in_the_file(tmp_path: Path) -> None:
    policy = load_policy(random_policy(tmp_path / "p.npz", hidden=5, recurrent=True))
    numbers, memory, random = packed(policy), np.zeros(5), np.random.default_rng(2)
    for _ in range(3):
        rows, out = random.standard_normal((4, NUM_FEATURES)), np.zeros(4)
        compiled_scores(numbers, rows.copy(), out)
        np.testing.assert_allclose(out, plain_scores(policy, rows, memory), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(numbers[-5:], memory, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("temperature", "draw", "chosen"),
    [(0.0, 0.0, 1), (1.0, 0.19, 0), (1.0, 0.21, 1), (1.0, 0.79, 1), (1.0, 0.81, 2), (0.5, 0.08, 0), (0.5, 0.1, 1)],
)
def test_scores_are_drawn_by_their_exponentials(temperature: float, draw: float, chosen: int) -> None:
    """1 to 3 to 1 at a temperature of 1, so fifths; 1 to 9 to 1 at a half. The first of two equal ones at 0."""
    scores = np.log([1.0, 3.0, 1.0])
    assert choose(scores, 3, temperature, draw) == chosen
    assert choose(np.zeros(3), 3, 0.0, 0.9) == 0


def test_temperatures_fall_with_the_share_of_places_that_are_taken() -> None:
    """Two of seven places and one more."""
    replicas = np.rec.array(np.array([(1, 3), (1, 4)], [("num_outstanding", int), ("max_running", int)]))
    fleet: Any = SimpleNamespace(parameters=(0.5, 2.0), cluster=SimpleNamespace(replicas=replicas))
    assert _temperature(fleet) == pytest.approx(2.0 - 1.5 * 2 / 8)
    fleet.parameters = (0.5, 0.5)
    assert _temperature(fleet) == 0.5


def test_a_recurrent_network_remembers_as_pytorchs_does(tmp_path: Path) -> None:
    """Three decisions one after another: the memory of the compiled router is that of `GRUCell`."""
    torch = pytest.importorskip("torch")
    from gnomon.routing.network import load_scorer

    path = random_policy(tmp_path / "p.npz", recurrent=True)
    scorer, numbers = load_scorer(path), packed(load_policy(path))
    memory, random = None, np.random.default_rng(1)
    seen = []
    for _ in range(3):
        rows, out = random.standard_normal((5, NUM_FEATURES)), np.zeros(5)
        compiled_scores(numbers, rows.copy(), out)
        with torch.no_grad():
            inputs = torch.tensor(rows[None], dtype=torch.float32), torch.ones(1, 5, dtype=torch.bool)
            scores, memory = scorer.step(*inputs, memory)
        np.testing.assert_allclose(out, scores[0].numpy(), rtol=1e-4, atol=1e-4)
        seen.append(out)
    assert np.abs(numbers[-16:]).max() > 0, "the memory lies behind the weights"
    fresh, again = packed(load_policy(path)), np.zeros(5)
    compiled_scores(fresh, rows.copy(), again)
    assert np.abs(again - seen[-1]).max() > 1e-3, "an empty memory scores otherwise"


def test_a_recurrent_policy_starts_every_run_with_an_empty_memory(tmp_path: Path) -> None:
    path = random_policy(tmp_path / "p.npz", recurrent=True)
    setup = scenario(num_replicas=3, router={"name": "learned", "checkpoint": str(path)},
                     workload={"num_requests": 60, "rate": 40.0})  # fmt: skip
    first, second = run(setup), run(setup)
    assert first.cluster.requests.replica.tolist() == second.cluster.requests.replica.tolist()


def test_an_idle_fleet_is_warmer(tmp_path: Path) -> None:
    """A temperature that falls with the load draws while replicas are empty, and takes the best where it is 0."""
    path = random_policy(tmp_path / "p.npz")

    def chosen(**options: float) -> list[int]:
        router = {"name": "learned", "checkpoint": str(path), "options": options}
        setup = scenario(num_replicas=3, router=router, workload={"num_requests": 60, "rate": 0.5})
        return run(setup).cluster.requests.replica.tolist()

    assert chosen(idle_temperature=5.0) != chosen()
    assert chosen(idle_temperature=0.0) == chosen()


def test_the_order_of_replicas_does_not_matter(tmp_path: Path) -> None:
    numbers = packed(load_policy(random_policy(tmp_path / "p.npz")))
    rows = np.random.default_rng(5).standard_normal((6, NUM_FEATURES))
    order = np.array([3, 0, 5, 1, 4, 2])
    out, shuffled = np.zeros(6), np.zeros(6)
    compiled_scores(numbers, rows.copy(), out)
    compiled_scores(numbers, rows[order], shuffled)
    np.testing.assert_allclose(shuffled, out[order], rtol=1e-12)


@pytest.mark.parametrize("num_replicas", [1, 2, 5, 64])
def test_it_serves_any_number_of_replicas(tmp_path: Path, num_replicas: int) -> None:
    path = random_policy(tmp_path / "p.npz")
    router = {"name": "learned", "checkpoint": str(path)}
    done = run(scenario(num_replicas=num_replicas, router=router, workload={"rate": 30.0 * num_replicas}))
    check_invariants(done)


@pytest.mark.parametrize("lengths", ["noisy", "oracle"])
def test_length_information_is_part_of_the_policy(tmp_path: Path, lengths: str) -> None:
    path = str(random_policy(tmp_path / "p.npz", lengths=lengths))
    check_invariants(run(scenario(num_replicas=3, router={"name": "learned", "checkpoint": path, "lengths": lengths})))
    with pytest.raises(ConfigError, match=f"trained with lengths '{lengths}'"):
        run(scenario(num_replicas=3, router={"name": "learned", "checkpoint": path}))


def test_a_temperature_samples(tmp_path: Path) -> None:
    path = str(random_policy(tmp_path / "p.npz"))

    def replicas(**options: float) -> Any:
        router = {"name": "learned", "checkpoint": path, "options": options}
        return run(scenario(num_replicas=4, router=router)).cluster.requests.replica.copy()

    assert np.array_equal(replicas(), replicas(temperature=0.0))
    hot = replicas(temperature=1e6)
    assert not np.array_equal(replicas(), hot)
    assert np.bincount(hot, minlength=4).min() >= 10, "nearly uniform"


# What it may see.


def _arrays_mid_run(lengths: str = "none", stop_s: float = 1.5) -> tuple[Any, Any, int]:
    """A cluster stopped in the middle, and the first request that has not arrived."""
    done = run(scenario(num_replicas=3, time_limit_s=stop_s, workload={"rate": 80.0, "num_requests": 200}))
    next_id = int(np.searchsorted(done.cluster.requests.arrival_s, stop_s))
    example = _example()
    fleet = example._replace(
        cluster=done.cluster, tables=done.tables, draws=np.zeros((200, 2)), memory=np.zeros(64), known=np.zeros(0),
        predicted_output=np.zeros(0) if lengths == "none" else done.cluster.requests.output_tokens.astype(float),
    )  # fmt: skip
    return done, fleet, next_id


def _observed(fleet: Any, request_id: int, queue_depth: int = 8) -> Any:
    out = np.full((fleet.cluster.replicas.size, NUM_FEATURES), np.nan)
    compiled_observation(fleet._replace(memory=np.zeros(64)), request_id, out, queue_depth)
    return out


def test_true_output_lengths_are_not_seen() -> None:
    _, fleet, next_id = _arrays_mid_run()
    before = _observed(fleet, next_id)
    assert np.isfinite(before).all()
    requests, replicas = fleet.cluster.requests, fleet.cluster.replicas
    unfinished = (requests.finished_s < 0) & (requests.replica >= 0)
    assert unfinished.sum() > 10
    requests.output_tokens[requests.finished_s < 0] += 1000
    requests.total_tokens[requests.finished_s < 0] += 1000
    replicas.decode_left += 1000 * np.bincount(requests.replica[unfinished], minlength=3)
    fleet.cluster.grouped[:, :, 1] += 1000
    replicas.next_finish += 1000
    assert np.array_equal(_observed(fleet, next_id), before)


def test_foretold_lengths_are_seen_where_asked_for() -> None:
    _, fleet, next_id = _arrays_mid_run("oracle")
    before = _observed(fleet, next_id)
    fleet.predicted_output[: next_id + 1] += 1000
    after = _observed(fleet, next_id)
    changed = {FEATURES[i] for i in np.flatnonzero((before != after).any(axis=0))}
    assert {"decode_left", "expected_output", "finish"} <= changed


def test_only_the_head_of_a_queue_is_seen() -> None:
    """Three requests wait on replica 1; with a depth of 2 the last of them is not looked at."""
    _, fleet, next_id = _arrays_mid_run()
    requests, state = fleet.cluster.requests, fleet.cluster.replicas[1]
    waiting = np.flatnonzero(requests.finished_s >= 0)[:3]
    requests.prefill_tokens[waiting] = [10, 20, 400]
    requests.next_waiting[waiting[:2]] = waiting[1:]
    state.first_waiting, state.num_waiting = waiting[0], 3
    shallow, deep = (_observed(fleet, next_id, depth) for depth in (2, 3))
    changed = np.argwhere(shallow != deep)
    assert {(int(r), FEATURES[i]) for r, i in changed} == {(1, "queue_head_tokens"), (1, "queue_head_longest")}
    assert np.expm1(shallow[1, FEATURES.index("queue_head_tokens")]) == pytest.approx(30)
    assert np.expm1(deep[1, FEATURES.index("queue_head_longest")]) == pytest.approx(400)


def test_a_policy_looks_as_deep_as_it_was_made_for(tmp_path: Path) -> None:
    chosen = []
    for depth in (8, 1):
        policy = load_policy(random_policy(tmp_path / "p.npz"))
        made = {"config": {"queue_depth": depth}}
        path = save_policy(tmp_path / f"{depth}.npz", policy.arrays, policy.mean, policy.std, "none", made)
        assert load_policy(path).queue_depth == depth
        router = {"name": "learned", "checkpoint": str(path)}
        busy = scenario(
            num_replicas=3, router=router, batching={"max_sequences": 2}, workload={"rate": 80.0, "num_requests": 200}
        )
        chosen.append(run(busy).cluster.requests.replica.tolist())
    assert load_policy(random_policy(tmp_path / "p.npz")).queue_depth == 8, "where the file does not say"
    assert chosen[0] != chosen[1]


def test_noisy_lengths_are_the_truth_times_an_error() -> None:
    from gnomon.serving.run.simulate import predicted_outputs
    from gnomon.serving.scenario.config import RouterConfig
    from gnomon.workload import generate

    requests = generate(scenario(workload={"num_requests": 4000}).workload, 0)
    told = predicted_outputs(RouterConfig(lengths="noisy", length_noise=0.3), requests, 7)
    errors = np.log(told / requests.output_tokens)[requests.output_tokens > 20]
    assert abs(errors.std() - 0.3) < 0.02 and abs(errors.mean()) < 0.02
    assert np.array_equal(told, predicted_outputs(RouterConfig(lengths="noisy", length_noise=0.3), requests, 7))
    assert predicted_outputs(RouterConfig(), requests, 7).size == 0


# The file.


def test_a_policy_survives_its_file(tmp_path: Path) -> None:
    policy = load_policy(random_policy(tmp_path / "p.npz", seed=3, lengths="oracle"))
    assert policy.hidden == 16 and policy.lengths == "oracle" and policy.made == {"command": "test", "seed": 3}
    again = load_policy(save_policy(tmp_path / "q.npz", policy.arrays, policy.mean, policy.std, "oracle", policy.made))
    assert all(np.array_equal(policy.arrays[name], again.arrays[name]) for name in policy.arrays)


def test_a_policy_comes_with_gnomon() -> None:
    policy = shipped_policy("none")
    assert policy.lengths == "none" and policy.made["command"]


def _rewritten(path: Path, **changes: Any) -> Path:
    with np.load(path) as stored:
        parts = {name: stored[name] for name in stored.files}
    about = json.loads(str(parts["about"]))
    about.update(changes.pop("about", {}))
    parts["about"] = np.array(json.dumps(about))
    parts.update(changes)
    np.savez(path, **{name: part for name, part in parts.items() if part is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"about": {"schema": "0" * 16, "features": ["mood"]}}, "trained on other features"),
        ({"about": {"format": 9}}, "format 9"),
        ({"about": {"lengths": "all"}}, "unknown length information"),
        ({"about": {"hidden": 0}}, "hidden must be a whole number above 0"),
        ({"about": {"hidden": 2.5}}, "hidden must be a whole number above 0"),
        ({"about": {"hidden": 8}}, r"phi0.weight is not a finite array of shape \(8"),
        ({"phi1.bias": None}, "missing or unknown: phi1.bias"),
        ({"extra": np.zeros(2)}, "missing or unknown: extra"),
        ({"rho1.bias": np.array([np.nan])}, "rho1.bias is not a finite array"),
        ({"std": np.zeros(NUM_FEATURES)}, "std must be above 0"),
        ({"about": {"made": {"config": {"queue_depth": "two"}}}}, "queue_depth must be a whole number"),
        ({"about": {"made": {"config": {"queue_depth": 0}}}}, "queue_depth must be a whole number"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = _rewritten(random_policy(tmp_path / "p.npz"), **changes)
    with pytest.raises(DataError, match=message):
        load_policy(path)


def test_the_smallest_policy(tmp_path: Path) -> None:
    """One unit wide, one request of a queue deep; eight where the file says nothing."""
    path = random_policy(tmp_path / "p.npz", hidden=1)
    assert (load_policy(path).hidden, load_policy(path).queue_depth) == (1, 8)
    assert load_policy(_rewritten(path, about={"made": {"config": {"queue_depth": 1}}})).queue_depth == 1
    assert load_policy(_rewritten(path, about={"made": "by hand"})).queue_depth == 8


def test_damaged_and_missing_files_are_refused(tmp_path: Path, cli: Any) -> None:
    path = random_policy(tmp_path / "p.npz")
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError):
            load_policy(path)
    with pytest.raises(DataError, match="no such file"):
        load_policy(tmp_path / "none.npz")
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(DataError, match="one array"):
        load_policy(tmp_path / "array.npy")
    told = cli("simulate", "--router", "learned", "--router.checkpoint", str(tmp_path / "none.npz"), code=2)
    assert "no such file" in told.output


def test_it_serves_a_closed_loop(tmp_path: Path) -> None:
    router = {"name": "learned", "checkpoint": str(random_policy(tmp_path / "p.npz"))}
    lengths = {"distribution": "uniform", "prompt": [10, 200], "output": [1, 50]}
    arrivals = {"process": "closed_loop", "concurrency": 12, "think_s": 0.1}
    loop = build(WorkloadConfig, {"num_requests": 60, "lengths": lengths, "arrivals": arrivals})
    check_invariants(run(scenario(num_replicas=3, router=router).model_copy(update={"workload": loop})))


def test_a_slower_pool_of_explicit_times_takes_longer() -> None:
    """`timing.scale` makes replicas of another speed, whatever the source of their times."""
    pools = [{"num_replicas": 1}, {"num_replicas": 1, "timing": {"scale": 2.0}}]
    done = run(scenario(pools=pools, router="round_robin", workload={"rate": 0.01, "num_requests": 20}))
    requests = done.cluster.requests
    alone = (requests.first_token_s - requests.arrival_s) / (0.0103 + 1.1e-4 * requests.prompt_tokens)
    np.testing.assert_allclose(alone, np.where(requests.replica == 0, 1.0, 2.0), rtol=1e-6)


# Examples and documentation.

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "routing").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_command_of_the_example_runs(path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (line,) = [text for text in path.read_text().splitlines() if text.startswith("#   gnomon ")]
    output = cli(*line.split()[2:], "--workload.num-requests", "40").output
    assert "learned" in output


def test_every_feature_is_documented() -> None:
    page = (ROOT / "docs" / "routing-environment.md").read_text(encoding="utf-8")
    assert [name for name in FEATURES if f"`{name}`" not in page] == []


def test_every_router_is_documented() -> None:
    from gnomon.serving.routers import ROUTERS

    page = (ROOT / "docs" / "routers.md").read_text(encoding="utf-8")
    assert [name for name in ROUTERS if name not in ROUTERS.own and f"| `{name}` |" not in page] == []


def test_the_python_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "routing-environment.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    shown: dict[str, Any] = {}
    exec(compile(code, "routing-environment.md", "exec"), shown)
    assert shown["observation"].shape == (16, 8, NUM_FEATURES)
