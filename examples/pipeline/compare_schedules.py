"""Which schedule trains Llama-3-70B fastest on 8 ranks of 8 H100, and where does each lose its time?"""

from __future__ import annotations

import gnomon


def main() -> None:
    job = {"model": "llama-3-70b", "gpu": "h100", "gpus": 128, "tp": 8, "pp": 8, "batch": 64, "sequence": 4096}
    print("schedule      tokens/s    MFU  memory  bubble")
    for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half", "dualpipe"):
        chunks = {"virtual_stages": 2} if name == "interleaved" else {}
        step = gnomon.train(job, schedule=name, check=False, **chunks).step
        memory, bubble = step.memory.peak_bytes / 1e9, step.parts.get("bubble", 0.0) / step.step_s
        print(f"{name:<12}{step.tokens_per_s:>10,.0f} {step.mfu:>6.1%} {memory:>5.0f} GB {bubble:>7.1%}")


if __name__ == "__main__":
    main()
