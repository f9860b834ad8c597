"""What tests of the dashboard in a real browser share."""

import shutil
from pathlib import Path
from typing import Any

from tests.service.running import Running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
PATIENCE_MS = 120_000  # for what takes a second on a quiet machine
WIDTHS = (360, 1024, 2560)
JOB = "{name: NAME, model: resnet18, run: 'true', elastic: {min: 1, max: 8}}"


def a_service(folder: Path) -> Running:
    """A service that pretends to have 64 GPUs of three types."""
    return Running(folder, *("--backend", "emulated", "--cluster", "sia-hetero-64", "--policy", "sia"))


def fits(page: Any) -> bool:
    """Whether nothing is wider than the window."""
    return bool(page.locator("html").evaluate("e => e.scrollWidth <= e.clientWidth"))
