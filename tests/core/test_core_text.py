"""The one reader of YAML and JSON from anywhere, and how flags and files are read with it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gnomon.core import config
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.text import MAX_DEPTH, parse_json, parse_yaml, read_text

LEVELS = "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
BOMB = f"a: &a [x, x, x, x, x, x, x, x, x]\n{LEVELS}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: &a [*a]", r"f:1: \*a stands within itself"),
        ("a: &a {b: {c: *a}}", r"\*a stands within itself"),
        (BOMB, r"f:\d+: more than 100,000 values"),
        ("[" * 50_000, "nested too deep"),
        ("{a: " * 5_000, "nested too deep"),
        ("- " * 5_000, "nested too deep"),
        (f"seed: {'9' * 5_000}", r"f:1: the number 9999999999\.\.\. \(5,000 digits\) is beyond 64 bits"),
        (f"seed: {2**63}", "beyond 64 bits"),
        ("when: 2023-02-31", "day is out of range"),
        ("a: !!bool maybe", "tag"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: \x00", "not valid YAML"),
        ("a: [", "f:1: "),
    ],
)
def test_yaml_that_nobody_writes_is_refused_at_once(text: str, message: str) -> None:
    began = time.process_time()
    with pytest.raises(DataError, match=message):
        parse_yaml(text, "f")
    assert time.process_time() - began < 10


def test_yaml_that_people_write_is_read() -> None:
    assert parse_yaml("base: &b {x: 1}\nother: {<<: *b, y: [*b, *b]}") == {
        "base": {"x": 1},
        "other": {"x": 1, "y": [{"x": 1}, {"x": 1}]},
    }
    deep = "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)
    assert parse_yaml(deep)
    assert parse_yaml(f"[{2**63 - 1}, -12, 0x1F, 1_000]") == [2**63 - 1, -12, 31, 1000]


def test_depth_is_counted_through_aliases() -> None:
    half = "[" * 40 + "]" * 40
    with pytest.raises(DataError, match="nested too deep"):
        parse_yaml(f"a: &a {half}\nb: {'[' * 40}*a{']' * 40}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested too deep"),
        ("9" * 5_000, "beyond 64 bits"),
        ('{"a": Infinity}', "Infinity is not a number"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": 1e999}', "too large"),
        ('{"a": 1\n', "f:2:1: not valid JSON"),
    ],
)
def test_json_that_nobody_writes_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_json(text, "f")


def test_files_are_bounded_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"a\.yaml: cannot be read: not UTF-8 at byte 0"):
        read_text(path)
    path.write_text("x" * 100)
    with pytest.raises(DataError, match="larger than"):
        read_text(path, most=99)
    with pytest.raises(DataError, match="cannot be read"):
        read_text(tmp_path)


class Part(config.Config):
    size: int = 1


class Short(config.Config):
    shorthand = "file"
    file: str = ""
    speed: float = 1.0


class Whole(config.Config):
    parts: tuple[Part, ...] = ()
    name: str | None = None
    trace: Short | None = None
    numbers: tuple[float, ...] = ()
    mean: float = 1.0


def test_a_text_field_takes_a_flag_as_it_is() -> None:
    for text in ("tr #1.csv", "[]", "a: b", "*x", "null.csv", "{", "1e5", "true"):
        assert config.load(Whole, None, {"name": text}).name == text
        if text != "{":
            assert config.load(Whole, None, {"trace": text}).trace == Short(file=text)
    assert config.load(Whole, None, {"name": "null"}).name is None
    assert config.load(Whole, None, {"trace": "{file: a, speed: 2}"}).trace == Short(file="a", speed=2.0)
    assert config.load(Whole, None, {"numbers": "[1, 2]"}).numbers == (1.0, 2.0)


def test_no_number_is_infinite() -> None:
    for text in (".inf", "-.inf", ".nan", "inf", "nan"):
        with pytest.raises(ConfigError, match="finite number"):
            config.load(Whole, None, {"mean": text})


def test_a_wrong_flag_is_not_blamed_on_a_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("mean: 2\nparts: [{size: 3}]\n")
    with pytest.raises(ConfigError, match=r"^--mean: mean: .*'much'"):
        config.load(Whole, path, {"mean": "much"})
    with pytest.raises(ConfigError, match=r"^--parts: parts\.0\.size: "):
        config.load(Whole, path, {"parts": "[{size: x}]"})
    path.write_text("mean: much\n")
    with pytest.raises(ConfigError, match=r"w\.yaml:1: mean: "):
        config.load(Whole, path, {"name": "x"})


def test_unknown_keys_within_lists_get_suggestions(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("parts:\n- size: 1\n- siz: 2\n")
    with pytest.raises(ConfigError, match=r"w\.yaml:3: unknown key 'parts\.1\.siz'\. Did you mean 'size'\?"):
        config.load(Whole, path)
