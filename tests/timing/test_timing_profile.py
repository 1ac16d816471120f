"""Bundles in three layouts: what is read, what is refused, and what a source answers from them."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from gnomon.catalog.devices import device
from gnomon.catalog.model_library import model
from gnomon.catalog.nodes import default_node, node
from gnomon.catalog.parallelism import Parallelism
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError, DataError
from gnomon.measure.profiling import bundle as written
from gnomon.timing.baking import iteration_tables
from gnomon.timing.config import TimingConfig
from gnomon.timing.operators import Operator, mixed_attention, stage_operators
from gnomon.timing.sources import Context, make_source
from gnomon.timing.sources.profile import Measured, make, native, servingsim
from gnomon.timing.sources.profile.servingsim import IN_SERVER

MODEL = "qwen2.5-0.5b"  # 14 heads of 64, 2 KV heads, hidden 896, MLP 4864, vocabulary 151936
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def context(path: Path | None, *, gpu: str = "h100", name: str = MODEL, degree: int = 1, server: str = "") -> Context:
    chosen = device(gpu)
    config = TimingConfig(source="profile", path=None if path is None else str(path))
    servers = node(server) if server else default_node(chosen)
    return Context(model(name), chosen, servers, Parallelism(tensor_parallel=degree), config)


def graph(c: Context) -> dict[str, Operator]:
    operators = stage_operators(c.model, c.parallelism)
    return {one.name: one for one in (*operators, mixed_attention(operators))}


def at(*values: float) -> Floats:
    return np.array(values, dtype=float)


# Our own format


def write_bundle(folder: Path, tables: dict[str, str], **changes: object) -> Path:
    """A bundle made with nothing but the standard library, as a profiler would."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, text in tables.items():
        raw = text.encode()
        data = gzip.compress(raw) if name.endswith(".gz") else raw
        (folder / name).write_bytes(data)
        files[name] = {"rows": text.count("\n") - 1, "sha256": hashlib.sha256(data).hexdigest()}
    lines = "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files))
    manifest = {
        "format": "gnomon-profile",
        "version": 1,
        "device": "h100",
        "files": files,
        "content_hash": hashlib.sha256(lines.encode()).hexdigest(),
        **changes,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def gemm_rows(n: int, k: int, per_token: float = 1e-7) -> str:
    return "".join(f"bf16,{m},{n},{k},{1e-5 + m * per_token},0.01\n" for m in TOKENS)


GEMM = "dtype,m,n,k,seconds,spread\n" + gemm_rows(1152, 896) + gemm_rows(896, 896)
ATTENTION = "dtype,heads,kv_heads,head_dim,chunk,kv,decodes,decode_kv,seconds\n" + "".join(
    f"bf16,14,2,64,{c},{kv},{d},{dk},{1e-5 + 1e-9 * c * (kv + c / 2) + 2e-9 * d * dk}\n"
    for c in (0, 16, 64, 256)
    for kv in ((0,) if c == 0 else (0, 128, 1024))
    for d in ((1, 8, 64) if c == 0 else (0, 1, 8, 64))
    for dk in ((0,) if d == 0 else (16, 128, 1024))
)
SKEW = "dtype,heads,kv_heads,head_dim,chunk,kv,decodes,long_decodes,decode_kv,long_kv,seconds\n" + "".join(
    f"bf16,14,2,64,0,0,{n},{n // 4},128,1024,{1e-5 + 2e-9 * n * (352 + 0.5 * (1024 - 352))}\n" for n in (8, 64)
)
ELEMENTWISE = "dtype,operator,tokens,width,seconds\n" + "".join(
    f"bf16,{name},{t},{width},{2e-6 + t * 1e-9}\n"
    for name, width in (("add_norm", 896), ("activation", 4864), ("rotary", 1024), ("sampler", 151936))
    for t in TOKENS
)
COLLECTIVE = "collective,num_ranks,ranks_per_node,bytes,seconds\n" + "".join(
    f"{name},2,2,{size},{1e-5 + size * 1e-11}\n" for name in ("all_reduce", "all_gather") for size in (1024, 2048, 4096)
)
TABLES = {
    "gemm.csv.gz": GEMM,
    "attention.csv": ATTENTION,
    "skew.csv": SKEW,
    "elementwise.csv.gz": ELEMENTWISE,
    "collective.csv": COLLECTIVE,
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle", TABLES)


def test_own_format_is_found_by_shape(bundle: Path) -> None:
    c = context(bundle)
    source, operators = make_source(c), graph(c)
    assert source.measured(operators["qkv_proj"]) == ((1.0, 256.0),)
    assert source.seconds(operators["qkv_proj"], at(64, 256)) == pytest.approx([1e-5 + 64e-7, 1e-5 + 256e-7])
    assert source.seconds(operators["o_proj"], at(100)) == pytest.approx([2e-5], rel=0.05)
    assert source.seconds(operators["attn_norm"], at(128)) == pytest.approx([2e-6 + 128e-9])
    assert source.seconds(operators["act"], at(128)) == pytest.approx([2e-6 + 128e-9])
    assert source.seconds(operators["sampler"], at(8)) == pytest.approx([2e-6 + 8e-9])
    assert source.measured(operators["embedding"]) is None
    assert source.seconds(operators["attention_decode"], at(8), at(1024)) == pytest.approx([1e-5 + 2e-9 * 8192])
    mixed = source.seconds(operators["attention_mixed"], at(64), at(128), at(8), at(128))
    assert mixed == pytest.approx([1e-5 + 1e-9 * 64 * 160 + 2e-9 * 1024])
    assert 0 < source.uncertainty(operators["attention_decode"]) < 0.2


def test_what_the_profiler_writes_is_read(tmp_path: Path) -> None:
    rows = {"gemm": {("bf16", m, 1152, 896): (1e-5 + m * 1e-7, 0.01) for m in TOKENS}, "attention": {}}
    written.write(tmp_path, rows, {"device": "NVIDIA H100 80GB HBM3", "dtype": "bf16"})
    c = context(tmp_path)
    assert make_source(c).seconds(graph(c)["qkv_proj"], at(64)) == pytest.approx([1e-5 + 64e-7])
    assert set(written.COLUMNS.items()) == set(native.KEYS.items())


def test_own_format_gathers_count_what_one_rank_contributes(bundle: Path) -> None:
    c = context(bundle, degree=2)
    source, operators = make_source(c), graph(c)
    assert source.measured(operators["attn_all_reduce"]) == ((1024.0, 4096.0),)
    assert source.measured(operators["logits_all_gather"]) == ((512.0, 2048.0),)


def test_a_missing_shape_is_taken_from_its_neighbours(bundle: Path) -> None:
    """The MLP of the 0.5B model (9728 x 896) is too far from what was measured; half of qkv (576 x 896) is not."""
    source, operators = make_source(context(bundle)), graph(context(bundle))
    assert source.measured(operators["up_proj"]) is None
    halved = graph(context(bundle, degree=2))["qkv_proj"]
    assert source.measured(halved) == ((1.0, 256.0),)
    assert source.seconds(halved, at(64)) < source.seconds(operators["qkv_proj"], at(64)) * 1.01


def test_skewed_decodes_lie_where_they_were_measured(bundle: Path) -> None:
    skew = make_source(context(bundle)).skew(at(8, 64))
    assert skew is not None
    assert skew == pytest.approx(np.full((2, 16), 0.5), abs=0.02)


def test_baking_a_bundle_says_what_is_missing_and_what_lies_beyond(bundle: Path) -> None:
    c = context(bundle)
    baked = iteration_tables(
        c.model, c.device, c.parallelism, config=c.config, max_tokens=512, max_sequences=32, max_kv_tokens=2048
    )
    notes = " ".join(baked.notes)
    assert "profile has no" in notes
    assert "up_proj" in notes
    assert "beyond its range" in notes
    assert baked.tables.mixed_s.shape[1] > 0
    assert baked.tables.skew.shape == (1, baked.tables.decodes_axis.size, 16)


@pytest.mark.parametrize(
    ("tables", "changes", "message"),
    [
        ({"gemm.csv": GEMM.replace(",k,", ",depth,")}, {}, "no column 'k'"),
        ({"gemm.csv": "dtype,m,n,k,seconds\n"}, {}, "no rows"),
        ({"gemm.csv": ""}, {}, "is empty"),
        ({"gemm.csv": GEMM.replace("bf16,4,", "bf16,-4,")}, {}, "column 'm' is negative in data row 3"),
        ({"gemm.csv": GEMM.replace("bf16,4,1152", "bf16,four,1152")}, {}, "'four' in data row 3, not a number"),
        ({"gemm.csv": "dtype,m,n,k,seconds\nbf16,1,8,8,0\n"}, {}, "'seconds' is not positive"),
        ({"gemm.csv": "dtype,m,n,k,seconds\nbf16,1,8,8,250\n"}, {}, "longer than any kernel.*unit is seconds"),
        ({"gemm.csv": "dtype,m,n,k,seconds,note\nbf16,1,8,8,1e-5,x\n"}, {}, "unknown column 'note'"),
        ({}, {}, "lists no files"),
        ({"gemm.csv": GEMM, "extra.csv": GEMM}, {}, "unknown file 'extra'"),
        ({"gemm.csv": GEMM}, {"device": "a40"}, "measured on a40, not on h100"),
        ({"gemm.csv": GEMM}, {"version": 7}, "version 7"),
        ({"gemm.csv": GEMM}, {"format": "other"}, "no manifest of a profile"),
        ({"gemm.csv": GEMM}, {"content_hash": "0"}, "content_hash does not match"),
    ],
)
def test_bad_bundles_are_refused(
    tmp_path: Path, tables: dict[str, str], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        make(context(write_bundle(tmp_path / "bad", tables, **changes)))


def test_a_file_changed_after_measuring_is_refused(bundle: Path) -> None:
    (bundle / "attention.csv").write_text(ATTENTION.replace("1e-05", "2e-05") + "\n")
    with pytest.raises(DataError, match="changed after its manifest"):
        make(context(bundle))


def test_a_source_without_a_folder_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"timing\.path"):
        make(context(None))
    with pytest.raises(DataError, match="no such folder"):
        make(context(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="no folder of measurements"):
        make(context(tmp_path))


# Vidur's layout

NAMES = ("emb", "input_layernorm", "attn_pre_proj", "mlp_up_proj", "mlp_down_proj", "add")


def write_vidur(root: Path, edit: Callable[[str], str] = str) -> Path:
    folder = root / "profiling" / "compute" / "a100" / "meta-llama" / "Llama-2-7b-hf"
    folder.mkdir(parents=True)
    header = ",".join(f"time_stats.{name}.{kind}" for name in NAMES for kind in ("median", "std"))
    rows = [
        ",".join(f"{0.01 * (1 + i) + 0.001 * t / degree},0.001" for i in range(len(NAMES))) + f",{t},{degree}"
        for degree in (1, 2)
        for t in TOKENS
    ]
    text = "\n".join([f"{header},num_tokens,num_tensor_parallel_workers", *rows]) + "\n"
    (folder / "mlp.csv").write_text(edit(text))
    network = root / "profiling" / "network" / "a100_dgx"
    network.mkdir(parents=True)
    lines = [
        f"{0.02 + size * 1e-8},{size},{ranks},{per}" for ranks, per in ((2, 1), (2, 2)) for size in (2048, 4096, 8192)
    ]
    header = "time_stats.all_reduce.median,size,num_workers,devices_per_node"
    (network / "allreduce.csv").write_text("\n".join([header, *lines]) + "\n")
    attention = [f"0.02,,4096,32,32,2,{n},0,{kv},False" for n in (1, 2, 4) for kv in (64, 128)]
    attention += [f",0.03,4096,32,32,2,1,{c},{kv},True" for c in (64, 128) for kv in (0, 64)]
    header = "time_stats.attn_decode.median,time_stats.attn_prefill.median,n_embd,n_q_head,n_kv_head"
    header += ",num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,is_prefill"
    with gzip.open(root / "attention_llama2-7b_a100_tp2_measured.csv.gz", "wt") as file:
        file.write("\n".join([header, *attention]) + "\n")
    return root


def vidur_context(path: Path, degree: int = 2, name: str = "llama-2-7b", gpu: str = "a100") -> Context:
    return context(path, gpu=gpu, name=name, degree=degree, server="a100_dgx")


def test_vidur_times_are_milliseconds_of_the_chosen_degree(tmp_path: Path) -> None:
    c = vidur_context(write_vidur(tmp_path))
    source, operators = make_source(c), graph(c)
    assert source.seconds(operators["embedding"], at(64)) == pytest.approx([(0.01 + 0.032) * 1e-3])
    assert source.seconds(operators["residual_add"], at(64)) == pytest.approx([(0.06 + 0.032) * 1e-3])
    assert source.measured(operators["attn_all_reduce"]) == ((2048.0, 8192.0),)
    assert source.seconds(operators["attention_decode"], at(2), at(64)) == pytest.approx([2e-5])
    assert source.seconds(operators["attention_prefill"], at(64), at(64)) == pytest.approx([3e-5])
    assert source.measured(operators["rotary"]) is None


def test_vidur_attention_of_another_degree_is_not_taken(tmp_path: Path) -> None:
    c = vidur_context(write_vidur(tmp_path), degree=1)
    assert make_source(c).measured(graph(c)["attention_decode"]) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "llama-2-70b"}, "no profile of llama-2-70b on a100-80gb.*It has: a100/meta-llama/Llama-2-7b-hf"),
        ({"gpu": "h100"}, "no profile of llama-2-7b on h100"),
        ({"degree": 4}, "tensor parallelism 4 was not measured.*It has: 1, 2"),
    ],
)
def test_vidur_says_what_it_has(tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(vidur_context(write_vidur(tmp_path), **arguments))  # type: ignore[arg-type]


def test_vidur_without_a_column_is_refused(tmp_path: Path) -> None:
    root = write_vidur(tmp_path, lambda text: text.replace("num_tokens", "tokens"))
    with pytest.raises(DataError, match="no column 'num_tokens'"):
        make(vidur_context(root))


def test_times_in_another_unit_are_refused(tmp_path: Path) -> None:
    """Milliseconds where seconds belong: still a number, but no kernel takes a tenth of a second for one token."""
    rows = "".join(f"bf16,{m},1152,896,{10 + 0.1 * m}\n" for m in TOKENS)
    folder = write_bundle(tmp_path / "bundle", {"gemm.csv": "dtype,m,n,k,seconds\n" + rows})
    c = context(folder)
    with pytest.raises(DataError, match=r"gemm.csv: the times of qkv_proj are .* unit is seconds in Gnomon's"):
        make_source(c).measured(graph(c)["qkv_proj"])


def test_the_command_line_says_it_in_one_paragraph(tmp_path: Path, cli: Callable[..., Result]) -> None:
    folder = write_bundle(tmp_path / "bundle", {"gemm.csv": GEMM.replace(",k,", ",depth,")})
    arguments = ("time", "--model", MODEL, "--device", "h100", "--source", "profile", "--path", str(folder))
    result = cli(*arguments, code=2)
    assert "gemm.csv: has no column 'k'" in result.output
    assert "Traceback" not in result.output


# LLMServingSim's layout


SERVINGSIM_SKEW = "".join(
    f"{n},{long},{pc},1024,512,100,200,{100 + 100 * a}\n"
    for n, spread in ((8, 0.05), (64, 0.1), (128, 0.5), (512, 0.3))
    for pc, long, a in ((0, n // 4, spread), (0, 1, 0.9), (64, n // 4, 0.75), (64, n // 2, 0.2))
)
"""Batches of which a quarter is long, and others, which take another time."""


def write_servingsim(root: Path) -> Path:
    folder = root / "RTX4090" / "Qwen" / "Qwen2.5-0.5B" / "bf16" / "tp1"
    folder.mkdir(parents=True)
    layers = "".join(f"{name},{t},{5 + 0.1 * t}\n" for name in ("layernorm", "qkv_proj", "act_fn") for t in TOKENS)
    (folder / "dense.csv").write_text("layer,tokens,time_us\n" + layers)
    heads = "".join(f"{name},{t},{50 + 0.1 * t}\n" for name in ("lm_head", "sampler") for t in TOKENS)
    (folder / "per_sequence.csv").write_text("layer,sequences,time_us\n" + heads)
    rows = ATTENTION.splitlines()[1:]
    cells = [row.split(",")[4:] for row in rows]
    lines = "".join(f"{c},{kv},{d},{dk},{float(s) * 1e6}\n" for c, kv, d, dk, s in cells)
    (folder / "attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + lines)
    (folder / "skew.csv").write_text("n,nb,pc,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us\n" + SERVINGSIM_SKEW)
    return root


def test_servingsim_times_are_microseconds(tmp_path: Path) -> None:
    c = context(write_servingsim(tmp_path), gpu="rtx-4090")
    source, operators = make_source(c), graph(c)
    assert source.seconds(operators["mlp_norm"], at(64)) == pytest.approx([IN_SERVER["rtx-4090"] * 11.4e-6])
    assert source.seconds(operators["lm_head"], at(64)) == pytest.approx([IN_SERVER["rtx-4090"] * 56.4e-6])
    mixed = source.seconds(operators["attention_mixed"], at(64), at(128), at(8), at(128))
    assert mixed == pytest.approx([IN_SERVER["rtx-4090"] * (1e-5 + 1e-9 * 64 * 160 + 2e-9 * 1024)])
    assert source.seconds(operators["kv_write"], at(64, 128)) == pytest.approx([0.0, 0.0])


def test_servingsim_skew_keeps_decodes_alone_apart_from_mixed_batches(tmp_path: Path) -> None:
    source = make_source(context(write_servingsim(tmp_path), gpu="rtx-4090"))
    skew = source.skew(at(2, 8, 64, 102, 103, 128, 256, 4096))
    assert skew is not None
    # 0.8 x 2 x 128 SMs over 2 KV heads: up to 102 decodes their KV is split, from 103 on the longest is waited for. At
    # 256, halfway (in octaves) between 128 and 512, alpha is so too.
    assert (skew[:, :8] == skew[:, :1]).all()
    assert skew[:, 0] == pytest.approx([0.05, 0.05, 0.1, 0.1, 0.5, 0.5, 0.4, 0.3])
    assert skew[:, 8:] == pytest.approx(np.full((8, 8), 0.75))


def test_servingsim_says_what_it_has(tmp_path: Path) -> None:
    root = write_servingsim(tmp_path)
    with pytest.raises(DataError, match=r"not measured in bf16 with tensor parallelism 2.*bf16/tp1"):
        make(context(root, gpu="rtx-4090", degree=2))
    with pytest.raises(DataError, match="no profile of llama-3-8b on rtx-4090"):
        make(context(root, gpu="rtx-4090", name="llama-3-8b"))


def test_not_all_of_a_disk_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda root: (seen.append(one) or one for one in walk(root)))
    monkeypatch.setattr(servingsim, "MOST_FOLDERS", 50)
    for number in range(80):
        (tmp_path / f"folder{number}").mkdir()
    with pytest.raises(DataError, match="no folder of measurements"):
        make(context(tmp_path, gpu="rtx-4090"))
    assert 50 <= len(seen) <= 51


# The reference data


def bake(c: Context) -> tuple[Measured, list[str]]:
    baked = iteration_tables(
        c.model, c.device, c.parallelism, node=c.node, config=c.config,
        max_tokens=256, max_sequences=64, max_kv_tokens=2048,
    )  # fmt: skip
    source = make_source(c)
    assert isinstance(source, Measured)
    return source, baked.notes


def test_reference_vidur_attention_and_mlp(reference: Path) -> None:
    c = vidur_context(reference / "vidur" / "data", name="llama-2-70b")
    source, notes = bake(c)
    operators = graph(c)
    # Row "batch 64, KV 1024" of the measured file, and 4096 tokens through the up-projection: milliseconds there.
    assert source.seconds(operators["attention_decode"], at(64), at(1024)) == pytest.approx([0.122e-3])
    assert source.seconds(operators["up_proj"], at(1)) == pytest.approx([0.283e-3], rel=0.01)
    assert any("kv_write" in note for note in notes)


def test_reference_experts_of_another_degree_are_slices(reference: Path) -> None:
    profiles = reference / "vllm" / "profiles"
    whole = context(profiles, gpu="rtx-pro-6000", name="qwen3-30b-a3b")
    sliced = context(profiles, gpu="rtx-pro-6000", name="qwen3-30b-a3b", degree=2)
    one = make_source(whole).seconds(graph(whole)["experts"], at(1, 2048))
    two = make_source(sliced).seconds(graph(sliced)["experts"], at(1, 2048))
    assert one == pytest.approx([50.2297e-6, 1066.6e-6], rel=0.01)  # As measured: the 4090's factor is its own.
    assert (two < 0.8 * one).all()
