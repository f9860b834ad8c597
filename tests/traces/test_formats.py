import gzip
import json
from math import isnan
from pathlib import Path

import pytest

from stretto.model import Adaptivity, Kind, Reward
from stretto.traces import Outcome, Workload, read_trace

SIA = """\
name,time,application,num_replicas,batch_size
b-1,20,bert,4,96
a-0,10,cifar10,6,2048
"""
SIA_MIX = """\
name,time,application,num_replicas,batch_size,category
a,1,bert,4,96,adaptive
b,2,bert,4,96,scale-gpus
c,3,bert,4,96,rigid
"""
CHRONUS = """\
job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,best_effort,job_type
0,vc_1,1,10,500,vgg16,96,5,159-189-229-289,10-8-5-2,0,soft
1,vc_2,2,20,600,alexnet,30,6,235,10,0,strict
2,vc_1,4,30,700,alexnet,20,7,30,10,1,best
3,vc_1,0,40,800,alexnet,20,7,35,10,0,strict
"""
PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 07:00:55,100.0,8,800.0,6214e9

"""
HELIOS = """\
job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,u1,vcA,jobx,8,16,1,COMPLETED,2020-04-01 00:01:00,2020-04-01 00:02:00,2020-04-01 00:12:00,600,60
8,u2,vcB,joby,1,4,1,TIMEOUT,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:00:09,9,0
9,u3,vcB,jobz,0,4,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:00:09,9,0
10,u3,vcB,jobz,1,4,1,CANCELLED,2020-04-01 00:00:00,None,2020-04-01 00:00:09,0,9
11,u3,vcB,jobz,1,4,1,SUSPENDED,2020-04-01 00:00:00,2020-04-01 00:00:00,None,0,9
"""
ALIBABA = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p-0,1,1,1,460,,LS,Running,0,100,10
p-1,1,1,2,1000,V100M16|V100M32,BE,Failed,5,50,5
p-2,1,1,0,0,,BE,Failed,5,50,5
p-3,1,1,1,1000,,BE,Pending,5,50,
"""
TIRESIAS = """\
job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,8,30,606,vgg19,164,30
"""
ELASTICFLOW = """\
job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort
0,1000,77,bert,1500,256,2,390,0
1,1010,78,bert,0,256,1,400,1
"""
SHOCKWAVE = (
    "LM (batch size 10)\tpython3 main.py\tlm\t--steps\t1\t1000\t1\tgns\t1\t-1.000000\t1418\t0\n"
    "ResNet-18 (batch size 32)\tpython3 main.py\tic\t--num_steps\t1\t4000\t4\tstatic\t2\t1.5\t100\t55\n"
)
GAVEL = "ResNet-50 (batch size 64)\tpython3 main.py\tic\t--num_minibatches\t1\t800\t2\t1\t-1\t64\n"


def a_trace(folder: Path, text: str, name: str = "trace.csv") -> Workload:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_trace(path)


def test_sia_workloads_say_what_is_trained_but_not_for_how_long(tmp_path: Path) -> None:
    workload = a_trace(tmp_path, SIA)
    first, second = workload.jobs
    assert (first.id, first.submitted_s, first.gpus, first.model, first.batch_size) == (
        *("a-0", 10.0, 6),
        *("cifar10", 2048),
    )
    assert first.adaptivity is Adaptivity.ADAPTIVE
    assert second.id == "b-1"
    assert all(isnan(truth.duration_s) for truth in workload.truths)
    assert not workload.synthetic


def test_the_category_of_a_sia_job_is_its_adaptivity(tmp_path: Path) -> None:
    assert [job.adaptivity for job in a_trace(tmp_path, SIA_MIX).jobs] == list(Adaptivity)


def test_chronus_counts_minutes_and_each_kind_of_deadline_becomes_rewards(tmp_path: Path) -> None:
    workload = a_trace(tmp_path, CHRONUS)
    soft, strict, best_effort = workload.jobs
    assert soft.submitted_s == 600.0
    assert soft.rewards == tuple(
        Reward(600.0 + 60 * minutes, value) for minutes, value in [(159, 10), (189, 8), (229, 5), (289, 2)]
    )
    assert strict.rewards == (Reward(1200.0 + 60 * 235, 10.0),)
    assert best_effort.rewards == ()
    assert [truth.duration_s for truth in workload.truths] == [96 * 60, 30 * 60, 20 * 60]
    assert workload.truths[0].steps == 500
    assert all(job.adaptivity is Adaptivity.RIGID for job in workload.jobs)


def test_chronus_jobs_without_gpus_are_left_out_and_counted(tmp_path: Path) -> None:
    (line,) = a_trace(tmp_path, CHRONUS).skipped
    assert "1 line left out: num_gpu is 0" in line


def test_philly_starts_its_clock_with_the_first_submission(tmp_path: Path) -> None:
    workload = a_trace(tmp_path, PHILLY)
    assert [(job.id, job.submitted_s, job.gpus, job.queue) for job in workload.jobs] == [
        ("philly-1", 0.0, 8, "6214e9"),
        ("philly-0", 60.0, 1, "11cb48"),
    ]
    assert [truth.duration_s for truth in workload.truths] == [100.0, 66.0]


def philly_record(job: str, **changes: object) -> dict[str, object]:
    servers = [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu5"]}]
    attempts = [
        {"start_time": "2017-10-07 01:10:00", "end_time": "2017-10-07 01:11:00", "detail": servers},
        {"start_time": "2017-10-07 02:00:00", "end_time": "2017-10-07 02:00:30", "detail": servers},
    ]
    record: dict[str, object] = {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": job,
        "attempts": attempts,
        "submitted_time": "2017-10-07 01:00:00",
        "user": "ce2f4c",
    }
    return record | changes


def test_philly_as_published_sums_attempts_and_counts_gpus_over_servers(tmp_path: Path) -> None:
    records = [
        philly_record("application_1"),
        philly_record("application_2", status="Killed", submitted_time="2017-10-07 01:00:10"),
        philly_record("application_3", status="Failed", submitted_time="2017-10-07 01:00:20"),
    ]
    workload = a_trace(tmp_path, json.dumps(records), "cluster_job_log")
    assert [(job.id, job.submitted_s, job.gpus) for job in workload.jobs] == [
        ("application_1", 0.0, 3),
        ("application_2", 10.0, 3),
        ("application_3", 20.0, 3),
    ]
    assert [truth.duration_s for truth in workload.truths] == [90.0] * 3
    assert [truth.outcome for truth in workload.truths] == list(Outcome)
    assert (workload.jobs[0].user, workload.jobs[0].queue) == ("ce2f4c", "ee9e8c")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"attempts": []}, "never ran", id="a job without attempts"),
        pytest.param(
            {
                "attempts": [
                    {"start_time": "2017-10-07 01:10:00", "end_time": None, "detail": [{"gpus": ["a"]}]}
                ]
            },
            "not recorded",
            id="a job still running when the log ends",
        ),
        pytest.param({"submitted_time": "None"}, "no submitted_time", id="a job without a submission"),
    ],
)
def test_philly_jobs_of_unknown_duration_are_left_out(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    records = [philly_record("a"), philly_record("b", **changes)]
    workload = a_trace(tmp_path, json.dumps(records), "cluster_job_log.json")
    assert [job.id for job in workload.jobs] == ["a"]
    (line,) = workload.skipped
    assert "1 record left out" in line
    assert why in line


def test_helios_as_published_keeps_gpu_jobs_that_ran(tmp_path: Path) -> None:
    workload = a_trace(tmp_path, HELIOS, "cluster_log.csv")
    assert [(job.id, job.submitted_s, job.gpus, job.queue) for job in workload.jobs] == [
        ("8", 0.0, 1, "vcB"),
        ("7", 60.0, 8, "vcA"),
    ]
    assert [truth.outcome for truth in workload.truths] == [Outcome.FAILED, Outcome.COMPLETED]
    assert [truth.duration_s for truth in workload.truths] == [9.0, 600.0]
    assert len(workload.skipped) == 3


def test_alibaba_pods_keep_their_class_and_gpu_types(tmp_path: Path) -> None:
    workload = a_trace(tmp_path, ALIBABA)
    first, second = workload.jobs
    assert (first.kind, first.gpu_types, first.labels) == (Kind.INTERACTIVE, (), {"qos": "LS"})
    assert (second.kind, second.gpu_types) == (Kind.BATCH, ("V100M16", "V100M32"))
    assert [(truth.duration_s, truth.outcome) for truth in workload.truths] == [
        (90.0, Outcome.COMPLETED),
        (45.0, Outcome.FAILED),
    ]
    assert len(workload.skipped) == 2


def test_tiresias_traces_know_iterations(tmp_path: Path) -> None:
    workload = a_trace(tmp_path, TIRESIAS)
    assert (workload.jobs[0].gpus, workload.jobs[0].model) == (8, "vgg19")
    assert (workload.truths[0].duration_s, workload.truths[0].steps) == (164.0, 606.0)


def test_elasticflow_deadlines_move_with_the_clock(tmp_path: Path) -> None:
    due, best_effort = a_trace(tmp_path, ELASTICFLOW).jobs
    assert (due.submitted_s, due.rewards) == (0.0, (Reward(500.0, 1.0),))
    assert (best_effort.submitted_s, best_effort.rewards) == (10.0, ())
    assert due.batch_size == 256


def test_shockwave_batches_and_steps_are_those_of_one_gpu(tmp_path: Path) -> None:
    workload = a_trace(tmp_path, SHOCKWAVE, "jobs.tsv")
    first, second = workload.jobs
    assert (first.model, first.batch_size, first.labels) == ("LM", 10, {"mode": "gns"})
    assert (second.model, second.gpus, second.batch_size, second.weight) == ("ResNet-18", 4, 128, 2.0)
    assert second.rewards == (Reward(55 + 1.5 * 100, 1.0),)
    assert (workload.truths[1].duration_s, workload.truths[1].steps) == (100.0, 1000.0)


def test_gavel_traces_have_steps_but_no_duration(tmp_path: Path) -> None:
    workload = a_trace(tmp_path, GAVEL, "jobs.trace")
    assert (workload.jobs[0].model, workload.jobs[0].submitted_s) == ("ResNet-50", 64.0)
    assert isnan(workload.truths[0].duration_s)
    assert workload.truths[0].steps == 400.0


def test_a_gzipped_trace_reads_like_a_plain_one(tmp_path: Path) -> None:
    plain = a_trace(tmp_path, SIA)
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(SIA.encode()))
    assert read_trace(packed).jobs == plain.jobs
    assert read_trace(packed).name == "trace"
