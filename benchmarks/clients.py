"""Other people's clients against `gnomon serve`: what they report, against `gnomon simulate` of the requests they sent.

python -m benchmarks.clients [--guidellm PATH] [--aiperf PATH] [--requests 60]

The paths are those of the commands, which want environments of their own. Nothing but loopback addresses is used; both
clients want a tokenizer, which is made here. See `benchmarks.serve` for machines that do other things, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.serve import SCENARIO, Server

SETTINGS = {"HF_ENDPOINT": "http://127.0.0.1:9", "DO_NOT_TRACK": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
"""Not HF_HUB_OFFLINE: with it AIPerf reads no tokenizer from a folder."""
PROMPT_TOKENS, OUTPUT_TOKENS = 400, 100


@dataclass(frozen=True)
class Sent:
    """Requests as their client reports them: when they were sent, their tokens, and what their latencies were."""

    start_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    ttft_s: np.ndarray
    itl_s: np.ndarray


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer of bytes and of the words that `gnomon serve` says, as Hugging Face's libraries load one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from gnomon.live.protocol import Pieces

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    made.train_from_iterator(["".join(Pieces().words)] * 10, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    template = "{% for one in messages %}<|{{ one.role }}|>{{ one.content }}\n{% endfor %}<|assistant|>"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def run(command: list[str], folder: Path) -> None:
    environment = os.environ | SETTINGS
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240
    )
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout[-3000:]}")


def guidellm(command: str, port: int, tokenizer: Path, folder: Path, requests: int, rate: float) -> Sent:
    """Run guidellm, and read its report."""
    run(
        [command, "run", "--backend", f"kind=openai_http,target=http://127.0.0.1:{port},model=llama-3-8b",
         "--profile", f"kind=poisson,rate={rate}", "--constraint", f"kind=max_requests,count={requests}",
         "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
         "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
         "--output", f"kind=json,path={folder}/guidellm.json", "--disable-console"],
        folder,
    )  # fmt: skip
    report = json.loads((folder / "guidellm.json").read_text())
    done = report["benchmarks"][0]["requests"]["successful"]
    columns = (
        "request_start_time",
        "prompt_tokens",
        "output_tokens",
        "time_to_first_token_ms",
        "inter_token_latency_ms",
    )
    start, prompt, output, ttft, itl = (np.array([one[name] for one in done], float) for name in columns)
    return Sent(start, prompt, output, ttft / 1e3, itl / 1e3)


def aiperf(command: str, port: int, tokenizer: Path, folder: Path, requests: int, rate: float) -> Sent:
    """Run AIPerf, and read its records."""
    run(
        [command, "profile", "--model", "llama-3-8b", "--url", f"http://127.0.0.1:{port}", "--endpoint-type", "chat",
         "--streaming", "--tokenizer", str(tokenizer), "--request-rate", str(rate), "--request-count", str(requests),
         "--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true",
         "--artifact-dir", f"{folder}/aiperf", "--ui", "none", "--export-level", "records"],
        folder,
    )  # fmt: skip
    records = [
        json.loads(line) for line in next(folder.glob("aiperf/**/profile_export.jsonl")).read_text().splitlines()
    ]
    start = np.array([one["metadata"]["request_start_ns"] for one in records], float) / 1e9
    columns = ("input_sequence_length", "output_sequence_length", "time_to_first_token", "inter_token_latency")
    prompt, output, ttft, itl = (np.array([one["metrics"][name]["value"] for one in records]) for name in columns)
    return Sent(start, prompt, output, ttft / 1e3, itl / 1e3)


CLIENTS = {"guidellm": guidellm, "aiperf": aiperf}


def simulated(sent: Sent) -> tuple[float, float]:
    """Mean TTFT and ITL of the same requests in `gnomon simulate`."""
    import gnomon
    from gnomon.workload import Requests

    order = np.argsort(sent.start_s)
    count = len(order)
    requests = Requests(
        arrival_s=(sent.start_s - sent.start_s.min())[order],
        prompt_tokens=sent.prompt_tokens[order].astype(np.int32),
        output_tokens=sent.output_tokens[order].astype(np.int32),
        session=np.full(count, -1, np.int32),
        priority=np.zeros(count, np.int8),
        prefix_offsets=np.zeros(count + 1, np.int64),
        prefix_hashes=np.zeros(0, np.int64),
        prefix_block_tokens=16,
    )
    latency = gnomon.simulate(SCENARIO | {"engine": "vllm"}, requests=requests, intervals=False).summary.latency
    return latency.ttft_s.mean, latency.tpot_s.mean


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in CLIENTS:
        parser.add_argument(f"--{name}", default=shutil.which(name))
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=6.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = write_tokenizer(Path(folder) / "tokenizer")
        for name, client in CLIENTS.items():
            command = getattr(given, name)
            if not command:
                print(f"{name}: not installed")
                continue
            with Server(SCENARIO | {"engine": "vllm"}, "--tokenizer", str(tokenizer)) as server:
                sent = client(command, server.ports[0], tokenizer, Path(folder), given.requests, given.rate)
            for what, seen, ours in zip(("TTFT", "ITL"), (sent.ttft_s, sent.itl_s), simulated(sent), strict=True):
                verdict = "met" if abs(seen.mean() - ours) <= 0.05 * ours + 0.002 else "missed"
                off = seen.mean() / ours - 1
                print(f"{name}: {what} of {len(seen)}: {seen.mean():.5f}, simulate {ours:.5f}, {off:+.1%}, {verdict}")


if __name__ == "__main__":
    main()
