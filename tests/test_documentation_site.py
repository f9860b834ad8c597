"""The site of the documentation: every page is on it, its links lead somewhere, its reference is whole."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tools.documentation import pages, reference

from stretto.jobfile.stretto_file import KEYS
from stretto.policies import policy_names

ROOT = Path(__file__).parents[1]


class Loader(yaml.SafeLoader):
    """Reads the settings of the generator, which name a function of it."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)


def listed(tree: object) -> list[str]:
    """All pages that the navigation names."""
    if isinstance(tree, str):
        return [tree]
    below = tree.values() if isinstance(tree, dict) else tree
    assert not isinstance(below, str | dict)
    return [page for each in below for page in listed(each)]  # type: ignore[attr-defined]


def test_the_navigation_has_every_page_once(tmp_path: Path) -> None:
    navigation = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"]
    there = [str(page) for page in pages.gather(ROOT, tmp_path)]
    made = [f"reference/{name}" for name in reference.pages()]
    assert sorted(listed(navigation)) == sorted([*there, *made])


def test_links_lead_to_pages_and_files_where_they_are_on_the_site(tmp_path: Path) -> None:
    root, site = tmp_path / "repository", tmp_path / "site"
    for name, text in {
        "docs/decisions/0001-a.md": "[c](../../CONTRIBUTING.md#tests) [s](../../src/x.py) [t](../top.md) [w](https://w)",
        "docs/top.md": "[e](../examples/README.md)\n```\n[no](../CONTRIBUTING.md)\n```\n![p](p.svg)",
        "docs/p.svg": "<svg/>",
        "CONTRIBUTING.md": "[top](docs/top.md#a)",
        "examples/README.md": "[x](x.yaml) [none](nothing)",
        "examples/x.yaml": "run: x",
        "src/x.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert sorted(map(str, pages.gather(root, site))) == [
        "contributing.md",
        "decisions/0001-a.md",
        "examples.md",
        "top.md",
    ]
    decision = (site / "decisions" / "0001-a.md").read_text()
    assert decision == "[c](../contributing.md#tests) [s](../files/src/x.py) [t](../top.md) [w](https://w)"
    assert (site / "files" / "src" / "x.py").exists()
    assert (
        site / "top.md"
    ).read_text() == "[e](examples.md)\n```\n[no](../CONTRIBUTING.md)\n```\n![p](p.svg)"
    assert (site / "p.svg").exists()
    assert (site / "contributing.md").read_text() == "[top](top.md#a)"
    assert (site / "examples.md").read_text() == "[x](files/examples/x.yaml) [none](nothing)"


def test_the_reference_has_commands_settings_keys_and_requests() -> None:
    made = reference.pages()
    for command in ("simulate", "submit", "context set", "nodes drain", "token create"):
        assert f"\n## stretto {command}\n" in made["commands.md"]
    assert "`--dry-run`" in made["commands.md"]
    for policy in policy_names():
        assert f"## The policy `{policy}`: `policy`" in made["settings.md"]
    assert [key for key in KEYS if f"| `{key}` |" not in made["job-file.md"]] == []
    assert "| `elastic.min` | a whole number >= 1 |" in made["job-file.md"]
    assert "## `POST /api/v1/jobs`" in made["requests.md"]
    assert "## `GET /api/v1/jobs/{job}`" in made["requests.md"]


def test_the_requests_are_those_of_the_document_that_a_service_gives() -> None:
    from stretto.service.http.app import ROUTERS

    routes = {route.path for router in ROUTERS for route in router.routes if route.include_in_schema}
    assert routes == {*reference.openapi()["paths"]}


@pytest.mark.processes
@pytest.mark.heavy
def test_the_site_is_built_and_no_link_is_broken() -> None:
    pytest.importorskip("zensical")
    built = subprocess.run(
        [sys.executable, "-m", "tools.documentation"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    site = ROOT / "build" / "site"
    assert "elastic scheduler" in (site / "index.html").read_text(encoding="utf-8")
    assert "ServiceError" in (site / "reference" / "python.html").read_text(encoding="utf-8")
    search = (site / "search.json").read_text(encoding="utf-8")
    assert "MAY_NOT_BORROW" in search
