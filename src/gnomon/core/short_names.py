"""Names that are short for the usual fields of a configuration, the same in every command and every function.

`gnomon simulate --gpu h100 --tp 4` and `gnomon.simulate(gpu="h100", tp=4)` say the same.
"""

SHORT = {
    "device": ("gpu",), "tensor_parallel": ("tp", "tensor_parallel"), "pipeline_parallel": ("pp", "pipeline_parallel"),
    "data_parallel": ("dp", "data_parallel"), "context_parallel": ("cp", "context_parallel"),
    "virtual_stages": ("vp", "virtual_stages"), "expert_parallel": ("ep", "expert_parallel"),
    "rate": ("rate",), "num_requests": ("requests",),
}  # fmt: skip
"""Short names by the last part of the field's."""
ALIASED = ("", "replica.", "space.", "workload.")
"""Sections whose fields have short names; in others they would be ambiguous."""


def short_names(dotted: str) -> tuple[str, ...]:
    """The short names of a field."""
    section, dot, field = dotted.rpartition(".")
    return SHORT.get(field, ()) if section + dot in ALIASED else ()
