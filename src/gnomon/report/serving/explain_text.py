"""Why requests were slow, in words: two or three sentences that a person would write, then tables."""

from itertools import pairwise
from typing import Any

import numpy as np

from gnomon.core import units
from gnomon.report.blocks import Block, Line, Table, in_a_row
from gnomon.serving.features import breakdown
from gnomon.serving.results import explain
from gnomon.serving.results.explain import Circumstance, Neighbour, Slow
from gnomon.serving.results.latency_breakdown import CAUSES, PARTS, Accounts, Metric

Row = dict[str, Any]
METRIC_WORDS = {"e2e": "end to end", "ttft": "to the first token", "tpot": "per output token"}
_NUM_SLICES = 8
_MOST_ROWS = 8


def _s(seconds: float) -> str:
    return units.seconds(seconds)


def slow_sentences(accounts: Accounts, slow: Slow) -> list[str]:
    """What a person would say first."""
    who = f"The slowest {100 - slow.percentile:g} %" if slow.percentile is not None else "Those that miss the target"
    times = f"{_s(slow.slow_s)} {METRIC_WORDS[slow.metric]} in the mean, typical requests {_s(slow.typical_s)}"
    if not slow.causes or slow.slow_s <= 1.02 * slow.typical_s:
        return [f"{who} ({slow.rows.size:,} requests) take {times}: there is no slow tail to explain."]
    first = slow.circumstances[0] if slow.circumstances else None
    cause = slow.causes[0]
    because = _circumstance_words(first) if first else f"{cause.words} ({cause.share:.0%} of the difference)"
    sentences = [f"{who} ({slow.rows.size:,} requests) take {times}, because of {because}."]
    shares = [f"{one.share:.0%} is {one.words}" for one in slow.causes[:3] if one.share >= 0.05]
    if shares and (first or len(shares) > 1):
        sentences.append(f"Of the {_s(slow.slow_s - slow.typical_s)} more, {in_a_row(shares)}.")
    if cause.name == "policy":
        policy = accounts.run.pools[0].policy
        if policy.holds_back:
            sentences.append(f"{policy.name} {policy.holds_back}.")
    if cause.name == "prefills" and not (first and first.why == "giant prompt"):
        worst = explain.offenders(accounts, 1)
        if worst:
            request, tokens, seconds = worst[0]
            which = f"that of request {request:,} ({tokens:,} tokens)"
            sentences.append(f"Of all prefills, {which} delayed others most: by {_s(seconds)} in all.")
    return sentences


def _circumstance_words(one: Circumstance) -> str:
    facts = one.facts
    match one.why:
        case "slow replica":
            names = facts["replicas"]
            which = f"replica {names[0]}" if len(names) == 1 else f"replicas {in_a_row([str(n) for n in names[:5]])}"
            verb = "takes" if len(names) == 1 else "take"
            return (
                f"{which}, which {verb} {facts['factor']:.2g} times as long as the others for the same work and served"
                f" {one.share:.0%} of them"
            )
        case "routing":
            return (
                f"routing: for {facts['waited']:.0%} of the time they waited, another replica had nobody waiting"
                f" ({facts['router']} sent {facts['of_slow']:.0%} of them to replica {facts['busiest']})"
            )
        case "giant prompt":
            more = f"; {facts['num_giants'] - 1} more are as long" if facts["num_giants"] > 1 else ""
            return (
                f"one giant prompt, which {one.share:.0%} of them met: request {facts['request']:,} has"
                f" {facts['prompt_tokens']:,} tokens ({facts['times_median']:,.0f} times the median), whose prefill"
                f" took {_s(facts['prefill_s'])}{more}"
            )
        case "burst":
            return (
                f"a burst: {one.share:.0%} of them came between {_s(facts['start_s'])} and {_s(facts['end_s'])} after"
                f" the start, when requests arrived {facts['times_usual']:.2g} times as fast as usual"
            )
        case _:
            return "what follows"


def slow_blocks(accounts: Accounts, slow: Slow) -> list[Block]:
    """Sentences, then the parts, the slowest requests, and where and when they were slow."""
    blocks: list[Block] = [Line(text) for text in slow_sentences(accounts, slow)]
    who = f"P{slow.percentile:g} and above" if slow.percentile is not None else "above the target"
    # Every part that somebody has, the slow ones beside typical ones.
    rows = []
    for i, part in enumerate(PARTS):
        a, b = float(slow.parts_slow_s[i]), float(slow.parts_typical_s[i])
        if a > 0.0 or b > 0.0:
            times = {"slow": _s(a), "share": f"{a / slow.slow_s:.1%}", "typical": _s(b)}
            rows.append({"part": part.words, **times, "more": f"{'+' if a >= b else '−'}{_s(abs(a - b))}"})
    blocks.append(Table(rows, f"Where the time goes, {slow.metric.upper()} ({who} against the median)"))
    blocks.append(Table(slowest_rows(accounts, slow), "The slowest requests"))
    groups = group_tables(accounts, slow.metric, slow)
    return blocks + list(groups)


def slowest_rows(accounts: Accounts, slow: Slow, most: int = 5) -> list[Row]:
    """The slowest requests, each with its largest cause and whom it waited for."""
    values, parts = accounts.values_s(slow.metric), accounts.parts_s(slow.metric)
    rows = []
    for row in slow.rows[np.argsort(-values[slow.rows], kind="stable")][:most]:
        causes = {name: float(value) for name, value in explain.by_cause(parts[row]).items()}
        cause = max(causes, key=lambda name: causes[name])
        request = accounts.requests[row]
        waited = parts[row, breakdown.ROUTING : breakdown.POLICY + 1].sum() >= 0.05 * values[row]
        behind = explain.waited_behind(accounts, int(row), 1).behind if waited else []
        rows.append(
            {
                "request": int(accounts.ids[row]),
                slow.metric.upper(): _s(float(values[row])),
                "prompt": int(request.prompt_tokens),
                "output": int(request.output_tokens),
                "replica": int(request.replica),
                "most of it": f"{CAUSES[cause]} ({causes[cause] / max(float(values[row]), 1e-12):.0%})",
                "behind": f"request {behind[0].request:,}" if behind else None,
            }
        )
    return rows


def group_tables(accounts: Accounts, metric: Metric, slow: Slow) -> list[Table]:
    """Mean latency and its largest cause, by replica, by class, by length of the prompt, and over time."""
    q = accounts.requests
    tables = []
    count = accounts.run.cluster.replicas.size
    if count > 1:
        tables.append(_group_table("replica", accounts, metric, slow, q.replica, [str(r) for r in range(count)]))
    classes = accounts.run.requests.classes
    if len(classes) > 1:
        number = accounts.run.requests.user_class[accounts.ids]
        tables.append(_group_table("class", accounts, metric, slow, number, [one.name for one in classes]))
    edges = np.unique(np.percentile(q.prompt_tokens, (0, 50, 90, 99, 100), method="lower"))
    if edges.size > 2:
        labels = [f"{a:,.0f} to {b:,.0f}" for a, b in pairwise(edges)]
        bins = np.clip(np.searchsorted(edges, q.prompt_tokens, side="right") - 1, 0, len(labels) - 1)
        tables.append(_group_table("prompt tokens", accounts, metric, slow, bins, labels))
    first, last = float(q.arrival_s.min()), float(q.arrival_s.max())
    if last > first:
        width = (last - first) / _NUM_SLICES
        labels = [f"{_s(i * width)} to {_s((i + 1) * width)}" for i in range(_NUM_SLICES)]
        bins = np.minimum(((q.arrival_s - first) / width).astype(int), _NUM_SLICES - 1)
        tables.append(_group_table("arrival", accounts, metric, slow, bins, labels))
    return [table for table in tables if table.rows]


def _group_table(name: str, accounts: Accounts, metric: Metric, slow: Slow, bins: Any, labels: list[str]) -> Table:
    values, parts = accounts.values_s(metric), accounts.parts_s(metric)
    is_slow = np.zeros(accounts.ids.size, bool)
    is_slow[slow.rows] = True
    rows: list[Row] = []
    for number, label in enumerate(labels):
        here = np.flatnonzero((bins == number) & ~np.isnan(values))
        if not here.size:
            continue
        causes = {cause: float(value) for cause, value in explain.by_cause(parts[here].mean(axis=0)).items()}
        own = {"own prefill", "own decode"}
        others = {cause: value for cause, value in causes.items() if cause not in own} or causes
        worst = max(others, key=lambda cause: others[cause])
        mean = float(values[here].mean())
        rows.append(
            {
                name: label,
                "requests": int(here.size),
                "of the slow": f"{is_slow[here].sum() / max(1, slow.rows.size):.0%}",
                f"mean {metric.upper()}": _s(mean),
                "alone": f"{sum(causes[cause] for cause in own) / max(mean, 1e-12):.0%}",
                "largest other cause": f"{CAUSES[worst]} ({others[worst] / max(mean, 1e-12):.0%})",
            }
        )
    shown = rows if len(rows) <= _MOST_ROWS else sorted(rows, key=lambda row: -float(row["of the slow"][:-1]))
    left = len(rows) - _MOST_ROWS
    caption = f"{left:,} more in the JSON." if left > 0 else ""
    return Table(shown[:_MOST_ROWS], f"By {name}" if name != "arrival" else "Over time, by arrival", caption)


def missed_sentences(accounts: Accounts) -> list[str]:
    """For each missed target, what the requests that miss it suffer from; the one that most miss first."""
    sentences: list[tuple[float, str]] = []
    metric: Metric
    for metric in ("ttft", "tpot", "e2e"):
        target = getattr(accounts.run.scenario.slo, f"{metric}_s")
        found = explain.missed(accounts, metric, target) if target is not None else None
        if found is None:
            continue
        share = found.rows.size / accounts.ids.size
        causes = [f"{cause.words} {cause.share:.0%}" for cause in found.causes[:3] if cause.share >= 0.05]
        because = f"what they take more than typical ones: {', '.join(causes) or 'nothing that stands out'}"
        sentences.append((share, f"{share:.1%} of the requests miss {metric.upper()} ≤ {_s(target)}; {because}."))
    return [text for _, text in sorted(sentences, key=lambda one: -one[0])]


def request_sentences(accounts: Accounts, request_id: int) -> list[str]:
    row = accounts.row(request_id)
    parts, values = accounts.parts_s("e2e")[row], accounts.values_s("e2e")
    total, median = float(values[row]), float(np.median(values))
    q = accounts.requests[row]
    alone = float(parts[[breakdown.PREFILL_ALONE, breakdown.DECODE_ALONE]].sum())
    times = total / max(median, 1e-12)
    beside = f"{times:.2g} times the median of {_s(median)}" if times > 1.05 else f"the median is {_s(median)}"
    sentences = [
        f"Request {request_id:,} ({q.prompt_tokens:,} prompt and {q.output_tokens:,} output tokens, replica"
        f" {q.replica}) took {_s(total)} end to end, {beside}; alone on its replica it would have taken {_s(alone)}"
        f" ({alone / max(total, 1e-12):.0%})."
    ]
    order = [int(i) for i in np.argsort(-parts, kind="stable")]
    main = [
        i for i in order if parts[i] >= 0.05 * total and i not in (breakdown.PREFILL_ALONE, breakdown.DECODE_ALONE)
    ][:3]
    if main:
        sentences.append(f"It spent {in_a_row([f'{_s(float(parts[i]))} {PARTS[i].phrase}' for i in main])}.")
    sentences += _because_of_whom(accounts, row, main)
    return sentences


def _because_of_whom(accounts: Accounts, row: int, main: list[int]) -> list[str]:
    sentences = []
    if any(breakdown.ROUTING <= i <= breakdown.POLICY for i in main):
        wait = explain.waited_behind(accounts, row)
        if wait.behind:
            names = in_a_row([_neighbour(one) for one in wait.behind[:3]])
            classes = "".join(f", {count:,} of them of class {name}" for name, count in wait.by_class.items())
            sentences.append(
                f"When it came, {wait.num_ahead:,} requests were in the queue before it and {wait.num_running:,} were"
                f" running{classes}; most in its way were {names}."
            )
    if breakdown.DECODE_PREFILLS in main:
        others = explain.delayed_by(accounts, row, 3)
        names = in_a_row([_neighbour(one) for one in others]) if others else ""
        sentences += [f"The longest prefills beside it were those of {names}."] if names else []
    return sentences


def _neighbour(one: Neighbour) -> str:
    return f"request {one.request:,} ({one.prompt_tokens:,} + {one.output_tokens:,} tokens)"


def request_rows(accounts: Accounts, request_id: int) -> list[Row]:
    row = accounts.row(request_id)
    parts = accounts.parts_ns[row]
    typical = accounts.parts_s("e2e").mean(axis=0)
    rows: list[Row] = [
        {
            "part": part.words,
            "before the first token": _s(float(parts[0, i]) / 1e9),
            "after it": _s(float(parts[1, i]) / 1e9),
            "nanoseconds": int(parts[:, i].sum()),
            "mean of all": _s(float(typical[i])),
        }
        for i, part in enumerate(PARTS)
        if parts[:, i].any()
    ]
    total = {
        "part": "all together",
        "before the first token": _s(float(accounts.ttft_ns[row]) / 1e9),
        "after it": _s(float(accounts.e2e_ns[row] - accounts.ttft_ns[row]) / 1e9),
        "nanoseconds": int(accounts.e2e_ns[row]),
        "mean of all": _s(float(accounts.e2e_ns.mean()) / 1e9),
    }
    return [*rows, total]


def request_blocks(accounts: Accounts, request_id: int) -> list[Block]:
    """The story of one request, its parts, and whom it waited behind."""
    row = accounts.row(request_id)
    blocks: list[Block] = [Line(text) for text in request_sentences(accounts, request_id)]
    blocks.append(Table(request_rows(accounts, request_id), "Its time, divided"))
    wait = explain.waited_behind(accounts, row)
    if wait.behind:
        blocks.append(Table(neighbour_rows(wait.behind), "It waited behind"))
    others = explain.delayed_by(accounts, row)
    if others and accounts.parts_ns[row, 1, breakdown.DECODE_PREFILLS] > 0:
        blocks.append(Table(neighbour_rows(others), "Prefills while it decoded"))
    return blocks


def neighbour_rows(neighbours: list[Neighbour]) -> list[Row]:
    columns = {"prompt tokens meanwhile": "prefill_tokens", "KV tokens": "kv_tokens"}
    return [
        {"request": one.request, "prompt": one.prompt_tokens, "output": one.output_tokens, "for": _s(one.seconds)}
        | {name: getattr(one, field) for name, field in columns.items()}
        for one in neighbours
    ]
