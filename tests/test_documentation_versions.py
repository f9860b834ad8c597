"""Versions of the documentation side by side: who reads an old one is told so, and led to the latest."""

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.chromium import CHROMIUM, PATIENCE_MS, QUIET
from tools.documentation.versions import publish, write_settings

ROOT = Path(__file__).parents[1]


def published(folder: Path, *versions: str) -> dict[str, list[str]]:
    """The aliases of each version as the selector lists them, after these were published in this order."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    for version in versions:
        (site / "index.html").write_text(version)
        publish(site, version, folder / "all")
    listed = json.loads((folder / "all" / "versions.json").read_text())
    return {row["version"]: row["aliases"] for row in listed}


def test_the_newest_version_stands_first_in_the_list(tmp_path: Path) -> None:
    assert [*published(tmp_path, "0.9.0", "0.10.0", "0.2.0")] == ["0.10.0", "0.9.0", "0.2.0"]


@pytest.mark.parametrize(
    ("versions", "latest"),
    [
        pytest.param(("0.1.0", "0.2.0"), "0.2.0", id="the newest"),
        pytest.param(("0.2.0", "0.1.0"), "0.2.0", id="whichever was built last"),
        pytest.param(("0.2.0", "0.3.0rc1"), "0.2.0", id="what is released"),
        pytest.param(("0.1.0.dev1", "0.1.0rc1"), "0.1.0rc1", id="before the first release the newest of all"),
    ],
)
def test_latest_leads_to(versions: tuple[str, ...], latest: str, tmp_path: Path) -> None:
    aliases = published(tmp_path, *versions)
    assert [version for version, names in aliases.items() if names == ["latest"]] == [latest]
    assert (tmp_path / "all" / "latest" / "index.html").read_text() == latest


def test_a_version_that_is_published_again_has_its_new_pages_only(tmp_path: Path) -> None:
    published(tmp_path, "0.1.0")
    (tmp_path / "all" / "0.1.0" / "old.html").write_text("gone since")
    assert published(tmp_path, "0.1.0") == {"0.1.0": ["latest"]}
    assert [path.name for path in (tmp_path / "all" / "0.1.0").iterdir()] == ["index.html"]


@pytest.mark.processes
def test_what_is_no_version_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.documentation", "--into", str(tmp_path), "--version", "newest"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    expected = "VERSION must be a version such as 0.1.0, got 'newest'\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of two versions of a small site, which differ in a page; built by the generator."""
    pytest.importorskip("zensical")
    docs, site = tmp_path / "build" / "docs", tmp_path / "build" / "site"
    docs.mkdir(parents=True)
    usual = (
        "docs_dir: docs\nsite_name: Small\nuse_directory_urls: false\ntheme: {name: material, font: false}\n"
    )
    (tmp_path / "mkdocs.yml").write_text(usual)
    write_settings(tmp_path / "build" / "version.yml", site, docs, usual=tmp_path / "mkdocs.yml")
    for version in ("0.1.0", "0.2.0"):
        (docs / "index.md").write_text(f"# Pages of {version}\n")
        (docs / "jobs.md").write_text(f"# Jobs of {version}\n")
        command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
        subprocess.run([*command, "--config-file", "build/version.yml"], cwd=tmp_path, check=True)
        publish(site, version, tmp_path / "all")
    handler = functools.partial(Quiet, directory=str(tmp_path / "all"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and keeps what it serves to itself."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def page(served: str) -> Iterator[Any]:
    """A window that asks nobody but the site, and has nothing to complain of."""
    library = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    said: list[str] = []
    with library.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        opened = browser.new_context(base_url=served).new_page()
        opened.set_default_timeout(PATIENCE_MS)
        opened.on("console", lambda message: said.append(f"{message.text}: {message.location}"))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on("request", lambda asked: said.append(asked.url) if served not in asked.url else None)
        yield opened
        browser.close()
    assert said == []


@pytest.mark.processes
@pytest.mark.heavy
def test_a_reader_changes_between_versions_and_is_told_of_an_old_one(page: Any) -> None:
    page.goto("/")
    page.get_by_role("heading", name="Pages of 0.2.0").wait_for()
    assert page.url.endswith("/latest/index.html")
    note = page.get_by_text("of an older version")
    selector = page.locator(".md-version")
    assert selector.get_by_role("button").inner_text() == "0.2.0"
    assert not note.is_visible()
    selector.hover()
    selector.get_by_role("link", name="0.1.0").click()
    page.get_by_role("heading", name="Pages of 0.1.0").wait_for()
    assert "/0.1.0/" in page.url
    note.wait_for()
    page.reload()
    note.wait_for()
    page.get_by_role("link", name="the latest").click()
    page.get_by_role("heading", name="Pages of 0.2.0").wait_for()
