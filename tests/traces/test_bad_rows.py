"""A wrong file is refused with one line that names file, line, column, value and what was expected."""

import json
from pathlib import Path

import pytest

from stretto.model import InputError
from stretto.traces import read_trace

OWN = "job_id,submitted_s,gpus,duration_s\n"
OWN_RESERVED = "job_id,submitted_s,gpus,reserved\n"
OWN_PRIORITY = "job_id,submitted_s,gpus,priority\n"
OWN_DEADLINE = "job_id,submitted_s,gpus,duration_s,deadline_s\n"
SIA = "name,time,application,num_replicas,batch_size\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
CHRONUS = (
    "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,"
    "expect_time_list,expect_value_list,best_effort,job_type\n"
)
HELIOS = "job_id,user,vc,gpu_num,state,submit_time,start_time,end_time,duration,queue\n"
ELASTICFLOW = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n"
ALIBABA = "name,num_gpu,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
GOOD_DAY = "2017-10-09 07:01:55"

BAD_ROWS = [
    pytest.param(
        OWN, "a,0,1,-5", "line 2: duration_s must be a number >= 0, got '-5'", id="negative duration"
    ),
    pytest.param(OWN, "a,0,1,nan", "line 2: duration_s must be a number >= 0, got 'nan'", id="NaN duration"),
    pytest.param(OWN, "a,0,1,inf", "line 2: duration_s must be a number >= 0, got 'inf'", id="endless"),
    pytest.param(OWN, "a,0,1,long", "line 2: duration_s must be a number >= 0, got 'long'", id="a word"),
    pytest.param(OWN, "a,,1,5", "line 2: submitted_s must be a number >= 0, got ''", id="no submission"),
    pytest.param(
        OWN, "a,-1,1,5", "line 2: submitted_s must be a number >= 0, got '-1'", id="before the start"
    ),
    pytest.param(OWN, "a,0,0,5", "line 2: gpus must be a whole number >= 1, got '0'", id="no GPUs"),
    pytest.param(OWN, "a,0,-2,5", "line 2: gpus must be a whole number >= 1, got '-2'", id="negative GPUs"),
    pytest.param(OWN, "a,0,1.5,5", "line 2: gpus must be a whole number >= 1, got '1.5'", id="half a GPU"),
    pytest.param(OWN, "a,0,1e20,5", "line 2: gpus must be a whole number >= 1, got '1e20'", id="absurd GPUs"),
    pytest.param(
        OWN, "a,0,1,5\na,1,1,5", "line 3: job_id must be unique, but line 2 has it too, got 'a'", id="twice"
    ),
    pytest.param(OWN, ",0,1,5", "line 2: job_id must be a name, got ''", id="a job without a name"),
    pytest.param(
        OWN_DEADLINE,
        "a,10,1,5,9",
        "line 2: deadline_s must be due at or after submitted_s, got '9'",
        id="late",
    ),
    pytest.param(
        OWN_PRIORITY,
        f"a,0,1,{2**63}",
        f"line 2: priority must be a whole number, got '{2**63}'",
        id="more than 64 bits",
    ),
    pytest.param(
        OWN_RESERVED, "a,0,1,0:8:t4", "line 2: reserved must be nodes:gpus:type, got '0:8:t4'", id="none"
    ),
    pytest.param(
        SIA, "a,1,bert,4,nan", "line 2: batch_size must be a whole number >= 1, got 'nan'", id="sia batch"
    ),
    pytest.param(SIA, "a,x,bert,4,8", "line 2: time must be a number >= 0, got 'x'", id="sia time"),
    pytest.param(
        PHILLY,
        "yesterday,1,1,1,c",
        "line 2: timestamp must be a date and time, YYYY-MM-DD HH:MM:SS, got 'yesterday'",
        id="unparsable time",
    ),
    pytest.param(
        PHILLY,
        f"{GOOD_DAY},-1,1,1,c",
        "line 2: duration must be a number >= 0, got '-1'",
        id="philly duration",
    ),
    pytest.param(
        CHRONUS,
        "0,vc,1,10,5,vgg16,9,5,20-x,10-8,0,soft",
        "line 2: expect_time_list must be minutes after submission, joined by -, got '20-x'",
        id="chronus deadlines",
    ),
    pytest.param(
        CHRONUS,
        "0,vc,1,10,5,vgg16,9,5,-20,10,0,strict",
        "line 2: expect_time_list must be a deadline that is not before submission, got '-20'",
        id="chronus deadline before submission",
    ),
    pytest.param(
        CHRONUS,
        "0,vc,1,10,5,vgg16,9,5,20-30,10,0,soft",
        "line 2: expect_value_list must be 2 rewards, one for each deadline, got '10'",
        id="chronus rewards missing",
    ),
    pytest.param(
        CHRONUS,
        "0,vc,1,10,5,vgg16,9,5,20-30,5-10,0,soft",
        "line 2: job 0: rewards must fall as their deadlines grow",
        id="chronus rewards rising",
    ),
    pytest.param(
        HELIOS,
        f"1,u,v,1,DONE,{GOOD_DAY},{GOOD_DAY},{GOOD_DAY},5,0",
        "line 2: state must be one of COMPLETED, CANCELLED",
        id="helios state",
    ),
    pytest.param(
        ELASTICFLOW,
        "1,100,5,bert,99,8,1,5",
        "line 2: ddl must be a deadline at or after submit_time, got '99'",
        id="elasticflow deadline before submission",
    ),
    pytest.param(
        ALIBABA,
        "p,1,,LS,Running,5,3,6",
        "line 2: deletion_time must be at or after scheduled_time, got '3'",
        id="alibaba deleted before scheduled",
    ),
]


@pytest.mark.parametrize(("header", "rows", "message"), BAD_ROWS)
def test_a_bad_row_is_refused_in_one_line(tmp_path: Path, header: str, rows: str, message: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(header + rows + "\n", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_trace(path)
    assert str(refused.value).startswith(f"{path} {message}")
    assert "\n" not in str(refused.value)


GOOD_ROWS = {
    OWN: "good,1,1,5",
    OWN_PRIORITY: "good,1,1,5",
    OWN_DEADLINE: "good,1,1,5,9",
    OWN_RESERVED: "good,1,8,1:8:t4",
    SIA: "good,1,bert,4,8",
    PHILLY: f"{GOOD_DAY},1,1,1,c",
    CHRONUS: "good,vc,1,10,5,vgg16,9,5,20,10,0,strict",
    HELIOS: f"good,u,v,1,COMPLETED,{GOOD_DAY},{GOOD_DAY},{GOOD_DAY},5,0",
    ELASTICFLOW: "good,1,5,bert,99,8,1,5",
    ALIBABA: "good,1,,LS,Running,5,8,6",
}


@pytest.mark.parametrize(("header", "rows", "message"), BAD_ROWS)
def test_skipping_leaves_bad_rows_out_and_lists_them(
    tmp_path: Path, header: str, rows: str, message: str
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"{header}{rows}\n{GOOD_ROWS[header]}\n", encoding="utf-8")
    workload = read_trace(path, skip_bad=True)
    assert len(workload.jobs) == 1 + rows.count("\n")  # of two with one name, the first is good
    (line,) = workload.skipped
    assert line.startswith(f"{path} {message}")


def test_line_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text('# name: x\n# synthetic: no\njob_id,submitted_s,gpus\n\n"a\nb",0,1\n\nc,0,0\n')
    with pytest.raises(InputError, match=r"jobs\.csv line 8: gpus"):
        read_trace(path)


def test_a_record_of_a_json_list_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log"
    record = {
        "status": "Pass",
        "vc": "v",
        "jobid": "j",
        "user": "u",
        "submitted_time": GOOD_DAY,
        "attempts": [
            {
                "start_time": GOOD_DAY,
                "end_time": "2017-10-08 00:00:00",
                "detail": [{"ip": "m", "gpus": ["g"]}],
            }
        ],
    }
    path.write_text(json.dumps([record]))
    with pytest.raises(InputError, match=f"record 1: end_time must be at or after start_time={GOOD_DAY}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "expected a trace, found an empty file", id="an empty file"),
        pytest.param(OWN, "expected at least one job, found none", id="a header and no rows"),
        pytest.param("a,b,c\nx,y,z\n", "unknown format with the columns a, b, c", id="unknown columns"),
        pytest.param("job_id,submitted_s\na,0\n", "missing column gpus", id="a missing column"),
        pytest.param(
            CHRONUS.replace("num_gpu,", "") + "0\n", "line 2: expected 11 cells, found 1", id="a short row"
        ),
        pytest.param(
            "job_id,submitted_s,gpus,duratoin_s\na,0,1,5\n",
            "unknown column 'duratoin_s', did you mean 'duration_s'?",
            id="a slip in the name of a column",
        ),
        pytest.param("job_id,submitted_s,gpus,gpus\na,0,1,1\n", "column 'gpus' must appear once", id="twice"),
        pytest.param("[1, 2]", "expected a list of objects", id="JSON of something else"),
        pytest.param("[{]", "cannot be read as JSON", id="broken JSON"),
        pytest.param("[]", "found an empty list", id="an empty list"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_trace(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(path))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="cannot be read as a trace"):
        read_trace(path)
    path.with_suffix(".gz").write_bytes(b"\x1f\x8b not gzip")
    with pytest.raises(InputError, match="cannot be read as a trace"):
        read_trace(path.with_suffix(".gz"))


def test_a_trace_of_bad_rows_only_is_refused_even_when_skipping(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(OWN + "a,0,0,5\n")
    with pytest.raises(InputError, match=r"expected at least one job, found none \(.* line 2: gpus"):
        read_trace(path, skip_bad=True)
