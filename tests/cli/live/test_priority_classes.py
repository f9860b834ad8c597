"""Named priorities on the command line: set by operators, named by job files."""

import pytest

from ..ran import Stretto

pytestmark = pytest.mark.processes


def test_a_job_has_the_priority_of_the_class_that_it_names(verbs: Stretto) -> None:
    said = verbs("priority-classes", "set", "urgent", 10, "--preempts", "never")
    assert (said.status, said.out) == (0, "priority class urgent: 10, preempts never\n"), said.err
    assert verbs("priority-classes", "set", "usual", -1, "--default").status == 0
    header, *table = verbs("priority-classes").table
    assert (header, table) == (
        ["class", "value", "preempts", "default"],
        [["urgent", "10", "never", "no"], ["usual", "-1", "lower", "yes"]],
    )
    named = verbs("submit", "--priority", "urgent", "--json", "--", "sleep", "600")
    assert named.status == 0, named.err
    assert named.json["priority"] == 10
    assert verbs("submit", "--json", "--", "sleep", "600").json["priority"] == -1
    refused = verbs("submit", "--priority", "urgnt", "--", "sleep", "600")
    assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "priority: expected one of a whole number, urgent, usual, got 'urgnt'" in refused.err
    for value in (3, -5):
        changed = verbs("priority", named.json["id"], value, "--json")
        assert (changed.status, changed.json["priority"]) == (0, value), changed.err
    for name in ("urgent", "usual"):
        assert verbs("priority-classes", "delete", name).out == f"priority class {name}: deleted\n"
    assert verbs("priority-classes", "list", "--json").json == {"priority_classes": []}
    refused = verbs("submit", "--priority", "high", "--", "sleep", "600")
    assert "expected a whole number, since no priority class has been set, got 'high'" in refused.err
    gone = verbs("priority-classes", "delete", "usual")
    assert (gone.status, gone.err.count("\n")) == (2, 1)
