"""What bodies of requests and answers look like: the OpenAPI document is made of these."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stretto.jobfile.parts import LONGEST_SECRET_BYTES
from stretto.service.scheduling.job_serving import JobServing
from stretto.service.scheduling.job_speeds import JobSpeeds
from stretto.service.state.lender_records import LONGEST_GUARANTEE_S, LONGEST_NODE, MOST_NODES
from stretto.service.state.status import JobStatus

LARGEST_SUBMISSION = 1 << 20  # characters; a file has its scripts beside it, not in it
LARGEST_NUMBER = 2**53  # that every reader of JSON keeps exactly
MOST_GPUS = 1 << 20
MOST_SUBMISSIONS = 500  # of one batch; chosen: half a second of the service, with pauses for others

WRITE_ONLY: dict[str, Any] = {"writeOnly": True, "format": "password"}

Line = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
USER_NAME = r"^[\x21-\x7e]([\x20-\x7e]{0,62}[\x21-\x7e])?$"
UserName = Annotated[str, Field(pattern=USER_NAME)]
ShareCount = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,63}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]


class Asking(BaseModel):
    """A body of a request: keys that are not known are refused, and so are values of other types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Shown(BaseModel):
    """A body of an answer: it has these keys and no others."""

    model_config = ConfigDict(extra="forbid")


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


class Submission(Asking):
    """A job file, or one that a neighbouring system would take."""

    text: Annotated[str, Field(max_length=LARGEST_SUBMISSION)]
    name: Annotated[str, Field(max_length=255)] = "job file"  # its file's: of messages, and of its job
    job_name: Annotated[str, Field(max_length=255)] = ""  # of its job, whatever the file says
    workdir: Annotated[str, Field(max_length=4096)] = ""  # where it runs, if it does not say so itself
    # What it brings along, as `POST /api/v1/uploads` has named it; its workers begin in a copy
    upload: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""


class KeyedSubmission(Submission):
    """One of many submissions: the same key submits once, however often it is tried."""

    key: Annotated[str, Field(pattern=r"^[\x21-\x7e]{0,200}$")] = ""


class Batch(Asking):
    """Many submissions in one request, in their order. Each is taken or refused by itself."""

    jobs: Annotated[list[KeyedSubmission], Field(min_length=1, max_length=MOST_SUBMISSIONS)]


class Sizes(Asking):
    """Other bounds for the number of GPUs."""

    min_gpus: Annotated[int, Field(ge=1, le=MOST_GPUS)]
    max_gpus: Annotated[int, Field(ge=1, le=MOST_GPUS)]


class Priority(Asking):
    """Another priority; larger is sooner."""

    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)]


class Because(Asking):
    """Why a user does something, for later questions."""

    why: Line = ""


class Bounds(Asking):
    """The bounds of a queue; no quota is no bound. What is not said stays as it is."""

    quota_gpus: Annotated[int, Field(ge=0, le=MOST_GPUS)] | None = None
    borrow_gpus: Annotated[int, Field(ge=0, le=MOST_GPUS)] = 0
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    users: Annotated[list[UserName], Field(max_length=1000)] | None = None  # who may use it; null: everybody
    shares: ShareCount = 1.0  # beside those of its siblings
    parent: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,63}$")] = ""  # the queue that it is a part of


class SecretAsked(Asking):
    """What a secret is from now on. No answer, list or log has it."""

    value: Annotated[str, Field(min_length=1, max_length=LONGEST_SECRET_BYTES, json_schema_extra=WRITE_ONLY)]


class UploadFile(Asking):
    """A file, a symbolic link within the tree, or an empty folder."""

    path: Annotated[str, Field(min_length=1, max_length=1024)]  # from the root of the tree
    bytes: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] = 0
    parts: Annotated[list[Digest], Field(max_length=100_000)] = []  # SHA-256 of each MiB
    executable: bool = False
    target: Annotated[str, Field(max_length=1024)] = ""  # of a link
    folder: bool = False


class UploadAsked(Asking):
    """All that a job brings along."""

    entries: Annotated[list[UploadFile], Field(min_length=1, max_length=10_000)]


class PriorityClassAsked(Asking):
    """A named priority."""

    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
    default: bool = False  # of jobs that say nothing
    preempts: Literal["lower", "never"] = "lower"


class UserShares(Asking):
    """Shares of a user, beside the other users of each queue."""

    shares: ShareCount


class ReservationAsked(Asking):
    """GPUs that are to be kept: a number of a type, or all of some nodes. Times are Unix times."""

    start: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)] | None = None  # None: now
    end: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
    gpu_type: Annotated[str, Field(max_length=128)] = ""
    gpus: Annotated[int, Field(ge=0, le=MOST_GPUS)] = 0
    nodes: Annotated[list[Annotated[str, Field(max_length=255)]], Field(max_length=1000)] = []
    user: Annotated[str, Field(max_length=128)] = ""
    queue: Annotated[str, Field(max_length=63)] = ""


class LenderAsked(Asking):
    """The nodes of a lender."""

    nodes: Annotated[
        list[Annotated[str, Field(max_length=LONGEST_NODE)]], Field(min_length=1, max_length=MOST_NODES)
    ]
    headroom: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0  # share that it never lends
    guarantee_s: Annotated[float, Field(ge=0, le=LONGEST_GUARANTEE_S, allow_inf_nan=False)] = 0.0  # 0: none


class Need(Asking):
    """What a lender needs of its nodes: a number of them, or a share."""

    nodes: Annotated[float, Field(ge=0, le=MOST_GPUS, allow_inf_nan=False)] | None = None
    share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None


class TokenAsked(Asking):
    """A token that is to be made."""

    name: Name
    user: UserName
    role: Literal["user", "operator", "admin"] = "user"
    scope: Literal["all", "read", "jobs"] = "all"  # what of the role it opens
    expires_in_s: Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)] | None = None  # None: never


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


class PriorityClass(BaseModel):
    """A named priority. More keys may come."""

    name: str
    value: int
    default: bool
    preempts: str


class PriorityClasses(BaseModel):
    """Every class, the highest first."""

    priority_classes: list[PriorityClass]


class Secret(Shown):
    """A secret without its value."""

    name: str
    user: str  # whose it is
    set_unix_s: float
    jobs: list[str]  # that have not ended and name it


class SecretList(Shown):
    """Secrets by owner and name."""

    secrets: list[Secret]


class UploadBounds(Shown):
    """How much may be uploaded, in bytes."""

    most_bytes: int  # of one upload
    most_file_bytes: int  # of one file
    most_user_bytes: int  # of all uploads of one user
    keep_s: float  # after the end of the last job that names it


class UploadOffered(Shown):
    """An upload that the service knows now."""

    digest: str  # which a submission names
    files: int
    bytes: int
    missing: list[str]  # parts that are to be sent


class UploadShown(BaseModel):
    """What a job has brought along; keys that do not hold are left out."""

    entries: list[UploadFile]


class ProblemShown(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str = ""
    job: str = ""  # that an idempotency key belongs to, where it was used for another job file


class Outlook(Shown):
    """What a policy that plans for deadlines expects of a job."""

    promise: str  # whether the deadline can be kept: yes, at risk, no; "": it has none ahead
    deadline_in_s: float | None  # from now: the deadline that this is about
    end_in_s: float | None  # with yes the latest end, else the earliest
    lease_left_s: float | None  # how long what it holds is its own; None: it holds no lease
    suspension_s: float  # what a stop and a later start cost it
    suspension: str  # measured, or assumed


class Attempt(Shown):
    """One life of a job's workers."""

    number: int
    began_s: float  # seconds since the log began
    began_unix_s: float
    why: str  # it had to begin, in words; "": it is the first


@dataclass(frozen=True, kw_only=True)
class Described(JobStatus):
    """A job, with its workers' size, what policies are shown of its speed, and where the policy put it."""

    gpus_per_worker: dict[str, int]  # by GPU type of the cluster on which it may run
    speeds: JobSpeeds | None  # None: it has ended, or no node has been seen
    serving: JobServing | None  # None: its purpose is another one
    outlook: Outlook | None  # None: the policy says nothing of it
    standing: str  # among the others, in words of the policy; "": it says nothing
    budgets: list[str]  # that warn, or hold it, in words
    submitted_unix_s: float
    ended_unix_s: float | None
    attempts: list[Attempt]  # the newest ones, each with the reason for which it began


@dataclass(frozen=True, kw_only=True)
class Changed(JobStatus):
    """A job that was changed; of an array the first of its tasks that has not ended."""

    ids: list[str]  # all that were changed


@dataclass(frozen=True, kw_only=True)
class Accepted(JobStatus):
    """A job that is ours."""

    ids: list[str]  # all jobs of an array; else its own
    warnings: list[str]  # what of the file means nothing here
    outlook: Outlook | None  # of a job with a deadline, under a policy that plans for them


class Outcome(Shown):
    """What became of one submission of a batch."""

    status: int  # as its own request would have: 201 taken, 200 known by its key, else refused
    id: str  # "": it was refused
    array: str  # its id, for an array; else ""
    ids: list[str]  # all jobs of an array; else its own
    warnings: list[str]  # what of the file means nothing here
    detail: str  # why it was refused; else ""


class Outcomes(Shown):
    """What became of the submissions of a batch, in their order."""

    jobs: list[Outcome]


class Session(Shown):
    """As which user a browser acts, and what it looks at."""

    user: str
    role: str
    scope: str  # what of the role the token opens: all, read, jobs
    is_open: bool  # without a token: everybody on this machine is an admin
    policy: str
    version: str
    pace: float  # of the service's clock, in times of real time: an emulated one may be faster
    now_unix_s: float  # that it shows


class JobPage(Shown):
    """Some jobs, by submission."""

    jobs: list[JobStatus]
    next: str | None  # the `after` of the next page


class LogPiece(Shown):
    """A part of what a worker has written."""

    worker: str
    text: str
    offset: int
    next_offset: int
    complete: bool


class GpuUse(Shown):
    """What one GPU has done in the last half minute."""

    busy: float | None  # share of the time in which anything ran on it; null: it does not tell
    memory_gb: float  # in use
    memory_total_gb: float


class Node(Shown):
    """A machine."""

    name: str
    gpu_type: str
    gpus: int
    free: int
    ending: int  # GPUs that no job is to hold, and on which workers have not ended yet
    others: int  # GPUs that work holds which is not ours
    cpus: int
    memory_gb: float
    address: str
    up: bool
    closed: bool
    taints: list[str]  # for which alone it is closed: jobs that tolerate all of them may use it
    drained: bool
    lender: str  # to which it belongs; "": to none
    on_loan: bool
    why: str
    zone: str  # where it is in the network; "": unknown
    rack: str
    nvlink_domain: str
    jobs: dict[str, int]  # GPUs by job; one's own only, for users
    busy: float | None  # mean of its GPUs, of late; null: not known
    gpu_use: list[GpuUse | None]  # of each GPU; empty: nothing is known of any


class Nodes(Shown):
    """Every machine."""

    nodes: list[Node]


class Lender(Shown):
    """A lender of nodes. Times are seconds."""

    name: str
    nodes: list[str]
    headroom: float  # share of its nodes that it never lends
    need: float | None  # nodes that it needs itself; null: it has not said
    up: int  # of its nodes
    on_loan: int  # nodes that jobs may use
    in_its_hands: int  # nodes that are with it, free of jobs
    usable: list[str]  # of these, nodes that stay with it; the first are lent first where it needs fewer
    lacks: int  # nodes that it needs and has not
    waits_s: float | None  # since when it lacks them; null: it does not
    guarantee_s: float | None  # the longest that it should wait; null: none is stated
    late: bool  # it waits for longer than that
    waits: int  # that are over
    waits_missed: int  # of these, longer than the guarantee of that time
    latest_wait_s: float | None
    longest_wait_s: float
    failure: str  # why its nodes cannot change hands now; "": they can


class Lenders(Shown):
    """Every lender."""

    lenders: list[Lender]


class Queue(Shown):
    """A queue, and what is in it."""

    name: str
    quota_gpus: int | None
    borrow_gpus: int
    weight: float
    users: list[str] | None  # who may use it; null: everybody
    is_default: bool  # of jobs that name no queue
    shares: float
    parent: str
    jobs: int  # that have not ended
    waiting: int
    held_gpus: int


class Reservation(Shown):
    """GPUs that are kept for some users; times are Unix times."""

    name: str
    start: float
    end: float
    gpu_type: str
    gpus: int
    nodes: list[str]
    user: str
    queue: str


class Reservations(Shown):
    """All that have not ended."""

    reservations: list[Reservation]


class Queues(Shown):
    """Every queue that has bounds or jobs."""

    queues: list[Queue]


class ShareRow(Shown):
    """A queue or a user in the tree of shares."""

    name: str
    kind: Literal["queue", "user"]
    queues: list[str]  # that it is in, the outermost first
    shares: float  # beside those of its siblings
    entitled: float  # part of everything, from 0 to 1
    entitled_gpus: float  # of those on nodes that are up
    quota_gpus: int | None
    held_gpus: int  # now
    usage_gpu_hours: float  # decayed, in GPUs of speed 1
    borrowed_gpus: float  # held beyond the quota, or beyond what it is entitled to where there is none
    factor: float  # 2^(-usage/share) among its siblings: 1 for who has had nothing


class Shares(Shown):
    """What each account is entitled to: each row is followed by those below it."""

    orders_jobs: bool  # whether it says who comes first
    half_life_s: float  # of usage
    shares: list[ShareRow]


class WebhookSecrets(Shown):
    """What the webhooks of a user are signed with."""

    secrets: list[str]  # whsec_ and base64; two while one is replaced, the newest first


class TokenShown(Shown):
    """A token, without its secret. Times are Unix times."""

    name: str
    user: str
    role: str
    scope: str  # what of the role it opens: all, read, jobs
    expires: float | None  # None: never
    last_used: float | None  # None: never


class TokenMade(TokenShown):
    """A new token: its secret is shown this once, and nowhere kept."""

    token: str


class Tokens(Shown):
    """Every token that opens something."""

    tokens: list[TokenShown]


class Policies(Shown):
    """Installed policies."""

    policies: list[str]
    current: str


class Status(Shown):
    """The process answers."""

    status: str


class Ready(Status):
    """It can take jobs."""

    seq: int
    skipped_events: int  # of the log that could not be folded: what they said is left out of the state
    remark: str  # what somebody should look after in the cluster as a whole; "" for nothing


class Version(Shown):
    """Which service this is."""

    version: str
