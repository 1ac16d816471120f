"""What one rank runs in one iteration: operators, and the graph that lists them."""

from gnomon.timing.operators.graph import collective_waits, mixed_attention, num_kernels, stage_operators
from gnomon.timing.operators.sampling import SamplerConfig, Sampling
from gnomon.timing.operators.work import (
    ACTIVATION_BYTES,
    Attention,
    Collective,
    Communication,
    Decode,
    Elementwise,
    Experts,
    Gemm,
    Kind,
    Mixed,
    Operator,
    Prefill,
    Recurrence,
    Work,
)
