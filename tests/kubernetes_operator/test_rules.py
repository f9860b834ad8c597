"""The rules of the definition, run as API servers from 1.25 on run them: they agree with the operator.

The servers that tests have are older, and drop rules. So a library runs them, and says what a server would.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stretto.jobfile.stretto_file import KEYS
from stretto.kubernetes_operator.crd import definition, elastic_schema, spec_schema
from stretto.kubernetes_operator.elastic_job import MUTABLE, ElasticJob, bounds_of, digest_of
from stretto.model import InputError

cel = pytest.importorskip("cel", reason="common-expression-language has no build for this machine")

BOUND = st.integers(min_value=1, max_value=4)  # what the schema lets through
ELASTIC = st.fixed_dictionaries(
    {}, optional={"min": BOUND, "max": BOUND, "sizes": st.lists(BOUND, max_size=3)}
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(["", "a", "b"]),
    "integer": st.integers(0, 2),
    "number": st.sampled_from([0.5, 1.5]),
    "boolean": st.booleans(),
}


def specs() -> st.SearchStrategy[dict[str, Any]]:
    """Specs of all keys that rules can see."""
    optional: dict[str, st.SearchStrategy[Any]] = {"elastic": ELASTIC}
    for key, schema in spec_schema()["properties"].items():
        if key not in ("run", "elastic") and schema.get("type") in VALUES:
            optional[key] = VALUES[schema["type"]]
        elif schema.get("x-kubernetes-int-or-string"):
            optional[key] = st.sampled_from([1, 2, "1h"])
    return st.fixed_dictionaries({"run": st.sampled_from(["x", "y"])}, optional=optional)


def refused(schema: dict[str, Any], now: Any, before: Any = None) -> list[str]:
    """The messages with which a server refuses a value, or its change from another one, at one place."""
    values = {"self": now, "oldSelf": before}
    rules = schema.get("x-kubernetes-validations", ())
    asked = [each for each in rules if before is not None or "oldSelf" not in each["rule"]]
    return [each["message"] for each in asked if cel.evaluate(each["rule"], values) is not True]


def a_resource(spec: dict[str, Any]) -> ElasticJob:
    return msgspec.convert({"metadata": {"name": "train", "uid": "u"}, "spec": spec}, ElasticJob)


def test_the_rules_stand_where_these_tests_look() -> None:
    (version,) = definition()["spec"]["versions"]
    text = str(version["schema"])
    places = (spec_schema(), elastic_schema())
    assert text.count("'rule'") == sum(len(place["x-kubernetes-validations"]) for place in places)


@given(ELASTIC)
@example({"min": 2, "max": 1})
@example({"min": 1, "max": 1})
def test_bounds_are_refused_by_the_server_where_the_operator_refuses_them(elastic: dict[str, Any]) -> None:
    bounds = {key: value for key, value in elastic.items() if key != "sizes"}
    try:
        bounds_of(a_resource({"run": "x", "elastic": bounds}))
        is_good = True
    except InputError:
        is_good = False
    assert (refused(elastic_schema(), elastic) == []) == is_good


@given(specs(), specs())
@example({"run": "x", "elastic": {"sizes": [1]}}, {"run": "x", "elastic": {"sizes": [2]}})
@example({"run": "x", "elastic": {}}, {"run": "x"})
@example({"run": "x", "elastic": {"min": 1}}, {"run": "x", "elastic": {"max": 2}, "suspend": True})
def test_a_change_is_refused_by_the_server_where_the_operator_refuses_it(
    before: dict[str, Any], now: dict[str, Any]
) -> None:
    keeps = digest_of(a_resource(before)) == digest_of(a_resource(now))
    assert (refused(spec_schema(), now, before) == []) == keeps


@given(specs(), st.data())
def test_what_may_change_is_never_refused(before: dict[str, Any], data: st.DataObject) -> None:
    other = data.draw(specs())
    now = before | {key: other[key] for key in MUTABLE if key in other and key != "elastic"}
    assert refused(spec_schema(), now, before) == []


@given(specs(), st.data())
def test_a_message_names_the_key_that_changed(before: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted({*before} - {*MUTABLE})))
    now = (
        {name: value for name, value in before.items() if name != key}
        if key != "run"
        else before | {"run": "z"}
    )
    assert [words.split(" ")[0] for words in refused(spec_schema(), now, before)] == [key]


def test_open_keys_are_left_to_the_operator() -> None:
    """Rules cannot see what a schema leaves open; the digest can."""
    before, now = {"run": "x", "envs": {"A": "1"}}, {"run": "x", "envs": {"A": "2"}}
    assert "envs" in KEYS
    assert refused(spec_schema(), now, before) == []
    assert digest_of(a_resource(before)) != digest_of(a_resource(now))
