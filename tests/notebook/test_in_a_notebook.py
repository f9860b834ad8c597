"""A notebook that is really run, and frames of pandas."""

from typing import Any

import pytest

import stretto

pytestmark = pytest.mark.notebook

CELLS = (
    "import stretto\nrun = stretto.simulate('demo:jobs=6', cluster='sia-hetero-64', policy='sia')\nrun",
    "run.jobs[['job', 'jct_s']].head(2)",
    "run.compare([stretto.simulate('demo:jobs=6', cluster='sia-hetero-64', policy='fifo')])",
    "stretto.simulate('demo', cluster='sia-hetero-46')",
)


@pytest.fixture(scope="module")
def outputs() -> list[dict[str, Any]]:
    """What each cell of a notebook leaves; the last one fails."""
    from nbclient import NotebookClient
    from nbformat import from_dict

    code: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    cells = [{**code, "id": f"cell{number}", "source": cell} for number, cell in enumerate(CELLS)]
    notebook = from_dict({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    return [dict(cell.outputs[-1]) for cell in notebook.cells]


@pytest.mark.slow
def test_a_notebook_shows_runs_frames_and_comparisons(outputs: list[dict[str, Any]]) -> None:
    run, jobs, compared, _ = (output.get("data", {}) for output in outputs)
    assert run["text/plain"].startswith(
        "<stretto run: sia on demo:jobs=6, sia-hetero-64, seed 0: 6 jobs, mean"
    )
    assert '<article class="stretto-out"' in run["text/html"]
    assert "<script" not in run["text/html"]
    assert 'class="dataframe"' in jobs["text/html"]
    assert compared["text/plain"] == "<stretto comparison: sia, fifo on demo:jobs=6>"
    assert compared["text/html"].count('<th scope="row">') == 2


def test_a_wrong_word_is_an_error_of_one_line(outputs: list[dict[str, Any]]) -> None:
    assert (outputs[3]["output_type"], outputs[3]["ename"]) == ("error", "InputError")
    assert outputs[3]["evalue"].endswith("did you mean 'sia-hetero-64'?")


def test_frames_are_those_of_pandas_with_the_columns_of_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    from stretto.notebook import frame

    run = stretto.simulate("demo:jobs=6", cluster="sia-hetero-64", policy="fifo")
    tables = {name: getattr(run, name) for name in ("jobs", "rounds", "allocations")}
    assert {name: type(table) for name, table in tables.items()} == dict.fromkeys(tables, pd.DataFrame)
    monkeypatch.setattr(frame, "find_spec", lambda name: None)
    again = stretto.Run(run.result)
    for name, table in tables.items():
        plain = getattr(again, name)
        assert list(table.columns) == list(plain.dtype.names)
        pd.testing.assert_frame_equal(table, pd.DataFrame(plain), check_dtype=False)
    assert table["gpus"].dtype == "int64"
