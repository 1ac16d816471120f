"""One model for every workload: where requests come from, when they arrive, how long they are."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveFloat, model_validator

from gnomon.core.config import Config, build, submodels
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.sizes import Count, CountOrNone, Requests, Tokens
from gnomon.workload.arrivals import Arrivals, Poisson, Stages
from gnomon.workload.clients import ClientConfig
from gnomon.workload.formats import FORMATS, TimeUnit, TraceFormat
from gnomon.workload.lengths import FromPreset, Lengths, SamplingConfig
from gnomon.workload.presets import preset
from gnomon.workload.requests import OverLong
from gnomon.workload.slo import SloConfig, UserClass

DEFAULT_PRESET = "chat-1m"
DEFAULT_RATE = 31.0
"""Requests per second: about 80 % of what Llama-3-8B on one H200 takes up of chat-1m (`gnomon simulate --rate 46` says
so). The same everywhere, whatever the model."""
DEFAULT_NUM_REQUESTS = 10_000

# Processes whose mean rate is a choice of the user.
RATED = ("poisson", "gamma", "fixed_interval", "piecewise", "diurnal")


class ColumnsConfig(Config):
    """Which column of a CSV means what."""

    prompt: str
    """Column of prompt tokens."""
    output: str
    """Column of output tokens."""
    arrival: str | None = None
    """Column of arrival times."""
    session: str | None = None
    """Column of conversations."""
    priority: str | None = None
    """Column of priorities (0 is the least urgent)."""
    adapter: str | None = None
    """Column of LoRA adapters; empty for none."""
    time_unit: TimeUnit = "s"
    """Unit of arrival times: s, ms, us or datetime."""

    def as_format(self) -> TraceFormat:
        """The trace format these columns make."""
        named = {role: name for role, name in self if role != "time_unit" and name is not None}
        return TraceFormat("columns named by the user", named, time_unit=self.time_unit)


class TraceConfig(Config):
    """A recorded trace and the part of it that is used."""

    shorthand: ClassVar[str] = "file"

    file: str
    """Trace file: Azure LLM, Mooncake, BurstGPT, Vidur, or any CSV with a header."""
    format: str = "auto"
    """Format of the file; `auto` tells it from the header (see `gnomon workload formats`)."""
    columns: ColumnsConfig | None = None
    """The columns of a CSV of another format."""
    start_s: Annotated[float, Field(ge=0)] = 0.0
    """Leave out what arrived before this many seconds of the trace."""
    end_s: PositiveFloat | None = None
    """Leave out what arrived at or after this many seconds."""
    time_scale: PositiveFloat = 1.0
    """Multiply all gaps: 0.5 sends the trace twice as fast."""
    think_s: Annotated[float, Field(ge=0)] | None = None
    """Calls that wait for others: seconds between their end and the call, instead of what the file says."""

    @model_validator(mode="after")
    def _known_format(self) -> TraceConfig:
        if self.format != "auto":
            FORMATS[self.format]
        if self.columns is not None and self.format != "auto":
            raise ValueError("format and columns both say how to read the file: give one of them")
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError("end_s must be after start_s")
        return self


class SessionsConfig(Config):
    """Conversations that share prefixes: every turn's prompt repeats what was said before.

    The drawn prompt length is what the user adds in one turn; the prompt is the shared prefix, the conversation so far
    (prompts and answers), and that.
    """

    num_active: Count = 64
    """Conversations open at a time; a new one starts when one has had all its turns."""
    turns: Count = 5
    """Requests per conversation."""
    shared_prefix_tokens: CountOrNone = 0
    """Tokens at the start of every prompt that conversations have in common (a system prompt)."""
    num_shared_prefixes: Count = 1
    """Different shared prefixes, each used by an equal share of the conversations."""
    block_tokens: Tokens = 16
    """Tokens per hashed block; best equal to the KV block size."""


class AgentsConfig(Config):
    """Agents: sessions of calls with tools in between; each call waits for the answer to the one before.

    `num_requests` counts calls, `rate` calls per second; sessions start so often that it comes out on average. The
    drawn prompt length is what a call adds to its conversation (a tool's answer), the prompt all of it so far.
    """

    calls: Count = 8
    """Model calls of a session, one after the other."""
    tool_s: Annotated[float, Field(ge=0)] = 2.0
    """Mean seconds of a tool between two calls, exponential."""
    sub_agents: CountOrNone = 0
    """Sub-agents that a session starts after its first call; the second call waits for all of them."""
    sub_calls: Count = 3
    """Model calls of a sub-agent, one after the other."""
    shared_prefix_tokens: CountOrNone = 2000
    """Tokens at the start of every prompt that all sessions have in common: instructions and tools."""
    block_tokens: Tokens = 16
    """Tokens per hashed block; best equal to the KV block size."""

    @property
    def calls_per_session(self) -> int:
        return self.calls + self.sub_agents * self.sub_calls


class AdaptersConfig(Config):
    """LoRA adapters: fine-tuned variants of the model, one of which a request asks for. What they weigh and how they
    are loaded is `lora` in the scenario."""

    count: Count = 16
    """How many there are."""
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the requests (conversations) that ask for one."""
    zipf: Annotated[float, Field(ge=0)] = 1.0
    """How uneven they are: the k-th is asked for 1/k^zipf times as often as the first; 0: all alike."""


class PatienceConfig(Config):
    """Clients that give up: the engine lets go of a request that has not all its tokens then."""

    give_up_after_s: PositiveFloat
    """Seconds from sending a request to giving it up."""
    retries: CountOrNone = 0
    """How often the same request is sent again; each try is a request of its own in all figures."""
    retry_after_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds from giving up to the next try."""


MAX_CLASSES = 128  # Each replica keeps an account for each of them.


class ClassConfig(Config):
    """Users of one kind. Batching policies (priority, vtc, drr, dlpm), admission control and the summary tell them
    apart."""

    name: Annotated[str, Field(min_length=1)]
    """What the summary calls them."""
    share: Annotated[float, Field(ge=0)] = 1.0
    """Share of the requests, relative to the other classes."""
    priority: Annotated[int, Field(ge=0, le=127)] = 0
    """0 is the least urgent."""
    weight: PositiveFloat = 1.0
    """Share of the service that fair policies give them, relative to the other classes."""
    slo: SloConfig | None = None
    """What they expect; as the scenario says if not given."""
    lengths: Lengths | None = None
    """How long their requests are; as the workload says if not given."""

    sampling: SamplingConfig | None = None
    """What they ask of the sampler, over the scenario's `sampling`."""

    def resolved(self) -> UserClass:
        """What the simulation knows of them."""
        return UserClass(self.name, self.priority, self.weight, self.slo)


class WorkloadConfig(Config):
    """Requests: arrivals at a rate, lengths from a preset, a distribution or a trace."""

    client: ClientConfig | None = None
    """A benchmark client: fills in what is not given of arrivals, lengths, num_requests and warmup_requests, and is
    spelled out as those in a saved scenario."""
    preset: str | None = None
    """Named lengths: chat-1m (if nothing else is chosen), arxiv-4k, bwb-4k, azure-conv, azure-code, or a file."""
    rate: PositiveFloat | None = None
    """Mean requests per second (if not given: 31, or as recorded in the trace)."""
    num_requests: Requests | None = None
    """How many requests (if not given: 10,000, or the whole trace)."""
    warmup_requests: CountOrNone = 0
    """Closed loop: requests like the first one that are sent, and all answered, before the measured ones start. They
    are simulated but left out of every figure."""
    arrivals: Arrivals = Field(default_factory=Poisson)
    """How they arrive (if not given: poisson, or as recorded in the trace)."""
    lengths: Lengths = Field(default_factory=FromPreset)
    """How long they are (if not given: those of the preset or of the trace)."""
    trace: TraceConfig | None = None
    """A recorded trace for arrivals, lengths or both."""
    prompt_scale: PositiveFloat = 1.0
    """Multiply prompt lengths."""
    output_scale: PositiveFloat = 1.0
    """Multiply output lengths."""
    max_tokens: Annotated[Tokens, Field(ge=2)] | None = None
    """Most prompt + output tokens of a request."""
    over_long: OverLong = "reject"
    """What happens to longer ones: reject (refused and counted), truncate (prompt first), or drop (never sent)."""
    prompts_in_turn: CountOrNone = 0
    """So many different requests, sent in turn: the prefix cache may hold a prompt that comes again. 0: all differ."""
    patience: PatienceConfig | None = None
    """When clients give up, and whether they try again; without it they wait for ever."""
    sessions: SessionsConfig | None = None
    """Conversations with shared prefixes; without it every prompt is new (or as the trace says)."""
    agents: AgentsConfig | None = None
    """Agents whose calls wait for the answer to the one before."""
    adapters: AdaptersConfig | None = None
    """LoRA adapters that requests ask for."""
    classes: tuple[ClassConfig, ...] = ()
    """Classes of users, each with its share, priority, weight, SLO and lengths; without it all are alike."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Spell out what follows from the choices made, so that a saved scenario says all of it."""
        if not isinstance(data, dict):
            return data
        full = _without_client(data)
        for key, inner in (("arrivals", "process"), ("lengths", "distribution"), ("trace", "file")):
            full[key] = _spelled_out(full.get(key), inner)
        if isinstance(full["lengths"], dict) and full["lengths"] and set(full["lengths"]) <= {"prompt", "output"}:
            full["lengths"] = {"distribution": "fixed", **full["lengths"]}
        _check_tag(full["arrivals"], "arrivals.process", Arrivals)
        _check_tag(full["lengths"], "lengths.distribution", Lengths)
        traced = full["trace"] is not None
        full["arrivals"] = full["arrivals"] or {"process": "trace" if traced else "poisson"}
        if full["lengths"] is None:
            full["lengths"] = {"distribution": "trace" if traced and not full.get("preset") else "preset"}
        if _tag(full["lengths"], "distribution") == "preset":
            full["preset"] = full.get("preset") or DEFAULT_PRESET
        if _tag(full["arrivals"], "process") in RATED and full.get("rate") is None:
            full["rate"] = DEFAULT_RATE
        if _tag(full["arrivals"], "process") == "stages" and full.get("num_requests") is None:
            full["num_requests"] = build(Stages, full["arrivals"]).num_requests
        if not traced and full.get("num_requests") is None:
            full["num_requests"] = DEFAULT_NUM_REQUESTS
        return full

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadConfig:
        process, distribution = self.arrivals.process, self.lengths.distribution
        if self.preset is not None:
            preset(self.preset)
            if distribution != "preset":
                raise ValueError(f"the preset {self.preset!r} is not used: lengths.distribution is {distribution!r}")
        if self.trace is None and "trace" in (process, distribution):
            raise ValueError("a trace is named but none is given: set trace.file")
        if self.trace is not None and "trace" not in (process, distribution):
            raise ValueError("the trace is not used: neither arrivals nor lengths come from it")
        if self.sessions is not None and distribution == "trace":
            raise ValueError("sessions need drawn lengths: a trace's prompts hold their conversations already")
        if self.warmup_requests and process != "closed_loop":
            raise ValueError(f"warmup_requests are those of a closed loop; {process} arrivals have none")
        if process in ("batch", "closed_loop", "stages") and self.rate is not None:
            raise ValueError(f"{process} arrivals have no rate: leave rate out")
        if self.trace is not None and self.rate is not None and self.trace.time_scale != 1:
            raise ValueError("rate and trace.time_scale both change the speed: give one of them")
        if isinstance(self.arrivals, Stages) and self.num_requests != self.arrivals.num_requests:
            raise ValueError(f"the stages have {self.arrivals.num_requests:,} requests: leave num_requests out")
        if self.prompts_in_turn and (self.sessions or self.agents or process == "trace"):
            raise ValueError("prompts in turn are neither conversations nor agents, and arrive by a process")
        if self.patience is not None and self.agents is not None:
            raise ValueError("agents wait for their calls: leave patience out")
        if self.patience is not None and self.patience.retries and process == "closed_loop":
            raise ValueError("a user of a closed loop goes on to the next request: leave patience.retries out")
        if self.agents is not None and (self.sessions is not None or process not in RATED or distribution == "trace"):
            raise ValueError("agents need arrivals of a rate and drawn lengths, and are sessions of their own")
        return self

    @model_validator(mode="after")
    def _classes_differ(self) -> WorkloadConfig:
        names = [one.name for one in self.classes]
        if len(set(names)) < len(names):
            raise ValueError(f"two classes have the same name: {', '.join(names)}")
        if len(names) > MAX_CLASSES:
            raise ValueError(f"there may be at most {MAX_CLASSES} classes of users")
        if self.classes and not sum(one.share for one in self.classes):
            raise ValueError("classes need a share above 0")
        of_stages = self.arrivals.classes if isinstance(self.arrivals, Stages) else ()
        if of_stages and (len(of_stages) != len(self.arrivals.stages) or not set(of_stages) <= set(names)):  # type: ignore[union-attr]
            raise ValueError(f"arrivals.classes: give one of the classes ({', '.join(names)}) for each stage")
        for one in self.classes:
            if one.lengths is not None and one.lengths.distribution in ("trace", "preset"):
                what = f"the lengths of class {one.name!r} must be drawn, not taken from a {one.lengths.distribution}"
                raise ValueError(what)
        return self


def _without_client(data: dict[str, Any]) -> dict[str, Any]:
    """The keys of a workload with those of its client filled in where they are not given."""
    given = data.get("client")
    if given is None:
        return dict(data)
    client = given if isinstance(given, ClientConfig) else build(ClientConfig, _spelled_out(given, "name"))
    plain = {key: value for key, value in data.items() if key != "client" and value is not None}
    if "preset" in plain or "trace" in plain:
        raise ConfigError("a client draws its own lengths.", where="workload.client", fix="Leave preset and trace out.")
    return {**client.spelled_out(), **plain}


def _spelled_out(section: Any, key: str) -> Any:
    """`arrivals: batch` means `arrivals: {process: batch}`."""
    return {key: section} if isinstance(section, str) else section


def _tag(section: Any, key: str) -> Any:
    return section.get(key) if isinstance(section, dict) else getattr(section, key, None)


def _check_tag(section: Any, dotted: str, union: Any) -> None:
    """Refuse a section that does not say of which kind it is, or says one that does not exist."""
    if not isinstance(section, dict):
        return
    key = dotted.split(".")[-1]
    known = [member.model_fields[key].default for member in submodels(union)]
    if key not in section:
        raise ConfigError(f"workload.{dotted} is missing.", fix=f"Known: {', '.join(known)}.")
    if section[key] not in known:
        raise UnknownNameError(f"workload.{dotted}", str(section[key]), known)
