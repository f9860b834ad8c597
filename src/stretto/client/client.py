"""A client of the service's interface."""

import json
import os
import select
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote
from uuid import uuid4

import httpx

from stretto.client import contexts, patience, trust
from stretto.client.failover import CONNECT_S, Failover
from stretto.client.patience import Outage
from stretto.client.tokens import PLAIN, token_in
from stretto.model.errors import InputError, KeyTaken, StrettoError

USUAL_URL = "http://127.0.0.1:8700"
ANSWER_S = 70.0  # longer than any wait that we ask for
LOOK_S = 0.5  # between two looks whether an attempt has begun; chosen
MOST_BYTES, LONGEST_NAME = 1 << 20, 255  # of a job file, which is written by hand; as the service has it
PIPE_S = 30.0  # of silence of whoever writes a job file through a pipe; chosen
STREAM_AGAIN_S = 0.1  # before a stream that has ended is asked for again; chosen


class ServiceError(StrettoError):
    """The service did not answer, or did not do what was asked."""

    exit_status = 69  # EX_UNAVAILABLE of sysexits.h: seldom that of a job


class Refused(InputError):
    """The token is none, or its role does not allow what was asked."""


class Untrusted(InputError):
    """The service's certificate is not of an authority that the client trusts, or not of its name."""


class _NothingFollows(Exception):
    """What is followed is over."""


class Client:
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
        url = url or os.environ.get("STRETTO_URL", "")
        context = None if url else contexts.present()
        self.url = url or (context.addresses if context else USUAL_URL)
        self.addresses = addresses = _addresses_of(self.url)
        token = None if token is None else _token(token, context)
        headers = {"authorization": f"Bearer {token}"} if token else {"x-stretto-user": _user()}
        if not ca_file and not os.environ.get(trust.VARIABLE) and context is not None:
            ca_file = context.authorities
        encrypted = next((str(url) for url in addresses if url.scheme == "https"), "")
        self.verify = trust.context_for(encrypted, ca_file)
        transport: httpx.BaseTransport = httpx.HTTPTransport(verify=self.verify, trust_env=False)
        timeout = httpx.Timeout(ANSWER_S)
        if len(addresses) > 1:
            transport, timeout = Failover(addresses, transport), httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        self.http = httpx.Client(
            base_url=addresses[0], headers=headers, timeout=timeout, trust_env=False, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def submit(self, job: Path | str, key: str = "", workdir: str = "") -> dict[str, Any]:
        """Submit a job file (a Path) or the text of one; the job as the service shows it.

        key: of idempotency; the same key gives the same job again. workdir: where a job runs whose file does
        not say it; "": the service chooses. With several addresses a standby may be about to lead: that is
        waited for, and what is submitted again meanwhile is one job.
        """
        if not PLAIN.fullmatch(key):
            raise InputError(f"--key must be letters, digits and signs of ASCII, got {key!r}")
        is_patient = len(self.addresses) > 1
        key = key or (uuid4().hex if is_patient else "")
        headers = {"idempotency-key": key} if key else {}
        submit = self._patiently if is_patient else self.ask
        return submit("POST", "/api/v1/jobs", json=_submission(job, workdir), headers=headers)

    def jobs(
        self, everybody: bool = False, ended: bool = False, newest: bool = False, user: str = ""
    ) -> Iterator[dict[str, Any]]:
        """Jobs by submission, or the newest first, page after page as they are taken.

        user: whose; "": one's own. Those of others are for operators, as `everybody` is.
        """
        after: str | None = ""
        while after is not None:
            asked: dict[str, Any] = {"everybody": everybody, "ended": ended, "newest": newest, "after": after}
            asked |= {"user": user} if user else {}
            page = self.ask("GET", "/api/v1/jobs", params=asked)
            yield from page["jobs"]
            after = page["next"]

    def describe(self, job: str, patiently: bool = False) -> dict[str, Any]:
        """One job. patiently: a service that is away for a while is waited for."""
        ask = self._patiently if patiently else self.ask
        return ask("GET", f"/api/v1/jobs/{_name(job)}")

    def wait(self, job: str) -> dict[str, Any]:
        """One job, once it has ended. A service that is away for a while is waited for."""
        while True:
            found = self._patiently("GET", f"/api/v1/jobs/{_name(job)}/wait", params={"wait_s": 30})
            if found["ended_s"] is not None:
                return found
            job = found["id"]  # whoever comes later may have the same name

    def change(self, job: str, verb: str, **values: Any) -> dict[str, Any]:
        """cancel, hold, release, requeue, or scale with min_gpus and max_gpus."""
        return self.ask("POST", f"/api/v1/jobs/{_name(job)}/{verb}", json=values or None)

    def log(self, job: str, rank: int = 0, attempt: int = 0, follow: bool = False) -> Iterator[str]:
        """What a worker has written, piece by piece.

        With `follow` until it has ended. Where no attempt is named, it follows all attempts from the present
        one on, until the job has ended. Where the job is still to start, it waits for that.
        """
        wanted, is_known = attempt, False
        while True:
            described = self.describe(job, patiently=is_known)
            job, is_known = described["id"], True  # whoever comes later may have the same name
            has_ended, latest = described["ended_s"] is not None, described["attempt"]
            if follow and not has_ended and latest < max(wanted, 1):
                self._until_changed(job)
                continue
            try:
                yield from self._log_of_worker(job, rank, wanted or latest, follow)
            except InputError:  # none of this rank, in this attempt
                if not follow or has_ended:
                    raise
            if attempt or not follow or has_ended:
                return
            wanted = max(wanted, latest) + 1
            while (described := self.describe(job, patiently=True))["attempt"] < wanted:
                if described["ended_s"] is not None:
                    return
                self._until_changed(job)

    def _until_changed(self, job: str) -> None:
        """Wait a little, and no longer than until it has ended."""
        self._patiently("GET", f"/api/v1/jobs/{_name(job)}/wait", params={"wait_s": LOOK_S})

    def _log_of_worker(self, job: str, rank: int, attempt: int, follow: bool) -> Iterator[str]:
        offset = 0
        while True:
            piece = self._patiently(
                "GET",
                f"/api/v1/jobs/{_name(job)}/log",
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

    def events(self, job: str = "", after: int = 0, follow: bool = False) -> Iterator[dict[str, Any]]:
        """What has happened to a job, or to everything; with `follow` also what will.

        Each has `seq`, `at_s`, `kind` and what its kind says. after: the last `seq` that is known. A stream
        that breaks off is taken up again, and so is one that a service ends because it ends itself.
        """
        path = f"/api/v1/jobs/{_name(job)}/events" if job else "/api/v1/events"
        outage = Outage(self.patience_s, self.say)
        while True:
            try:
                for event in self._stream(path, after, follow):
                    after = int(event["seq"])
                    outage.end()
                    path = f"/api/v1/jobs/{event['job']}/events" if job and "job" in event else path
                    yield event
                if not follow:
                    return
                time.sleep(STREAM_AGAIN_S)
            except _NothingFollows:
                outage.end()
                return
            except httpx.TransportError as broken:
                failure = self._unanswered(broken)
                if not follow or isinstance(failure, Untrusted):
                    raise failure from None
                outage.sit_out(failure)
            except ServiceError as failed:
                if not follow:
                    raise
                outage.sit_out(failed)

    def _stream(self, path: str, after: int, follow: bool) -> Iterator[dict[str, Any]]:
        params = {"after": after, "follow": follow}
        # A client that names the last event it has is told of the end, too.
        headers = {"last-event-id": str(after)} if follow and after > 0 else {}
        with self.http.stream("GET", path, params=params, headers=headers) as answer:
            if answer.status_code == httpx.codes.NO_CONTENT:
                raise _NothingFollows
            if not answer.is_success:
                answer.read()
                raise _error_of(answer)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise _strange(answer, "a stream of events")
            seq = after
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    seq = int(line[4:])
                elif line.startswith("data: "):
                    yield {"seq": seq, **json.loads(line[6:])}

    def explain(self, job: str) -> dict[str, Any]:
        """Why a job waits, which jobs hold what it waits for, and what would start it."""
        return self.ask("GET", f"/api/v1/jobs/{_name(job)}/explain")

    def dry_run(self, job: Path | str, workdir: str = "") -> dict[str, Any]:
        """Where, when and at what size a job would start; nothing is submitted."""
        return self.ask("POST", "/api/v1/jobs/dry-run", json=_submission(job, workdir))

    def whatif(self, **asks: Any) -> dict[str, Any]:
        """What would become of the open jobs, as it is and with another policy, more nodes or a job more.

        asks: `policy`, `settings` (by SPACE.KEY), `nodes` (each with gpu_type, gpus, count), `job` (the text
        of a job file), `without` (ids of jobs), `draws`.
        """
        return self.ask("POST", "/api/v1/whatif", json=asks)

    def queues(self) -> list[dict[str, Any]]:
        """Every queue with its bounds and what it holds."""
        found: list[dict[str, Any]] = self.ask("GET", "/api/v1/queues")["queues"]
        return found

    def set_queue(self, name: str, **bounds: Any) -> dict[str, Any]:
        """Give a queue bounds: `quota_gpus` (None: none), `borrow_gpus`, `weight`, `users` (None: all users).

        What is not given stays as it is.
        """
        return self.ask("PUT", f"/api/v1/queues/{_name(name)}", json=bounds)

    def delete_queue(self, name: str) -> None:
        """Delete a queue that nothing is in. Raises Refused while jobs or other queues are in it."""
        self.ask("DELETE", f"/api/v1/queues/{_name(name)}")

    def priority_classes(self) -> list[dict[str, Any]]:
        """Named priorities, the highest first."""
        found: list[dict[str, Any]] = self.ask("GET", "/api/v1/priority-classes")["priority_classes"]
        return found

    def set_priority_class(self, name: str, **values: Any) -> dict[str, Any]:
        """value, and default or preempts (lower or never)."""
        return self.ask("PUT", f"/api/v1/priority-classes/{_name(name)}", json=values)

    def delete_priority_class(self, name: str) -> None:
        """No new job is of this class."""
        self.ask("DELETE", f"/api/v1/priority-classes/{_name(name)}")

    def shares(self) -> dict[str, Any]:
        """Queues and users as a tree: what they are entitled to, hold and have had."""
        return self.ask("GET", "/api/v1/shares")

    def set_user_shares(self, user: str, shares: float) -> dict[str, Any]:
        """Give a user shares, beside the other users of each queue."""
        return self.ask("PUT", f"/api/v1/shares/users/{_name(user)}", json={"shares": shares})

    def reservations(self) -> list[dict[str, Any]]:
        """GPUs that are kept for some users, as long as they are."""
        found: list[dict[str, Any]] = self.ask("GET", "/api/v1/reservations")["reservations"]
        return found

    def reserve(self, name: str, **asks: Any) -> dict[str, Any]:
        """Keep GPUs: `start`, `end` (Unix times), `gpu_type` and `gpus` or `nodes`, `user` or `queue`."""
        return self.ask("PUT", f"/api/v1/reservations/{_name(name)}", json=asks)

    def unreserve(self, name: str) -> None:
        """Give up what is kept under a name."""
        self.ask("DELETE", f"/api/v1/reservations/{_name(name)}")

    def lenders(self) -> list[dict[str, Any]]:
        """Every lender by name, with what is on loan and how long it waits for its nodes."""
        listed: list[dict[str, Any]] = self.ask("GET", "/api/v1/lenders")["lenders"]
        return listed

    def set_lender(self, name: str, **values: Any) -> dict[str, Any]:
        """Let nodes belong to a lender: `nodes`, `headroom`, `guarantee_s`."""
        return self.ask("PUT", f"/api/v1/lenders/{_name(name)}", json=values)

    def delete_lender(self, name: str) -> None:
        """Let the nodes of a lender belong to the cluster."""
        self.ask("DELETE", f"/api/v1/lenders/{_name(name)}")

    def report_need(
        self, name: str, nodes: float | None = None, share: float | None = None
    ) -> dict[str, Any]:
        """Say how many of its nodes a lender needs itself, or which share of them, from 0 to 1.

        The answer is the lender: `lacks` is 0 once it has them.
        """
        values = {"nodes": nodes, "share": share}
        given = {key: value for key, value in values.items() if value is not None}
        return self.ask("POST", f"/api/v1/lenders/{_name(name)}/need", json=given)

    def tokens(self) -> list[dict[str, Any]]:
        """Every token by name, never the token itself."""
        found: list[dict[str, Any]] = self.ask("GET", "/api/v1/tokens")["tokens"]
        return found

    def make_token(
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
        return self.ask("POST", "/api/v1/tokens", json=asked)

    def revoke_token(self, name: str) -> None:
        """Let a token open nothing any more."""
        self.ask("DELETE", f"/api/v1/tokens/{_name(name)}")

    def nodes(self) -> list[dict[str, Any]]:
        """Every node with what is held there."""
        found: list[dict[str, Any]] = self.ask("GET", "/api/v1/nodes")["nodes"]
        return found

    def close_node(self, node: str, closed: bool, drain: bool = False, why: str = "") -> dict[str, Any]:
        """Cordon a node, drain it, or open it again."""
        verb = "uncordon" if not closed else "drain" if drain else "cordon"
        return self.ask("POST", f"/api/v1/nodes/{_name(node)}/{verb}", json={"why": why})

    def usage(self, *by: str, start: str = "", end: str = "", zone: str = "UTC") -> list[dict[str, Any]]:
        """GPU time by user, queue, type, job and day, week or month, between dates or times of a zone."""
        asked = {"by": list(by) or ["user"], "from": start, "to": end, "zone": zone}
        rows: list[dict[str, Any]] = self.ask("GET", "/api/v1/usage", params=asked)["usage"]
        return rows

    def idle_holders(self) -> dict[str, Any]:
        """Jobs whose GPUs have hardly done anything for a while, and by which rule."""
        return self.ask("GET", "/api/v1/usage/idle")

    def webhook_secrets(self) -> list[str]:
        """What your webhooks are signed with, the newest first."""
        secrets: list[str] = self.ask("GET", "/api/v1/webhook-secrets")["secrets"]
        return secrets

    def gpu_prices(self) -> list[dict[str, Any]]:
        """What an hour of a GPU costs, by type, from when on."""
        rows: list[dict[str, Any]] = self.ask("GET", "/api/v1/gpu-prices")["gpu_prices"]
        return rows

    def set_gpu_price(
        self, gpu_type: str, price: float, start: str = "", zone: str = "UTC"
    ) -> list[dict[str, Any]]:
        """Give an hour of a GPU of a type a price from a date or time on; all prices."""
        asked = {"price": price, "start": start, "zone": zone}
        path = f"/api/v1/gpu-prices/{_name(gpu_type)}"
        rows: list[dict[str, Any]] = self.ask("PUT", path, json=asked)["gpu_prices"]
        return rows

    def budgets(self) -> list[dict[str, Any]]:
        """Every budget that counts your jobs, with what is used of it in this period."""
        rows: list[dict[str, Any]] = self.ask("GET", "/api/v1/budgets")["budgets"]
        return rows

    def set_budget(self, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Set a budget: gpu_hours or cost, period, zone, user, queue, warn, hold, running, notify."""
        return self.ask("PUT", f"/api/v1/budgets/{_name(name)}", json=dict(asked))

    def delete_budget(self, name: str) -> None:
        """Let no job wait for a budget any more."""
        self.ask("DELETE", f"/api/v1/budgets/{_name(name)}")

    def is_ready(self) -> bool:
        """Whether the service can take jobs now."""
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def _patiently(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """As `ask`, over an outage of the service."""
        outage = Outage(self.patience_s, self.say)
        while True:
            try:
                answer = self.ask(method, path, **request)
            except ServiceError as failure:
                outage.sit_out(failure)
            else:
                outage.end()
                return answer

    def ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """The JSON that the service answers with."""
        try:
            answer = self.http.request(method, path, **request)
        except httpx.HTTPError as wrong:
            raise self._unanswered(wrong) from None
        if not answer.is_success:
            raise _error_of(answer)
        return _object_of(answer) if answer.content else {}

    def _unanswered(self, failure: httpx.HTTPError) -> StrettoError:
        """The error where no answer came: the certificate is not trusted, or no service is there."""
        if why := trust.why_untrusted(failure):
            return Untrusted(
                f"--url {self.url}: the service's certificate is not trusted: {why}; --ca-file or "
                f"{trust.VARIABLE} names the certificates of its authorities"
            )
        hint = ""
        if isinstance(failure, httpx.ConnectError):
            hint = "; --url, STRETTO_URL or `stretto context` says where one is"
        elif isinstance(failure, (httpx.RemoteProtocolError, httpx.ReadError)) and not self.verify:
            hint = "; one with TLS has a URL with https://"
        return ServiceError(f"no service answers at {self.url}: {failure}{hint}")


class _Answer(dict[str, Any]):
    """An object of an answer; what it lacks says where it came from."""

    url = ""

    def __missing__(self, key: str) -> Any:
        raise ServiceError(f"{self.url}: expected {key!r} in its answer; is it a service of Stretto?")


def _object_of(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer. Raises ServiceError for anything else, as other servers give it."""
    kind = type("_Answer", (_Answer,), {"url": str(answer.url)})
    try:
        content = answer.json(object_hook=kind)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _strange(answer, "a JSON object")
    return content


def _strange(answer: httpx.Response, expected: str) -> ServiceError:
    """What other servers answer."""
    got = answer.headers.get("content-type", "something else")
    return ServiceError(f"{answer.url}: expected {expected}, got {got}; is it a service of Stretto?")


def _addresses_of(urls: str) -> list[httpx.URL]:
    """The addresses that a text names, with commas between them. Raises InputError."""
    addresses = []
    for url in (each.strip() for each in urls.split(",")):
        if not url.startswith(("http://", "https://")):
            raise InputError(f"--url {url}: expected the address of a service, http://HOST:PORT")
        try:
            addresses.append(httpx.URL(url))
        except (httpx.InvalidURL, ValueError) as wrong:
            raise InputError(f"--url {url}: expected the address of a service: {wrong}") from None
        if "," in urls and addresses[-1].path.strip("/"):
            raise InputError(f"--url {url}: expected no path where there are several addresses")
    return addresses


def _token(given: str, context: contexts.Context | None) -> str:
    """The token that is given, else that of the environment, else of the context; "" for none."""
    token = given or os.environ.get("STRETTO_TOKEN", "")
    if not token and (file := os.environ.get("STRETTO_TOKEN_FILE", "")):
        token = token_in(Path(file), "STRETTO_TOKEN_FILE")
    if not token and context is not None:
        token = context.its_token()
    if not PLAIN.fullmatch(token):  # which is not shown: it may be one but for a slip
        raise InputError("--token: expected letters, digits and signs of ASCII, got something else")
    return token


def _error_of(answer: httpx.Response) -> StrettoError:
    job = ""
    try:
        problem = answer.json()
        detail, job = str(problem["detail"]), str(problem.get("job", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        detail = answer.text[:200]
    if job and answer.status_code == 422:
        return KeyTaken(detail, job)
    if answer.status_code in (400, 404, 409, 413, 422):
        return InputError(detail)
    if answer.status_code == 401:
        return Refused(f"{detail}: give --token-file, --token or STRETTO_TOKEN")
    if answer.status_code == 403:
        return Refused(detail)
    return ServiceError(f"{answer.status_code} {detail}")


def _name(given: str) -> str:
    """A name as a part of a path. Raises InputError for what can be none, or would lead elsewhere."""
    if given in ("", ".", "..") or "/" in given or "?" in given or "#" in given:
        raise InputError(f"expected the id of a job or the name of a node, got {given!r}")
    try:
        return quote(given, safe="")
    except UnicodeEncodeError:
        raise InputError(f"expected a name in UTF-8, got {given!r}") from None


def _submission(job: Path | str, workdir: str) -> dict[str, str]:
    """The text of a job file, its name, and where it runs if it does not say so itself."""
    fields = {"workdir": workdir} if workdir else {}
    if not isinstance(job, Path):
        return {"text": job, "name": "job file", **fields}
    try:
        content = _content_of(job)
        if len(content) > MOST_BYTES:
            raise InputError(f"{job}: expected a job file of at most {MOST_BYTES} bytes")
        return {"text": content.decode(), "name": str(job)[-LONGEST_NAME:], **fields}
    except OSError as wrong:
        raise InputError(f"{job}: cannot be read: {wrong.strerror}") from None
    except UnicodeDecodeError as wrong:
        raise InputError(f"{job}: expected UTF-8 text: {wrong.reason} at byte {wrong.start}") from None


def _content_of(file: Path) -> bytes:
    """The first bytes of a file, or of a pipe. Raises OSError, and InputError."""
    # Opening a named pipe to which nobody writes would wait for ever, unless it is told not to.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as opened:
        content = b""
        while len(content) <= MOST_BYTES:
            if not select.select([opened], [], [], PIPE_S)[0]:
                raise InputError(f"{file}: expected a job file, got a pipe that is silent for {PIPE_S:g} s")
            piece = opened.read(MOST_BYTES + 1 - len(content))
            if not piece:
                break
            content += piece
    if not content and stat.S_ISFIFO(file.stat().st_mode):
        raise InputError(f"{file}: expected a job file, got a pipe to which nobody writes")
    return content


def _user() -> str:
    """The user where no token says it: the name at the machine's login, if a header can hold it."""
    name = os.environ.get("USER") or os.environ.get("LOGNAME") or "me"
    return name if PLAIN.fullmatch(name) else f"uid-{os.getuid()}"
