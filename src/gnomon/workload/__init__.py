"""Requests: when they arrive and how long they are.

`generate(WorkloadConfig(preset="chat-1m", rate=6.45, num_requests=1000), seed=0)` makes the arrays of a run.
"""

from gnomon.workload.config import PatienceConfig, SessionsConfig, TraceConfig, WorkloadConfig
from gnomon.workload.generate import generate
from gnomon.workload.presets import Preset, presets
from gnomon.workload.requests import Requests, limit_lengths, with_rate
