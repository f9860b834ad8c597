"""Fingerprints of memories: logs keep them, so that they must mean the same in later versions."""

from dataclasses import dataclass, field

import pytest

from stretto.model import Job, JobId, Purpose
from stretto.model.memory import digest


@dataclass(frozen=True)
class Before:
    """A record as a log has it."""

    gpus: int


Before.__name__ = "Record"


@dataclass(frozen=True)
class Record:
    """The same, with fields that came later."""

    gpus: int
    more: str = field(default="none", metadata={"is_younger": True})
    many: dict[str, int] = field(default_factory=dict, metadata={"is_younger": True})


def test_a_younger_field_counts_only_where_it_says_something() -> None:
    assert digest(Record(4)) == digest(Before(4))
    said = {digest(each) for each in (Record(4), Record(5), Record(4, "some"), Record(4, many={"a": 1}))}
    assert len(said) == 4


def test_the_purpose_of_a_job_is_younger_than_some_logs() -> None:
    usual = Job(JobId("j"), 0.0, 1)
    assert digest(usual) == digest(Job(JobId("j"), 0.0, 1, purpose=Purpose.TRAINING))
    assert digest(usual) != digest(Job(JobId("j"), 0.0, 1, purpose=Purpose.BATCH_INFERENCE))
    (declared,) = (entry for entry in Job.__dataclass_fields__.values() if entry.name == "purpose")
    assert declared.metadata["is_younger"]


def test_only_values_have_a_fingerprint() -> None:
    with pytest.raises(TypeError, match="a memory holds values only, got object"):
        digest(object())
