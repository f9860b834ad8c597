"""Runs `pip install` and shows what it downloads; everything else it says goes to a file.

Called by the Makefile as `python tools/install.py LOG WORDS...`, with the Python of the environment. Needs
nothing but that Python. On a terminal one line is kept up to date; on a pipe there is a line for what is
large. What pip warns of is in LOG, and is shown where the installation fails.
"""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

DOWNLOAD = re.compile(
    r"\s*Downloading (?:\S*/)?(?P<name>[A-Za-z0-9_.]+?)-\d\S* \((?P<size>[\d.]+) (?P<unit>[kMG]?B)\)"
)
BUILD = re.compile(r"\s*Building wheels? for (?P<name>\S+)|\s*Installing collected packages")
MB = {"B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}
LARGE_MB = 20.0  # from so much on, a download has a line of its own where there is no terminal; chosen
LAST_LINES = 15  # of the log, shown where pip fails


def main(log: Path, words: list[str]) -> int:
    """Install, and return pip's exit status."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *words]
    began_s, packages, total_mb, is_unpacking = time.monotonic(), 0, 0.0, False
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        running = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert running.stdout is not None
        for line in running.stdout:
            file.write(line)
            if found := DOWNLOAD.match(line):
                size_mb = float(found["size"]) * MB[found["unit"]]
                packages, total_mb = packages + 1, total_mb + size_mb
                so_far = f"{packages} packages, {total_mb:.0f} MB"
                show(f"  downloading {found['name']} ({size_mb:.1f} MB); {so_far}", size_mb >= LARGE_MB)
            elif BUILD.match(line) and not is_unpacking:
                is_unpacking = True
                show(f"  unpacking what was downloaded ({total_mb:.0f} MB)", lasting=True)
        status = running.wait()
    if status:
        clear()
        tail = log.read_text(encoding="utf-8").splitlines()[-LAST_LINES:]
        print("\n".join(tail), file=sys.stderr)
        print(f"pip failed with status {status}; all that it said is in {log}", file=sys.stderr)
        return status
    clear()
    print(f"  installed in {time.monotonic() - began_s:.0f} s, {total_mb:.0f} MB downloaded")
    return 0


def show(text: str, lasting: bool) -> None:
    """Replace the line on a terminal; on a pipe, say what is worth a line."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        print(f"\r\x1b[K{text[: width - 1]}", end="", flush=True)
    elif lasting:
        print(text, flush=True)


def clear() -> None:
    """Leave the terminal's line empty."""
    if sys.stdout.isatty():
        print("\r\x1b[K", end="", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
    except KeyboardInterrupt:
        clear()
        print("interrupted; the same command goes on with what is missing", file=sys.stderr)
        sys.exit(130)
