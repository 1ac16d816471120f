"""From a workload's description and a seed to its requests."""

from dataclasses import replace

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.streams import stream
from gnomon.workload import arrivals as arrival
from gnomon.workload import lengths as length
from gnomon.workload import sessions
from gnomon.workload.config import SessionsConfig, WorkloadConfig
from gnomon.workload.presets import preset, preset_lengths
from gnomon.workload.requests import ArrivalShape, Requests, Tokens, first_wave, limit_lengths
from gnomon.workload.slo import UserClass
from gnomon.workload.traces import first_of, read_requests, read_trace


def generate(config: WorkloadConfig, seed: int) -> Requests:
    """The requests of a workload: the same for the same seed, and arrivals independent of lengths.

    Arrivals, prompt lengths, output lengths, sessions and priorities come from streams of their own: changing the rate
    moves the same requests closer together, changing the lengths leaves arrivals alone, and fewer requests are the
    first of more.
    """
    trace = read_trace(config.trace, seed) if config.trace is not None else None
    count = _count(config, trace)
    drawn = config.prompts_in_turn or count
    if trace is not None and config.lengths.distribution == "trace":
        first = first_of(trace, drawn)
        requests = replace(first, arrival_s=np.zeros(len(first)), notes=())
    else:
        requests = Requests(np.zeros(drawn), *_drawn_lengths(config.lengths, config, drawn, seed))
    if config.prompts_in_turn:
        if len(requests.parents):
            what = "workload.prompts_in_turn: calls of this trace wait for others, and cannot be sent in turn."
            fix = "Leave it out, or take only lengths from the trace: workload.lengths.distribution: empirical."
            raise ConfigError(what, fix=fix)
        if not len(requests.prefix_hashes):  # Each prompt has the same blocks whenever it comes.
            usual = SessionsConfig()
            offsets, hashes = sessions.hash_blocks(np.arange(len(requests)), requests.prompt_tokens, usual)
            requests = replace(
                requests, prefix_offsets=offsets, prefix_hashes=hashes, prefix_block_tokens=usual.block_tokens
            )
        requests = requests.take(np.arange(count) % len(requests))
    count = len(requests)
    if config.prompt_scale != 1 or config.output_scale != 1:
        requests = replace(
            requests,
            prompt_tokens=length.tokens(requests.prompt_tokens * config.prompt_scale),
            output_tokens=length.tokens(requests.output_tokens * config.output_scale),
        )
        if len(requests.prefix_hashes):  # Blocks grow with the prompts, so that the shared part stays.
            block = max(1, round(requests.prefix_block_tokens * config.prompt_scale))
            requests = replace(requests, prefix_block_tokens=block)
    if len(requests.adapter):
        requests = sessions.apart_by_adapter(requests)
    if config.classes:
        requests = _with_classes(requests, config, seed)
    if config.sessions is not None:
        requests = sessions.with_sessions(requests, config.sessions, seed)
    if config.agents is not None:
        requests = sessions.with_agents(requests, config.agents, seed)
        if config.num_requests and count < config.num_requests:
            each = config.agents.calls_per_session
            whole = f"{count:,} of {config.num_requests:,} make whole sessions, and are sent"
            note = f"A session has {each} calls: {whole}."
            requests = replace(requests, notes=(*requests.notes, note))
    if config.adapters is not None:
        requests = sessions.with_adapters(requests, config.adapters, seed)
    if config.warmup_requests:
        index = np.concatenate([np.zeros(config.warmup_requests, np.int64), np.arange(len(requests))])
        requests = replace(requests.take(index), num_warmup=config.warmup_requests)
    requests = _with_arrivals(requests, config, trace, seed)
    if trace is not None:
        requests = replace(requests, notes=(*trace.notes, *requests.notes))
    return requests if config.max_tokens is None else limit_lengths(requests, config.max_tokens, config.over_long)


def _count(config: WorkloadConfig, trace: Requests | None) -> int:
    if trace is None:
        assert config.num_requests is not None
        if config.agents is not None:
            return sessions.num_sessions(config.agents, config.num_requests) * config.agents.calls_per_session
        return config.num_requests
    name = "prompts_in_turn" if config.prompts_in_turn else "num_requests"
    if (wanted := getattr(config, name)) is not None and wanted > len(trace):
        fix = "Ask for fewer, or draw lengths from the file: --workload.lengths.distribution empirical."
        raise ConfigError(f"the trace holds {len(trace):,} requests, fewer than {name} = {wanted:,}.", fix=fix)
    return config.num_requests or len(trace)


def _drawn_lengths(lengths: length.Lengths, config: WorkloadConfig, count: int, seed: int) -> tuple[Tokens, Tokens]:
    match lengths:
        case length.Drawable():
            return lengths.draw(count, seed)
        case length.Empirical():
            recorded = read_requests(lengths.file, lengths.format)
            chosen = stream(seed, "prompt lengths").integers(0, len(recorded), count)
            return recorded.prompt_tokens[chosen], recorded.output_tokens[chosen]
        case length.FromPreset():
            assert config.preset is not None
            return preset_lengths(preset(config.preset), count, seed)
        case _:
            raise AssertionError("a trace's lengths are not drawn")


def _with_arrivals(requests: Requests, config: WorkloadConfig, trace: Requests | None, seed: int) -> Requests:
    count, arrivals = len(requests), config.arrivals
    if len(requests.parents) and isinstance(arrivals, arrival.Batch | arrival.ClosedLoop):
        what = f"calls that wait for others cannot arrive as {arrivals.process}."
        fix = "Let their sessions start as recorded, or choose a process with a rate."
        raise ConfigError(what, where="workload.arrivals", fix=fix)
    match arrivals:
        case arrival.Batch():
            return requests
        case arrival.Stages():
            requests = replace(requests, arrival_s=arrival.stage_times(arrivals, seed))
            if config.classes:
                return requests
            stage = np.repeat(np.arange(len(arrivals.stages), dtype=np.int8), arrivals.sizes)
            classes = tuple(UserClass(name) for name in arrivals.names)  # So that figures are given for each.
            return replace(requests, user_class=stage, classes=classes)
        case arrival.ClosedLoop():
            return replace(
                requests, arrival_s=first_wave(count, arrivals.concurrency, requests.num_warmup),
                concurrency=arrivals.concurrency, think_s=arrivals.pauses(count, seed),
            )  # fmt: skip
        case arrival.Recorded():
            assert trace is not None and config.trace is not None
            return _with_recorded_arrivals(requests, trace, config.rate, config.trace.file)
        case _:
            assert config.rate is not None
            shape = arrival.unit_shape(arrivals, requests.num_starts, seed)
            if len(requests.parents):
                times_s = shape.at(config.rate * requests.num_starts / len(requests))
                return _with_starts(requests, times_s, config.rate)
            return replace(requests, arrival_s=shape.at(config.rate), rate=config.rate, shape=shape)


def _with_starts(requests: Requests, times_s: Floats, rate: float | None) -> Requests:
    """Sessions start by themselves at these times; all other calls are sent later."""
    arrival_s = np.full(len(requests), np.inf)
    arrival_s[: len(times_s)] = times_s
    return replace(requests, arrival_s=arrival_s, rate=rate)


def _with_recorded_arrivals(requests: Requests, trace: Requests, rate: float | None, file: str) -> Requests:
    if not len(trace.arrival_s):
        fix = (
            "Choose a process, such as --workload.arrivals.process poisson, or draw from the file with "
            "--workload.lengths.distribution empirical."
        )
        raise DataError("the file has no arrival times.", where=file, fix=fix)
    if len(requests.parents):  # Sessions start as recorded, or so much faster that calls come at the rate.
        times_s = trace.arrival_s[: requests.num_starts]
    else:  # Calls of a trace stand behind those that wait for none; where lengths are drawn, all are by themselves.
        times_s = np.sort(trace.arrival_s)[: len(requests)]
    span_s = float(times_s[-1] - times_s[0])
    if span_s == 0 and rate is not None:
        raise ConfigError("all requests of the trace arrive at once: there is no rate to change.")
    if len(requests.parents):
        recorded = len(requests) / span_s if span_s > 0 else None
        faster = 1.0 if rate is None or recorded is None else recorded / rate
        return _with_starts(requests, times_s * faster, rate or recorded)
    if span_s == 0:
        return replace(requests, arrival_s=times_s)
    shape = ArrivalShape(times_s, (len(times_s) - 1) / span_s)
    rate = shape.rate if rate is None else rate
    return replace(requests, arrival_s=shape.at(rate), rate=rate, shape=shape)


def _with_classes(requests: Requests, config: WorkloadConfig, seed: int) -> Requests:
    """Requests dealt out to the classes; a class with lengths of its own draws as many as there are requests, so that
    fewer requests are the first of more."""
    classes, count = config.classes, len(requests)
    cumulated = np.cumsum([one.share for one in classes])
    draws = stream(seed, "priorities").random(count) * cumulated[-1]
    chosen = np.searchsorted(cumulated, draws, side="right").astype(np.int8)
    if isinstance(config.arrivals, arrival.Stages) and config.arrivals.classes:
        names = [one.name for one in classes]
        of_stage = [names.index(name) for name in config.arrivals.classes]
        chosen = np.repeat(of_stage, config.arrivals.sizes).astype(np.int8)
    prompt, output = requests.prompt_tokens.copy(), requests.output_tokens.copy()
    for number, one in enumerate(classes):
        if one.lengths is not None:
            mine = chosen == number
            drawn = _drawn_lengths(one.lengths, config, count, seed + number)
            prompt[mine], output[mine] = drawn[0][mine], drawn[1][mine]
    priority = np.array([one.priority for one in classes], np.int8)[chosen]
    return replace(
        requests, prompt_tokens=prompt, output_tokens=output, user_class=chosen,
        classes=tuple(one.resolved() for one in classes), priority=priority,
    )  # fmt: skip
