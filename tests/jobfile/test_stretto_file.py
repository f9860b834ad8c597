"""Our own job file: what each key means, and what is said of wrong ones."""

import textwrap
from typing import Any

import pytest

from stretto.jobfile import (
    Accelerators,
    After,
    Array,
    Batch,
    BatchPolicy,
    Checkpoint,
    Dependency,
    Elastic,
    JobSpec,
    Resources,
    Restart,
    Stop,
    Webhook,
    WebhookEvent,
    When,
    Worth,
    read_submission,
)
from stretto.model import InputError, Kind

EVERYTHING = """
name: resnet-50
labels: {team: vision, note: 007}
queue: research
priority: 5
kind: interactive
setup: pip install -r requirements.txt
run: |
  python train.py \\
    --epochs 90
workdir: ~/code
envs:
  EPOCHS: 90
  RATE: 1e-3
  DEBUG: on
  EMPTY:
secrets: {HF_TOKEN: hub-token}
resources:
  accelerators: [A100:8, V100:8]
  gpus_per_worker: 2
  cpus: 32
  memory: 256GB
elastic: {min: 2, max: 16}
batch: {policy: adaptive, init: 256, max: 4096, per_gpu: 64, lr_scaling: square-root}
rewards:
  - {by: 4h, worth: 3}
  - {by: 1d12h, worth: 1.5}
stop: {metric: accuracy, target: 0.76, max: 90}
checkpoint: {dir: checkpoints, every: 10m}
preemptible: no
grace_period: 2min
max_time: 2d
start_after: 2030-01-31T18:00:00+01:00
array: 0-8:2%3
depends_on:
  - prepare
  - {job: fetch, when: ended}
restart: {max: 3, on_exit: [1, 139]}
notify:
  - https://hooks.example/a
  - {url: "http://hooks.example/b", on: [failed]}
model: resnet50
expected_time: 6h
"""


def test_secrets_in_a_list_are_variables_of_the_same_names() -> None:
    spec, warnings = read_submission("run: x\nsecrets: [HF_TOKEN, _B2]")
    assert (dict(spec.secrets), warnings) == ({"HF_TOKEN": "HF_TOKEN", "_B2": "_B2"}, ())
    assert JobSpec.from_json(spec.to_json()) == spec
    older = spec.to_json()
    del older["secrets"]
    assert JobSpec.from_json(older).secrets == {}, "logs of older versions have no such key"


def test_every_key_means_something() -> None:
    spec, warnings = read_submission(EVERYTHING)
    assert warnings == ()
    assert spec == JobSpec(
        name="resnet-50",
        labels={"team": "vision", "note": "007"},
        queue="research",
        priority=5,
        kind=Kind.INTERACTIVE,
        setup="pip install -r requirements.txt",
        run="python train.py \\\n  --epochs 90\n",
        workdir="~/code",
        envs={"EPOCHS": "90", "RATE": "1e-3", "DEBUG": "on", "EMPTY": ""},
        secrets={"HF_TOKEN": "hub-token"},
        resources=Resources((Accelerators("A100", 8), Accelerators("V100", 8)), 2, 32.0, 256.0),
        elastic=Elastic(2, 16),
        batch=Batch(BatchPolicy.ADAPTIVE, 256, 4096, 64, "square-root"),
        rewards=(Worth(When(after_s=14_400.0), 3.0), Worth(When(after_s=129_600.0), 1.5)),
        stop=Stop(metric="accuracy", target=0.76, max_epochs=90),
        checkpoint=Checkpoint("checkpoints", 600.0),
        preemptible=False,
        grace_period_s=120.0,
        max_time_s=172_800.0,
        start_after=When(at_unix_s=1_896_109_200.0),
        array=Array((0, 2, 4, 6, 8), 3),
        depends_on=(Dependency("prepare"), Dependency("fetch", After.ENDED)),
        restart=Restart(3, (1, 139)),
        notify=(
            Webhook("https://hooks.example/a"),
            Webhook("http://hooks.example/b", (WebhookEvent.FAILED,)),
        ),
        model="resnet50",
        expected_time_s=21_600.0,
    )


def test_only_run_is_required() -> None:
    assert read_submission("run: python train.py") == (JobSpec(run="python train.py"), ())


SERVES = "purpose: serving\nserving: {latency: 200ms,"  # begins a file of a job that serves


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        pytest.param("A100:8", [("A100", 8)], id="type and count"),
        pytest.param("A100", [("A100", 0)], id="a type"),
        pytest.param("8", [("", 8)], id="a count"),
        pytest.param("any:4", [("", 4)], id="any type"),
        pytest.param("[A100:4, V100:4]", [("A100", 4), ("V100", 4)], id="a list"),
        pytest.param("{A100: 4, V100: 4}", [("A100", 4), ("V100", 4)], id="a map"),
        pytest.param("{A100-80GB, H100}", [("A100-80GB", 0), ("H100", 0)], id="a set"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_accelerators_are_read(said: str, meant: list[tuple[str, int]]) -> None:
    spec, _ = read_submission(f"run: x\nresources:\n  accelerators: {said}")
    assert spec.resources.accelerators == tuple(Accelerators(*one) for one in meant)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        pytest.param("deadline: 4h", "deadline", When(after_s=14_400.0), id="a deadline as a duration"),
        pytest.param(
            "deadline: 2030-01-31 18:00Z", "deadline", When(at_unix_s=1_896_112_800.0), id="as a date"
        ),
        pytest.param("deadline: '1.5h'", "deadline", When(after_s=5_400.0), id="half hours"),
        pytest.param("stop: {steps: 10_000}", "stop", Stop(steps=10_000), id="steps"),
        pytest.param("stop: {epochs: 9}", "stop", Stop(epochs=9), id="epochs"),
        pytest.param("array: 4", "array", Array((0, 1, 2, 3)), id="how many"),
        pytest.param("array: 7-9,1", "array", Array((1, 7, 8, 9)), id="ranges"),
        pytest.param("array: [3, 1]", "array", Array((1, 3)), id="a list of indices"),
        pytest.param("depends_on: a", "depends_on", (Dependency("a"),), id="one dependency"),
        pytest.param("notify: http://x.y", "notify", (Webhook("http://x.y"),), id="one address"),
        pytest.param("restart: {on_exit: 3}", "restart", Restart(0, (3,)), id="one status"),
        pytest.param("elastic: {sizes: [1, 2, 8]}", "elastic", Elastic(1, 8, (1, 2, 8)), id="sizes"),
        pytest.param("elastic: {}", "elastic", Elastic(), id="any size"),
        pytest.param("elastic:", "elastic", None, id="nothing said of sizes"),
        pytest.param("name: 123", "name", "123", id="digits are a name"),
        pytest.param("name: on", "name", "on", id="a word is a name"),
        pytest.param("preemptible: False", "preemptible", False, id="false"),
        pytest.param("hold: yes", "hold", True, id="held"),
        pytest.param("resources: {memory: 64}", "resources", Resources(memory_gb=64.0), id="gigabytes"),
        pytest.param("resources: {memory: 500MB}", "resources", Resources(memory_gb=0.5), id="megabytes"),
        pytest.param("<<: {queue: q}", "queue", "q", id="merged keys"),
    ],
)
def test_a_line_means(line: str, field: str, value: Any) -> None:
    spec, _ = read_submission(f"run: x\n{line}")
    assert getattr(spec, field) == value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("elastc: {min: 1}", "line 2: unknown key 'elastc', did you mean 'elastic'?"),
        ("gpus: 4", "line 2: unknown key 'gpus', expected one of "),
        ("elastic: {mim: 1}", "line 2: unknown key 'mim' under elastic, did you mean 'min'?"),
        ("rewards: [{by: 4h, worht: 1}]", "unknown key 'worht' under rewards, entry 1, did you mean 'worth'"),
        ("run: y", "line 2: key 'run' is there twice"),
        ("name: a b", "a name of 1 to 63 letters, digits, dots, dashes and underscores, got 'a b'"),
        ("name: ../x", "name must be a name"),
        ("name: ..", "name must be a name"),
        (f"name: {'x' * 64}", "name must be a name"),
        ("name: [a]", "line 2: name must be a text, got a list"),
        ('name: "a\\0b"', "name must be a name"),
        ('workdir: "/a\\0b"', "workdir must be a text without NUL"),
        ("workdir: a/../../b", "workdir must be a path without '..', got 'a/../../b'"),
        ("checkpoint: {dir: ../x}", "line 2: checkpoint.dir must be a path without '..'"),
        ("queue: a/b", "queue must be a name"),
        ("priority: 1.5", "priority must be a whole number, or the name of a priority class, got '1.5'"),
        ("priority: 2000000", "priority must be a whole number from -1000000 to 1000000, got 2000000"),
        ("kind: daemon", "line 2: kind must be one of batch, interactive, got 'daemon'"),
        ("envs: {1A: x}", "envs: a name must be letters, digits and underscores"),
        ("envs: {STRETTO_URL: x}", "one that does not start with STRETTO_, which Stretto sets"),
        ("envs: [A=1]", "line 2: envs must be keys and values, got a list"),
        ("envs: {A: [1]}", "line 2: envs.A must be a text, got a list"),
        ("secrets: [hub-token]", "secrets: a variable must be letters, digits and underscores, no digit"),
        ("secrets: {HF_TOKEN: }", "secrets.HF_TOKEN must be the name of a secret: 1 to 64 letters"),
        ("secrets: {HF_TOKEN: a/b}", "secrets.HF_TOKEN must be the name of a secret"),
        ("secrets: {STRETTO_TOKEN: x}", "one that does not start with STRETTO_, which Stretto sets"),
        ("envs: {A: x}\nsecrets: [A]", "secrets: a variable must be one that is not also in envs, got 'A'"),
        ("secrets: 1", "line 2: secrets must be keys and values, got '1'"),
        ("labels: {a b: c}", "labels: a key must be"),
        ("resources: {accelerators: 'A100:0'}", "line 2: resources.accelerators must be "),
        ("resources: {accelerators: 'A100:0.5'}", "got 'A100:0.5'"),
        ("resources: {accelerators: 'A100:-1'}", "got 'A100:-1'"),
        ("resources: {accelerators: 'A 100:1'}", "got 'A 100:1'"),
        ("resources: {accelerators: 2000000}", "from 0 to 1000000, got 2000000"),
        ("resources: {accelerators: ['A100:1', 'a100:1']}", "alternatives of different types"),
        ("resources: {accelerators: {A100: 8, V100: 16}}", "as many GPUs of every type, got A100:8 or V100"),
        ("resources: {cpus: 0}", "resources.cpus must be a number above 0"),
        ("resources: {memory: 64XB}", "line 2: resources.memory must be a size like"),
        ("resources: {accelerators: 3, gpus_per_worker: 2}", "a multiple of resources.gpus_per_worker=2"),
        ("elastic: {min: 4, max: 2}", "line 2: elastic.max must be at least elastic.min=4, got 2"),
        ("elastic: {min: 0}", "elastic.min must be a whole number from 1 to 1000000, got 0"),
        ("elastic: {sizes: [4, 2]}", "elastic.sizes must be whole numbers that grow, got [4, 2]"),
        ("elastic: {sizes: [2, 4], max: 8}", "left out or 2 and 4 as elastic.sizes says, got '2 and 8'"),
        ("elastic: 4", "line 2: elastic must be keys and values, got '4'"),
        ("batch: {policy: wild}", "line 2: batch.policy must be one of fixed, adaptive, got 'wild'"),
        ("batch: {policy: adaptive}", "batch.policy adaptive needs a range of sizes"),
        ("batch: {init: 8, max: 4}", "batch.max must be at least batch.init=8, got 4"),
        ("resources: {gpus_per_worker: {a100: two}}", "gpus_per_worker.a100 must be a whole number"),
        ("resources: {gpus_per_worker: {a100: 0}}", "gpus_per_worker.a100 must be a whole number"),
        ("batch: {per_gpu: {a100: two}}", "batch.per_gpu.a100 must be a whole number"),
        ("batch: {per_gpu: {a100: 0}}", "batch.per_gpu.a100 must be a whole number"),
        ("batch: {per_gpu: {}}", "batch.per_gpu must be a whole number, or a map"),
        ("batch: {per_gpu: {a100: 2, A100: 4}}", "batch.per_gpu must be each GPU type once"),
        ("resources: {gpus_per_worker: {}}", "resources.gpus_per_worker must be a whole number, or a map"),
        (
            "resources: {accelerators: t4, gpus_per_worker: {a100: 2}}",
            "resources.gpus_per_worker must say how many for t4",
        ),
        (
            "resources: {accelerators: 'rtx:12', gpus_per_worker: {rtx: 8}}\nelastic: {}",
            "resources.accelerators must be a multiple of resources.gpus_per_worker.rtx=8, got 'rtx:12'",
        ),
        (
            "resources: {accelerators: 4, gpus_per_worker: {a100: 2, rtx: 8}}",
            "a multiple of 8, whole workers on each GPU type (2 on a100, 8 on rtx), got 4",
        ),
        (
            "resources: {gpus_per_worker: {a100: 2, rtx: 8}}\nelastic: {max: 6}",
            "elastic.max must be at least one worker of 8 GPUs on rtx, got 6",
        ),
        ("resources: {gpus_per_worker: {a100: 2}}\nelastic: {sizes: [2]}", "by type exclude each other"),
        ("resources: {heterogeneous: perhaps}", "heterogeneous must be true or false, got 'perhaps'"),
        (
            "resources: {accelerators: 'a100:2', heterogeneous: true}",
            "several GPU types, or any, where resources.heterogeneous is true, got 'a100:2'",
        ),
        (
            "resources: {gpus_per_worker: {a100: 2, t4: 4}, heterogeneous: true}",
            "resources.heterogeneous and resources.gpus_per_worker by type exclude each other",
        ),
        (
            "resources: {heterogeneous: true}\nelastic: {min: 1}\nbatch: {policy: adaptive}",
            "resources.heterogeneous and batch.policy adaptive exclude each other",
        ),
        ("batch: {lr_scaling: legw}", "batch.lr_scaling must be one of linear, sqrt, "),
        ("batch: {lr_scaling: linaer}", "batch.lr_scaling: unknown rule 'linaer', did you mean 'linear'?"),
        ("purpose: guessing", "line 2: purpose must be one of training, batch-inference, serving, "),
        (
            "purpose: batch-inference\nelastic: {min: 1}\nbatch: {policy: adaptive}",
            "purpose batch-inference and batch.policy exclude each other: expected no batch.policy, got",
        ),
        ("purpose: batch-inference\nbatch: {lr_scaling: sqrt}", "and batch.lr_scaling exclude each other"),
        ("purpose: batch-inference\nstop: {epochs: 2}", "expected no stop.epochs, got 2"),
        (
            "purpose: batch-inference\nstop: {metric: a, target: 1, max: 2}",
            "expected no stop.metric, got 'a'",
        ),
        ("purpose: serving", "expected both or none, got purpose serving and no serving"),
        ("serving: {latency: 1s, requests_per_s: 1}", "got purpose training and serving"),
        (f"{SERVES} requests_per_s: 0}}", "serving.requests_per_s must be a number above 0"),
        ("purpose: serving\nserving: {latency: 200, requests_per_s: 1}", 'like "200ms", got'),
        ("purpose: serving\nserving: {latency: 1s}", "serving must have latency and requests_per_s"),
        (f"{SERVES} requests_per_s: 1}}\nstop: {{steps: 1}}", "expected no stop.steps, got 1"),
        (f"{SERVES} requests_per_s: 1}}\nresources: {{heterogeneous: true}}", "resources.heterogeneous"),
        ("deadline: 4", 'line 2: deadline must be a duration like "4h", or a date with its zone'),
        ("deadline: 2030-01-31T18:00:00", "got '2030-01-31T18:00:00'"),
        ("deadline: 0001-01-01T00:00:00+14:00", "got '0001-01-01T00:00:00+14:00'"),
        ("deadline: 4h\nrewards: [{by: 1h, worth: 1}]", "deadline and rewards exclude each other"),
        ("rewards: [{by: 4h}]", "rewards, entry 1 must have by and worth"),
        ("rewards: [{by: 4h, worth: 0}]", "entry 1.worth must be a number above 0 and at most 100, got '0'"),
        ("rewards: [{by: 4h, worth: 101}]", "entry 1.worth must be a number above 0 and at most 100, since"),
        ("rewards: [{by: 2h, worth: 1}, {by: 1h, worth: 1}]", "rewards must be listed by time"),
        ("rewards: [{by: 1h, worth: 1}, {by: 2h, worth: 2}]", "rewards must be of falling worth, 1 first"),
        ("stop: {}", "stop must say one of steps, epochs, or metric with target and max"),
        ("stop: {steps: 1, epochs: 1}", "stop must say one of"),
        ("stop: {metric: acc}", "line 2: stop: metric, target and max go together, missing target and max"),
        ("stop: {metric: acc, target: nan, max: 1}", "stop.target must be a number, got 'nan'"),
        ("checkpoint: {every: 0s}", "checkpoint.every must be a duration of at least 1 s"),
        ("grace_period: 30", "line 2: grace_period must be a duration with its unit"),
        ("grace_period: -5s", "line 2: grace_period must be a duration"),
        ("max_time: 20000d", "max_time must be a duration of at least 1 s and of at most ten years"),
        ("array: 1-99999", "line 2: array must be indices"),
        ("array: 5-1", "line 2: array must be indices"),
        ("array: 0", "line 2: array must be indices"),
        ("depends_on: [a/b]", "depends_on must be a name"),
        ("depends_on: [{job: a, when: never}]", "depends_on.when must be one of succeeded, failed"),
        ("restart: {max: -1}", "restart.max must be a whole number from 0"),
        ("restart: {on_exit: [0]}", "restart.on_exit must be a whole number from 1 to 255, got 0"),
        ("notify: mailto:me", "an address that starts with http:// or https://, got 'mailto:me'"),
        ("notify: 'http:///x'", "notify must be an address"),
        ("preemptible: maybe", "line 2: preemptible must be true or false, got 'maybe'"),
        ("x: !!python/object/apply:os.system [ls]", "line 2: a tag must be one of YAML's own"),
        ("? [a]\n: b", "line 2: a key must be a text, got a list"),
        ("x: *nowhere", "line 2: unknown or unfinished anchor 'nowhere'"),
        ("x: &a [*a]", "line 2: unknown or unfinished anchor 'a'"),
        ("---\nrun: y", "line 2: expected one document, got a second one"),
        ("x: [", "line 3"),
        ("\tx: y", "line 2"),
    ],
)  # fmt: skip
def test_a_line_is_refused(line: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_submission(f"run: x\n{line}", where="job.yaml")
    assert str(refused.value).startswith("job.yaml")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "job file: expected keys and values, got nothing"),
        ("just words", "got 'just words'"),
        ("- run: x", "got a list"),
        ("name: x", "job file: missing run, the command to run"),
        ("run:", "missing run"),
        ("run: ''", "run must be a command, got ''"),
        ("run: [python, train.py]", "job file line 1: run must be a text, got a list"),
        ("run: 'a\x01b'", "job file"),
        ("run: x\udc80", "expected UTF-8 text"),
    ],
)
def test_a_text_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_submission(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_message_says_on_which_line() -> None:
    text = textwrap.dedent(
        """\
        # a comment
        run: x

        resources:
          cpus: many
        """
    )
    with pytest.raises(InputError, match=r"^my\.yaml line 5: resources\.cpus must be a number, got 'many'$"):
        read_submission(text, where="my.yaml")
