"""Text to tokens, and answers: words that follow from the prompt, one token each.

An answer comes back as part of the next prompt of a conversation, and must give the same tokens there: then its KV is
found again. Hence the words of an answer are such as a tokenizer takes for one token, with the space before them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from zlib import crc32

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.core.errors import ConfigError, DataError

_PIECE = re.compile(r"\s?\w{1,4}|\s?[^\w\s]|\s")
_WORDS = (
    "the a an one two ten six red dry wet old new hot cold deep far near long wide slow fast calm soft loud sun moon "
    "star sky sea sand rock tree leaf root seed rain snow wind fire day hour year time dial noon dusk dawn sign mark "
    "line path road gate wall roof hand eye face name word song tale is was has had runs goes sees says gave took made "
    "went came kept held left and or but so as at by in of on to up"
)


class Tokenizer(Protocol):
    """Text to tokens."""

    words: Sequence[str]
    """Words that are one token each, with the space before them."""
    word_tokens: Ints

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""


class Pieces:
    """About four letters a token, as with common tokenizers: for models whose tokenizer is not there."""

    def __init__(self) -> None:
        self.words: Sequence[str] = [f" {word}" for word in _WORDS.split()]
        self.word_tokens = np.array([self.encode(word)[0] for word in self.words])

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return [crc32(piece.encode("utf-8", "replace")) for piece in _PIECE.findall(text)]


class FromFile:
    """A `tokenizer.json` of Hugging Face's tokenizers."""

    def __init__(self, path: str | Path) -> None:
        place = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        if not place.is_file():
            raise DataError("there is no such file.", where=str(place), fix="Give a tokenizer.json, or its folder.")
        try:
            from tokenizers import Tokenizer as Read
        except ImportError:
            raise ConfigError(
                "reading a tokenizer needs the package tokenizers.",
                where="--tokenizer",
                fix="pip install 'gnomon-sim[serve]'",
            ) from None
        try:
            self._made = Read.from_file(str(place))
        except Exception as error:  # The package raises nothing more exact.
            raise DataError(f"is no tokenizer: {error}", where=str(place)) from None
        whole = {f" {word}": self.encode(f" {word}") for word in _WORDS.split()}
        single = {word: tokens[0] for word, tokens in whole.items() if len(tokens) == 1}
        if not single:
            raise DataError("knows none of the words that answers are made of.", where=str(place))
        self.words: Sequence[str] = list(single)
        self.word_tokens = np.array(list(single.values()))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(self._made.encode(text, add_special_tokens=False).ids)


def answer(tokenizer: Tokenizer, prompt: Sequence[int], count: int, seed: int) -> Ints:
    """The words, by their number, that follow on a prompt: always the same."""
    start = crc32(np.asarray(prompt, np.int64).tobytes(), seed)
    return np.random.default_rng(start).integers(0, len(tokenizer.words), count)


def up_to_stop(texts: list[str], stops: Sequence[str]) -> list[str]:
    """The tokens of an answer up to the first of `stops` that is complete, which is computed but not said."""
    whole = "".join(texts)
    found = [(whole.index(stop) + len(stop), whole.index(stop)) for stop in stops if stop in whole]
    last, first = min(found, default=(len(whole) + 1, len(whole)))
    said, place = [], 0
    for text in texts:
        said.append(text[: max(0, first - place)])
        place += len(text)
        if place >= last:
            break
    return said


def chat_text(messages: Sequence[tuple[str, str]]) -> str:
    """A conversation as one text, with the start of the answer; no model's own template."""
    return "".join(f"<|{role}|>{content}\n" for role, content in messages) + "<|assistant|>"
