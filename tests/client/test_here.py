"""Where a job runs whose file does not say it."""

import pytest

from stretto.client.here import run_in
from stretto.live.jobfile.submission import read_submission

HERE = "/data/ada/train"


@pytest.mark.parametrize(
    ("text", "workdir"),
    [
        pytest.param("run: python train.py\n", HERE, id="our file"),
        pytest.param("run: |\n  python train.py\n  true", HERE, id="a command of several lines at the end"),
        pytest.param("run: 'true'\nworkdir: /there\n", "/there", id="a file that says where"),
        pytest.param("#!/bin/sh\n#SBATCH --gres=gpu:1\npython train.py\n", HERE, id="a batch script"),
        pytest.param("#SBATCH --gres=gpu:1\ntrue\n", HERE, id="a script without an interpreter"),
        pytest.param("#!/bin/sh\n#SBATCH -D /there\ntrue\n", "/there", id="a script that says where"),
        pytest.param('{"run": "true"}', "", id="one line of JSON"),
    ],
)
def test_a_job_runs(text: str, workdir: str) -> None:
    spec, _ = read_submission(run_in(text, HERE))
    assert spec.workdir == workdir
