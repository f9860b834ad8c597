"""What a worker finds in its environment, its command and its script.

How a job's script reaches its shell: by a file, since every user sees what a process is started with.
"""

import asyncio
import hashlib
import hmac
import re
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from stretto.agent import upload_fetcher
from stretto.agent.run_directory import COPY
from stretto.agent.unix_users import Account, Accounts
from stretto.backends.protocol import StartRefused, WorkerStart
from stretto.errors import InputError
from stretto.jobfile import JobSpec
from stretto.jobfile.parts import LR_SCALINGS
from stretto.jobfile.slurm_script import shell_of
from stretto.service.sealed_secrets import SealedSecrets
from stretto.service.state.records import JobRecord, Worker
from stretto.service.state.state import State
from stretto.service.uploads import UploadStore

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

    `sh -c` does the same of its own accord. Signals reach the program, and nothing stands between it and the
    process that waits for it. Scripts of several commands may say `exec` themselves.
    """
    match = ONE_PROGRAM.fullmatch(script.strip())
    if (
        match is None
        or match[2] in BUILT_IN
        or script.strip().count("'") % 2
        or script.strip().count('"') % 2
    ):
        return script
    return f"{match[1]}exec {match[2]}{match[3]}"


# ── what a worker finds in its environment, and the command that it runs (docs: jobs) ───────────────────────


# Where rank 0 of scripts without the SDK listens; chosen: below ephemeral ones
FIRST_PORT, PORTS = 20_000, 12_000

TOKEN = ".token-"  # and the job: in a checkpoint directory, the token of a job that has run there
AUTHORITIES = ".ca-"  # likewise: certificates that the service is verified by

# Hugging Face's Trainer reads its token from a file, which the worker's shell writes where the job can.
# A worker sees its own GPUs only, and scripts take LOCAL_RANK for the index of theirs.
PRELUDE = f"""[ -z "$CUDA_VISIBLE_DEVICES" ] || export LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
mkdir -p "$STRETTO_CHECKPOINT_DIR" 2>/dev/null &&
(umask 077; printf %s "$STRETTO_TOKEN" >"$STRETTO_CHECKPOINT_DIR/{TOKEN}$STRETTO_JOB_ID") 2>/dev/null
[ -z "$STRETTO_CA_CERTIFICATES" ] ||
(umask 077; printf %s "$STRETTO_CA_CERTIFICATES" >"$STRETTO_CA_FILE") 2>/dev/null
{RUN_SCRIPT}"""

# Whoever runs the service has a Python that nodes of one machine, or of one image, have at the same place.
# Where a backend knows another one of its images, STRETTO_PYTHON names it.
FETCHER = "STRETTO_FETCHER"  # in the environment of the first shell of a worker, and of nothing after it
FETCH = """stretto_copy="${{{setups}:-$STRETTO_CHECKPOINT_DIR}}"/{copy}
stretto_python={python}; stretto_python="${{STRETTO_PYTHON:-$stretto_python}}"
command -v "$stretto_python" >/dev/null || stretto_python=python3
"$stretto_python" -I -S -c "${fetcher}" "$stretto_copy" && cd "$stretto_copy"/{workdir} || {{
echo "stretto: the job cannot begin in its upload" >&2
stretto_why="${{stretto_copy%/*}}/$STRETTO_WORKER_ID{why}"; [ -e "$stretto_why" ] ||
echo "the job cannot begin in its upload: its node lacks python3, or that folder" >"$stretto_why"
exit {failed}; }}
unset {fetcher} STRETTO_PYTHON stretto_python stretto_copy
"""

# What a setup leaves running must not hold the lock, for which other workers of the node wait.
SETUP = """stretto_setup="${{{marks}:-$STRETTO_CHECKPOINT_DIR}}"/setup-{mark}
(flock 9; [ -e "$stretto_setup.done" ] || {{ {setup}
}} 9>&- && touch "$stretto_setup.done") 9>>"$stretto_setup" || {{
status=$?; echo "stretto: setup failed with status $status" >&2; exit $status; }}
"""


@dataclass(frozen=True)
class WorkerContext:
    """What the service tells workers so that they can find it, and the key that their tokens are made of."""

    url: str
    key: bytes
    checkpoints: Path
    workdirs: Path
    accounts: Accounts | None = None  # as whom jobs run; None: as the service's user
    secrets: SealedSecrets | None = None  # of users, for the workers of jobs that name them; None: no such
    uploads: UploadStore | None = None  # of users, likewise
    authorities: str = ""  # certificates that they verify the service by; "": those of their system

    def token(self, job: str) -> str:
        """The token that opens the channel of one job's workers, which it names; it is nowhere kept."""
        return f"{job}.{hmac.digest(self.key, f'worker:{job}'.encode(), 'sha256').hex()}"

    def meeting(self, job: str, attempt: int, generation: int) -> str:
        """What the members of one generation know and no other process: by it they trust each other."""
        words = f"meeting:{job}.{attempt}.{generation}"
        return hmac.new(self.key, words.encode(), hashlib.sha256).hexdigest()

    def port(self, attempt: str) -> int:
        """Where rank 0 of an attempt is to listen: hardly ever where that of another service's does."""
        return FIRST_PORT + zlib.crc32(self.key + attempt.encode()) % PORTS

    def job_of(self, token: str) -> str:
        """The job whose channel a token opens; "" for what is no such token."""
        job = token.partition(".")[0]
        return job if hmac.compare_digest(token.encode(), self.token(job).encode()) else ""


def start_of(state: State, record: JobRecord, worker: Worker, context: WorkerContext) -> WorkerStart:
    """The worker as the backend is to start it; raises StartRefused where its owner has no account here."""
    spec = record.spec
    checkpoints, own = _checkpoints_at(record, context)
    env = {
        "KUBEFLOW_TRAINER_SERVER_URL": f"{context.url}/api/v1/worker/kubeflow/{worker.id}",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": f"{checkpoints}/{TOKEN}{record.id}",
        **spec.envs,
        **_authorities_of(f"{checkpoints}/{AUTHORITIES}{record.id}", context),
        **_torchrun_variables(state, record, worker, context),
        **_stretto_variables(state, record, worker, context),
        "STRETTO_CHECKPOINT_DIR": checkpoints,
        **_checkpoints_of(spec),
        **_lr_scaling_of(spec),
        **_latency_of(spec),
        **_task_of(state, record),
        **_fetcher_of(spec),
        "PYTHONUNBUFFERED": "1",
        SCRIPT: _script(record, worker),
    }
    return WorkerStart(
        id=worker.id,
        job=record.id,
        node=state.nodes[worker.node].name,
        gpus=worker.gpus,
        command=("/bin/sh", "-c", _fetch(record, worker) + PRELUDE, "sh", *shell_of(spec.run)),
        env=env,
        cwd=str(context.workdirs / spec.workdir) if spec.workdir and not spec.upload else "",
        grace_s=spec.grace_period_s,
        name=spec.name,
        cpus=(spec.resources.cpus or 0.0) / spec.gpus * len(worker.gpus),
        memory_gb=(spec.resources.memory_gb or 0.0) / spec.gpus * len(worker.gpus),
        asks={name: asks for name, asks in (("slurm", spec.slurm), ("kubernetes", spec.kubernetes)) if asks},
        image=spec.image,
        account=_account_of(record, context),
        master=_peers_of(record, worker)[0].id,
        own=own,
    )


def _checkpoints_at(record: JobRecord, context: WorkerContext) -> tuple[str, tuple[str, ...]]:
    """Where the checkpoints of a job are, and of these directories the one that is its own, if one is.

    Most jobs name none, and workers start by the thousand: a path of them is only text.
    """
    spec = record.spec
    if not (spec.checkpoint and spec.checkpoint.dir):
        directory = f"{context.checkpoints}/{record.id}"
        return directory, (directory,)
    named = Path(spec.checkpoint.dir)
    own = () if named.is_absolute() else tuple(str(context.checkpoints / part) for part in named.parts[:1])
    return str(context.checkpoints / named), own


async def with_belongings(start: WorkerStart, record: JobRecord, context: WorkerContext) -> WorkerStart:
    """The worker with the values of the secrets that its job names, read just now; its upload is there.

    Raises StartRefused where one is gone, and NotNow where the service has not the key that opens them.
    """
    asked, upload = record.spec.secrets, record.spec.upload
    if upload is not None and context.uploads is not None:
        await asyncio.to_thread(context.uploads.check_start, record.user, upload)
    if not asked or context.secrets is None:
        return start
    values = await asyncio.to_thread(context.secrets.opened, record.user, asked)
    return replace(start, secrets=values)


def _peers_of(record: JobRecord, worker: Worker) -> list[Worker]:
    """Workers that begin together, by rank; beside those that train already only the newcomer counts."""
    if not record.members.have_begun:
        return list(record.workers.values())
    return [peer for peer in record.workers.values() if peer.has_trained or peer.id == worker.id] or [worker]


def _torchrun_variables(
    state: State, record: JobRecord, worker: Worker, context: WorkerContext
) -> dict[str, str]:
    """What `torchrun` would set: this worker's place among those that begin with it."""
    peers = _peers_of(record, worker)
    rank = next((index for index, peer in enumerate(peers) if peer.id == worker.id), 0)
    on_node = [peer for peer in peers if peer.node == worker.node]
    local_rank = next((index for index, peer in enumerate(on_node) if peer.id == worker.id), 0)
    nodes = list(dict.fromkeys(peer.node for peer in peers))
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(len(peers)),
        "LOCAL_WORLD_SIZE": str(len(on_node)),
        "GROUP_RANK": str(nodes.index(worker.node)),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(len(peers)),
        "MASTER_ADDR": state.nodes[peers[0].node].address or "127.0.0.1",
        "MASTER_PORT": str(context.port(f"{record.id}.{record.attempt}")),
        "TORCHELASTIC_RUN_ID": record.id,
        "TORCHELASTIC_RESTART_COUNT": str(max(record.attempt - 1, 0)),
        "TORCHELASTIC_MAX_RESTARTS": str(record.spec.restart.max),
    }


def _stretto_variables(
    state: State, record: JobRecord, worker: Worker, context: WorkerContext
) -> dict[str, str]:
    """What the SDK, and whatever else runs in the job, may know of it and of the service."""
    node = state.nodes[worker.node]
    return {
        "STRETTO_JOB_ID": record.id,
        "STRETTO_JOB_NAME": record.spec.name,
        "STRETTO_WORKER_ID": worker.id,
        "STRETTO_GENERATION": str(record.members.number + 1),
        "STRETTO_URL": context.url,
        "STRETTO_TOKEN": context.token(record.id),
        "STRETTO_GPUS_PER_WORKER": str(len(worker.gpus)),
        "STRETTO_GPU_TYPE": node.gpu_type,
        "STRETTO_NODE": node.name,
        "STRETTO_NODE_ADDRESS": node.address or "127.0.0.1",
        "STRETTO_RESTARTS": str(max(record.attempt - 1, 0)),
        "STRETTO_GRACE_S": f"{record.spec.grace_period_s:g}",
    }


def _authorities_of(file: str, context: WorkerContext) -> dict[str, str]:
    """The authorities that programs of the job verify the service by, as a text and in a file."""
    if not context.authorities:
        return {}
    return {
        "STRETTO_CA_CERTIFICATES": context.authorities,
        "STRETTO_CA_FILE": file,
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": file,
    }


def _account_of(record: JobRecord, context: WorkerContext) -> Account | None:
    if context.accounts is None:
        return None
    try:
        return context.accounts.of(record.user)
    except InputError as wrong:
        raise StartRefused(str(wrong)) from None


def _checkpoints_of(spec: JobSpec) -> dict[str, str]:
    """How often a job is to save its state, where its file says so."""
    every_s = spec.checkpoint.every_s if spec.checkpoint else None
    return {} if every_s is None else {"STRETTO_CHECKPOINT_S": f"{every_s:g}"}


def _lr_scaling_of(spec: JobSpec) -> dict[str, str]:
    """How the learning rate follows the batch, where the file says it by a rule that the SDK has."""
    rule = spec.batch.lr_scaling
    return {"STRETTO_LR_SCALING": rule} if rule in LR_SCALINGS else {}


def _latency_of(spec: JobSpec) -> dict[str, str]:
    """Within which a job that serves is to answer."""
    return {} if spec.serving is None else {"STRETTO_LATENCY_S": repr(spec.serving.latency_s)}


def _task_of(state: State, record: JobRecord) -> dict[str, str]:
    """Which task of an array this is, in our words and in those of scripts that were made for sbatch."""
    if record.index is None:
        return {}
    index, count = str(record.index), str(len(state.relations.jobs_of(record.array)))
    return {
        "STRETTO_ARRAY_ID": record.array,
        "STRETTO_ARRAY_INDEX": index,
        "STRETTO_ARRAY_COUNT": count,
        "SLURM_ARRAY_JOB_ID": record.array,
        "SLURM_ARRAY_TASK_ID": index,
        "SLURM_ARRAY_TASK_COUNT": count,
    }


def _fetch(record: JobRecord, worker: Worker) -> str:
    """What the shell does first for a job with an upload: it goes into its copy. "" for any other job."""
    if record.spec.upload is None:
        return ""
    # All nodes of a cluster may see one directory: each has a copy of its own there.
    copy = f"{COPY}{record.id}.{record.attempt}.{worker.node}"
    return FETCH.format(
        copy=quote(copy),
        python=quote(sys.executable),
        workdir=quote(record.spec.workdir),
        setups=SETUP_DIR,
        fetcher=FETCHER,
        failed=upload_fetcher.FAILED,
        why=upload_fetcher.WHY,
    )


def _fetcher_of(spec: JobSpec) -> dict[str, str]:
    """By what a worker fetches the job's upload, and which."""
    if spec.upload is None:
        return {}
    program = Path(upload_fetcher.__file__).read_text(encoding="utf-8")
    return {"STRETTO_UPLOAD": spec.upload.digest, FETCHER: program}


def _script(record: JobRecord, worker: Worker) -> str:
    """What the shell runs: the setup, once on every node of an attempt, then the command.

    The mark of a setup that is done lies where only this attempt can have put it. An agent older than the
    service names no such directory; the job's own is the next best place.
    """
    spec = record.spec
    run = in_place(spec.run)
    if not spec.setup:
        return run
    mark = f"{record.id}.{record.attempt}.{worker.node}"  # all nodes of a cluster may see one directory
    return SETUP.format(marks=SETUP_DIR, mark=quote(mark), setup=spec.setup) + run
