"""Is the log whole? Its hash chain, its mark, and the check of both.

Each event's digest covers the one before: a log whose middle was changed or lost does not fit together.
"""

import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection, and_, delete, func, insert, select

from stretto.service.eventlog.database import GAPS, LOG, STATES, LogDamaged, StoreError

CHAIN_BYTES = 16  # chosen: against accidents and tidy hands, not against a user able to rewrite the whole log


def chained(previous: bytes, seq: int, at_s: float, kind: str, subject: str, body: str) -> bytes:
    """The digest of an event as it is stored, behind that of the event before; b"" before the first."""
    parts = [previous, struct.pack("<qd", seq, at_s)]
    for text in (kind, subject, body):
        part = text.encode(errors="surrogatepass")
        parts += (struct.pack("<q", len(part)), part)
    return hashlib.blake2b(b"".join(parts), digest_size=CHAIN_BYTES).digest()


# ── how far the log had come, in a file of its own: a log that has lost its end looks like a younger one ────


WIDTH = 256  # bytes of the file: always the same, so that it is written in place, on a full disk, too

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reached:
    """What was durable when the file was last written."""

    seq: int  # of the last event
    chain: str = ""  # its digest, as hexadecimal digits; "" where it has none
    largest_id: int = 0  # of jobs and arrays whose ids are numbers


class Mark:
    """The file of one log. One process writes it, the leader."""

    def __init__(self, path: Path) -> None:
        """Make the file durably where there is none. Raises StoreError where that cannot be."""
        self.path, self.complained = path, False
        try:
            is_new = not path.exists()
            self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if is_new:
                self._write(Reached(0))
                os.fsync(self.file)
                _sync_folder(path.parent)
        except OSError as wrong:
            raise StoreError(f"{path}: cannot be written: {wrong.strerror}") from None

    def note(self, reached: Reached) -> None:
        """The log has come so far."""
        try:
            self._write(reached)
        except OSError as wrong:  # the log itself is whole: only its loss would go unnoticed
            if not self.complained:
                log.warning("%s: cannot be written: %s", self.path, wrong)
            self.complained = True

    def close(self) -> None:
        """No more is noted."""
        with suppress(OSError):
            os.close(self.file)

    def _write(self, reached: Reached) -> None:
        os.pwrite(self.file, _line(reached), 0)


def reached_in(path: Path) -> Reached | None:
    """What a mark says; None where there is none, or none that can be read: that is no evidence of a loss."""
    try:
        text = path.read_bytes()[:WIDTH]
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise StoreError(f"{path}: cannot be read: {wrong.strerror}") from None
    try:
        content, _, check = text.decode("ascii").rpartition(" ")
        if int(check, 16) != zlib.crc32(content.rstrip().encode()):
            raise ValueError("its checksum is wrong")
        return Reached(**json.loads(content))
    except (ValueError, TypeError) as wrong:
        log.warning("%s: cannot be read, and is begun anew: %s", path, wrong)
        return None


def _line(reached: Reached) -> bytes:
    said = json.dumps(asdict(reached))
    return f"{said:<{WIDTH - 10}} {zlib.crc32(said.encode()):08x}\n".encode("ascii")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ── is the log whole? ─────────────────────────────────────────────────────────────────────────────


Row = tuple[int, float, str, str, str, bytes | None]  # as stored, with the digest; None of older versions


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that are missing, or cannot be read; the operator goes on without them."""

    first: int
    last: int

    def covers(self, other: "Gap") -> bool:
        """Whether all of another one is in it."""
        return self.first <= other.first and other.last <= self.last

    @property
    def words(self) -> str:
        """Which events."""
        return f"event {self.first}" if self.first == self.last else f"events {self.first} to {self.last}"


@dataclass
class Follows:
    """Goes along the log and tells whether each row follows on the one before.

    chain: the digest of that one; None where it is not known, and whatever comes next is believed.
    """

    seq: int
    chain: bytes | None = None

    def gap_before(self, row: Row) -> Gap | None:
        """What is missing before the next row."""
        return None if row[0] == self.seq + 1 else Gap(self.seq + 1, row[0] - 1)

    def fits(self, row: Row) -> bool:
        """Whether the next row is what was written there, as far as that can be told."""
        seq, at_s, kind, subject, body, chain = row
        if chain is None or self.chain is None or seq != self.seq + 1:
            return True
        return chained(self.chain, seq, at_s, kind, subject, body) == bytes(chain)

    def take(self, row: Row) -> None:
        """This row is the one before from now on."""
        self.seq, self.chain = row[0], bytes(row[5] or b"")


def damage_in(rows: Iterable[Row]) -> list[Gap]:
    """What is missing of a whole log, cannot be read, or is not what was written."""
    follows, bad = Follows(0, b""), list[int]()
    for row in rows:
        if gap := follows.gap_before(row):
            bad += range(gap.first, gap.last + 1)
        if not follows.fits(row) or not is_object(row[4]):
            bad.append(row[0])
        follows.take(row)
    return merged(bad)


def is_object(body: str) -> bool:
    """Whether a stored body is a JSON object."""
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def gaps_of(connection: Connection) -> list[Gap]:
    """What the operator has decided to go on without, by number."""
    rows = connection.execute(select(GAPS.c.first, GAPS.c.last).order_by(GAPS.c.first))
    return [Gap(first, last) for first, last in rows]


def check_whole(connection: Connection, where: str, reached: Reached | None) -> None:
    """Raise LogDamaged for a log with a missing event, or that does not come as far as it had come.

    Quick: it counts. Whether each event is what was written is seen when it is read.
    """
    last, count = connection.execute(select(func.max(LOG.c.seq), func.count(LOG.c.seq))).one()
    last = int(last or 0)
    if reached is not None and last < reached.seq:
        raise LogDamaged(where, f"it ends at event {last}, and had come to event {reached.seq}")
    if reached is not None and reached.seq and reached.chain:
        chain = connection.scalar(select(LOG.c.chain).where(LOG.c.seq == reached.seq))
        if chain is not None and bytes(chain).hex() != reached.chain:
            raise LogDamaged(where, f"event {reached.seq} is not the one that was written: it is another log")
    without = gaps_of(connection)
    noted = sum(gap.last - gap.first + 1 for gap in without)
    there = sum(
        int(connection.scalar(select(func.count()).where(LOG.c.seq.between(gap.first, gap.last))) or 0)
        for gap in without
    )
    if count + noted - there != last:
        gap = next(
            (
                gap
                for gap in _missing(connection, last)
                if not any(noted_gap.covers(gap) for noted_gap in without)
            ),
            Gap(1, last),
        )
        raise LogDamaged(where, f"{gap.words} missing")


def _missing(connection: Connection, last: int) -> Iterator[Gap]:
    """Numbers up to the last that no row has."""
    after, rest = LOG.alias("after"), LOG.alias("rest")
    following = select(func.min(rest.c.seq)).where(rest.c.seq > LOG.c.seq).scalar_subquery()
    first = connection.scalar(select(func.min(LOG.c.seq)))
    if first is not None and first > 1:
        yield Gap(1, int(first) - 1)
    query = (
        select(LOG.c.seq, following)
        .outerjoin(after, and_(after.c.seq == LOG.c.seq + 1))
        .where(after.c.seq.is_(None), LOG.c.seq < last)
        .order_by(LOG.c.seq)
    )
    for seq, next_seq in connection.execute(query):
        yield Gap(int(seq) + 1, int(next_seq) - 1)


def merged(numbers: Iterable[int]) -> list[Gap]:
    """Runs of numbers, which are in order."""
    gaps: list[Gap] = []
    for number in numbers:
        if gaps and number == gaps[-1].last + 1:
            gaps[-1] = Gap(gaps[-1].first, number)
        else:
            gaps.append(Gap(number, number))
    return gaps


def go_on_without(connection: Connection, gaps: Sequence[Gap]) -> None:
    """Leave these events out from now on, and states that were kept of a longer log."""
    connection.execute(delete(GAPS))
    if gaps:
        connection.execute(insert(GAPS), [{"first": gap.first, "last": gap.last} for gap in gaps])
    last = int(connection.scalar(select(func.max(LOG.c.seq))) or 0)
    lost = gaps[0].first if gaps else last + 1
    connection.execute(delete(STATES).where((STATES.c.seq > last) | (STATES.c.seq >= lost)))
