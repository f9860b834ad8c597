"""Files of neighbouring systems: what they ask for, and what of them means nothing here."""

import textwrap
from collections.abc import Mapping
from typing import Any

import pytest

from stretto.jobfile import (
    Accelerators,
    After,
    Array,
    Dependency,
    Elastic,
    Resources,
    Restart,
    When,
    read_submission,
)
from stretto.jobfile.slurm_script import shell_of
from stretto.model import InputError


def script(*headers: str, body: str = "python train.py") -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {header}" for header in headers), "", body, ""])


def asks(
    gpu_type: str, gpus: int, each: int = 1, cpus: float | None = None, memory: float | None = None
) -> Resources:
    return Resources((Accelerators(gpu_type, gpus),), each, cpus, memory)


def test_a_batch_script_is_run_as_it_stands() -> None:
    text = script("--job-name=bert -p gpu,spare", "--gres=gpu:a100:4", "-t 1-12 # a day and a half")
    spec, warnings = read_submission(text)
    assert (spec.run, spec.name, spec.queue, spec.max_time_s) == (text, "bert", "gpu", 129_600.0)
    assert spec.resources == asks("a100", 4, each=4)  # the script runs once, on all four
    assert (spec.elastic, warnings) == (None, ())


@pytest.mark.parametrize(
    ("headers", "resources"),
    [
        pytest.param(["--gres=gpu:2"], asks("", 2, 2), id="gres of any type"),
        pytest.param(["--gres=gpu"], asks("", 1), id="gres without a count"),
        pytest.param(["--gres=gpu:a100:8", "--nodes=2"], asks("a100", 16, 8), id="gres is of each node"),
        pytest.param(
            ["--gpus=v100:8", "-n 8"], asks("v100", 8), id="gpus are of all, a worker for each task"
        ),
        pytest.param(["-G8"], asks("", 8, 8), id="a short option with its value"),
        pytest.param(["--gpus-per-node 4", "-N 3", "--ntasks-per-node=4"], asks("", 12), id="tasks of nodes"),
        pytest.param(["--gpus-per-task=2", "--ntasks=3"], asks("", 6, 2), id="gpus of tasks"),
        pytest.param(["--gpus=2", "-c 8", "--mem=64G"], asks("", 2, 2, 8.0, 64.0), id="cores and memory"),
        pytest.param(["-n4", "-G4", "-c 8", "--mem-per-cpu=1000"], asks("", 4, 1, 32.0, 32.0), id="of cores"),
        pytest.param(["--gpus=2", "--mem-per-gpu=20G"], asks("", 2, 2, None, 40.0), id="memory of GPUs"),
        pytest.param(["--gpus=2", "--gpus=4"], asks("", 4, 4), id="the last one counts"),
    ],
)
def test_a_batch_script_asks_for(headers: list[str], resources: Resources) -> None:
    spec, warnings = read_submission(script(*headers))
    assert spec.resources == resources
    assert warnings == ()


@pytest.mark.parametrize(
    ("header", "field", "value"),
    [
        ("--time=30", "max_time_s", 1_800.0),
        ("--time=30:30", "max_time_s", 1_830.0),
        ("--time=4:00:00", "max_time_s", 14_400.0),
        ("--time=2-0:30", "max_time_s", 174_600.0),
        ("--time=1-02:03:04", "max_time_s", 93_784.0),
        ("--time=UNLIMITED", "max_time_s", None),
        ("--requeue", "preemptible", True),
        ("--no-requeue", "preemptible", False),
        ("--array=1-5:2%2", "array", Array((1, 3, 5), 2)),
        ("--array=4", "array", Array((4,))),
        ("--hold", "hold", True),
        ("-H", "hold", True),
        ("--begin=now+2hours", "start_after", When(after_s=7_200.0)),
        ("--begin=now+90", "start_after", When(after_s=90.0)),
        ("--begin=2030-01-31T18:00:00+01:00", "start_after", When(at_unix_s=1_896_109_200.0)),
        ("--signal=B:TERM@120", "grace_period_s", 120.0),
        ("--chdir=/scratch/me", "workdir", "/scratch/me"),
        ("--container-image=nvcr.io#nvidia/torch:25", "image", "nvcr.io/nvidia/torch:25"),
        (r"--container-image nvcr.io\#nvidia/torch:25", "image", "nvcr.io/nvidia/torch:25"),
        ("--container-image docker://ubuntu:24.04", "image", "ubuntu:24.04"),
        ("--container-image=/shared/train.sqsh", "image", "/shared/train.sqsh"),
        ("--job-name 'a-b'", "name", "a-b"),
        ("--export=DATA=/scratch/set,SEED=7", "envs", {"DATA": "/scratch/set", "SEED": "7"}),
        (
            "--dependency=afterok:12:13,afterany:14,after:15+5",
            "depends_on",
            (
                Dependency("12"),
                Dependency("13"),
                Dependency("14", After.ENDED),
                Dependency("15", After.STARTED),
            ),
        ),
    ],
)
def test_a_header_means(header: str, field: str, value: Any) -> None:
    spec, warnings = read_submission(script("--gpus=1", header))
    assert getattr(spec, field) == value
    assert warnings == ()


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (script("-G1", "--mail-type=ALL"), "line 3: --mail-type means nothing here"),
        (script("-G1", "--mail-user me@x.y", "--qos high -O"), "line 4: --overcommit means nothing here"),
        (script("-G1", "--exclusive"), "line 3: --exclusive means nothing here"),
        (script("-G1", "-o out.%j"), "output and error: Stretto keeps what a job prints itself"),
        (script("-G1", "--gres=gpu:1,nvme:1"), "--gres=nvme:1 means nothing here"),
        (script("-G1", "--signal=USR1@60"), "--signal=USR1@60: a job is asked to stop with SIGTERM"),
        (script("-G1", "--dependency=singleton"), "--dependency=singleton means nothing here"),
        (script("-G4", "-N 1-4"), "--nodes=1-4: taken as 1; elastic in a job file gives a range"),
        (script("-G3", "-n 2"), "3 GPUs do not divide among 2 tasks: each worker gets one"),
        (script("-G1", body="x\n#SBATCH -t 5"), "line 5: #SBATCH behind the first command is not read"),
        (
            script("-G1", body=" exec srun python x"),
            "srun: Stretto starts the script once for each worker itself",
        ),
        (script("-G1", body="echo $SLURM_JOB_ID"), "SLURM_JOB_ID: set only where the service runs on Slurm"),
        (
            script("-G1", "--export=ALL,SEED=7"),
            "--export=ALL means nothing here: a job finds what the service has",
        ),
        (
            script("-G1", "--job-name='Größe of (v2)'"),
            "--job-name=Größe of (v2): it is called Gr-e-of-v2",
        ),
        (script(), "no GPUs asked for: it gets one"),
    ],
)
def test_a_batch_script_is_warned_of(text: str, warning: str) -> None:
    spec, warnings = read_submission(text)
    assert warning in warnings
    assert spec.max_time_s is None


def test_a_script_finds_variables_of_arrays_wherever_it_runs() -> None:
    _, warnings = read_submission(script("-G1", "--array=0-3", body="echo $SLURM_ARRAY_TASK_ID"))
    assert warnings == ()


@pytest.mark.parametrize(
    ("first", "shell"),
    [
        ("#!/bin/bash", ("/bin/bash",)),
        ("#! /bin/bash -l", ("/bin/bash", "-l")),
        ("#!/usr/bin/env bash", ("bash",)),
        ("#!/usr/bin/env -S bash -e -u", ("bash", "-e", "-u")),
        ("#!/opt/shells/zsh", ("/opt/shells/zsh",)),
        ("#!/usr/bin/shuf", ("/bin/sh",)),
        ("# of no kind", ("/bin/sh",)),
    ],
)
def test_a_text_is_for_the_shell_that_its_first_line_names(first: str, shell: tuple[str, ...]) -> None:
    assert shell_of(f"{first}\n#!/bin/ksh\ntrue\n") == shell
    assert shell_of(first) == shell


def test_a_start_without_a_zone_is_taken_where_the_script_is_read() -> None:
    spec, (warning,) = read_submission(script("-G1", "--begin=2030-01-31T18:00:00"))
    assert spec.start_after is not None
    assert warning.startswith("--begin=2030-01-31T18:00:00: taken as 2030-01-31T18:00:00")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/usr/bin/env python3\nprint(1)", "line 1: a batch script must be for a shell"),
        (
            script("--gpus=many"),
            "--gpus must be a count of GPUs, with or without one type, like a100:8, got 'many'",
        ),
        (script("--gpus=a100:2,v100:2"), "--gpus must be a count of GPUs, with or without one type"),
        (script("--gres=gpu:a:1,gpu:b:1"), "--gres must be GPUs of one type"),
        (script("-G1", "--time=soon"), "--time must be a time of Slurm like 30, 4:00:00 or 2-12, got 'soon'"),
        (script("-G1", "--nodes=0"), "--nodes must be a whole number from 1"),
        (script("-G1", "--array=x"), "--array must be indices"),
        (script("-G1", "--begin=teatime"), "--begin must be now+2hours or a date"),
        (script("-G1", "--dependency=afterok:1?afterok:2"), "--dependency must be jobs that must all"),
        (script("-G1", "--dependency=afterok"), "--dependency must be afterok:JOB"),
        (script("-G1", "--job-name"), "line 3: --job-name must have a value, got none"),
        (script("-G1", "--job-name='x"), "line 3: No closing quotation"),
        (script("-G1", "train.py"), "line 3: expected an option of sbatch, got 'train.py'"),
        (script("-G1", "x" * 5_000), "line 3: expected at most 4096 characters"),
        (script("-G128"), "resources.gpus_per_worker must be a whole number from 1 to 64, got 128"),
    ],
)
def test_a_batch_script_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_submission(text, where="job.sh")
    assert said in str(refused.value)
    assert str(refused.value).startswith("job.sh")
    assert "\n" not in str(refused.value)


SKY = """
name: finetune
num_nodes: 2
resources:
  infra: aws
  accelerators: {A100: 8, H100: 8}
  cpus: 32+
  memory: 4x
  use_spot: true
  job_recovery: {max_restarts_on_errors: 3}
workdir: .
envs: {MODEL: llama, TOKEN: null}
file_mounts: {/data: s3://bucket}
setup: pip install torch
run: torchrun --nnodes=$SKYPILOT_NUM_NODES train.py
"""


def test_a_task_of_skypilot_asks_for_its_nodes() -> None:
    spec, warnings = read_submission(SKY)
    assert spec.resources == Resources((Accelerators("A100", 16), Accelerators("H100", 16)), 8, 64.0, 256.0)
    assert (spec.name, spec.setup, spec.workdir) == ("finetune", "pip install torch", "")
    assert (spec.envs, spec.restart) == ({"MODEL": "llama", "TOKEN": ""}, Restart(3))
    assert warnings == (
        "file_mounts: means nothing here",
        "SKYPILOT_…: variables of SkyPilot are not set; those of torchrun are",
        "envs: no value for TOKEN, left empty",
        "resources.infra: means nothing here",
        "resources.use_spot: means nothing here",
    )


@pytest.mark.parametrize(
    ("text", "accelerators"),
    [
        ("num_nodes: 3", [("", 3)]),
        ("resources: {cloud: aws, accelerators: V100}", [("V100", 1)]),
        ("resources: {any_of: [{accelerators: 'T4:2'}, {accelerators: 'L4:2'}]}", [("T4", 2), ("L4", 2)]),
        ("resources: {cpus: 4+}", [("", 1)]),
    ],
)
def test_a_task_of_skypilot_is_recognised_by(text: str, accelerators: list[tuple[str, int]]) -> None:
    spec, _ = read_submission(f"run: x\n{text}")
    assert spec.resources.accelerators == tuple(Accelerators(*one) for one in accelerators)
    assert spec.gpus == accelerators[0][1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_nodes: 2", "missing run"),
        ("run: x\nnum_nodes: 0", "line 2: num_nodes must be a whole number from 1"),
        ("run: x\nnum_nodes: two", "line 2: num_nodes must be a whole number, got 'two'"),
        ("run: x\nresources: {use_spot: true, accelerators: {A: 1, B: 2}}", "as many GPUs of every type"),
        ("run: x\nresources: {cloud: x, cpus: few+}", "line 2: resources.cpus must be a number"),
        (
            "run: x\nresources: {cloud: x, any_of: [A100]}",
            "resources.any_of must be a list of keys and values",
        ),
    ],
)
def test_a_task_of_skypilot_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_submission(text)
    assert said in str(refused.value)


TRAIN_JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: mnist
  labels: {team: vision, kueue.x-k8s.io/queue-name: research}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    image: pytorch:2
    numNodes: 2
    command: [torchrun, train.py]
    args: ["--lr", "$(RATE)", "a b", "$(NOWHERE)"]
    env:
      - {name: RATE, value: "0.1"}
      - {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}
    resourcesPerNode:
      requests: {cpu: 500m}
      limits: {nvidia.com/gpu: 4, memory: 1Gi}
"""


KEY = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def test_a_train_job_asks_for_its_nodes() -> None:
    spec, warnings = read_submission(TRAIN_JOB)
    assert spec.run == "torchrun train.py --lr 0.1 'a b' '$(NOWHERE)'"
    assert (spec.name, spec.queue, spec.labels, spec.envs) == (
        "mnist",
        "research",
        {"team": "vision"},
        {"RATE": "0.1"},
    )
    assert spec.resources == asks("", 8, 4, 1.0, 2 * 2**30 / 1e9)
    assert warnings == (
        "spec.runtimeRef: means nothing here",
        "kept for Kubernetes, and used there alone: image, pod",
    )
    assert spec.kubernetes == {
        "image": "pytorch:2",
        "pod": {"containers": [{"name": "worker", "env": [KEY]}]},
    }


def test_a_train_job_may_wait_until_it_is_released() -> None:
    spec, _ = read_submission(TRAIN_JOB.replace("spec:\n", "spec:\n  suspend: true\n", 1))
    assert spec.hold


OVERRIDES = """
  podTemplateOverrides:
    - targetJobs: [{name: dataset-initializer}]
      spec: {serviceAccountName: loader}
    - targetJobs: [{name: node}]
      spec:
        serviceAccountName: trainer
        volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
        containers: [{name: node, volumeMounts: [{name: data, mountPath: /data}], lifecycle: {}}]
        schedulingGates: []
"""


def test_a_train_job_keeps_what_it_says_of_the_pods_that_train() -> None:
    spec, warnings = read_submission(
        TRAIN_JOB.replace("  name: mnist", "  name: mnist\n  namespace: team-a") + OVERRIDES
    )
    assert spec.kubernetes == {
        "image": "pytorch:2",
        "namespace": "team-a",
        "service_account": "trainer",
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "volume_mounts": [{"name": "data", "mountPath": "/data"}],
        "pod": {"containers": [{"name": "worker", "env": [KEY]}]},
    }
    assert "spec.podTemplateOverrides.spec.schedulingGates: means nothing here" in warnings
    assert "spec.podTemplateOverrides.containers.lifecycle: means nothing here" in warnings


def pytorch_job(master: str = "", worker: str = "", more: str = "") -> str:
    return textwrap.dedent(
        f"""
        apiVersion: kubeflow.org/v1
        kind: PyTorchJob
        metadata: {{generateName: bert-}}
        spec:
          {more}
          pytorchReplicaSpecs:
            {master and f"Master: {{template: {{spec: {master}}}}}"}
            {worker and f"Worker: {{replicas: 3, restartPolicy: OnFailure, template: {{spec: {worker}}}}}"}
        """
    )


POD = '{containers: [{name: p, command: [python, t.py], resources: {limits: {nvidia.com/gpu: "2"}}}]}'
PICKY = (
    POD[:-1]
    + ", terminationGracePeriodSeconds: 90, nodeSelector: {nvidia.com/gpu.product: A100}, hostPID: true}"
)
RICH = """{
  containers: [{
    name: p, image: 'team/bert:7', command: [python, t.py], imagePullPolicy: Always,
    env: [{name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}], envFrom: [{secretRef: {name: all}}],
    volumeMounts: [{name: data, mountPath: /data}, {name: shm, mountPath: /dev/shm}],
    resources: {limits: {nvidia.com/gpu: 2}}}],
  volumes: [{name: data, emptyDir: {}}, {name: shm, emptyDir: {medium: Memory}}],
  tolerations: [{key: team, operator: Exists}], imagePullSecrets: [{name: registry}],
  serviceAccountName: trainer, securityContext: {runAsUser: 1000}}"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            pytorch_job(POD, POD),
            {"run": "python t.py", "name": "bert", "resources": asks("", 8, 2)},
            id="both",
        ),
        pytest.param(pytorch_job(worker=POD), {"resources": asks("", 6, 2)}, id="workers alone"),
        pytest.param(
            pytorch_job(PICKY), {"resources": asks("A100", 2, 2), "grace_period_s": 90.0}, id="a chosen type"
        ),
        pytest.param(
            pytorch_job(worker=POD, more="elasticPolicy: {minReplicas: 1, maxReplicas: 8, maxRestarts: 5}"),
            {"elastic": Elastic(2, 16), "resources": asks("", 6, 2), "restart": Restart(5)},
            id="elastic",
        ),
        pytest.param(
            pytorch_job(POD, more="runPolicy: {activeDeadlineSeconds: 3600, backoffLimit: 2}"),
            {"max_time_s": 3_600.0, "restart": Restart(2)},
            id="limits",
        ),
        pytest.param(pytorch_job(POD, more="runPolicy: {suspend: true}"), {"hold": True}, id="suspended"),
        pytest.param(
            pytorch_job("{containers: [{name: p, command: [x]}]}"), {"resources": asks("", 1)}, id="no GPUs"
        ),
    ],
)
def test_a_pytorch_job_means(text: str, expected: Mapping[str, Any]) -> None:
    spec, _ = read_submission(text)
    assert {field: getattr(spec, field) for field in expected} == expected


def test_a_pytorch_job_keeps_what_it_says_of_its_pods() -> None:
    spec, warnings = read_submission(pytorch_job(RICH, POD))
    assert spec.kubernetes == {
        "image": "team/bert:7",
        "env_from": [{"secretRef": {"name": "all"}}],
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "volume_mounts": [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}],
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "image_pull_secrets": ["registry"],
        "service_account": "trainer",
        "pod": {
            "securityContext": {"runAsUser": 1000},
            "containers": [{"name": "worker", "imagePullPolicy": "Always", "env": [KEY]}],
        },
    }
    assert "pods: what those of the master have is taken for all" in warnings


def test_what_of_a_pytorch_job_means_nothing_is_said() -> None:
    _, warnings = read_submission(pytorch_job(PICKY, more="runPolicy: {schedulingPolicy: {}}"))
    assert warnings == (
        "spec.pytorchReplicaSpecs.Master.template.spec.hostPID: means nothing here",
        "spec.runPolicy.schedulingPolicy: means nothing here",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: batch/v1\nkind: Job", "line 2: kind must be TrainJob or PyTorchJob of kubeflow.org"),
        ("apiVersion: kubeflow.org/v1\nkind: [x]", "line 2: kind must be a text, got a list"),
        ("apiVersion: kubeflow.org/v1\nkind: PyTorchJob", "missing spec"),
        (pytorch_job(), "missing spec.pytorchReplicaSpecs with Master or Worker"),
        (pytorch_job("{containers: []}"), "Master.template must have one container"),
        (pytorch_job("{containers: [{name: p}]}"), "missing Master.containers.command"),
        (pytorch_job(POD, POD.replace("t.py", "u.py")), "Master and Worker must run the same command"),
        (pytorch_job(POD.replace('"2"', "two")), "nvidia.com/gpu must be a whole number, got 'two'"),
        (pytorch_job(POD).replace("Master", "Chief"), "unknown key 'Chief' under spec.pytorchReplicaSpecs"),
        (TRAIN_JOB.replace("command", "comand"), "missing spec.trainer.command"),
        (
            TRAIN_JOB.replace("numNodes: 2", "numNodes: 0"),
            "spec.trainer.numNodes must be a whole number from 1",
        ),
        (TRAIN_JOB.replace("500m", "halfm"), 'cpu must be cores like "4" or "500m", got'),
    ],
)
def test_a_manifest_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_submission(text, where="job.yaml")
    assert said in str(refused.value)
    assert str(refused.value).startswith("job.yaml")


@pytest.mark.parametrize("image", ["[]", "{a: b}", "[pytorch]"])
def test_an_image_that_is_no_text_is_refused_in_one_line(image: str) -> None:
    text = f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: m}}
spec: {{trainer: {{image: {image}, command: [python, t.py]}}}}
"""
    with pytest.raises(InputError, match=r"kubernetes\.image must be a text, got") as wrong:
        read_submission(text)
    assert "\n" not in str(wrong.value)
