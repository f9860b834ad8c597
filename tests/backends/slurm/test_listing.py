"""What Slurm prints is read alike in all the shapes that it has had."""

import json

import pytest

from stretto.backends.protocol import BackendUnreachable
from stretto.backends.slurm import parsers
from stretto.backends.slurm.client import is_for_later, is_silence, words_of
from stretto.backends.slurm.parsers import SlurmJob, SlurmNode

pytestmark = [pytest.mark.slurm, pytest.mark.large]

OLD_NODE = {
    "name": "a1", "address": "10.0.0.1", "hostname": "a1", "state": "mixed", "state_flags": ["DRAIN"],
    "reason": "fan", "gres": "gpu:a100:8(S:0-1)", "gres_used": "gpu:a100:3(IDX:0-2)", "cpus": 64,
    "alloc_cpus": 24, "real_memory": 513000, "alloc_memory": 1000,
    "tres": "cpu=64,mem=500G,billing=64", "partitions": ["gpu", "all"],
}  # fmt: skip
NEW_NODE = {**OLD_NODE, "state": ["MIXED", "DRAIN"], "cpus": 64, "real_memory": 513000}
TEXT_NODE = (
    "NodeName=a1 Arch=x86_64 CPUAlloc=24 CPUTot=64 AvailableFeatures=a100 Gres=gpu:a100:8(S:0-1) "
    "GresDrain=N/A GresUsed=gpu:a100:3(IDX:0-2) NodeAddr=10.0.0.1 NodeHostName=a1 RealMemory=513000 "
    "CfgTRES=cpu=64,mem=500G,billing=64 "
    "AllocMem=1000 OS=Linux 6.1 #1 SMP State=MIXED+DRAIN Partitions=gpu,all  Reason=fan [root@2026]"
)


def test_a_node_reads_the_same_in_old_json_in_new_json_and_in_text() -> None:
    ways = [
        parsers.nodes_in_json(json.dumps({"nodes": [OLD_NODE]})),
        parsers.nodes_in_json(json.dumps({"nodes": [NEW_NODE]})),
    ]
    expected = SlurmNode(
        "a1", "10.0.0.1", frozenset({"MIXED", "DRAIN"}), "fan", {"a100": 8}, {"a100": 3}, 64, 24, 512000,
        1000, ("gpu", "all"),
    )  # fmt: skip
    assert ways == [[expected], [expected]]
    (text,) = parsers.nodes_in_text(TEXT_NODE)
    assert text.reason.startswith("fan")
    assert (text.states, text.gpus, text.used) == (expected.states, expected.gpus, expected.used)
    assert (text.cpus, text.used_cpus, text.memory_mb) == (64, 24, 512000)
    assert text.partitions == ("gpu", "all")


@pytest.mark.parametrize(
    ("state", "code", "states", "wait_status"),
    [
        pytest.param("FAILED", 768, {"FAILED"}, 768, id="22.05: a word and a wait status"),
        pytest.param(["FAILED"], {"return_code": 3, "signal": {}}, {"FAILED"}, 768, id="23.02"),
        pytest.param(
            ["FAILED", "COMPLETING"],
            {
                "status": ["ERROR"],
                "return_code": {"set": True, "infinite": False, "number": 3},
                "signal": {"id": {"set": False, "infinite": False, "number": 0}, "name": ""},
            },
            {"FAILED", "COMPLETING"},
            768,
            id="23.11 and later: flags in the list, numbers wrapped",
        ),
        pytest.param(
            ["CANCELLED"],
            {
                "return_code": {"set": True, "infinite": False, "number": 0},
                "signal": {"id": {"set": True, "infinite": False, "number": 15}, "name": "TERM"},
            },
            {"CANCELLED"},
            15,
            id="a signal",
        ),
    ],
)
def test_a_job_of_json_has_its_states_and_how_its_script_ended(
    state: object, code: object, states: set[str], wait_status: int
) -> None:
    said = {"job_id": 7, "job_state": state, "exit_code": code, "comment": "c", "nodes": "a1"}
    found = parsers.jobs_in_json(json.dumps({"jobs": [said]}))
    assert found == [SlurmJob(7, frozenset(states), "c", "", "a1", wait_status)]
    assert found[0].is_over == ("COMPLETING" not in states)


def test_what_is_no_listing_is_not_taken_for_an_empty_one() -> None:
    for text in ("", "[]", "{}", '{"nodes": 3}', '{"nodes": [{"nodes": {"allocated": 1}}]}', "slurm 26"):
        assert parsers.nodes_in_json(text) is None
    for text in ("", "{}", '{"jobs": [{"id": 3}]}'):
        assert parsers.jobs_in_json(text) is None
    assert parsers.jobs_in_json('{"jobs": []}') == []


def test_a_listing_that_failed_is_silence_although_it_is_well_formed_and_empty() -> None:
    failed = {"errors": [{"description": "Failed while looking", "error": "Unspecified error"}]}
    with pytest.raises(BackendUnreachable, match=r"its jobs: Failed while looking; Unspecified error$"):
        parsers.jobs_in_json(json.dumps({**failed, "jobs": []}))
    with pytest.raises(BackendUnreachable, match="its nodes: Failed while looking"):
        parsers.nodes_in_json(json.dumps({**failed, "nodes": []}))
    assert parsers.nodes_in_json('{"nodes": [], "errors": []}') is None  # no cluster is without nodes
    with pytest.raises(BackendUnreachable, match="it does not say why"):
        parsers.jobs_in_json('{"errors": [7], "jobs": []}')


def test_jobs_in_columns_keep_comments_and_reasons_apart() -> None:
    text = "12|PENDING||Resources|stretto:s:1.1.0\n13|COMPLETING|a1|None|(null)\n(broken)\n"
    waiting, other = parsers.jobs_in_columns(text)
    assert waiting == SlurmJob(12, frozenset({"PENDING"}), "stretto:s:1.1.0", "Resources", "")
    assert (waiting.is_waiting, waiting.is_over) == (True, False)
    assert (other.is_waiting, other.is_over) == (False, False)
    assert list(parsers.by_comment([waiting, other], "stretto:s:")) == [("1.1.0", waiting)]


def test_a_job_in_text_has_the_status_of_its_script() -> None:
    text = (
        "JobId=9 JobName=a b:1.1.0 JobState=FAILED Reason=NonZeroExitCode ExitCode=0:9 NodeList=a1 Comment=x"
    )
    job = parsers.job_in_text(text)
    assert job == SlurmJob(9, frozenset({"FAILED"}), "x", "NonZeroExitCode", "a1", 9)
    assert parsers.job_in_text("slurm_load_jobs error: Invalid job id specified") is None


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:8", {"a100": 8}),
        ("gpu:8", {"": 8}),
        ("gpu:a100:4(S:0-1),gpu:v100:2,shard:16,nic:1", {"a100": 4, "v100": 2}),
        ("gpu:a100:0(IDX:N/A)", {"a100": 0}),
        ("gpu:nvidia_a100_3g.20gb:2(IDX:0,3)", {"nvidia_a100_3g.20gb": 2}),
        ("gpu:tesla:2(IDX:0,1),gpu:k:1(IDX:4)", {"tesla": 2, "k": 1}),
        ("(null)", {}),
        ("", {}),
    ],
)
def test_gpus_of_a_gres_are_counted_by_type(text: str, gpus: dict[str, int]) -> None:
    assert parsers.gpus_in(text) == gpus


def test_complaints_become_one_line_and_silence_is_told_from_a_no() -> None:
    words = words_of(
        "sbatch: error: invalid partition specified: x\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    )
    assert words == "invalid partition specified: x; Invalid partition name specified"
    assert not is_silence(words)
    assert is_silence(
        words_of("squeue: error: slurm_load_jobs: Unable to contact slurm controller (connect failure)")
    )
    assert is_silence("Socket timed out on send/recv operation")
    assert is_for_later(
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    )
