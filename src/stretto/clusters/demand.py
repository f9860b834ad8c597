"""How much of its own servers a lender needs over time: a series in a file, or a made one."""

import csv
import gzip
import zlib
from itertools import pairwise
from math import isfinite
from pathlib import Path

import numpy as np

from stretto.model import FloatArray, InputError

PERIOD_S = 300.0  # of made series; Lyra's orchestrator looks every five minutes
COLUMNS = ("timestamp_s", "demand_fraction")
JITTER = 1e-3  # of a period; chosen: stamps of one series may be rounded


def read_demand(path: Path) -> tuple[float, FloatArray]:
    """(period in s, (periods,) share of the servers in use) of a file with timestamp_s and demand_fraction.

    Raises InputError for missing columns, gaps, and shares that are below 0 or above all that there is.
    """
    stamps, shares = _columns(path)
    if len(stamps) < 2:
        raise InputError(f"{path}: expected at least two times, got {len(stamps)}")
    period_s = stamps[1] - stamps[0]
    for line, (before, after) in enumerate(pairwise(stamps), start=3):
        if not abs(after - before - period_s) <= JITTER * abs(period_s) or period_s <= 0:
            raise InputError(
                f"{path} line {line}: timestamp_s must be {before + abs(period_s):g}, "
                f"{abs(period_s):g} s after the line before, got {after:g}"
            )
    for line, share in enumerate(shares, start=2):
        if not 0 <= share <= 1:
            raise InputError(
                f"{path} line {line}: demand_fraction must be a share of the servers, 0 to 1, got {share:g}"
            )
    return float(period_s), np.array(shares)


def made_demand(days: float = 30.0, seed: int = 0) -> FloatArray:
    """(periods of 5 minutes,) a made series with a daily and a weekly cycle and bursts, in Lyra's range.

    Between 0.42 and 0.95 of the servers, 0.65 on average (Lyra, figure 1).
    """
    draw = np.random.default_rng([seed, 30])
    hours = np.arange(int(days * 86_400 / PERIOD_S)) * PERIOD_S / 3_600
    daily = 0.5 - 0.5 * np.cos(2 * np.pi * (hours - 3) / 24)
    weekly = 1 - 0.15 * (hours // 24 % 7 >= 5)
    drift = np.zeros(len(hours))
    shocks = draw.normal(0.0, 0.02, len(hours))
    for step in range(1, len(hours)):  # short memory: bursts that fade within the hour
        drift[step] = 0.9 * drift[step - 1] + shocks[step]
    level = np.clip(daily**1.3 * weekly + drift, 0.0, 1.0)
    low, high, mean = 0.42, 0.95, 0.65
    shape = np.log((mean - low) / (high - low)) / np.log(max(level.mean(), 1e-9))
    for _ in range(30):  # the power of the level that gives the mean
        shape *= np.log((mean - low) / (high - low)) / np.log((level**shape).mean())
    return np.asarray(low + (high - low) * level**shape)


def _columns(path: Path) -> tuple[list[float], list[float]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
            if missing:
                raise InputError(f"{path}: missing column {missing[0]}, expected {', '.join(COLUMNS)}")
            rows = [
                [_number(path, line, row[name], name) for name in COLUMNS]
                for line, row in enumerate(reader, 2)
            ]
    except (OSError, UnicodeDecodeError, EOFError, zlib.error, csv.Error) as wrong:
        raise InputError(f"{path}: cannot be read: {wrong}") from None
    return [row[0] for row in rows], [row[1] for row in rows]


def _number(path: Path, line: int, text: str | None, name: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise InputError(f"{path} line {line}: {name} must be a number, got {text!r}")
    return value
