from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.clusters import Lender, read_cluster, read_cluster_file, write_cluster
from stretto.model import Cluster, GpuType, InputError, Node, NodeId

FULL = """\
gpu_types:
  t4:   {memory_gb: 16, speed: 0.33, aliases: [aws]}
  a100: {memory_gb: 40, max_nodes_per_job: 2}
nodes:
  - {type: a100, gpus: 8, count: 2, names: [n1, n2]}
  - {type: t4,   gpus: 4, count: 2, cpus: 48, memory_gb: 192}
  - {type: t4,   gpus: 2}
lenders:
  - {type: t4, gpus: 8, count: 2, demand: demand.csv, headroom: 0.02}
"""


def a_file(folder: Path, text: str) -> Path:
    path = folder / "box.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_gives_types_in_the_order_of_their_nodes(tmp_path: Path) -> None:
    cluster = read_cluster(a_file(tmp_path, FULL))
    assert cluster.name == "box"
    assert cluster.types == (
        GpuType("a100", memory_gb=40, max_nodes_per_job=2),
        GpuType("t4", memory_gb=16, speed=0.33, aliases=("aws",)),
    )
    assert [(node.id, node.gpus, node.cpus, node.memory_gb, node.lender) for node in cluster.nodes] == [
        ("n1", 8, 0, 0.0, ""),
        ("n2", 8, 0, 0.0, ""),
        ("t4-0", 4, 48, 192.0, ""),
        ("t4-1", 4, 48, 192.0, ""),
        ("t4-2", 2, 0, 0.0, ""),
        ("lender1-0", 8, 0, 0.0, "lender1"),
        ("lender1-1", 8, 0, 0.0, "lender1"),
    ]


def test_what_a_lender_needs_itself_is_kept(tmp_path: Path) -> None:
    found = read_cluster_file(a_file(tmp_path, FULL))
    assert found.lenders == (Lender("lender1", "t4", 8, 2, "demand.csv", 0.02),)


def test_a_type_needs_no_settings(tmp_path: Path) -> None:
    cluster = read_cluster(a_file(tmp_path, "gpu_types: {x: }\nnodes: [{type: x, gpus: 1}]\n"))
    assert cluster.types == (GpuType("x"),)
    assert cluster.types[0].speed == 1.0


WITH_SLIPS = """\
name: ours
gpu_types:
  t4:
    aliases: [aws]
  a100: {speed: 3}
nodes:
  - &first
    type: t4
    gpus: 4
  - <<: *first
    count: 2
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        pytest.param(
            "aliases:",
            "sped: 2 #",
            "line 4: gpu_types, t4: unknown key 'sped', did you mean 'speed'?",
            id="a key",
        ),
        pytest.param(
            "speed:",
            "sped:",
            "line 5: gpu_types, a100: unknown key 'sped', did you mean 'speed'?",
            id="a key within braces",
        ),
        pytest.param(
            "speed: 3",
            "speed: -3",
            "line 5: gpu_types, a100: speed must be a number > 0, got -3",
            id="a value",
        ),
        pytest.param(
            "nodes:", "noodes:", "line 6: unknown key 'noodes', did you mean 'nodes'?", id="a key of the file"
        ),
        pytest.param(
            "    gpus: 4\n",
            "",
            "line 7: nodes, entry 1: missing gpus",
            id="what is missing, by the first line beside it",
        ),
        pytest.param(
            "type: t4",
            "type: t40",
            "line 8: nodes, entry 1: unknown gpu type 't40', did you mean 't4'?",
            id="a name",
        ),
        pytest.param(
            "    gpus: 4\n",
            "    gpus: 4\n  - 3\n",
            "nodes, entry 2: expected keys and values, got 3",
            id="a list has no lines",
        ),
        pytest.param(
            "count: 2",
            "count: 0",
            "line 11: nodes, entry 2: count must be a whole number >= 1, got 0",
            id="of what is merged, its own line",
        ),
        pytest.param(
            "gpus: 4",
            "gpus: 0",
            "line 9: nodes, entry 1: gpus must be a whole number >= 1, got 0",
            id="of what is merged from",
        ),
        pytest.param(
            "count: 2",
            "cuont: 2",
            "line 11: nodes, entry 2: unknown key 'cuont', did you mean 'count'?",
            id="beside what is merged",
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(
    tmp_path: Path, right: str, wrong: str, message: str
) -> None:
    read_cluster(a_file(tmp_path, WITH_SLIPS))
    file = a_file(tmp_path, WITH_SLIPS.replace(right, wrong, 1))
    with pytest.raises(InputError) as refused:
        read_cluster(file)
    place = f"{file} " if message.startswith("line") else f"{file}: "
    assert str(refused.value) == place + message


TYPES = "gpu_types: {t4: {aliases: [aws]}, a100: {}}\n"
NODES = "nodes: [{type: t4, gpus: 4}]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            TYPES + "node: []\n", "unknown key 'node', did you mean 'nodes'?", id="a slip at the top"
        ),
        pytest.param(
            TYPES + "nodes: [{typ: t4, gpus: 4}]\n",
            "nodes, entry 1: unknown key 'typ', did you mean 'type'?",
            id="node",
        ),
        pytest.param(
            "gpu_types: {t4: {max_nodes: 2}}\n" + NODES,
            "gpu_types, t4: unknown key 'max_nodes', did you mean 'max_nodes_per_job'?",
            id="a slip in a type",
        ),
        pytest.param(
            TYPES + "nodes: [{type: a10, gpus: 4}]\n",
            "unknown gpu type 'a10', did you mean 'a100'?",
            id="type name",
        ),
        pytest.param(
            TYPES + "nodes: [{type: aws, gpus: 4}]\n",
            "unknown gpu type 'aws', did you mean 't4'?",
            id="an alias",
        ),
        pytest.param(
            "nodes: [{type: t4, gpus: 4}]\n", "expected it among gpu_types, which is empty", id="no types"
        ),
        pytest.param(TYPES, "nodes must have at least one entry", id="no nodes"),
        pytest.param(
            TYPES + "nodes: [{gpus: 4}]\n", "nodes, entry 1: missing type", id="a node without type"
        ),
        pytest.param(
            TYPES + "nodes: [{type: t4}]\n", "nodes, entry 1: missing gpus", id="a node without GPUs"
        ),
        pytest.param(
            TYPES + "nodes: [{type: t4, gpus: 0}]\n", "gpus must be a whole number >= 1, got 0", id="no GPUs"
        ),
        pytest.param(
            TYPES + f"nodes: [{{type: t4, gpus: 4, count: {10**20}}}]\n",
            f"count must be a whole number >= 1 and at most {2**31 - 1}, got 1000",
            id="more than can be counted",
        ),
        pytest.param(
            TYPES + "nodes: [{type: t4, gpus: 2.5}]\n",
            "gpus must be a whole number >= 1, got 2.5",
            id="half a GPU",
        ),
        pytest.param(
            TYPES + "nodes: [{type: t4, gpus: true}]\n",
            "gpus must be a whole number >= 1, got True",
            id="yes",
        ),
        pytest.param(
            TYPES + "nodes: [{type: t4, gpus: 63}]\n", "must have 1 to 62 gpus, got 63", id="too many"
        ),
        pytest.param(
            TYPES + "nodes: [{type: t4, gpus: 4, count: 2, names: [a]}]\n",
            "names must be count=2 names, got 1",
            id="fewer names than nodes",
        ),
        pytest.param(
            TYPES + "nodes: [{type: t4, gpus: 4, names: [a, a]}]\n",
            "node names must differ",
            id="equal names",
        ),
        pytest.param(
            TYPES + "nodes: [{type: t4, gpus: 4, count: 100000000}]\n",
            "count must be at most 1000000",
            id="absurd",
        ),
        pytest.param(
            "gpu_types: {t4: {speed: 0}}\n" + NODES, "speed must be a number > 0, got 0", id="no speed"
        ),
        pytest.param(
            "gpu_types: {t4: {speed: .nan}}\n" + NODES, "speed must be a number > 0, got nan", id="NaN speed"
        ),
        pytest.param(
            "gpu_types: {t4: {}, a100: {aliases: [t4]}}\n" + NODES,
            "'t4' already names the type 't4'",
            id="an alias that names another type",
        ),
        pytest.param(
            "gpu_types: {t4: {}, t4: {}}\n" + NODES, "line 1: key 't4' is there twice", id="a key twice"
        ),
        pytest.param(TYPES + "nodes: {}\n", "nodes must be a list, got {}", id="nodes as a mapping"),
        pytest.param(
            "gpu_types: [t4]\n" + NODES, "expected keys and values, got ['t4']", id="types as a list"
        ),
        pytest.param("- 1\n", "expected keys and values, got [1]", id="a list"),
        pytest.param("", "expected keys and values, got None", id="an empty file"),
        pytest.param("gpu_types: {\n", "line 2: ", id="broken YAML"),
        pytest.param(
            TYPES + NODES + "lenders: [{type: t4, gpus: 8, headroom: 1.5}]\n",
            "lenders, entry 1: headroom must be a share below 1, got 1.5",
            id="too much headroom",
        ),
        pytest.param(
            TYPES + NODES + 'lenders: [{type: t4, gpus: 8}, {type: t4, gpus: 8, name: "a/b c\\n"}]\n',
            "lenders, entry 2: name must be 1 to 63 letters",
            id="a lender that no address can name",
        ),
        pytest.param(
            TYPES + NODES + "lenders: [{type: t4, gpus: 8, name: x}, {type: t4, gpus: 8, name: x}]\n",
            "lenders, entry 2: name must differ from other lenders, got 'x'",
            id="two lenders of one name",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        read_cluster(a_file(tmp_path, text))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "box" in str(refused.value)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="is called 'sia-hetero', did you mean 'sia-hetero-64'"):
        read_cluster("sia-hetero")


def test_a_folder_is_no_cluster_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_cluster(tmp_path)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    kinds = draw(st.lists(st.text("abc1 :#'", min_size=1, max_size=4), min_size=1, max_size=3, unique=True))
    types = [
        GpuType(
            name,
            memory_gb=draw(st.floats(1, 100)),
            speed=draw(st.floats(0.01, 10)),
            aliases=tuple(draw(st.lists(st.sampled_from([f"{name}-alias", f"{name}-other"]), unique=True))),
            max_nodes_per_job=draw(st.integers(0, 4)),
        )
        for name in kinds
    ]
    nodes = [
        Node(
            NodeId(f"node {index}"),
            draw(st.sampled_from(kinds)),
            draw(st.sampled_from([1, 4, 8])),
            cpus=draw(st.sampled_from([0, 16])),
            memory_gb=draw(st.sampled_from([0.0, 64.5])),
        )
        for index in range(draw(st.integers(1, 6)))
    ]
    used = dict.fromkeys(node.gpu_type for node in nodes)
    ordered = tuple(next(kind for kind in types if kind.name == name) for name in used)
    return Cluster("some name", ordered, tuple(nodes))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=scaled(80), deadline=None)
@given(cluster=clusters())
def test_reading_gives_back_what_was_written(tmp_path: Path, cluster: Cluster) -> None:
    write_cluster(cluster, tmp_path / "box.yaml")
    assert read_cluster(tmp_path / "box.yaml") == cluster


def test_lenders_survive_writing(tmp_path: Path) -> None:
    found = read_cluster_file(a_file(tmp_path, FULL))
    write_cluster(found.cluster, tmp_path / "again.yaml", found.lenders)
    assert read_cluster_file(tmp_path / "again.yaml") == found


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.*cannot be written"):
        write_cluster(read_cluster("sia-homo-64"), tmp_path / "nowhere" / "x.yaml")
