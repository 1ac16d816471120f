"""Errors, registries, configuration, random streams, files, units."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import grimp
import numpy as np
import pytest
from pydantic import Field

from gnomon.core import config, units
from gnomon.core.errors import ConfigError, GnomonError, MissingExtraError, UnknownNameError
from gnomon.core.files import write_text, written_whole
from gnomon.core.registry import Registry
from gnomon.core.streams import stream
from gnomon.serving.routers import ROUTERS
from gnomon.serving.scenario import Scenario


class Wheel(config.Config):
    spokes: int = 32
    """How many spokes."""


class Bell(config.Config):
    kind: Literal["bell"] = "bell"
    pitch: float


class Horn(config.Config):
    kind: Literal["horn"] = "horn"
    length: int


class Bicycle(config.Config):
    front: Wheel = Wheel()
    signal: Annotated[Bell | Horn, Field(discriminator="kind")] | None = None
    name: str = "mule"
    """What to call it."""


@dataclass(frozen=True)
class Thing:
    name: str
    call: Callable[[], int]
    is_fast: bool = True


def test_registry_keeps_traits_refuses_duplicates_and_names_the_nearest() -> None:
    things: Registry[Thing] = Registry("thing", Thing, where="my.thing")
    things.register("round_robin", is_fast=False)(lambda: 1)
    assert (things["round_robin"].call(), things["round_robin"].is_fast) == (1, False)
    with pytest.raises(GnomonError, match="registered already"):
        things.register("round_robin")(lambda: 2)
    with pytest.raises(UnknownNameError, match=r"my\.thing: unknown thing 'round_robbin'.*Did you mean 'round_robin'"):
        things["round_robbin"]
    with pytest.raises(UnknownNameError, match=r"trait of a thing 'is_fats'.*Did you mean 'is_fast'"):
        things.register("other", is_fats=True)


def test_only_functions_with_a_name_and_numbers_as_options_are_registered() -> None:
    """They ended in tracebacks when they were asked."""
    for wrong in (partial(max, 1), Thing, Thing("a", int)):
        with pytest.raises(GnomonError, match=r"cannot be the router 'wrong'.*with a name, above a function"):
            ROUTERS.register("wrong")(wrong)
    with pytest.raises(GnomonError, match="cannot be the router 5"):
        ROUTERS.register(5)(lambda: 1)  # type: ignore[arg-type]
    for options in ([1], {"a": "text"}):
        with pytest.raises(GnomonError, match="are no numbers by name"):
            ROUTERS.register("wrong", options=options)
    assert "wrong" not in ROUTERS


def test_registry_imports_a_built_in_module_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thing_module.py").write_text("import test_core\ntest_core.BUILT.register('first')(lambda: 7)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "test_core", sys.modules[__name__])
    BUILT.register("a_first_by_name")(lambda: 8)
    assert BUILT.names() == ["first", "a_first_by_name"], "the built-in ones come first"
    assert "first" in BUILT and "thing_module" not in sys.modules, "listing imports nothing"
    with pytest.raises(GnomonError, match="registered already"):
        BUILT.register("first")(lambda: 9)
    assert BUILT["first"].call() == 7


BUILT: Registry[Thing] = Registry("thing", Thing, built_in={"first": "thing_module"})


def test_config_reads_yaml_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("front:\n  spokes: 28\n")
    assert config.load(Bicycle, path).front.spokes == 28
    assert config.load(Bicycle, path, {"front.spokes": "24", "name": "x"}) == Bicycle(front=Wheel(spokes=24), name="x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("front:\n  spoke: 3\n", r"b\.yaml:2: unknown key 'front\.spoke'\. Did you mean 'spokes'\?"),
        ("spokes: 3\n", r"b\.yaml:1: unknown key 'spokes'\. Did you mean 'front\.spokes'\?"),
        ("name: a\nfront:\n  spokes: many\n", r"b\.yaml:3: front\.spokes: .*valid integer.*'many'"),
        ("signal:\n  kind: horn\n  lenght: 3\n", r"b\.yaml:3: unknown key 'signal\.lenght'\. Did you mean 'length'\?"),
        ("signal:\n  kind: bell\n  pitch: low\n", r"b\.yaml:3: signal\.pitch: .*number.*'low'"),
        (
            "front:\n  spokes: a\nname: [1]\n",
            r"b\.yaml:2: front\.spokes: .*'a'\)\. Also: name: .*valid string.*\[1\]\)\.$",
        ),
        ("signal:\n  kind: bell\n", r"b\.yaml:1: signal\.pitch: Field required"),
        ("signal:\n  kind: gong\n", r"b\.yaml:1: signal: .*'bell', 'horn'"),
        ("front: [\n", r"b\.yaml:2: "),
        ("front:\n  spokes: 3\n  spokes: 4\n", r"b\.yaml:3: 'front\.spokes' is given twice, first in line 2"),
        ("- 1\n", "mapping"),
    ],
)
def test_config_errors_name_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        config.load(Bicycle, path)


def test_unknown_override_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no option --front\.spoks\. Did you mean --front\.spokes\?"):
        config.load(Bicycle, None, {"front.spoks": "3"})
    with pytest.raises(ConfigError, match=r"no option --spokes\. Did you mean --front\.spokes\?"):
        config.load(Bicycle, None, {"spokes": "3"})


def test_config_round_trips(tmp_path: Path) -> None:
    original = Bicycle(front=Wheel(spokes=20))
    assert config.load(Bicycle, config.save(original, tmp_path / "saved.yaml")) == original


@pytest.mark.parametrize(
    ("key", "registry"),
    [
        ("batching.policy", "gnomon.serving.policies.POLICIES"),
        ("router.name", "gnomon.serving.routers.ROUTERS"),
        ("admission.name", "gnomon.serving.admission.ADMISSIONS"),
        ("disaggregation.decider.name", "gnomon.serving.deciders.DECIDERS"),
        ("fleet.controller.name", "gnomon.serving.autoscaling.controllers.CONTROLLERS"),
        ("timing.source", "gnomon.timing.source_registry.SOURCES"),
        ("timing.estimator", "gnomon.timing.estimators.interface.ESTIMATORS"),
    ],
)
def test_help_names_what_is_registered(key: str, registry: str) -> None:
    module, _, name = registry.rpartition(".")
    found = {one.dotted: one.describe() for one in config.fields(Scenario)}[key]
    assert ", ".join(getattr(import_module(module), name).names()) in found


def test_fields_are_dotted_with_help() -> None:
    leaf = next(f for f in config.fields(Bicycle) if f.dotted == "front.spokes")
    assert (leaf.flag, leaf.default, leaf.describe()) == ("--front.spokes", 32, "How many spokes.")


def test_streams_are_named_and_repeatable() -> None:
    assert np.array_equal(stream(1, "a").random(3), stream(1, "a").random(3))
    assert not np.array_equal(stream(1, "a").random(3), stream(1, "b").random(3))
    assert not np.array_equal(stream(1, "a").random(3), stream(2, "a").random(3))


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    write_text(tmp_path / "f.txt", "old")

    def fail() -> None:
        with written_whole(tmp_path / "f.txt") as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["f.txt"]
    assert (tmp_path / "f.txt").read_text() == "old"


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/deep/f\.txt: cannot be written"):
        write_text(tmp_path / "file" / "deep" / "f.txt", "text")
    with pytest.raises(ConfigError, match="Is a directory"):
        write_text(tmp_path, "text")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_units() -> None:
    assert units.seconds(0.0123) == "12.3 ms"
    assert units.count(4_560_000) == "4.56M"
    assert units.count(45_600) == "45.6k"
    assert units.size(16 * units.GIB) == "16.0 GiB"


def test_modules_import_each_other_in_one_direction() -> None:
    """No circles, not even for types or inside functions."""
    graph = grimp.build_graph("gnomon", cache_dir=None)
    order = TopologicalSorter({one: graph.find_modules_directly_imported_by(one) for one in graph.modules})
    assert set(order.static_order()) == graph.modules, "a circle is an error"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'gnomon-sim[ui]'"),
        ('{"url": "https://host/gnomon.whl", "archive_info": {}}', "pip install 'gnomon-sim[ui]'"),
        ('{"url": "file:///me/a%20b", "dir_info": {"editable": true}}', "cd '/me/a b' && pip install -e '.[ui]'"),
        ('{"url": "file:///src/gnomon", "dir_info": {}}', "cd /src/gnomon && pip install '.[ui]'"),
    ],
)  # fmt: skip
def test_the_hint_fits_how_it_was_installed(monkeypatch: pytest.MonkeyPatch, origin: str | None, command: str) -> None:
    from importlib import metadata

    class Installed:
        def read_text(self, name: str) -> str | None:
            return origin if name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert str(MissingExtraError("The page", "ui")) == f"The page needs a package that is not installed. Run: {command}"
