"""Hugging Face's Trainer, really: a tiny model made from a configuration, nothing downloaded."""

import signal
import sys
from pathlib import Path

import pytest
from tests.service.ports import free_ports

from stretto.testing.conductor import Conductor

pytestmark = pytest.mark.torch

pytest.importorskip("transformers", reason="transformers is not installed: it is in the extra dev")
pytest.importorskip("accelerate", reason="accelerate is not installed: it is in the extra dev")

SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
from transformers import BertConfig, BertForSequenceClassification
from transformers import Trainer, TrainerCallback, TrainingArguments
from stretto.sdk.adapters.transformers import StrettoCallback, newest_checkpoint

folder, slow_s = Path(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return {"input_ids": torch.full((8,), i % 20), "labels": torch.tensor(i % 2)}

class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        (folder / f"step.{os.environ.get('RANK', '0')}").write_text(str(state.global_step))
        time.sleep(slow_s if state.global_step < 8 else 6 * slow_s)  # time enough to be told to leave

config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=16)
args = TrainingArguments(str(folder / "out"), per_device_train_batch_size=4, max_steps=60, use_cpu=True,
    logging_steps=5, save_strategy="no", disable_tqdm=True, report_to="none")
callbacks = [StrettoCallback(report_s=0.1), Slow()]
trainer = Trainer(BertForSequenceClassification(config), args, train_dataset=Data(), callbacks=callbacks)
found = newest_checkpoint(args.output_dir)
print("from", found, flush=True)
trainer.train(resume_from_checkpoint=found)
(folder / "done").write_text(str(trainer.state.global_step))
"""


def begin(conductor: Conductor, name: str, folder: Path, slow_s: float, **env: str) -> None:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    with (folder / f"{name}.log").open("wb") as log:
        conductor.start(
            name,
            [sys.executable, str(script), str(folder), str(slow_s)],
            {"HF_HUB_OFFLINE": "1", **env},
            stdout=log,
            stderr=log,
        )


def has_reached(folder: Path, step: int, rank: int = 0) -> bool:
    file = folder / f"step.{rank}"
    return file.exists() and int(file.read_text() or 0) >= step


@pytest.mark.long
@pytest.mark.processes
def test_told_to_leave_trainer_saves_ends_with_143_and_goes_on_from_there(tmp_path: Path) -> None:
    world = 2
    with Conductor() as conductor:
        names = [f"j.1.{rank}" for rank in range(world)]
        (port,) = free_ports("127.0.0.1", 1)
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        for rank, name in enumerate(names):
            of_rank = {"WORLD_SIZE": str(world), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            begin(conductor, name, tmp_path, 0.1, **address, **of_rank)
        conductor.wait_until(lambda: has_reached(tmp_path, 8), 300, "eight steps")
        conductor.workers[names[-1]].send_signal(signal.SIGTERM)  # one is told, all leave
        ends = [conductor.wait_ended(name, 300) for name in names]
        assert ends == [143] * world, (tmp_path / f"{names[0]}.log").read_text()
        [saved] = conductor.checkpoints
        assert Path(saved["path"]).name == f"checkpoint-{saved['step']}"
        assert 8 <= saved["step"] < 60
        assert conductor.reports
        assert conductor.reports[-1]["in_place"] is False

        begin(conductor, "j.2.0", tmp_path, 0.0)
        assert conductor.wait_ended("j.2.0", 300) == 0, (tmp_path / "j.2.0.log").read_text()
        assert f"checkpoint-{saved['step']}" in (tmp_path / "j.2.0.log").read_text()
        assert (tmp_path / "done").read_text() == "60"
        last = conductor.reports[-1]
        assert (last["worker"], last["step"], last["dataset_samples"]) == ("j.2.0", 60, 64)
        assert last["loss"] > 0


def test_a_checkpoint_that_was_not_finished_is_passed_over(tmp_path: Path) -> None:
    from stretto.sdk.adapters.transformers import newest_checkpoint

    assert newest_checkpoint(tmp_path / "none") is None
    for step, state in {9: "{}", 10: '{"global', 11: None}.items():
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-9")
