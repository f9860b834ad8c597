"""A job file says where it runs; one that does not runs where it was submitted, as people expect."""

import json
import re

SCRIPT = re.compile(r"#!|\s*#SBATCH\b")
SAYS_WHERE = re.compile(r"^(workdir|apiVersion)\s*:", re.MULTILINE)
CHANGES_DIRECTORY = re.compile(r"^#SBATCH\s+(.*\s)?(--chdir\b|-D\b)", re.MULTILINE)


def run_in(text: str, workdir: str) -> str:
    """The text of a job file with this working directory, unless it has one of its own.

    Manifests of Kubernetes, and what is no mapping in lines of its own, stay as they are.
    """
    if SCRIPT.match(text):
        if CHANGES_DIRECTORY.search(text) or re.search(r"\s", workdir):
            return text
        first, newline, rest = text.partition("\n")
        line = f"#SBATCH --chdir={workdir}"
        return f"{first}{newline or chr(10)}{line}\n{rest}" if first.startswith("#!") else f"{line}\n{text}"
    if SAYS_WHERE.search(text) or text.lstrip().startswith(("{", "[")) or not text.strip():
        return text
    return f"{text.rstrip()}\nworkdir: {json.dumps(workdir)}\n"
