"""Write the blocking client from the async one: the same methods, without their awaits.

Run as `python tools/sync_client.py`. A test compares what lies in the source tree with what this writes.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "stretto" / "client"
MADE = {"async_client.py": "client.py", "async_failover.py": "failover.py"}
RENAMED = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncFailover": "Failover",
    "AsyncGenerator": "Generator",
    "AsyncHTTPTransport": "HTTPTransport",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aclosing": "closing",
    "aiter_lines": "iter_lines",
    "aread": "read",
    "async_failover": "failover",
    "async_waiting": "waiting",
    "handle_async_request": "handle_request",
}
# Generator[YIELDS, None] of the async one has a third part, what it returns.
GENERATOR = re.compile(r"Generator\[(.+), None\]:$", re.M)
POINTS_THERE = re.compile(r"\s+`\w+` in `\w+\.py` is made from this file, without its awaits\.")


def blocking(text: str) -> str:
    """A module of coroutines as one of functions."""
    lines = text.splitlines(keepends=True)
    for token in reversed([*_words(text)]):
        (row, start), (_, end) = token.start, token.end
        line = lines[row - 1]
        if token.string in ("async", "await"):
            lines[row - 1] = line[:start] + line[end:].removeprefix(" ")
        else:
            lines[row - 1] = line[:start] + RENAMED[token.string] + line[end:]
    return GENERATOR.sub(r"Generator[\1, None, None]:", POINTS_THERE.sub("", "".join(lines)))


def _words(text: str) -> Iterator[tokenize.TokenInfo]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and (token.string in ("async", "await") or token.string in RENAMED):
            yield token


def made(source: str) -> str:
    """The blocking twin of a file of the client, laid out as the house has it."""
    text = blocking((CLIENT / source).read_text(encoding="utf-8"))
    for command in (
        ["check", "--quiet", "--fix", "--exit-zero", "--unsafe-fixes", "--select=I,UP028"],
        ["format"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, f"--stdin-filename={CLIENT / MADE[source]}", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    first, rest = text.split("\n", 1)
    return f"# Made by tools/sync_client.py from {source}: change that one.\n{first}\n{rest}"


def main() -> None:
    """Write every file that is made."""
    for source, target in MADE.items():
        (CLIENT / target).write_text(made(source), encoding="utf-8")


if __name__ == "__main__":
    main()
