"""Whatever is wrong with what a person gave us is one line on standard error, and exit status 2."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from .ran import CLUSTER, TRACE, Stretto

SIMULATE = "simulate -c tiny.yaml -p fifo -t"
HEADER = "job_id,submitted_s,gpus,duration_s\n"
TRAINING = "job_id,submitted_s,gpus,model,batch_size,adaptivity\n"
PLACEMENTS = "placement,local_bsz,step_time,sync_time\n1,32,0.1,0.01\n"


def a_trace(text: str) -> Mapping[str, str]:
    return {"bad.csv": text}


def a_cluster(*changes: tuple[str, str]) -> Mapping[str, str]:
    text = CLUSTER
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return {"bad.yaml": text}


TRACES = {
    "a missing column": (a_trace("job_id,gpus,duration_s\na,1,5\n"), r"bad\.csv: missing column submitted_s"),
    "a negative duration": (a_trace(HEADER + "a,0,1,-5\n"), r"line 2: duration_s must be .*>= 0, got '-5'"),
    "a duration that is no number": (a_trace(HEADER + "a,0,1,nan\n"), r"line 2: duration_s .*, got 'nan'"),
    "a submission that is no number": (a_trace(HEADER + "a,nan,1,5\n"), r"line 2: submitted_s .*, got 'nan'"),
    "an infinite submission": (a_trace(HEADER + "a,inf,1,5\n"), r"line 2: submitted_s .*, got 'inf'"),
    "no GPUs": (a_trace(HEADER + "a,0,0,5\n"), r"line 2: gpus must be a whole number >= 1, got '0'"),
    "half a GPU": (a_trace(HEADER + "a,0,0.5,5\n"), r"line 2: gpus must be a whole number >= 1, got '0.5'"),
    "a job larger than the cluster": (a_trace(HEADER + "a,0,11,5\n"), r"job a: gpus .* 10 of tiny, got 11"),
    "a job larger than any type": (a_trace(HEADER + "a,0,9,5\n"), r"job a: gpus must be at most 8.*got 9"),
    "an unknown GPU type": (
        a_trace("job_id,submitted_s,gpus,duration_s,gpu_types\na,0,1,5,slwo\n"),
        r"job a: unknown gpu type 'slwo'.*expected one of \['slow', 'fast'\]",
    ),
    "a job without model or duration": (
        a_trace("job_id,submitted_s,gpus\na,0,1\n"),
        r"job a: expected duration_s or a model, found neither",
    ),
    "an unknown model": (a_trace(TRAINING + "a,0,1,resnet51,64,rigid\n"), r"job a: .*'resnet51'"),
    "a deadline before submission": (
        a_trace("job_id,submitted_s,gpus,duration_s,deadline_s\na,100,1,5,50\n"),
        r"line 2: deadline_s must be due at or after submitted_s, got '50'",
    ),
    "an id that is there twice": (a_trace(HEADER + "a,0,1,5\na,1,1,5\n"), r"line 3: job_id .*unique.*'a'"),
    "only a header": (a_trace(HEADER), r"bad\.csv: expected at least one job, found none"),
    "nothing at all": (a_trace(""), r"bad\.csv: expected a trace, found an empty file"),
    "an unknown format": (a_trace("x,y\n1,2\n"), r"unknown format with the columns x, y; expected one of"),
    "a ragged row": (a_trace(HEADER + "a,0,1\n"), r"line 2: expected 4 cells, found 3"),
    "a misspelt column": (
        a_trace("job_id,submitted_s,gpus,duraton_s\na,0,1,5\n"),
        r"unknown column 'duraton_s', did you mean 'duration_s'\?",
    ),
    "labels that are nested too deep": (
        a_trace("job_id,submitted_s,gpus,duration_s,labels\na,0,1,5," + "[" * 100_000 + "\n"),
        r"line 2: labels must be",
    ),
    "a word for made that is neither yes nor no": (
        a_trace("# synthetic: maybe\n" + HEADER + "a,0,1,5\n"),
        r"bad\.csv: synthetic: expected yes or no, got 'maybe'",
    ),
    "bytes that are no text": ({"bad.csv": "\udcff\udcfe"}, r"bad\.csv: cannot be read as a trace"),
}


@pytest.mark.parametrize(("files", "says"), TRACES.values(), ids=TRACES)
def test_a_trace_with(files: Mapping[str, str], says: str, tiny: Path, stretto: Stretto) -> None:
    refuses(stretto, tiny, files, f"{SIMULATE} bad.csv", says)


COMMANDS = {
    "a setting called as an argument is": ("--set policy.name=x", r"unknown setting policy\.name"),
    "a setting called as an object is": ("--set policy.self=1", r"unknown setting policy\.self"),
    "a seed of a recipe below 0": ("-t made.csv@sia:seed=-1", r"recipe sia: seed must be >= 0, got -1"),
    "a policy in a module that fails": ("-p broken:Policy", r"policy module 'broken' cannot be imported"),
}


@pytest.mark.parametrize(("words", "says"), COMMANDS.values(), ids=COMMANDS)
def test_a_simulation_with(
    words: str, says: str, tiny: Path, stretto: Stretto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tiny)
    files = {"broken.py": "def (\n", "made.csv": HEADER + "a,0,1,5\n"}
    refuses(stretto, tiny, files, f"{SIMULATE} made.csv {words}", says)


CLUSTERS = {
    "a misspelt key": (a_cluster(("gpus: 2", "gpu: 2")), r"nodes, entry 2: unknown key 'gpu'.*'gpus'\?"),
    "an unknown type": (
        a_cluster(("type: fast", "type: fats")),
        r"unknown gpu type 'fats', did you mean 'fast'",
    ),
    "no nodes of a type": (a_cluster(("count: 2", "count: 0")), r"entry 1: count must be .* >= 1, got 0"),
    "a node without GPUs": (a_cluster(("gpus: 2", "gpus: 0")), r"entry 2: gpus must be .* >= 1, got 0"),
    "memory that is no number": (
        a_cluster(("{speed: 1.0}", "{memory_gb: .nan}")),
        r"gpu_types, slow: memory_gb must be a number > 0, got nan",
    ),
    "a syntax error": ({"bad.yaml": "nodes: [1, 2\n"}, r"bad\.yaml line \d: .*expected"),
    "a list instead of keys": (
        {"bad.yaml": "- 1\n- 2\n"},
        r"bad\.yaml: expected keys and values, got \[1, 2\]",
    ),
    "nothing": ({"bad.yaml": ""}, r"bad\.yaml: expected keys and values, got None"),
    "a key twice": (a_cluster(("name: tiny", "name: tiny\nname: big")), r"line 2: key 'name' is there twice"),
}


@pytest.mark.parametrize(("files", "says"), CLUSTERS.values(), ids=CLUSTERS)
def test_a_cluster_file_with(files: Mapping[str, str], says: str, tiny: Path, stretto: Stretto) -> None:
    refuses(stretto, tiny, files, "simulate -c bad.yaml -t four.csv", says)


PROFILES = {
    "no such directory": ({}, r"profiles: expected a directory, got 'profiles'"),
    "an empty directory": (
        {"profiles/": ""},
        r"profiles: expected folders with placements-<gpu>\.csv, found none",
    ),
    "a file": ({"profiles": "x"}, r"profiles: expected a directory, got 'profiles'"),
    "a broken table": (
        {
            "profiles/cifar10/placements-slow.csv": PLACEMENTS + "1,x,0.1,0.01\n",
            "profiles/cifar10/validation-32.csv": "progress,grad_sqr,grad_var\n1,1,1\n2,1,1\n",
        },
        r"placements-slow\.csv line 3: local_bsz must be .*, got 'x'",
    ),
    "no convergence": (
        {"profiles/cifar10/placements-slow.csv": PLACEMENTS},
        r"cifar10: expected at least one validation-<batch>\.csv, found none",
    ),
    "another model": (
        {"profiles/yolov3/placements-slow.csv": PLACEMENTS},
        r"job a: .*cifar10.*profiled: \['yolov3'\]",
    ),
}


@pytest.mark.parametrize(("files", "says"), PROFILES.values(), ids=PROFILES)
def test_profiles_that_are(files: Mapping[str, str], says: str, tiny: Path, stretto: Stretto) -> None:
    trace = a_trace(TRAINING + "a,0,1,cifar10,64,adaptive\n")
    refuses(stretto, tiny, {**files, **trace}, "simulate -c tiny.yaml -t bad.csv --profiles profiles", says)


FOUR = "-c tiny.yaml -t four.csv"
WORDS = {
    "a trace that does not exist": (f"{SIMULATE} nowhere.csv", r"no trace file .* is called 'nowhere\.csv'"),
    "a directory as a trace": (f"{SIMULATE} .", r"'\.'"),
    "a misspelt trace": (f"{SIMULATE} dmeo", r"'dmeo', did you mean 'demo'\?"),
    "a misspelt parameter of a trace": (f"{SIMULATE} demo:job=3", r"'job', did you mean 'jobs'\?"),
    "a public trace that is absent": (f"{SIMULATE} sia-philly-1", r"publish it at github\.com/siasosp23"),
    "a misspelt cluster": (
        "simulate -t four.csv -c sia-hetero-46",
        r"'sia-hetero-46', did you mean 'sia-hetero-64'",
    ),
    "a directory as a cluster": ("simulate -t four.csv -c .", r"\.: cannot be read"),
    "a misspelt policy": (
        f"simulate {FOUR} -p tiresia",
        r"unknown policy 'tiresia', did you mean 'tiresias'\?",
    ),
    "a policy file that does not exist": (
        f"simulate {FOUR} -p mine.py:Mine",
        r"policy file mine\.py cannot be read",
    ),
    "an output that is a file": (
        f"simulate {FOUR} --out four.csv",
        r"--out four\.csv: .*four\.csv is a file",
    ),
    "an output below a file": (
        f"simulate {FOUR} --out four.csv/x",
        r"--out four\.csv/x: .*four\.csv is a file",
    ),
    "a comparison's output that is a file": (
        f"compare {FOUR} --policies fifo --out four.csv",
        r"--out four\.csv",
    ),
    "no policies": (
        f"compare {FOUR} --policies , --out o",
        r"--policies must name at least one policy, got none",
    ),
    "one wrong policy among several": (
        f"compare {FOUR} --policies fifo,sjff --out o",
        r"'sjff', did you mean 'sjf'",
    ),
    "no seeds": (
        f"compare {FOUR} --policies fifo --seeds 0 --out o",
        r"--seeds: expected at least 1, got",
    ),
    "a negative seed": (f"simulate {FOUR} --seed -1", r"--seed: expected at least 0, got"),
    "a seed that is no number": (f"simulate {FOUR} --seed x", r"--seed: expected a whole number, got 'x'"),
    "no trace": ("simulate -c tiny.yaml", r"missing option --trace"),
    "no cluster": ("simulate -t four.csv", r"missing option --cluster"),
    "no output": (f"compare {FOUR} --policies fifo", r"Missing option '--out'"),
    "an unknown option": (f"simulate {FOUR} --sede 1", r"No such option: --sede.*--seed"),
    "a command of Slurm": ("squeue", r"^stretto: No such command 'squeue': expected 'stretto list' \(see"),
    "a command of Kubernetes": ("port-forward 7 80", r"'port-forward': expected 'stretto forward' \(see"),
    "an unknown command": ("simulat", r"No such command 'simulat'.*simulate"),
    "an unknown command of a group": ("clusters lst", r"No such command 'lst'.*list"),
    "a scale above 1": (
        "reproduce sia-table3 --synthetic --scale 2",
        r"--scale must be above 0 and at most 1, got 2",
    ),
    "a scale of nothing": (
        "reproduce sia-table3 --synthetic --scale 0",
        r"--scale must be above 0 .*, got 0",
    ),
    "a scale that is no number": (
        "reproduce sia-table3 --synthetic --scale nan",
        r"--scale must .*, got nan",
    ),
    "an unknown table": ("reproduce sia-table5", r"unknown table 'sia-table5', did you mean 'sia-table"),
    "made and real data at once": (
        "reproduce sia-table4 --synthetic --data .",
        r"expected --data or --synthetic",
    ),
    "no data": (
        "reproduce sia-table4",
        r"data set 'sia' is needed.*github\.com/siasosp23/artifacts.*--synthetic",
    ),
    "data that lacks the set": (
        "reproduce sia-table4 --data .",
        r"expected sia below \..*github\.com/siasosp23",
    ),
    "no log": ("simulate --from-log nowhere", r"--from-log nowhere: expected the log of a run"),
    "a log and a seed": ("simulate --from-log nowhere --seed 3", r"expected no --seed, got 3"),
    "no jobs to bench": ("bench solver --jobs 0 --gpus 8", r"--jobs: expected at least 1, got"),
    "an unwritable target": ("traces convert four.csv no/such/folder.csv", r"folder\.csv: cannot be written"),
    "an unknown ending": (
        "traces convert four.csv four.txt",
        r"four\.txt: expected a name that ends in \.csv",
    ),
    "a duration of nothing": (
        "traces synth demo out.csv --hours nan",
        r"hours must be a number > 0, got nan",
    ),
    "a data folder that is not there": ("traces list --data nowhere", r"--data nowhere: expected a folder"),
}


@pytest.mark.parametrize(("command", "says"), WORDS.values(), ids=WORDS)
def test_a_command_with(command: str, says: str, tiny: Path, stretto: Stretto) -> None:
    refuses(stretto, tiny, {}, command, says)


SETTINGS = {
    "no value": ("sim.fidelity", r"--set sim\.fidelity: expected SPACE\.KEY=VALUE"),
    "no space": ("fidelity=paper", r"--set fidelity=paper: expected SPACE\.KEY=VALUE"),
    "a misspelt space": ("polcy.round_s=60", r"unknown space 'polcy', did you mean 'policy'\?"),
    "a misspelt key of the world": ("sim.fidelty=paper", r"sim\.fidelty, did you mean 'fidelity'\?"),
    "a misspelt key of the policy": ("policy.growht=2", r"policy\.growht, did you mean 'growth'\?"),
    "a misspelt key of the estimate": (
        "estimate.refrence=most",
        r"estimate\.refrence, did you mean 'reference'",
    ),
    "a misspelt key of the placer": ("place.evit=no", r"place\.evit, did you mean 'evict'\?"),
    "a misspelt rule of placement": ("place.rule=consolidate", r"'consolidate'.*consolidated"),
    "a hidden key": ("estimate._rows=1", r"unknown setting estimate\._rows"),
    "a word for a number": ("policy.round_s=often", r"policy\.round_s must be a number, got 'often'"),
    "no number": ("policy.round_s=nan", r"policy\.round_s must be finite, got 'nan'"),
    "an infinity": ("sim.restart_s=inf", r"sim\.restart_s must be finite, got 'inf'"),
    "a negative infinity": (
        "policy.fairness_power=-inf",
        r"policy\.fairness_power must be finite, got '-inf'",
    ),
    "a number beyond any": ("policy.round_s=1e999", r"policy\.round_s must be finite, got '1e999'"),
    "rounds without length": ("policy.round_s=0", r"policy\.round_s must be > 0, got 0"),
    "time that runs backwards": ("sim.restart_s=-1", r"sim\.restart_s must be >= 0, got -1"),
    "an unknown choice": ("sim.fidelity=papr", r"sim\.fidelity must be one of artifact, paper, got 'papr'"),
    "a fraction of a count": ("sim.max_idle_rounds=1.5", r"sim\.max_idle_rounds must be a whole number"),
}


@pytest.mark.parametrize(("setting", "says"), SETTINGS.values(), ids=SETTINGS)
def test_a_setting_with(setting: str, says: str, tiny: Path, stretto: Stretto) -> None:
    refuses(stretto, tiny, {}, f"simulate {FOUR} -p sia --set {setting}", says)


@pytest.mark.parametrize("policy", ["fifo", "gavel", "sia"])
def test_an_estimate_is_set_by_known_names_only_also_where_nobody_asks_for_it(
    policy: str, tiny: Path, stretto: Stretto
) -> None:
    command = f"simulate {FOUR} -p {policy} --set estimate.refrence=most"
    refuses(stretto, tiny, {}, command, r"estimate\.refrence, did you mean 'reference'\?")


def test_a_setting_is_given_once(tiny: Path, stretto: Stretto) -> None:
    command = f"simulate {FOUR} --set sim.restart_s=1 --set sim.restart_s=2"
    refuses(stretto, tiny, {}, command, r"sim\.restart_s is set twice, first to '1'")


def test_traces_and_policies_of_one_name_cannot_be_compared(tiny: Path, stretto: Stretto) -> None:
    other = {"other/four.csv": TRACE}
    command = "compare -c tiny.yaml -t four.csv -t other/four.csv --policies fifo --out o"
    refuses(stretto, tiny, other, command, r"four\.csv and other/four\.csv are both four")


@pytest.mark.parametrize(
    "words", ["", "clusters", "traces", "bench"], ids=["alone", "clusters", "traces", "bench"]
)
def test_a_command_without_its_word_shows_its_help(words: str, stretto: Stretto) -> None:
    ran = stretto(*words.split())
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("Usage: stretto")


def refuses(stretto: Stretto, here: Path, files: Mapping[str, str], command: str, says: str) -> None:
    """The command ends with status 2, one line that matches, and leaves nothing new behind."""
    for name, text in files.items():
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir()
        else:
            path.write_bytes(text.encode(errors="surrogateescape"))
    before = sorted(here.rglob("*"))
    writes = command.startswith("simulate") and "--out" not in command and "--from-log" not in command
    ran = stretto(*command.split(), *(["--out", "made"] if writes else []))
    assert ran.err.count("\n") == 1, ran.err
    assert re.search(says, ran.err), ran.err
    assert (ran.status, ran.out) == (2, "")
    assert sorted(here.rglob("*")) == before
