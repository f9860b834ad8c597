"""Bodies of requests and answers about what was used, what it costs, and what may be used."""

from typing import Annotated, Literal

from pydantic import Field

from stretto.service.http.schemas import USER_NAME, Asking, Shown

# ── requests ──────────────────────────────────────────────────────────────────────────────────────


class GpuPriceAsked(Asking):
    """What an hour of a GPU of a type costs."""

    price: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
    start: Annotated[str, Field(max_length=64)] = ""  # a date or a time; "": this quarter of an hour
    zone: Annotated[str, Field(max_length=64)] = "UTC"  # of a start that does not say its own


class BudgetAsked(Asking):
    """So much for some jobs in each period: GPU-hours, or what they cost."""

    gpu_hours: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None
    cost: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None  # one of the two
    period: Literal["day", "week", "month"]
    zone: Annotated[str, Field(max_length=64)] = "UTC"  # in which periods begin
    user: Annotated[str, Field(pattern=USER_NAME)] | Literal[""] = ""  # "": of all users
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,63}$")] = ""  # with those in it; "": of all
    warn: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = 0.8  # share; null: never
    hold: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None  # likewise
    running: Literal["go-on", "stop"] = "go-on"  # jobs that run when it holds
    notify: Annotated[list[Annotated[str, Field(max_length=2048)]], Field(max_length=16)] = Field(default=[])


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


class UsageRow(Shown):
    """GPU time of one row; it has those of the first five keys that were asked for."""

    user: str | None = None
    queue: str | None = None
    type: str | None = None
    job: str | None = None
    period: str | None = None  # its first day, or its month
    jobs: int  # that have held GPUs
    gpus: int  # held now
    gpu_hours: float
    gpu_seconds: float  # the sum of the next four
    useful_gpu_seconds: float
    unsaved_gpu_seconds: float
    lost_gpu_seconds: float
    idle_gpu_seconds: float
    charged_gpu_seconds: (
        float  # with what jobs of this row made others lose, without what others made it lose
    )
    unpriced_gpu_seconds: (
        float | None
    )  # of these, of types and times without a price; null: there is no price
    cost: float | None  # of what is charged; null: there is no price


class Usage(Shown):
    """What GPUs were held for, and what that cost."""

    by: list[str]
    zone: str  # of the periods, and of dates without a zone
    from_: str | None = Field(alias="from")  # null: from the beginning
    to: str | None  # null: until now
    usage: list[UsageRow]


class IdleHolder(Shown):
    """A job whose GPUs have hardly done anything for a while."""

    job: str
    name: str
    user: str
    queue: str
    gpus: int
    gpu_type: str
    busy: float  # share of the last half minute, mean of its GPUs
    memory_gb: float  # of its GPUs, in use
    idle_s: float  # for how long so little
    idle_gpu_seconds: float  # GPUs that it holds now, for so long


class IdleHolders(Shown):
    """Jobs that hold GPUs which hardly do anything; for users, their own."""

    below: float  # share of the time
    after_s: float
    is_measured: bool  # false: no node says how busy its GPUs are
    idle: list[IdleHolder]  # those with most GPU time first


class GpuPrice(Shown):
    """What an hour of a GPU costs from a time on."""

    gpu_type: str
    price: float
    from_: str = Field(alias="from")


class GpuPrices(Shown):
    """Every price, also those of earlier and later times."""

    gpu_prices: list[GpuPrice]


class Budget(Shown):
    """A budget, and how it stands in its present period."""

    name: str
    user: str  # "": of all users
    queue: str  # with those in it; "": of all queues
    unit: Literal["gpu_hours", "cost"]
    amount: float
    period: str  # day, week or month
    zone: str
    warn: float | None  # share of the amount; null: never
    hold: float | None
    running: Literal["go-on", "stop"]
    used: float  # so far in this period
    share: float  # of the amount
    level: str  # warn, hold; "": neither
    from_: str = Field(alias="from")
    until: str  # when the next period begins
    waiting: int  # jobs that wait for it


class Budgets(Shown):
    """Every budget; for users, those that count jobs of theirs."""

    budgets: list[Budget]
