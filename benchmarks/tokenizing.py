"""Seconds to tokenise a prompt, by token: `front_end.per_prompt_token_s` of the engines' presets.

A byte-level BPE with the words and the splitting of Llama 3 and its like (128,000, trained here on the texts of the
Python packages that are installed), over prompts of random words as InferenceX's client and `vllm bench serve` make
them, and over running text. One prompt at a time in one thread, as engines do it.

python -m benchmarks.tokenizing      # needs tokenizers; half a minute of training on 16 cores
"""

from __future__ import annotations

import random
import statistics
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

VOCABULARY, TRAINED_ON = 128_000, 120_000_000
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
SPLIT = WORDS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LENGTHS, ROUNDS = (256, 1024, 8192), 40


def texts() -> Iterator[str]:
    """What the installed packages say, up to `TRAINED_ON` characters."""
    left = TRAINED_ON
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*")):
        if path.suffix in (".py", ".md", ".txt", ".rst", ".json", ".pyi") and path.is_file() and left > 0:
            text = path.read_text(encoding="utf-8", errors="ignore")[:1_000_000]
            left -= len(text)
            yield text


def main() -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts(), trainer)
    words, rng = tokenizer.get_vocab_size(), random.Random(0)
    running = tokenizer.encode("\n".join(text for text, _ in zip(texts(), range(400), strict=False))).ids
    print(f"{words:,} words")
    for length in LENGTHS:
        for kind in ("random", "running"):
            each, counts = [], []
            for _ in range(ROUNDS):
                at = rng.randrange(max(1, len(running) - length))
                ids = [rng.randrange(words) for _ in range(length)] if kind == "random" else running[at : at + length]
                text = tokenizer.decode(ids)
                begun = time.perf_counter()
                found = tokenizer.encode(text).ids
                each.append((time.perf_counter() - begun) / len(found))
                counts.append(len(found))
            low, median, high = (1e6 * sorted(each)[ROUNDS * i // 10] for i in (1, 5, 9))
            print(f"{kind}, {statistics.fmean(counts):,.0f} tokens: {median:.2f} us each ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
