"""Lightning's Trainer, really, on a model of one layer."""

import signal
import sys
from pathlib import Path

import pytest

from stretto.testing.conductor import Conductor

pytestmark = [pytest.mark.processes, pytest.mark.torch]

pytest.importorskip("lightning", reason="lightning is not installed: it is in the extra dev")

SCRIPT = """
import sys, time
from pathlib import Path
import torch
from lightning.pytorch import LightningModule, Trainer
from stretto.sdk.adapters.lightning import StrettoCallback, newest_checkpoint

folder, slow_s = Path(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        with (folder / "steps").open("a") as file:
            file.write(f"{self.global_step} {self.current_epoch} {int(batch[0][0, 0])}\\n")
        time.sleep(slow_s if self.current_epoch == 0 else 6 * slow_s)  # time enough to be told to leave
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-5)

x = torch.arange(64.0).reshape(64, 1).repeat(1, 4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=4)
callback = StrettoCallback(report_s=0.1)
trainer = Trainer(max_epochs=3, accelerator="cpu", callbacks=[callback], default_root_dir=folder,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
found = newest_checkpoint(callback.folder(trainer))
print("from", found, flush=True)
trainer.fit(Module(), loader, ckpt_path=found)
(folder / "done").write_text(str(trainer.global_step))
"""


def begin(conductor: Conductor, name: str, folder: Path, slow_s: float) -> None:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, str(script), str(folder), str(slow_s)]
        env = {"STRETTO_CHECKPOINT_DIR": str(folder / "kept")}
        conductor.start(name, command, env, stdout=log, stderr=log)


@pytest.mark.slow
def test_told_to_leave_lightning_saves_ends_with_143_and_goes_on_with_the_next_step(tmp_path: Path) -> None:
    def steps() -> list[tuple[int, ...]]:
        file = tmp_path / "steps"
        lines = file.read_text().splitlines() if file.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    with Conductor() as conductor:
        begin(conductor, "j.1.0", tmp_path, 0.1)
        conductor.wait_until(lambda: len(steps()) >= 20, 300, "some steps of the second epoch")
        conductor.workers["j.1.0"].send_signal(signal.SIGTERM)
        assert conductor.wait_ended("j.1.0", 300) == 143, (tmp_path / "j.1.0.log").read_text()
        [saved] = conductor.checkpoints
        assert saved["step"] == len(steps())
        assert Path(saved["path"]).exists()
        assert conductor.reports

        begin(conductor, "j.2.0", tmp_path, 0.0)
        assert conductor.wait_ended("j.2.0", 300) == 0, (tmp_path / "j.2.0.log").read_text()
        assert (tmp_path / "done").read_text() == "48"
        assert [each[:2] for each in steps()] == [(step, step // 16) for step in range(48)]
        assert conductor.reports[-1]["step"] == 48
