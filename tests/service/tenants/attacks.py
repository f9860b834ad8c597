"""What a user of a machine may try against another one's job and against the service, each a line of shell.

A line succeeds if it gets what it is after. All of `ATTACKS` succeed for root, by which a test sees that they
would be noticed; signals are tried as `kill -0` there.
"""

HARMLESS = {"-KILL": "-0", "-STOP": "-0", "-TERM": "-0"}

ATTACKS = {
    # the other one's processes
    "read the environment of the other's worker": "cat /proc/$VICTIM/environ | grep -q .",
    "list the open files of the other's worker": "ls /proc/$VICTIM/fd/ | grep -q .",
    "enter the working directory of the other's worker": "cd /proc/$VICTIM/cwd/",
    "read the memory map of the other's worker": "cat /proc/$VICTIM/maps | grep -q .",
    "kill the other's worker": "kill -KILL $VICTIM",
    "kill all processes of the other's worker": "kill -KILL -$VICTIM",
    "suspend the other's worker": "kill -STOP $VICTIM",
    # what keeps it
    "kill the other's supervisor": "kill -KILL $VICTIM_SUPERVISOR",
    "kill one's own supervisor": "kill -KILL $OWN_SUPERVISOR",
    "kill the agent": "kill -KILL $AGENT",
    "end the service": "kill -TERM $SERVICE",
    "read the environment of the agent": "cat /proc/$AGENT/environ | grep -q .",
    "read the environment of the service": "cat /proc/$SERVICE/environ | grep -q .",
    "read the environment of the other's supervisor": "cat /proc/$VICTIM_SUPERVISOR/environ | grep -q .",
    # what the other one's job has written
    "read the other's log": "cat $RUN/log | grep -q .",
    "write into the other's log": "test -w $RUN/log",
    "read the other's checkpoint": "cat $CHECKPOINTS/model | grep -q .",
    "list the other's checkpoints": "ls $CHECKPOINTS/ | grep -q .",
    "put a checkpoint in the other's place": "touch $CHECKPOINTS/step-000000000009.pt",
    "read the token of the other's worker": "cat $CHECKPOINTS/.token-* | grep -q .",
    "list the other's working directory": "ls -a $RUN/work/ | grep -q .",
    "read the other's script": "cat $STATE/agent/setups/*/*.sh $SCRIPT | grep -q precious",
    "mark the other's setup as done": "touch $(dirname $SCRIPT)/setup-x.done",
    # how it was started, and orders to its supervisor
    "read how the other's worker was started": "cat $RUN/start.json | grep -q .",
    "read what is noted of the other's worker": "cat $RUN/running.json | grep -q .",
    "give the other's supervisor an order": "test -w $RUN/control",
    "replace the other's run": "touch $RUN/ended.json.part",
    # the service's own
    "list the state directory": "ls $STATE/ | grep -q .",
    "write into the state directory": "touch $STATE/planted",
    "read the admin's token": "cat $STATE/admin-token | grep -q .",
    "read the key of workers' tokens": "cat $STATE/key | grep -q .",
    "read the database": "cat $STATE/stretto.db | grep -q .",
    "write into the database": "test -w $STATE/stretto.db",
    "read the service's log": "cat $STATE/service.log | grep -q .",
    "read the agent's token": "cat $STATE/agent/token | grep -q .",
    "read where the agent answers": "cat $STATE/agent/address.json | grep -q .",
    "list the agent's runs": "ls $STATE/agent/runs/ | grep -q .",
    "plant a run": "mkdir $STATE/agent/runs/9.1.0",
    "list everybody's checkpoints": "ls $STATE/checkpoints/ | grep -q .",
    "plant checkpoints for a job to come": "mkdir $STATE/checkpoints/999",
    "hold the agent's lock": "test -r $STATE/agent/agent.lock",
    # rights that a job should not have
    "belong to root's group": "id -G | tr ' ' '\\n' | grep -qx 0",
    "become another user by a program that may": "grep -q 'NoNewPrivs:.0' /proc/self/status",
}
SCRIPTS = r"cat /proc/[0-9]*/cmdline | tr '\0' '\n' | grep -q 'preciou[s]'"
NOT_OF_ROOT = {
    "see the other's script in the list of processes": SCRIPTS,
    "open the supervisor's orders by what is inherited": "ls -l /proc/self/fd/ | grep -q /control",
}


def script() -> str:
    """All attempts, each with what came of it on a line."""
    lines = [
        f"( {line} ) >/dev/null 2>&1 && echo 'succeeded: {escaped(name)}' || echo 'refused: {escaped(name)}'"
        for name, line in (ATTACKS | NOT_OF_ROOT).items()
    ]
    return "\n".join([*lines, "echo all tried", "sleep 600"])


def escaped(name: str) -> str:
    """For single quotes of a shell."""
    return name.replace("'", "'\\''")


def harmless(line: str) -> str:
    """The same without what it would break."""
    for sign, none in HARMLESS.items():
        line = line.replace(f"kill {sign}", f"kill {none}")
    return line
