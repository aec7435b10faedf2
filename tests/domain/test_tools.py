"""Python callables as tools: what a model is told of them, and what is made of the arguments it sends."""

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, NotRequired, Optional, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from warren.base.fields import FieldValueError
from warren.conversation import codec
from warren.models.tools import RESTARTS, Tool, ToolArgumentsError, ToolContext, ToolSpec, calling, tool

# The functions here are made for their signatures. The warning has a test of its own.
pytestmark = pytest.mark.filterwarnings("ignore:tool .* has no docstring")


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1


@attrs.frozen
class Tree:
    weight: int = attrs.field(validator=attrs.validators.gt(0))
    children: "list[Tree]" = attrs.field(factory=list)


@dataclasses.dataclass
class Point:
    x: int
    label: str = ""


class Where(TypedDict):
    city: str
    country: NotRequired[str]


# The annotation, its schema, arguments that fit with what the function gets, arguments that do not.
Case = tuple[Any, dict[str, Any], list[tuple[Any, Any]], list[Any]]
CASES: Final[dict[str, Case]] = {
    "str": (str, {"type": "string"}, [("a", "a"), ("", "")], [5, None, ["a"]]),
    "int": (int, {"type": "integer"}, [(3, 3), (10**30, 10**30)], ["3", 1.5, True, None]),
    "float": (float, {"type": "number"}, [(1.5, 1.5), (2, 2.0)], ["1.5", True, None, 10**400]),
    "bool": (bool, {"type": "boolean"}, [(True, True)], ["true", 1, 0, None]),
    "list": (list[int], {"type": "array", "items": {"type": "integer"}}, [([1], [1]), ([], [])], ["12", {}, ["1"]]),
    "dict": (
        dict[str, int],
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [({"a": 1}, {"a": 1})],
        [[1], {"a": "1"}],
    ),
    "literal": (Literal["a", "b"], {"enum": ["a", "b"]}, [("a", "a")], ["c", 1, None]),
    "enum": (Colour, {"enum": ["green", "red"]}, [("red", Colour.RED)], ["RED", "blue", 1]),
    "int enum": (Level, {"enum": [1]}, [(1, Level.LOW)], [2, "1"]),
    "union": (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, [(1, 1), ("1", "1")], [1.5, None]),
    "optional": (
        Optional[int],  # noqa: UP045 - the old spelling is what many tools have
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        [(None, None), (1, 1)],
        ["1"],
    ),
    "any": (Any, {}, [(None, None), ({"a": [1]}, {"a": [1]})], []),
    "described": (
        Annotated[int, "how many"],
        {"type": "integer", "description": "how many"},
        [(2, 2)],
        ["2"],
    ),
    "bounded": (
        Annotated[int, "how many", msgspec.Meta(ge=1)],
        {"type": "integer", "description": "how many", "minimum": 1},
        [(1, 1)],
        [0],
    ),
    "attrs": (
        Tree,
        {
            "type": "object",
            "properties": {
                "weight": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
            },
            "required": ["weight"],
        },
        [({"weight": 1, "children": [{"weight": 2}]}, Tree(1, [Tree(2)]))],
        [{}, {"weight": "1"}, {"weight": 0}, {"weight": 1, "children": [{"weight": "x"}]}, [1]],
    ),
    "dataclass": (
        Point,
        {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "label": {"type": "string", "default": ""}},
            "required": ["x"],
        },
        [({"x": 1}, Point(1))],
        [{}, {"x": None}, {"x": 1, "label": 5}],
    ),
    "typed dict": (
        Where,
        {
            "type": "object",
            "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
            "required": ["city"],
        },
        [({"city": "Ulm"}, {"city": "Ulm"})],
        [{}, {"city": 5}, {"city": "Ulm", "country": None}],
    ),
}


def taking(annotation: Any, **default: Any) -> Tool:
    """Return a tool whose one parameter `value` has an annotation, and perhaps a default."""

    def take(value: Any) -> Any:
        return value

    take.__annotations__["value"] = annotation
    take.__defaults__ = tuple(default.values()) or None
    return tool(take)


def resolved(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of `value`, looked up where it is a reference, without its title."""
    value = schema["properties"]["value"]
    target = schema["$defs"][value["$ref"].rpartition("/")[2]] if "$ref" in value else value
    return {key: item for key, item in target.items() if key != "title"}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_schema(case: Case) -> None:
    """Each kind of annotation has the schema that a model understands, and the parameter is required."""
    annotation, schema, _, _ = case
    shown = taking(annotation).spec.input_schema
    assert resolved(shown) == schema
    assert (shown["type"], shown["required"], shown["additionalProperties"]) == ("object", ["value"], False)
    assert "title" not in shown
    assert codec.parse(codec.encode(shown)) == shown


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_good_arguments(case: Case) -> None:
    """Arguments that fit arrive as the annotation says."""
    made = taking(case[0])
    for sent, received in case[2]:
        bound = made.bind({"value": sent})
        assert bound == {"value": received}
        assert type(bound["value"]) is type(received)
        assert made.call(**bound) == received


@pytest.mark.parametrize(
    ("annotation", "sent"), [(case[0], sent) for case in CASES.values() for sent in case[3]], ids=repr
)
def test_bad_arguments(annotation: Any, sent: Any) -> None:
    """Arguments that do not fit are refused, never bent, and the field is named."""
    with pytest.raises(ToolArgumentsError, match=r"`\$\.value"):
        taking(annotation).bind({"value": sent})


def test_the_path_of_a_bad_argument() -> None:
    """The error says where inside the argument the trouble is, and what was wanted."""
    with pytest.raises(ToolArgumentsError) as caught:
        taking(Tree).bind({"value": {"weight": 1, "children": [{"weight": 1}, {"weight": "x"}]}})
    assert str(caught.value) == "Expected `int`, got `str` - at `$.value.children[1].weight`"


def test_missing_and_unknown_arguments() -> None:
    """An argument that is missing, and one that does not exist, are named."""
    with pytest.raises(ToolArgumentsError, match="missing required field `value`"):
        taking(int).bind({})
    with pytest.raises(ToolArgumentsError, match="unknown field `speed`"):
        taking(int).bind({"value": 1, "speed": 2})


def test_a_recursive_type_refers_to_itself() -> None:
    """A type inside itself is a reference into the schema's own definitions: none is left dangling."""
    schema = taking(Tree).spec.input_schema
    assert set(schema["$defs"]) == {"Tree"}
    assert schema["properties"]["value"] == {"$ref": "#/$defs/Tree"}


def test_a_tool_named_as_its_type() -> None:
    """A function that is called like the type it takes keeps both."""

    def plant(value: Tree) -> int:
        return value.weight

    plant.__name__ = "Tree"
    made = tool(plant)
    assert made.spec.name == "Tree"
    assert resolved(made.spec.input_schema)["required"] == ["weight"]
    assert made.bind({"value": {"weight": 1}}) == {"value": Tree(1)}


@pytest.mark.parametrize(
    ("annotation", "default", "shown"),
    [(int, 5, 5), (int | None, None, None), (Colour, Colour.RED, "red"), (list[int], [], []), (str, "é", "é")],
)
def test_defaults(annotation: Any, default: Any, shown: Any) -> None:
    """A default is shown to the model and used where it sends nothing."""
    made = taking(annotation, value=default)
    schema = made.spec.input_schema
    assert (schema["properties"]["value"]["default"], schema["required"]) == (shown, [])
    assert made.bind({}) == {"value": default}


def test_an_empty_default_is_not_shared() -> None:
    """A list that one call changed is empty again in the next."""
    made = taking(list[int], value=[])
    made.bind({})["value"].append(1)
    assert made.bind({}) == {"value": []}


def test_a_tool_without_parameters() -> None:
    """No parameters: an empty object, and nothing else is taken."""

    @tool
    def now() -> str:
        return "noon"

    assert now.spec.input_schema["properties"] == {}
    assert now.call(**now.bind({})) == "noon"
    with pytest.raises(ToolArgumentsError, match="unknown field `zone`"):
        now.bind({"zone": "UTC"})


def test_the_words_of_a_tool() -> None:
    """Name and description come from the function, cleaned of indentation, or from the decorator."""

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Both may be negative.
        """
        return a + b

    @tool(name="sum", description="Sum up.", timeout=2.5)
    def other(a: int) -> int:
        """Not this."""
        return a

    @tool
    def silent(a: int) -> int:
        return a

    assert (add.spec.name, add.spec.description) == ("add", "Add two numbers.\n\nBoth may be negative.")
    assert (other.spec.name, other.spec.description, other.timeout) == ("sum", "Sum up.", 2.5)
    assert (silent.spec.description, silent.timeout) == ("", None)


@pytest.mark.parametrize("timeout", [0, -1, "5"])
def test_a_timeout_is_above_zero(timeout: Any) -> None:
    """A timeout that no tool could meet is refused when the tool is made, not in the middle of a turn."""
    with pytest.raises(FieldValueError, match=r"^timeout must be above 0"):
        tool(timeout=timeout)(lambda: None)


def test_a_tool_says_what_becomes_of_a_call_whose_process_ended() -> None:
    """A tool reports unless it says otherwise; a class that there is not is refused when the tool is made."""
    assert tool(silent).restart == "report"
    for restart in RESTARTS:
        assert tool(restart=restart)(silent).restart == restart
    other: Any = "retry"
    with pytest.raises(FieldValueError, match=r"^restart must be one of replay, ask, report$"):
        tool(restart=other)(silent)


def silent() -> None:
    """Do nothing."""


class Shop:
    def __init__(self, stock: int) -> None:
        self.stock = stock

    def left(self, sold: int) -> int:
        """Count what is left."""
        return self.stock - sold

    @classmethod
    def tax(cls, price: float) -> float:
        return price * 0.25

    @staticmethod
    async def order(amount: int) -> int:
        return amount

    def __call__(self, amount: int) -> int:
        return amount


def test_methods() -> None:
    """Methods of an object, of a class and of none are tools; `self` is not the model's business."""
    left = tool(Shop(5).left)
    assert (left.spec.name, left.spec.description) == ("left", "Count what is left.")
    assert list(left.spec.input_schema["properties"]) == ["sold"]
    assert left.call(**left.bind({"sold": 2})) == 3
    assert tool(Shop.tax).call(**tool(Shop.tax).bind({"price": 4})) == 1.0
    assert (tool(Shop.order).is_async, left.is_async) == (True, False)


def scale(value: float, factor: float, unit: Shop | None = None) -> float:
    """Scale a value."""
    return value * factor * (unit.stock if unit else 1)


def test_partials() -> None:
    """An argument that a partial has bound, by place or by name, is hidden from the model, which cannot override it."""
    by_name = tool(functools.partial(scale, factor=3.0, unit=Shop(2)))
    assert (by_name.spec.name, by_name.spec.description) == ("scale", "Scale a value.")
    assert list(by_name.spec.input_schema["properties"]) == ["value"]
    assert by_name.call(**by_name.bind({"value": 2})) == 12.0
    with pytest.raises(ToolArgumentsError, match="unknown field `factor`"):
        by_name.bind({"value": 2, "factor": 9})
    by_place = tool(functools.partial(scale, 2.0, unit=None))
    assert by_place.call(**by_place.bind({"factor": 4})) == 8.0
    assert tool(functools.partial(Shop.order)).is_async


def _unannotated(a, b: int) -> int:  # type: ignore[no-untyped-def] # noqa: ANN001 - the point of the test
    return b if a else 0


def _anything(*args: int) -> None: ...


def _options(**options: int) -> None: ...


def _in_place(a: int, /) -> None: ...


def _sold_by(shop: Shop) -> None: ...


def _listed(names: list[str] = ["a"]) -> None: ...  # noqa: B006 - the point of the test


def _unresolved(a: "Missing") -> None: ...  # type: ignore[name-defined] # noqa: F821 - the point of the test


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (_unannotated, "tool _unannotated: parameter 'a' has no annotation"),
        (Shop.left, "tool left: parameter 'self' has no annotation"),
        (_anything, "tool _anything: parameter 'args' must be a parameter that can be passed by name"),
        (_options, "tool _options: parameter 'options' must be a parameter that can be passed by name"),
        (_in_place, "tool _in_place: parameter 'a' must be a parameter that can be passed by name"),
        (_sold_by, "tool _sold_by: parameter 'shop' cannot be described"),
        (_listed, "tool _listed: parameter 'names' cannot be described"),
        (_unresolved, "tool _unresolved: its signature cannot be read: name 'Missing' is not defined"),
        (min, "tool min: its signature cannot be read"),
        (Shop(1), "must be a function, a method or a partial of one"),
        (dict, "must be a function, a method or a partial of one"),
    ],
)
def test_what_is_no_tool(target: Callable[..., Any], words: str) -> None:
    """A parameter that a model could not be told of is refused when the tool is made, with tool and parameter named."""
    with pytest.raises(TypeError) as caught:
        tool(target)
    assert words in str(caught.value)


def test_a_tool_made_by_hand() -> None:
    """A tool with a schema from elsewhere gets the arguments as they came, in a dict of its own."""
    made: Tool = Tool(ToolSpec("raw", "", {"type": "object"}), dict, is_async=False)
    args = {"any": "thing"}
    bound = made.bind(args)
    assert bound == args
    assert bound is not args


def test_tools_are_equal_by_what_they_are() -> None:
    """The struct that checks the arguments is not part of a tool's identity."""
    assert tool(scale_int) == tool(scale_int)


def scale_int(value: int) -> int:
    """Scale."""
    return value


class Account(pydantic.BaseModel):
    number: str


class Bank(pydantic.BaseModel):
    iban: str


def test_parameters_of_classes_that_msgspec_cannot_describe() -> None:
    """Pydantic and unions of classes: they are described, made and checked beside the others."""

    @tool
    def pay(cents: int, by: Annotated[Account | Bank, "who pays"], also: list[Bank] | None = None) -> str:
        """Pay."""
        return f"{cents}, {by}, {also}"

    schema = pay.spec.input_schema
    assert schema["properties"]["by"]["description"] == "who pays"
    assert schema["required"] == ["cents", "by"]
    assert set(schema["$defs"]) == {"Account", "Bank"}
    assert pay.bind({"cents": 1, "by": {"iban": "DE"}}) == {"cents": 1, "by": Bank(iban="DE"), "also": None}
    assert pay.bind({"cents": 1, "by": {"iban": "DE"}, "also": [{"iban": "X"}]})["also"] == [Bank(iban="X")]
    with pytest.raises(ToolArgumentsError, match=r"`\$\.by`: "):
        pay.bind({"cents": 1, "by": {}})

    @tool
    def plant(value: Tree | Point) -> str:
        """Plant."""
        return str(value)

    assert plant.bind({"value": {"weight": 2}}) == {"value": Tree(2)}
    assert plant.bind({"value": {"x": 2}}) == {"value": Point(2)}


def test_the_context_of_a_call_is_no_argument_of_the_model() -> None:
    """A parameter annotated with it is filled when the call runs, and only then."""

    @tool
    def pay(cents: int, at: ToolContext) -> str:
        """Pay."""
        return f"{cents}:{at.call_id}"

    context = ToolContext("s", 1, 1, "c", "pay", {})
    assert set(pay.spec.input_schema["properties"]) == {"cents"}
    assert pay(1, context) == "1:c"
    with pytest.raises(RuntimeError, match="no tool call runs"):
        pay.in_context(pay.bind({"cents": 1}))
    reset = calling.set(context)
    assert pay.call(**pay.in_context(pay.bind({"cents": 1}))) == "1:c"
    calling.reset(reset)


def test_results_of_pydantic_are_json() -> None:
    """As those of other classes."""
    assert codec.text_of([Bank(iban="DE")]) == '[{"iban":"DE"}]'
