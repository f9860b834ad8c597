"""Whatever a file holds, it is read or refused; nothing else happens."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import InputError
from stretto.traces import FORMATS, read_trace
from stretto.traces.own import COLUMNS
from stretto.traces.reading import Format

CELLS = st.sampled_from(
    [
        *[
            "",
            "0",
            "1",
            "-1",
            "2.5",
            "nan",
            "inf",
            "1e999",
            "x",
            "a-b",
            "5-6",
            "None",
            "Pass",
            "COMPLETED",
            "LS",
        ],
        *["2017-10-09 07:01:55", "1:2:t4", "10:1;20:0", "{}", "[]", '{"a": 1}', "rigid", "yes"],
        *["LM (batch size 0)", "9223372036854775808"],
    ]
)
relaxed = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=scaled(150), deadline=None
)


def read_or_refuse(path: Path) -> None:
    for skip_bad in (False, True):
        try:
            workload = read_trace(path, skip_bad=skip_bad)
        except InputError:
            continue
        assert len(workload.jobs) == len(workload.truths) > 0


@relaxed
@given(text=st.text())
def test_any_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    read_or_refuse(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if not min(kind.columns).isdigit()])
@relaxed
@given(data=st.data())
def test_any_cells_under_known_columns(tmp_path: Path, kind: Format, data: st.DataObject) -> None:
    columns = [column.name for column in COLUMNS] if kind.name == "stretto" else sorted(kind.columns)
    rows = data.draw(st.lists(st.tuples(*[CELLS] * len(columns)), min_size=1, max_size=3))
    path = tmp_path / "trace.csv"
    if kind.name == "philly-published":
        values = st.none() | st.integers() | CELLS | st.lists(st.dictionaries(CELLS, CELLS), max_size=2)
        records = data.draw(
            st.lists(st.fixed_dictionaries(dict.fromkeys(columns, values)), min_size=1, max_size=2)
        )
        path.write_text(json.dumps(records), encoding="utf-8")
    else:
        lines = [",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) for row in rows]
        path.write_text("\n".join([",".join(columns), *lines]), encoding="utf-8")
    read_or_refuse(path)


@relaxed
@given(rows=st.lists(st.tuples(*[CELLS] * 12), min_size=1, max_size=3))
def test_any_fields_without_a_header(tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
    path = tmp_path / "trace.tsv"
    path.write_text("\n".join("\t".join(row) for row in rows), encoding="utf-8")
    read_or_refuse(path)
