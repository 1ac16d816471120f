"""What the terms of serving mean, for whoever meets them first: shown on hover and focus."""

TERMS = {
    "time to first token": "TTFT: from a request's arrival to its first output token. Waiting and prefill are in it.",
    "time per output token": "TPOT: a request's time after its first token, divided by the further tokens.",
    "end to end": "E2E: from a request's arrival to its last token.",
    "SLO met by": "The share of requests within every limit. Green from 99 % on. Goodput counts these requests only.",
    "throughput": "Finished requests per second, from the first arrival to the last token.",
    "capacity": "The highest load at which 99 % of the requests stay within each limit and the queue does not grow.",
    "GPUs busy": "The share of time in which an iteration ran. It is no share of the capacity: near 100 % there may be "
    "much headroom, because batches grow with the load. MFU and HBM are shares of what the GPU can compute and read.",
    "KV cache peak": "The largest share of the KV cache that was in use. Near 100 % requests wait or are pre-empted.",
    "cost": "The price of the GPUs over the tokens that finished requests got.",
}
