"""What the page on the SDK shows runs, and what there is stands on the page."""

import inspect
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import stretto.sdk
from stretto.sdk.entry_point import elastic
from stretto.sdk.job import ElasticJob
from stretto.sdk.settings import RULES, Settings

pytestmark = pytest.mark.torch

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.M | re.S)
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)
OF_FRAMEWORKS = [each for each in SNIPPETS if "import Trainer" in each]
OURS = [each for each in SNIPPETS if each not in OF_FRAMEWORKS]


def what_is_there(folder: Path) -> dict[str, Any]:
    """What a snippet takes for granted."""
    torch.manual_seed(0)
    x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
    data = TensorDataset(x.float() / 16, y)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(step: int) -> float:
        optimizer.zero_grad()
        images, labels = data[64 * (step % 28) : 64 * (step % 28) + 64]
        loss = cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    return {
        "torch": torch,
        "cross_entropy": cross_entropy,
        "stretto": stretto,
        "data": data,
        "model": model,
        "optimizer": optimizer,
        "device": torch.device("cpu"),
        "mean": nn.BatchNorm1d(3),  # something with a state
        "validation": [data[:100], data[100:200]],
        "evaluate": lambda model, part: (model(part[0]).argmax(1) == part[1]).float().mean(),
        "train_step": train_step,
        "save": lambda step: folder / f"{step}.pt",
        "loader": DataLoader(data, batch_size=256),
        "start_server": lambda job: Asker(job, [data[number][0] for number in range(5)]),
    }


class Asker(threading.Thread):
    """Stands for a server: asks for each image, and has the worker told to end once it has all answers."""

    def __init__(self, job: Any, images: list[torch.Tensor]) -> None:
        super().__init__()
        self.asked = [job.ask(image) for image in images]
        self.start()

    def run(self) -> None:
        assert all(0 <= each.result(60.0) < 10 for each in self.asked)
        os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        self.join()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of an outer job; SIGTERM as it was."""
    monkeypatch.chdir(tmp_path)
    for name in ("STRETTO_URL", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", range(len(OURS)))
def test_a_snippet_runs(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.raises(SystemExit, match="143") if "job.ask(" in OURS[number] else nullcontext():
        exec(compile(OURS[number], f"snippet {number}", "exec"), what_is_there(tmp_path))
    torch.set_num_threads(threads)
    accuracies = [
        float(text) for text in re.findall(r"^epoch .*: (.*)$", capsys.readouterr().out, flags=re.M)
    ]
    assert len(accuracies) == ("epoch {epoch}" in OURS[number]) * 4
    assert not accuracies or accuracies[-1] > 0.9


def test_the_plain_loop_becomes_elastic_in_a_few_lines() -> None:
    before, after = (each.splitlines() for each in OURS[:2])
    new = [line for line in after if line not in before and line]
    assert len(new) <= 12, new


@pytest.mark.parametrize("snippet", OF_FRAMEWORKS)
def test_a_snippet_of_another_framework_is_at_least_python_and_names_what_there_is(snippet: str) -> None:
    compile(snippet, "snippet", "exec")
    [adapter, names] = re.findall(r"from (stretto[\w.]+) import (.*)", snippet)[0]
    source = Path(stretto.sdk.__file__).parent / "adapters" / f"{adapter.rpartition('.')[2]}.py"
    text = source.read_text(encoding="utf-8")
    for name in names.split(", "):
        assert re.search(rf"^(class|def) {name}\b", text, flags=re.M), name


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_the_snippet_of_lightning_runs(tmp_path: Path) -> None:
    lightning = pytest.importorskip(
        "lightning.pytorch", reason="lightning is not installed: it is in the extra dev"
    )

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    given = what_is_there(tmp_path)
    given["model"] = Module(given["model"])
    [snippet] = [each for each in OF_FRAMEWORKS if "lightning" in each]
    exec(compile(snippet, "snippet", "exec"), given)
    assert given["trainer"].current_epoch == 2


def test_every_argument_and_every_name_of_a_job_is_on_the_page() -> None:
    arguments = {*inspect.signature(elastic).parameters} - {"settings"} | Settings.__dataclass_fields__.keys()
    arguments -= {"bounds", "rule"}  # what elastic() makes of its arguments
    names = {f"job.{name}" for name in vars(ElasticJob) if not name.startswith("_")} | {
        "job.model",
        "job.batch",
    }
    shown = set(re.findall(r"[\w.]+", " ".join(re.findall(r"`([^`]+)`", PROSE))))
    assert arguments - shown == set()
    assert names - shown == set()
    assert RULES.keys() - set(re.findall(r"`([\w-]+)`", PROSE)) == set()


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    defaults = {"checkpoint_s": 600, "report_s": 30, "grace_s": 30, "timeout_s": 1800}
    fields = Settings.__dataclass_fields__
    assert {name: fields[name].default for name in defaults} == defaults
    for name, value in defaults.items():
        assert re.search(rf"\| `{name}` \|.*\b{value}\)", PAGE), name
