"""Enough replicas for the load that is forecast, as NVIDIA Dynamo's SLA planner does.

What pools serve within the SLO is measured beforehand. The load is forecast to when a replica that is asked for at the
next decision would be ready, by the longest straight line through the last intervals that noise alone explains.
Its own errors are the margin: by how much more came than was forecast, but hardly more than the most that came. What
was measured is corrected by how the SLO was met of late.
"""

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gnomon.core.arrays import Floats
from gnomon.serving.autoscaling.controllers import View, controller

OPTIONS = {"history": 20.0, "margin": 0.1, "correction": 0.05, "goal": 0.99, "errors_s": 3600.0, "season_s": 0.0}
RECOUNTED = 3.3  # Standard deviations of a count, which all but 1 % of second counts are not above the first.
NOISE = 2.0  # Times their variance, which few bends tell badly: what rates may miss a line by.


@controller("slo_planner", options=OPTIONS, profiles=True)
def slo_planner(view: View) -> int:
    """Replicas for the forecast load and its margin; down only when fewer were wanted for as long as a start takes."""
    memory, options = view.memory, view.options
    seen = [*memory.get("seen", []), (view.now_s, view.arrival_rate)][-int(options["history"]) :]
    memory["seen"] = seen
    ahead_s = view.cold_start_s + view.interval_s
    soon, later = (forecast(seen, view.now_s + after_s, view.interval_s) for after_s in (view.cold_start_s, ahead_s))
    expected = max(soon, later, _a_season_ago(view, ahead_s))
    margin = _margin(view, expected, ahead_s)
    correction = memory.get("correction", 1.0)
    if view.slo_met is not None:
        missed = view.slo_met < options["goal"] and view.waiting > view.ready
        correction *= 1.0 - options["correction"] if missed else 1.0 + options["correction"] / 4
    memory["correction"] = correction = min(1.0, max(0.3, correction))
    wanted = view.replicas_for(expected / correction)
    wanted = max(wanted + _spares(view, wanted), view.replicas_for((expected + margin) / correction))
    recent = [(at_s, count) for at_s, count in memory.get("wanted", []) if at_s > view.now_s - view.cold_start_s]
    memory["wanted"] = recent = [*recent, (view.now_s, wanted)]
    return max(count for _, count in recent)


def _a_season_ago(view: View, ahead_s: float) -> float:
    """The most that came a season ago, until a start that begins at the next decision has ended, and what counting may
    add to it; 0 where nothing is known."""
    ago_s = view.now_s - view.options["season_s"]
    past = [(at_s, rate) for at_s, rate in view.memory.get("past", []) if at_s > ago_s]
    view.memory["past"] = [*past, (view.now_s, view.arrival_rate)]
    most = max((rate for at_s, rate in past if at_s <= ago_s + ahead_s + view.interval_s), default=0.0)
    return most + RECOUNTED * math.sqrt(most / view.interval_s)


def _spares(view: View, count: int) -> int:
    """How many of so many replicas are down at once, in all but the rest to `goal` of the time: until a failure is seen
    and another replica has started."""
    down = 0.0 if view.mtbf_s is None else count * (view.cold_start_s + view.interval_s) / view.mtbf_s
    spares, share = 0, math.exp(-down)
    met = share
    while met < min(view.options["goal"], 1.0) and spares < count:
        spares += 1
        share *= down / spares
        met += share
    return spares


def forecast(seen: list[tuple[float, float]], at_s: float, interval_s: float) -> float:
    """The rate at a time, on the longest line through the last intervals that lies within their noise; where not even
    three lie on one, the last rate."""
    times, rates = np.array(seen).T
    variance = NOISE * _variance(rates, interval_s)
    for first in range(len(seen) - 2):
        x, y = times[first:] - at_s, rates[first:]
        slope, at = np.polyfit(x, y, 1)
        if ((y - at - slope * x) ** 2).sum() <= variance * (len(y) - 2):
            return float(at)
    return float(rates[-1])


def _variance(rates: Floats, interval_s: float) -> float:
    """Of the rates about a line: that of counting, or what the median change of their slope says, whichever is more."""
    counting = max(float(rates.mean()), 1 / interval_s) / interval_s
    bends = np.abs(np.diff(rates, 2))
    return max(counting, float(np.median(bends) / 0.6745) ** 2 / 6) if len(bends) > 2 else counting


def _margin(view: View, expected: float, ahead_s: float) -> float:
    """By how many requests per second more than forecast came, in the mean of as many decisions as it takes until one
    helps, in all but the worst of the last hour, but not beyond a little more than the most that came; as the options
    say until that is known."""
    memory, since_s = view.memory, view.now_s - view.options["errors_s"]
    memory["forecasts"] = [*memory.get("forecasts", []), (view.now_s + ahead_s, expected)]
    due = [rate for at_s, rate in memory["forecasts"] if at_s <= view.now_s]
    memory["forecasts"] = memory["forecasts"][len(due) :]
    if due:
        error = (view.now_s, view.arrival_rate - due[-1], view.arrival_rate)
        memory["errors"] = [one for one in [*memory.get("errors", []), error] if one[0] > since_s]
    errors = np.array([one for _, one, _ in memory.get("errors", [])])
    if len(errors) < 6:
        return view.options["margin"] * expected
    together = min(max(1, round(ahead_s / view.interval_s)), len(errors))
    first = [errors[:count].mean() for count in range(1, together)]
    means = np.concatenate([first, sliding_window_view(errors, together).mean(axis=1)])
    missed_by = max(0.0, float(np.quantile(means, np.clip(view.options["goal"], 0.0, 1.0))))
    most = max(expected, *(rate for _, _, rate in memory["errors"]))
    return min(missed_by, most * (1.0 + view.options["margin"]) - expected)
