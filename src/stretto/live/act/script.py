"""How a job's script reaches its shell: by a file, since everybody sees what a process is started with."""

import re

SCRIPT = "STRETTO_SCRIPT"  # in the environment of the first shell of a worker, and of nothing after it
SETUP_DIR = "STRETTO_SETUP_DIR"  # in a worker's environment: a directory that its attempt alone has

# The arguments are the shell of the script and its options. Where the file cannot be written, as on a disk
# that is full, the script is an argument after all: it would not run otherwise.
RUN_SCRIPT = f"""stretto_script=${SCRIPT}; unset {SCRIPT}
stretto_file="${SETUP_DIR}/$STRETTO_WORKER_ID.sh"
if (umask 077; printf '%s\\n' "$stretto_script" >"$stretto_file") 2>/dev/null
then exec "$@" "$stretto_file"
else exec "$@" -c "$stretto_script"
fi
"""

# One program with its arguments, perhaps after assignments: nothing that a shell has to stay for.
ONE_PROGRAM = re.compile(
    r"((?:[A-Za-z_]\w*=[\w./:,@%+-]*[ \t]+)*)([\w./+-]+)((?:[ \t][^\n;|&<>()`\\{}!#]*)?)"
)
BUILT_IN = frozenset(
    [
        ".",
        ":",
        "alias",
        "bg",
        "bind",
        "break",
        "builtin",
        "caller",
        "case",
        "cd",
        "command",
        "compgen",
        "complete",
        "continue",
        "coproc",
        "declare",
        "dirs",
        "disown",
        "do",
        "done",
        "elif",
        "else",
        "enable",
        "esac",
        "eval",
        "exec",
        "exit",
        "export",
        "fc",
        "fg",
        "fi",
        "for",
        "function",
        "getopts",
        "hash",
        "help",
        "history",
        "if",
        "in",
        "jobs",
        "let",
        "local",
        "logout",
        "mapfile",
        "popd",
        "pushd",
        "read",
        "readarray",
        "readonly",
        "return",
        "select",
        "set",
        "shift",
        "shopt",
        "source",
        "suspend",
        "then",
        "time",
        "times",
        "trap",
        "type",
        "typeset",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "until",
        "wait",
        "while",
    ]
)


def in_place(script: str) -> str:
    """The script, with `exec` where it only runs one program: its process is then the worker itself.

    `sh -c` does the same of its own accord. Signals reach the program, and nothing stands between it and
    whoever waits for it. Scripts of several commands may say `exec` themselves.
    """
    found = ONE_PROGRAM.fullmatch(script.strip())
    if (
        found is None
        or found[2] in BUILT_IN
        or script.strip().count("'") % 2
        or script.strip().count('"') % 2
    ):
        return script
    return f"{found[1]}exec {found[2]}{found[3]}"
