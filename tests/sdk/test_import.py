"""What a training script pays for importing the SDK."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stretto.sdk

pytestmark = [pytest.mark.processes, pytest.mark.torch]

PROBE = """
import json, sys, time
import stretto.sdk
before = sorted(sys.modules)
import torch, numpy, torch.utils.data, torch.nn.parallel, torch.distributed.rendezvous
of_torch = set(sys.modules)
began_s = time.process_time()
stretto.sdk.elastic
took_s = time.process_time() - began_s
print(json.dumps([before, sorted(set(sys.modules) - of_torch), took_s]))
"""


def test_no_module_takes_the_place_of_a_public_name_once_it_is_imported() -> None:
    folder = Path(stretto.sdk.__file__).parent
    assert {*stretto.sdk.__all__} & {path.stem for path in folder.iterdir()} == set()


def test_the_sdk_imports_torch_when_it_is_used_and_nothing_else_of_any_weight() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    before, ours, took_s = json.loads(done.stdout)
    assert {"torch", "numpy"} & set(before) == set()
    others = {name.partition(".")[0] for name in ours} - {"stretto", "torch", "numpy"}
    others -= sys.stdlib_module_names
    assert others == set()
    assert {name for name in ours if name.startswith("stretto.") and name.count(".") == 1} == {
        "stretto.errors",
        "stretto.model",
    }
    assert took_s < 2.0  # of a processor; 0.1 s on a machine that has nothing else to do
