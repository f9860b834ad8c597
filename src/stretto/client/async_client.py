"""A client of the service's interface. `Client` in `client.py` is made from this file, without its awaits."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import httpx

from stretto.client import patience
from stretto.client.async_failover import AsyncFailover
from stretto.client.async_waiting import apart, sleep
from stretto.client.errors import NothingFollows, ServiceError, Untrusted
from stretto.client.messages import as_part, batches, error_of, last_lines, object_of, strange, submission
from stretto.client.patience import Outage
from stretto.client.retry import CONNECT_S
from stretto.client.target import target_of, unanswered
from stretto.client.tokens import PLAIN
from stretto.client.upload_tree import upload_tree
from stretto.errors import InputError

ANSWER_S = 70.0  # longer than any wait that we ask for
TAIL_BYTES = 1 << 20  # of a log, in which its last lines are looked for; the most that the service gives
LOOK_S = 0.5  # between two looks whether an attempt has begun; chosen
STREAM_AGAIN_S = 0.1  # before a stream that has ended is asked for again; chosen


class AsyncClient:
    """A connection to a service; a context manager.

    url: of the service, or several with commas between them, of a leader and its standbys. Else it is from
    STRETTO_URL, else from the user's context (`stretto.client.contexts`), else of this machine. token: else
    from STRETTO_TOKEN, else from the file that STRETTO_TOKEN_FILE names, or None for none. Where the context
    says the URL, it says the token, too. patience_s: for how long waiting and following outlast a service
    that is away; else from STRETTO_PATIENCE_S, else ten minutes. say: is told of that, a line when it begins
    and one when it is over. ca_file: certificates of the authorities that certify a service with TLS. Else it
    is the file that STRETTO_CA_FILE names, else that of the context, else those of the system count. What the
    service says is wrong with a request raises InputError, anything else ServiceError.
    """

    def __init__(
        self,
        url: str = "",
        token: str | None = "",
        patience_s: float | None = None,
        say: Callable[[str], None] = lambda _: None,
        ca_file: str = "",
    ) -> None:
        self.patience_s, self.say = patience.patience_s() if patience_s is None else patience_s, say
        self.target = target = target_of(url, token, ca_file)
        self.url, self.addresses, self.verify = target.url, target.addresses, target.verify
        transport: httpx.AsyncBaseTransport = httpx.AsyncHTTPTransport(verify=target.verify, trust_env=False)
        timeout = httpx.Timeout(ANSWER_S)
        if len(target.addresses) > 1:
            transport = AsyncFailover(target.addresses, transport)
            timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        self.http = httpx.AsyncClient(
            base_url=target.addresses[0],
            headers=target.headers,
            timeout=timeout,
            trust_env=False,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.aclose()

    async def submit(
        self, job: Path | str, key: str = "", workdir: str = "", upload: Path | str = "", name: str = ""
    ) -> dict[str, Any]:
        """Submit a job file (a Path) or the text of one; the job as the service shows it.

        key: of idempotency; the same key gives the same job again. workdir: where a job runs whose file does
        not say it; "": the service chooses. upload: a directory that the job brings along. Its workers begin
        in a copy, and workdir is a folder in it. name: of the job, whatever its file says. With several
        addresses a standby may be about to lead: that is waited for, and what is submitted again meanwhile is
        one job.
        """
        key = self._submission_key(key)
        headers = {"idempotency-key": key} if key else {}
        content = await apart(submission, job, workdir, name)
        if upload:
            content["upload"] = (await self.upload(Path(upload)))["digest"]
        return await self._ask_any("POST", "/api/v1/jobs", json=content, headers=headers)

    async def submit_all(
        self, jobs: Sequence[Path | str], key: str = "", workdir: str = ""
    ) -> list[dict[str, Any]]:
        """Submit many job files (Paths) or texts in few requests; what became of each, in their order.

        Each is taken or refused by itself. `status` is 201 for one that was taken, 200 for one that its key
        had made before. Any other was refused, and its `detail` says why. `id`, `array`, `ids` and `warnings`
        are as `submit` gives them. All files are read before anything is submitted. key: of idempotency; each
        has its own, with its place behind it. workdir: as for `submit`.
        """
        key = self._submission_key(key)
        contents = [await apart(submission, job, workdir) for job in jobs]
        if key:
            contents = [{**content, "key": f"{key}.{place}"} for place, content in enumerate(contents)]
        outcomes: list[dict[str, Any]] = []
        for together in batches(contents):
            outcomes += (await self._ask_any("POST", "/api/v1/jobs/batch", json={"jobs": together}))["jobs"]
        return outcomes

    async def upload(self, tree: Path) -> dict[str, Any]:
        """Upload a directory, without what its ignore file names; its digest, files and bytes.

        `.strettoignore` is read as git reads `.gitignore`, which counts where there is none. Only what the
        service has not yet is sent. Raises InputError for what is too large or cannot be uploaded.
        """
        ask = self._ask_any
        packed = await apart(upload_tree, tree, await ask("GET", "/api/v1/uploads"))
        headers = {"content-type": "application/json"}
        offered = await ask("POST", "/api/v1/uploads", content=packed.manifest.content, headers=headers)
        packs = packed.packs(offered.pop("missing"))
        while pack := await apart(next, packs, b""):
            await ask("POST", f"/api/v1/uploads/{offered['digest']}/parts", content=pack)
        return offered

    async def jobs(
        self, everybody: bool = False, ended: bool = False, newest: bool = False, user: str = ""
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Jobs by submission, or the newest first, page after page as they are taken.

        user: whose; "": one's own. Those of others are for operators, as `everybody` is.
        """
        after: str | None = ""
        while after is not None:
            asked: dict[str, Any] = {"everybody": everybody, "ended": ended, "newest": newest, "after": after}
            asked |= {"user": user} if user else {}
            page = await self.ask("GET", "/api/v1/jobs", params=asked)
            for job in page["jobs"]:
                yield job
            after = page["next"]

    async def describe(self, job: str, patiently: bool = False) -> dict[str, Any]:
        """One job. patiently: a service that is away for a while is waited for."""
        ask = self._patiently if patiently else self.ask
        return await ask("GET", f"/api/v1/jobs/{as_part(job)}")

    async def wait(self, job: str) -> dict[str, Any]:
        """One job, once it has ended. A service that is away for a while is waited for."""
        while True:
            found = await self._patiently("GET", f"/api/v1/jobs/{as_part(job)}/wait", params={"wait_s": 30})
            if found["ended_s"] is not None:
                return found
            job = found["id"]  # whoever comes later may have the same name

    async def change(self, job: str, verb: str, **values: Any) -> dict[str, Any]:
        """cancel, hold, release, requeue, or scale with min_gpus and max_gpus."""
        return await self.ask("POST", f"/api/v1/jobs/{as_part(job)}/{verb}", json=values or None)

    async def log(
        self,
        job: str,
        rank: int = 0,
        attempt: int = 0,
        follow: bool = False,
        tail: int | None = None,
    ) -> AsyncGenerator[str, None]:
        """What a worker has written, piece by piece. tail: of what is there, only so many lines at the end.

        With `follow` until it has ended. Where no attempt is named, it follows all attempts from the present
        one on, until the job has ended. Where the job is still to start, it waits for that.
        """
        wanted, is_known = attempt, False
        while True:
            described = await self.describe(job, patiently=is_known)
            job, is_known = described["id"], True  # whoever comes later may have the same name
            has_ended, latest = described["ended_s"] is not None, described["attempt"]
            if follow and not has_ended and latest < max(wanted, 1):
                await self._until_changed(job)
                continue
            try:
                of_worker = self._log_of_worker(job, rank, wanted or latest, follow, tail)
                tail = None  # of the attempts that follow everything is new
                async with aclosing(of_worker) as pieces:
                    async for piece in pieces:
                        yield piece
            except InputError:  # none of this rank, in this attempt
                if not follow or has_ended:
                    raise
            if attempt or not follow or has_ended:
                return
            wanted = max(wanted, latest) + 1
            while (described := await self.describe(job, patiently=True))["attempt"] < wanted:
                if described["ended_s"] is not None:
                    return
                await self._until_changed(job)

    async def _until_changed(self, job: str) -> None:
        """Wait a little, and no longer than until it has ended."""
        await self._patiently("GET", f"/api/v1/jobs/{as_part(job)}/wait", params={"wait_s": LOOK_S})

    async def _log_of_worker(
        self, job: str, rank: int, attempt: int, follow: bool, tail: int | None
    ) -> AsyncGenerator[str, None]:
        offset = 0
        if tail is not None:
            asked = {"rank": rank, "attempt": attempt, "offset": -TAIL_BYTES, "limit": TAIL_BYTES}
            end = await self._patiently("GET", f"/api/v1/jobs/{as_part(job)}/log", params=asked)
            offset = end["next_offset"]
            if lines := last_lines(end["text"], tail):
                yield lines
        while True:
            piece = await self._patiently(
                "GET",
                f"/api/v1/jobs/{as_part(job)}/log",
                params={
                    "rank": rank,
                    "attempt": attempt,
                    "offset": offset,
                    "wait_s": 20.0 if follow else 0.0,
                },
            )
            if piece["text"]:
                yield piece["text"]
            at_end = piece["next_offset"] == offset
            offset = piece["next_offset"]
            if at_end and (piece["complete"] or not follow):
                return

    async def events(
        self, job: str = "", after: int = 0, follow: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        """What has happened to a job, or to everything; with `follow` also what will.

        Each has `seq`, `at_s`, `kind` and what its kind says. after: the last `seq` that is known. A stream
        that breaks off is taken up again, and so is one that a service ends because it ends itself.
        """
        path = f"/api/v1/jobs/{as_part(job)}/events" if job else "/api/v1/events"
        outage = Outage(self.patience_s, self.say)
        while True:
            try:
                async with aclosing(self._stream(path, after, follow)) as stream:
                    async for event in stream:
                        after = int(event["seq"])
                        outage.end()
                        path = f"/api/v1/jobs/{event['job']}/events" if job and "job" in event else path
                        yield event
                if not follow:
                    return
                await sleep(STREAM_AGAIN_S)
            except NothingFollows:
                outage.end()
                return
            except httpx.TransportError as broken:
                failure = unanswered(self.target, broken)
                if not follow or isinstance(failure, Untrusted):
                    raise failure from None
                await sleep(outage.pause_s(failure))
            except ServiceError as failed:
                if not follow:
                    raise
                await sleep(outage.pause_s(failed))

    async def _stream(self, path: str, after: int, follow: bool) -> AsyncGenerator[dict[str, Any], None]:
        params = {"after": after, "follow": follow}
        # A client that names the last event it has is told of the end, too.
        headers = {"last-event-id": str(after)} if follow and after > 0 else {}
        async with self.http.stream("GET", path, params=params, headers=headers) as answer:
            if answer.status_code == httpx.codes.NO_CONTENT:
                raise NothingFollows
            if not answer.is_success:
                await answer.aread()
                raise error_of(answer)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise strange(answer, "a stream of events")
            seq = after
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    seq = int(line[4:])
                elif line.startswith("data: "):
                    yield {"seq": seq, **json.loads(line[6:])}

    async def explain(self, job: str) -> dict[str, Any]:
        """Why a job waits, which jobs hold what it waits for, and what would start it."""
        return await self.ask("GET", f"/api/v1/jobs/{as_part(job)}/explain")

    async def dry_run(self, job: Path | str, workdir: str = "", name: str = "") -> dict[str, Any]:
        """Where, when and at what size a job would start; nothing is submitted. name: as for `submit`."""
        content = await apart(submission, job, workdir, name)
        return await self.ask("POST", "/api/v1/jobs/dry-run", json=content)

    async def whatif(self, **asks: Any) -> dict[str, Any]:
        """What would become of the open jobs, as it is and with another policy, more nodes or a job more.

        asks: `policy`, `settings` (by SPACE.KEY), `nodes` (each with gpu_type, gpus, count), `job` (the text
        of a job file), `without` (ids of jobs), `draws`.
        """
        return await self.ask("POST", "/api/v1/whatif", json=asks)

    async def queues(self) -> list[dict[str, Any]]:
        """Every queue with its bounds and what it holds."""
        return await self._listed("/api/v1/queues", "queues")

    async def set_queue(self, name: str, **bounds: Any) -> dict[str, Any]:
        """Give a queue bounds: `quota_gpus` (None: none), `borrow_gpus`, `weight`, `users` (None: all users).

        What is not given stays as it is.
        """
        return await self.ask("PUT", f"/api/v1/queues/{as_part(name)}", json=bounds)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue that nothing is in. Raises Refused while jobs or other queues are in it."""
        await self.ask("DELETE", f"/api/v1/queues/{as_part(name)}")

    async def priority_classes(self) -> list[dict[str, Any]]:
        """Named priorities, the highest first."""
        return await self._listed("/api/v1/priority-classes", "priority_classes")

    async def set_priority_class(self, name: str, **values: Any) -> dict[str, Any]:
        """value, and default or preempts (lower or never)."""
        return await self.ask("PUT", f"/api/v1/priority-classes/{as_part(name)}", json=values)

    async def delete_priority_class(self, name: str) -> None:
        """No new job is of this class."""
        await self.ask("DELETE", f"/api/v1/priority-classes/{as_part(name)}")

    async def secrets(self) -> list[dict[str, Any]]:
        """One's own secrets without their values; for administrators those of all users."""
        return await self._listed("/api/v1/secrets", "secrets")

    async def set_secret(self, name: str, value: str) -> dict[str, Any]:
        """A secret of one's own is this from now on; the answer does not have the value."""
        return await self.ask("PUT", f"/api/v1/secrets/{as_part(name)}", json={"value": value})

    async def delete_secret(self, name: str, user: str = "") -> None:
        """Delete a secret. user: whose; "": one's own. Those of others are for administrators."""
        asked = {"user": user} if user else {}
        await self.ask("DELETE", f"/api/v1/secrets/{as_part(name)}", params=asked)

    async def shares(self) -> dict[str, Any]:
        """Queues and users as a tree: what they are entitled to, hold and have had."""
        return await self.ask("GET", "/api/v1/shares")

    async def set_user_shares(self, user: str, shares: float) -> dict[str, Any]:
        """Give a user shares, beside the other users of each queue."""
        return await self.ask("PUT", f"/api/v1/shares/users/{as_part(user)}", json={"shares": shares})

    async def reservations(self) -> list[dict[str, Any]]:
        """GPUs that are kept for some users, as long as they are."""
        return await self._listed("/api/v1/reservations", "reservations")

    async def reserve(self, name: str, **asks: Any) -> dict[str, Any]:
        """Keep GPUs: `start`, `end` (Unix times), `gpu_type` and `gpus` or `nodes`, `user` or `queue`."""
        return await self.ask("PUT", f"/api/v1/reservations/{as_part(name)}", json=asks)

    async def unreserve(self, name: str) -> None:
        """Give up what is kept under a name."""
        await self.ask("DELETE", f"/api/v1/reservations/{as_part(name)}")

    async def lenders(self) -> list[dict[str, Any]]:
        """Every lender by name, with what is on loan and how long it waits for its nodes."""
        return await self._listed("/api/v1/lenders", "lenders")

    async def set_lender(self, name: str, **values: Any) -> dict[str, Any]:
        """Let nodes belong to a lender: `nodes`, `headroom`, `guarantee_s`."""
        return await self.ask("PUT", f"/api/v1/lenders/{as_part(name)}", json=values)

    async def delete_lender(self, name: str) -> None:
        """Let the nodes of a lender belong to the cluster."""
        await self.ask("DELETE", f"/api/v1/lenders/{as_part(name)}")

    async def report_need(
        self, name: str, nodes: float | None = None, share: float | None = None
    ) -> dict[str, Any]:
        """Say how many of its nodes a lender needs itself, or which share of them, from 0 to 1.

        The answer is the lender: `lacks` is 0 once it has them.
        """
        values = {"nodes": nodes, "share": share}
        given = {key: value for key, value in values.items() if value is not None}
        return await self.ask("POST", f"/api/v1/lenders/{as_part(name)}/need", json=given)

    async def tokens(self) -> list[dict[str, Any]]:
        """Every token by name, never the token itself."""
        return await self._listed("/api/v1/tokens", "tokens")

    async def make_token(
        self, name: str, user: str, role: str, expires_in_s: float | None = None, scope: str = "all"
    ) -> dict[str, Any]:
        """Make a token, for so many seconds or for ever; the answer's `token` is shown this once.

        scope: what of the role it opens: all, read (what changes nothing) or jobs (and reading).
        """
        asked: dict[str, Any] = {"name": name, "user": user, "role": role}
        if scope != "all":  # which an older service does not know
            asked["scope"] = scope
        if expires_in_s is not None:
            asked["expires_in_s"] = expires_in_s
        return await self.ask("POST", "/api/v1/tokens", json=asked)

    async def revoke_token(self, name: str) -> None:
        """Let a token open nothing any more."""
        await self.ask("DELETE", f"/api/v1/tokens/{as_part(name)}")

    async def nodes(self) -> list[dict[str, Any]]:
        """Every node with what is held there."""
        return await self._listed("/api/v1/nodes", "nodes")

    async def close_node(self, node: str, closed: bool, drain: bool = False, why: str = "") -> dict[str, Any]:
        """Cordon a node, drain it, or open it again."""
        verb = "uncordon" if not closed else "drain" if drain else "cordon"
        return await self.ask("POST", f"/api/v1/nodes/{as_part(node)}/{verb}", json={"why": why})

    async def usage(
        self, *by: str, start: str = "", end: str = "", zone: str = "UTC"
    ) -> list[dict[str, Any]]:
        """GPU time by user, queue, type, job and day, week or month, between dates or times of a zone."""
        asked = {"by": list(by) or ["user"], "from": start, "to": end, "zone": zone}
        return await self._listed("/api/v1/usage", "usage", params=asked)

    async def idle_holders(self) -> dict[str, Any]:
        """Jobs whose GPUs have hardly done anything for a while, and by which rule."""
        return await self.ask("GET", "/api/v1/usage/idle")

    async def webhook_secrets(self) -> list[str]:
        """What your webhooks are signed with, the newest first."""
        answer = await self.ask("GET", "/api/v1/webhook-secrets")
        return list(answer["secrets"])

    async def gpu_prices(self) -> list[dict[str, Any]]:
        """What an hour of a GPU costs, by type, from when on."""
        return await self._listed("/api/v1/gpu-prices", "gpu_prices")

    async def set_gpu_price(
        self, gpu_type: str, price: float, start: str = "", zone: str = "UTC"
    ) -> list[dict[str, Any]]:
        """Give an hour of a GPU of a type a price from a date or time on; all prices."""
        asked = {"price": price, "start": start, "zone": zone}
        path = f"/api/v1/gpu-prices/{as_part(gpu_type)}"
        answer = await self.ask("PUT", path, json=asked)
        return list(answer["gpu_prices"])

    async def budgets(self) -> list[dict[str, Any]]:
        """Every budget that counts your jobs, with what is used of it in this period."""
        return await self._listed("/api/v1/budgets", "budgets")

    async def set_budget(self, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Set a budget: gpu_hours or cost, period, zone, user, queue, warn, hold, running, notify."""
        return await self.ask("PUT", f"/api/v1/budgets/{as_part(name)}", json=dict(asked))

    async def delete_budget(self, name: str) -> None:
        """Let no job wait for a budget any more."""
        await self.ask("DELETE", f"/api/v1/budgets/{as_part(name)}")

    async def is_ready(self) -> bool:
        """Whether the service can take jobs now."""
        try:
            answer = await self.http.get("/readyz")
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    async def _listed(self, path: str, what: str, **request: Any) -> list[dict[str, Any]]:
        answer = await self.ask("GET", path, **request)
        return list(answer[what])

    @property
    def _has_standby(self) -> bool:
        """With several addresses, one of them may be about to lead."""
        return len(self.addresses) > 1

    def _submission_key(self, key: str) -> str:
        """The key of idempotency; one is made where a submission may have to be sent again."""
        if not PLAIN.fullmatch(key):
            raise InputError(f"--key must be letters, digits and signs of ASCII, got {key!r}")
        return key or (uuid4().hex if self._has_standby else "")

    async def _ask_any(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """As `ask`; a standby that is about to lead is waited for."""
        ask = self._patiently if self._has_standby else self.ask
        return await ask(method, path, **request)

    async def _patiently(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """As `ask`, over an outage of the service."""
        outage = Outage(self.patience_s, self.say)
        while True:
            try:
                answer = await self.ask(method, path, **request)
            except ServiceError as failure:
                await sleep(outage.pause_s(failure))
            else:
                outage.end()
                return answer

    async def ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """The JSON that the service answers with."""
        try:
            answer = await self.http.request(method, path, **request)
        except httpx.HTTPError as wrong:
            raise unanswered(self.target, wrong) from None
        if not answer.is_success:
            raise error_of(answer)
        return object_of(answer) if answer.content else {}
