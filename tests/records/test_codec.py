"""Strict decoding: what fits comes back equal, and what does not is named with its place."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poet.errors import InputError, PlanError
from poet.util import codec


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


@dataclass(frozen=True)
class Leaf:
    name: str
    size: int = 0

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InputError("size is negative")


@dataclass(frozen=True)
class Special:
    words: tuple[str, ...]

    def to_data(self) -> str:
        return " ".join(self.words)

    @staticmethod
    def from_data(data: Any, where: str) -> Special:
        if not isinstance(data, str):
            raise InputError(f"{where}: expected words")
        return Special(tuple(data.split()))


@dataclass(frozen=True)
class Grow:
    json_tag: ClassVar[tuple[str, str]] = ("do", "grow")
    metres: float = field(metadata={"json": "by"})


@dataclass(frozen=True)
class Fell:
    json_tag: ClassVar[tuple[str, str]] = ("do", "fell")
    by: str = ""


Name = NewType("Name", str)


@dataclass(frozen=True)
class Tree:
    leaf: Leaf
    leaves: tuple[Leaf, ...] = ()
    pair: tuple[int, str] = (0, "")
    weights: dict[str, float] | None = None
    colour: Colour = Colour.RED
    flag: bool = False
    special: Special = Special(())
    choice: int | str | None = None
    free: Any = None
    class_: Name | None = field(default=None, metadata={"json": "class"})
    life: tuple[Grow | Fell, ...] = ()


def decode(data: Any) -> Tree:
    return codec.decode(Tree, data, where="file")


def test_defaults_are_left_out_and_come_back() -> None:
    assert codec.encode(Tree(Leaf("a"))) == {"leaf": {"name": "a"}}
    assert decode({"leaf": {"name": "a"}}) == Tree(Leaf("a"))


def test_every_kind_of_field() -> None:
    data = {
        "leaf": {"name": "a", "size": 2}, "leaves": [{"name": "b"}], "pair": [3, "x"],
        "weights": {"w": 1}, "colour": 1, "flag": True, "special": "to be", "choice": "c",
        "free": [None, {"k": 1}], "class": "oak",
        "life": [{"do": "grow", "by": 2}, {"do": "fell", "by": "axe"}, {"do": "fell"}],
    }  # fmt: skip
    tree = decode(data)
    assert tree == Tree(
        Leaf("a", 2), (Leaf("b"),), (3, "x"), {"w": 1.0}, Colour.ONE, True, Special(("to", "be")), "c",
        [None, {"k": 1}], Name("oak"), (Grow(2.0), Fell("axe"), Fell()),
    )  # fmt: skip
    assert isinstance(tree.weights and tree.weights["w"], float)
    assert codec.encode(tree) == data | {"weights": {"w": 1.0}}
    assert decode(json.loads(json.dumps(codec.encode(tree)))) == tree


WHOLE = st.integers(-(2**63), 2**63 - 1)
LEAVES = st.builds(Leaf, st.text(), st.integers(0, 10))
TREES = st.builds(
    Tree,
    LEAVES,
    st.lists(LEAVES, max_size=3).map(tuple),
    st.tuples(WHOLE, st.text()),
    st.none() | st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    st.sampled_from(Colour),
    st.booleans(),
    st.lists(st.text("abc", min_size=1), max_size=3).map(lambda words: Special(tuple(words))),
    st.none() | WHOLE | st.text(),
    st.none(),
    st.none() | st.text().map(Name),
    st.lists(st.builds(Grow, st.floats(0, 9)) | st.builds(Fell, st.text()), max_size=3).map(tuple),
)


@given(TREES)
def test_round_trip(tree: Tree) -> None:
    assert decode(json.loads(json.dumps(codec.encode(tree)))) == tree


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leaf": ...}, r"^file: the field 'leaf' is missing$"),
        ({"leaf": {}}, r"^file\.leaf: the field 'name' is missing$"),
        ({"leaf": None}, r"^file\.leaf: expected an object, found None$"),
        ({"leaf": {"name": 1}}, r"^file\.leaf\.name: expected a string, found 1$"),
        ({"leaf": {"name": "a", "size": -1}}, r"^file\.leaf: size is negative$"),
        ({"leaf": {"name": "a", "size": True}}, r"^file\.leaf\.size: expected a whole number, found True$"),
        ({"leaf": {"name": "a", "size": 2.0}}, r"^file\.leaf\.size: expected a whole number, found 2\.0$"),
        ({"leafs": 1}, r"^file: 'leafs' is not a field here; did you mean 'leaf'\?$"),
        ({"leaves": {"name": "b"}}, r"^file\.leaves: expected a list"),
        ({"leaves": [{"name": "b"}, 3]}, r"^file\.leaves\[1\]: expected an object, found 3$"),
        ({"pair": [1]}, r"^file\.pair: expected a list of 2, found \[1\]$"),
        ({"pair": ["x", 1]}, r"^file\.pair\[0\]: expected a whole number"),
        ({"weights": {"w": "1"}}, r"^file\.weights\.w: expected a finite number, found '1'$"),
        ({"weights": {"w": float("inf")}}, r"^file\.weights\.w: expected a finite number, found inf$"),
        ({"weights": {"w": True}}, r"^file\.weights\.w: expected a finite number, found True$"),
        ({"weights": []}, r"^file\.weights: expected an object, found \[\]$"),
        ({"colour": "blue"}, r"^file\.colour: expected one of 'red', 1, found 'blue'$"),
        ({"colour": True}, r"^file\.colour: expected one of 'red', 1, found True$"),
        ({"flag": 1}, r"^file\.flag: expected true or false, found 1$"),
        ({"flag": None}, r"^file\.flag: expected true or false, found None$"),
        ({"special": 3}, r"^file\.special: expected words$"),
        ({"class_": "oak"}, r"^file: 'class_' is not a field here; did you mean 'class'\?$"),
        ({"class": 3}, r"^file\.class: expected a string, found 3$"),
        ({"life": [{"by": 1}]}, r"^file\.life\[0\]: 'do' is one of 'grow', 'fell', which is missing$"),
        ({"life": [{"do": "fly"}]}, r"^file\.life\[0\]: 'do' is one of 'grow', 'fell', found 'fly'$"),
        ({"life": [{"do": ["grow"], "by": 1}]}, r"^file\.life\[0\]: 'do' is one of"),
        ({"life": ["grow"]}, r"^file\.life\[0\]: expected an object, found 'grow'$"),
        ({"life": [{"do": "grow"}]}, r"^file\.life\[0\]: the field 'by' is missing$"),
        ({"life": [{"do": "grow", "by": "x"}]}, r"^file\.life\[0\]\.by: expected a finite number"),
        ({"life": [{"do": "fell", "metres": 1}]}, r"^file\.life\[0\]: 'metres' is not a field here"),
        ({"choice": 1.5}, r"^file\.choice: expected a whole number, found 1\.5$"),
        ({"leaf": "x" * 100}, r"^file\.leaf: expected an object, found 'x{56}\.\.\.$"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], message: str) -> None:
    data = {key: value for key, value in ({"leaf": {"name": "a"}} | change).items() if value is not ...}
    with pytest.raises(InputError, match=message):
        decode(data)
    with pytest.raises(PlanError):
        codec.decode(Tree, data, where="file", error=PlanError)


@dataclass(frozen=True)
class Nest:
    inner: tuple[Nest, ...] = ()


def test_what_is_nested_too_deeply_is_refused() -> None:
    data: dict[str, object] = {}
    for _ in range(5000):
        data = {"inner": [data]}
    with pytest.raises(InputError, match="it is nested too deeply"):
        codec.decode(Nest, data, where="nest")


def test_a_type_without_a_decoder_is_a_mistake_of_ours() -> None:
    @dataclass(frozen=True)
    class Odd:
        part: complex

    with pytest.raises(TypeError, match="no decoder for"):
        codec._decoder(complex)
    assert Odd(1j).part == 1j
