"""Lightning's Trainer: it reports, leaves with a checkpoint, and goes on from it.

callback = StrettoCallback()
trainer = Trainer(…, callbacks=[callback])
trainer.fit(model, loader, ckpt_path=newest_checkpoint(callback.folder(trainer)))
"""

import os
import re
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from stretto.sdk.adapters.loop import LoopCallback

NAME = re.compile(r"step-(\d{12})\.ckpt")
KEPT = 2  # chosen: the newest, and one more


class StrettoCallback(Callback):
    """Reports progress; told to leave, it saves between two steps and ends with status 143."""

    def __init__(self, metric: str | None = None, report_s: float = 30.0) -> None:
        """`metric`: which of the logged values tells how good the model is."""
        self._metric, self._report_s = metric, report_s
        self._loop: LoopCallback | None = None
        self._step = 0

    def folder(self, trainer: Trainer) -> Path:
        """Where checkpoints of leaving trainings lie."""
        return Path(os.environ.get("STRETTO_CHECKPOINT_DIR") or Path(trainer.default_root_dir, "stretto"))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on SIGTERM is answered; Lightning would only raise an error."""
        steps = trainer.estimated_stepping_batches
        data: Any = getattr(trainer.train_dataloader, "dataset", None)
        self._loop = LoopCallback(
            total_steps=int(steps) if steps != float("inf") and steps > 0 else None,
            dataset_samples=len(data) if hasattr(data, "__len__") else None,
            local_batch=getattr(trainer.train_dataloader, "batch_size", None),
            accumulation=trainer.accumulate_grad_batches,
            report_s=self._report_s,
        )
        self._step = trainer.global_step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The batch before is counted in full here, which a checkpoint needs; leave, if that was agreed."""
        if self._loop is not None and self._loop.should_leave() and trainer.global_step == self._step:
            self._leave(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count and report."""
        if self._loop is None or trainer.global_step == self._step:  # gradients only add up
            return
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._loop.tell(epoch=trainer.current_epoch)
        if self._metric in trainer.callback_metrics:
            self._loop.tell(metric=float(trainer.callback_metrics[self._metric]))
        self._loop.on_step(self._step, loss)

    def _leave(self, trainer: Trainer) -> None:
        assert self._loop is not None
        folder = self.folder(trainer)
        path = folder / f"step-{trainer.global_step:012d}.ckpt"
        unfinished = path.with_suffix(".unfinished")
        trainer.save_checkpoint(unfinished)  # by every rank: some strategies write together
        if trainer.is_global_zero:
            unfinished.replace(path)
            for old in checkpoints(folder)[KEPT:]:
                old.unlink()
        self._loop.leave(trainer.global_step, path)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A last report."""
        if self._loop is not None:
            self._loop.close(trainer.global_step)
            self._loop = None


def checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """Complete ones of leaving trainings, newest first."""
    return sorted((path for path in Path(folder).glob("*") if NAME.fullmatch(path.name)), reverse=True)


def newest_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest of them, None where there is none."""
    paths = checkpoints(folder)
    return str(paths[0]) if paths else None
