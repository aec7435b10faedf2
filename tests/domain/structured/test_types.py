"""Python types as JSON: their schemas, and the values that are made of data."""

import dataclasses
import subprocess
import sys
from typing import Any, Final, Literal, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, TextBlock
from warren.structured.output import Fit, checked_schema, fit
from warren.structured.types import described


@attrs.frozen
class Refund:
    order: str
    cents: int = attrs.field(validator=attrs.validators.gt(0))


@attrs.frozen
class Tree:
    name: str
    children: "list[Tree]" = attrs.field(factory=list)


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is left of the map")


class Where(TypedDict):
    city: str
    country: NotRequired[str]


class Row(msgspec.Struct):
    number: int


class Order(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def _is_real(cls, value: int) -> int:
        if value < 1:
            raise ValueError("orders count from 1")
        return value


class Cart(pydantic.BaseModel):
    orders: list[Order]


GOOD: Final[dict[str, tuple[Any, Any, Any]]] = {
    "attrs": (Refund, {"order": "17", "cents": 5}, Refund("17", 5)),
    "recursive": (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")])),
    "dataclass": (Point, {"x": 1}, Point(1)),
    "typed dict": (Where, {"city": "Ulm"}, {"city": "Ulm"}),
    "msgspec": (Row, {"number": 3}, Row(3)),
    "pydantic": (Order, {"number": 3}, Order(number=3)),
    "nested pydantic": (Cart, {"orders": [{"number": 3}]}, Cart(orders=[Order(number=3)])),
    "list": (list[Refund], [{"order": "17", "cents": 5}], [Refund("17", 5)]),
    "list of pydantic": (list[Order], [{"number": 3}], [Order(number=3)]),
    "literal": (Literal["yes", "no"], "yes", "yes"),
    "optional": (Refund | None, None, None),
    "number": (int, 4, 4),
    "first of a union": (Refund | Point, {"order": "17", "cents": 5}, Refund("17", 5)),
    "second of a union": (Refund | Point, {"x": 4}, Point(4)),
    "union with None": (Refund | Point | None, None, None),
    "union with pydantic": (Order | Point, {"x": 4}, Point(4)),
}


@pytest.mark.parametrize(("wanted", "data", "value"), GOOD.values(), ids=GOOD)
def test_values_of_types(wanted: Any, data: Any, value: Any) -> None:
    """Data that fits the schema of a type becomes a value of it, and the schema is one that a turn can be given."""
    shape = described(wanted)
    schema = checked_schema(shape.schema)
    assert "$ref" not in schema
    answer = AssistantMessage((TextBlock(codec.encode(data).decode()),))
    if isinstance(data, dict | list):
        assert fit(schema, answer) == Fit(data=data)
    made = shape.decode(data)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("wanted", "data", "words"),
    [
        (Refund, {"order": "17", "cents": 0}, "'cents' must be > 0: 0"),
        (Refund, {"order": 17, "cents": 1}, "$.order"),
        (list[Refund], [{"order": "17", "cents": -2}], "must be > 0"),
        (Point, {"x": -1}, "x is left of the map"),
        (Order, {"number": 0}, "$.number: Value error, orders count from 1"),
        (Cart, {"orders": [{"number": 0}]}, "$.orders[0].number: Value error, orders count from 1"),
        (Refund | Point, {"z": 1}, "fits none of these: Refund: Object missing required field `order`; Point:"),
        (Literal["yes", "no"], "maybe", "maybe"),
    ],
)
def test_values_that_a_type_refuses(wanted: Any, data: Any, words: str) -> None:
    """The error has what a model needs to mend its answer: the place and the words of the validator."""
    with pytest.raises(ValueError, match=r".") as caught:
        described(wanted).decode(data)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (set[object], "set[object] cannot be described as JSON: type <class 'object'> is not supported"),
        (object, "object cannot be described as JSON"),
        (list[Refund | Point], "cannot be described as JSON"),
        ("Refund", "must be a type, and 'Refund' is none"),
        (Refund("17", 1), "must be a type"),
    ],
)
def test_what_has_no_form_in_json(wanted: Any, words: str) -> None:
    """A type that cannot be described is refused by its name."""
    with pytest.raises(TypeError) as caught:
        described(wanted)
    assert words in str(caught.value)


def test_a_type_is_described_once() -> None:
    """Turns of one type share its shape."""
    assert described(list[Refund]) is described(list[Refund])


@pytest.mark.outside
def test_pydantic_is_never_loaded() -> None:
    """A program without it starts without it, also if its agents and tools have types."""
    script = """
import sys, attrs, warren
@attrs.frozen
class Refund:
    cents: int
@warren.tool
def pay(refund: Refund) -> str:
    "Pay."
    return ""
warren.Agent("desk", tools=[pay], output_type=Refund | None)
assert not [name for name in sys.modules if name.startswith("pydantic")], "loaded"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
