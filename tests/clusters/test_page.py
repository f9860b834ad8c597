"""The page on cluster files names every key that is read, and its example is read."""

import re
from pathlib import Path

import pytest

from stretto.clusters import parse, read_cluster
from stretto.model.cluster import node_groups

PAGE = (Path(__file__).parents[2] / "docs" / "cluster-files.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("The file", parse.TOP_KEYS),
        ("A GPU type", parse.TYPE_KEYS),
        ("A group of nodes", parse.NODE_KEYS),
    ],
)
def test_the_page_has_a_row_for_every_key_that_is_read(heading: str, keys: tuple[str, ...]) -> None:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)`", section, flags=re.M)) == keys


def test_the_example_of_the_page_is_read(tmp_path: Path) -> None:
    example = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.M | re.S)[0]
    path = tmp_path / "two-types.yaml"
    path.write_text(example, encoding="utf-8")
    cluster = read_cluster(path)
    assert list(node_groups(cluster)) == [("a100", 2, 8), ("t4", 2, 4)]
    assert [str(node.id) for node in cluster.nodes] == ["a100-0", "a100-1", "old-1", "old-2"]


def test_the_examples_of_topology_are_read(tmp_path: Path) -> None:
    counted, named = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.M | re.S)[1:]
    path = tmp_path / "box.yaml"
    path.write_text(counted, encoding="utf-8")
    assert read_cluster(path).topology.sizes == (532, 2125)
    path.write_text(named, encoding="utf-8")
    domain = read_cluster(path).topology.domain.tolist()
    assert domain == [[0] * 16 + [1] * 3, [0] * 8 + [1] * 8 + [2, 2, 3]]
