"""Variants in one line, and short names in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnomon.api.comparison import _variants
from gnomon.api.serving import scenario
from gnomon.cli.serving import _varied
from gnomon.core.errors import ConfigError


def test_variants_of_several_fields_stand_as_they_are() -> None:
    vary = _varied(("tp=4,num-replicas=4,tp=2+num_replicas=2", "router=random,least_kv"))
    found = _variants((None,), vary, {})
    layouts = [(one.replica.tensor_parallel, one.num_replicas, one.router.name) for one in found.values()]
    assert layouts == [(*layout, router) for layout in ((4, 1), (1, 4), (2, 2)) for router in ("random", "least_kv")]
    assert list(found)[4] == "tp=2, num_replicas=2, router=random"


@pytest.mark.parametrize("text", ["tp", "tp=", "tp=4,num_replicas=2,dp", "tp=4+2,pp=1"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        _varied((text,))


def test_short_names_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("gpu: h100\ntp: 2\nrate: 3\nrequests: 50\nreplica: {memory_utilization: 0.8}\n")
    found = scenario(path)
    assert (found.device, found.workload.rate, found.workload.num_requests) == ("h100", 3.0, 50)
    assert (found.replica.tensor_parallel, found.replica.memory_utilization) == (2, 0.8)


@pytest.mark.parametrize(
    ("wrong", "first"),
    [
        ("--max-num-seqs", "--batching.max-sequences"),
        ("--mem-fraction-static", "--replica.memory-utilization"),
        ("--speculative", "--replica.speculative.num-tokens"),
        ("--kv-dtype", "--timing.kv-dtype"),
        ("--modle", "--model"),
    ],
)
def test_a_flag_of_an_engine_or_of_a_section_is_answered_with_ours(wrong: str, first: str) -> None:
    from gnomon.api.serving import Scenario
    from gnomon.cli.options import nearest_flags
    from gnomon.core.config import fields

    assert nearest_flags(wrong, [leaf.flag for leaf in fields(Scenario)])[0] == first
