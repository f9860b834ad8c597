"""Structured logs: one JSON object a line, written beside the event loop."""

import json
import logging
import logging.handlers
import os
import queue
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOG_BYTES, LOGS_KEPT = 16 << 20, 3
MOST_WAITING = 10_000  # lines; chosen: a slower writer loses some, the service never waits
# For a reader that is slow; once it was too slow, lines are dropped until it reads
STDERR, PATIENCE_S = 2, 2.0
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Lines(logging.Formatter):
    """A record as a JSON object: its message, and what was said beside it."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in vars(record).items() if key not in _USUAL}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class Stderr(logging.Handler):
    """Writes lines to standard error, and drops what is not taken: a full pipe holds nothing up.

    A pipe that is said to be writable takes PIPE_BUF bytes at once, so that writing such pieces never waits.
    The description of the pipe is shared with others and stays as it is: it may not be made non-blocking.
    """

    def __init__(self) -> None:
        """Nothing has been dropped."""
        super().__init__()
        self._is_stuck = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, whole or, where its reader stops in the middle, in part."""
        line = (self.format(record) + "\n").encode(errors="replace")
        patience_s = 0.0 if self._is_stuck else PATIENCE_S
        with suppress(OSError, ValueError):  # closed, or it can never be read
            for start in range(0, len(line), select.PIPE_BUF):
                self._is_stuck = not select.select([], [STDERR], [], patience_s)[1]
                if self._is_stuck:
                    return
                os.write(STDERR, line[start : start + select.PIPE_BUF])


class _Dropping(logging.handlers.QueueHandler):
    """Hands records over as they are, and drops them where they are not taken."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # the listener is in this process: nothing need be pickled, and a trace stays one

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(queue.Full):
            self.queue.put_nowait(record)


@contextmanager
def structured_logs(file: Path | None, level: str = "info") -> Iterator[None]:
    """Write the logs of this package and of the server to a file that is rotated, or to stderr.

    With a file, what is an error is on stderr too.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    handlers: list[logging.Handler] = [Stderr()]
    if file is not None:
        handlers[0].setLevel(logging.ERROR)
        written = logging.handlers.RotatingFileHandler(
            file, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT, encoding="utf-8", delay=True
        )
        handlers.append(written)
    for handler in handlers:
        handler.setFormatter(Lines())
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING)
    listener = logging.handlers.QueueListener(waiting, *handlers, respect_handler_level=True)
    given = _Dropping(waiting)
    loggers = [(logging.getLogger("stretto"), number), (logging.getLogger("uvicorn"), logging.WARNING)]
    before = [(logger, logger.level, logger.propagate) for logger, _ in loggers]
    for logger, least in loggers:
        logger.addHandler(given)
        logger.setLevel(max(number, least))
        logger.propagate = False
    listener.start()
    try:
        yield
    finally:
        listener.stop()
        for logger, least, passes_on in before:
            logger.removeHandler(given)
            logger.setLevel(least)
            logger.propagate = passes_on
        for handler in handlers:
            handler.close()
