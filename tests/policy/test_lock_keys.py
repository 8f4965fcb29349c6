"""What a lock is named after (K1 to K5 of `policy.lock_keys`)."""

import enum
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import serialization
from kombu.utils.json import dumps, loads

from celery_singlebeat.policy.lock_keys import (
    LONGEST,
    Unspeakable,
    digest,
    fill,
    from_arguments,
    from_name,
    named,
    pick,
    spelling,
    template_names,
)


class Point(NamedTuple):
    x: int
    y: int


class Colour(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Order:
    number: int
    items: list


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
typed = st.uuids() | st.decimals(allow_nan=False) | st.dates() | st.times() | st.binary(max_size=20)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        ({1: "x"}, {"1": "x"}),
        ({None: 1, True: 2}, {"null": 1, "true": 2}),
        ({3, 1, 2}, frozenset([2, 3, 1])),
        ({"b", "a"}, ["a", "b"]),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (
            datetime(2026, 1, 1, 12, tzinfo=timezone.utc),
            datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
    ],
)
def test_two_spellings_of_one_value_have_one_key(one, other):  # K1, K2
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, True),
        (0, None),
        ([1, [2]], [[1], 2]),
        ("a", b"a"),
        (date(2026, 1, 1), "2026-01-01"),
        (datetime(2026, 1, 1, tzinfo=timezone.utc), date(2026, 1, 1)),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (Decimal("1.5"), 1.5),
        ({"a": 1}, [["a", 1]]),
        (time(1), timedelta(hours=1)),
    ],
)
def test_different_values_have_different_keys(one, other):
    assert digest(one) != digest(other)


@given(plain)
def test_a_plain_value_has_the_same_key_after_transport(value):  # K2
    assert digest(value) == digest(loads(dumps(value)))


@given(typed)
def test_a_typed_value_has_the_same_key_after_transport(value):  # K2
    assert digest(value) == digest(loads(dumps(value)))


@given(st.dictionaries(st.text(), plain, max_size=5), st.randoms())
def test_the_order_of_a_dict_does_not_matter(value, random):  # K1
    items = list(value.items())
    random.shuffle(items)
    assert spelling(dict(items)) == spelling(value)


@given(st.dictionaries(st.text(min_size=1), plain, max_size=5))
def test_a_key_from_arguments_has_a_fixed_length(arguments):  # K3
    key = from_arguments("proj.tasks.sync", arguments)
    assert len(key) == len("proj.tasks.sync:") + 32


def test_a_long_secret_is_not_in_the_key():  # K3
    assert "hush" not in from_arguments("t", {"password": "hush" * 25_000})


class Secretive:
    def __repr__(self):
        return "hush"


@pytest.mark.parametrize("value", [object(), Secretive(), [Secretive()], {"a": lambda: 1}])
def test_a_value_without_one_spelling_is_refused_and_not_shown(value):  # K4
    with pytest.raises(Unspeakable) as caught:
        digest(value)
    assert "hush" not in str(caught.value)


def test_a_value_that_contains_itself_is_refused():  # K4
    circle = []
    circle.append(circle)
    with pytest.raises(Unspeakable, match="nested deeper"):
        digest(circle)


def test_dataclasses_and_objects_that_know_their_json_have_a_spelling():
    class Own:
        def __json__(self):
            return {"b": 1, "a": 2}

    assert digest(Order(1, [2])) == digest(Order(1, (2,)))
    assert digest(Own()) == digest({"a": 2, "b": 1})


@pytest.mark.parametrize("name", ["tenant:42", "a", "ä:ö", "x" * LONGEST])
def test_a_short_name_is_the_whole_key(name):  # K5
    assert from_name(name) == name


@pytest.mark.parametrize("name", ["x" * (LONGEST + 1), "with space", "line\nbreak", "nul\0", "", "\ud800"])
def test_a_long_or_strange_name_is_hashed(name):  # K5
    key = from_name(name)
    assert key.startswith("named:")
    assert len(key) == len("named:") + 32
    assert key == from_name(name)


def test_arguments_are_picked_by_name_also_from_the_extra_ones():
    arguments = {"a": 1, "kwargs": {"b": 2}}
    assert pick(arguments, ["a", "b", "c"], "kwargs") == {"a": 1, "b": 2}
    assert pick(arguments, [], "kwargs") == {}


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("tenant:{tenant_id}", ["tenant_id"]),
        ("{user.id}:{rows[0]}", ["user", "rows"]),
        ("{x:{width}}", ["x", "width"]),
        ("constant", []),
        ("{{literal}}", []),
    ],
)
def test_a_template_says_which_parameters_it_needs(template, names):
    assert template_names(template) == names


@pytest.mark.parametrize("template", ["{}", "{0}", "{unclosed", "closed}"])
def test_a_template_without_names_is_refused(template):
    with pytest.raises(ValueError):
        template_names(template)


def test_a_template_that_does_not_resolve_hides_the_values():  # K3
    with pytest.raises(Unspeakable) as caught:
        fill("{user[name]}", {"user": {"secret": "hush"}}, None)
    assert "hush" not in str(caught.value)


def test_a_template_is_filled_from_arguments_and_extra_ones():
    assert fill("{a}:{b}", {"a": 1, "kwargs": {"b": 2}}, "kwargs") == "1:2"


@pytest.mark.parametrize("value", [None, ""])
def test_a_callable_that_names_nothing_is_refused(value):  # K4
    with pytest.raises(Unspeakable):
        named(value)


def test_a_callable_may_name_a_lock_by_any_value_with_one_spelling():
    assert named("tenant:1") == "tenant:1"
    assert named((1, 2)) == named([1, 2])
    with pytest.raises(Unspeakable):
        named(object())


@pytest.fixture
def backwards():
    """A serialiser of somebody's own."""
    kind = "application/x-backwards"
    serialization.register(
        "backwards", lambda value: dumps(value)[::-1], lambda text: loads(text[::-1]), kind, "utf-8"
    )
    yield
    serialization.unregister("backwards")


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "backwards"])
def test_a_value_has_one_key_before_and_after_any_serialiser(backwards, serializer):  # K2
    value = {"b": [1, 2.5, None, {"y": "ü", "x": True}], "a": "text"}
    if serializer != "yaml":  # whose safe form knows none of these
        value |= {
            "id": uuid.UUID(int=7),
            "price": Decimal("1.50"),
            "at": datetime(2026, 1, 2, tzinfo=timezone.utc),
        }
    kind, encoding, text = serialization.dumps(value, serializer)
    assert digest(serialization.loads(text, kind, encoding, accept=[kind])) == digest(value)
