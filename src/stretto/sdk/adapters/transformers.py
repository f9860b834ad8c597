"""Hugging Face's Trainer: it reports, leaves with its own checkpoint, and goes on from it.

callback = StrettoCallback()
trainer = Trainer(…, callbacks=[callback])
trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from stretto.sdk.adapters.loop import LoopCallback

NAME = re.compile(r"checkpoint-(\d+)")
BESIDE = ("loss", "runtime", "per_second", "model_preparation_time", "epoch")  # ends of what is no metric


class StrettoCallback(TrainerCallback):
    """Reports progress; told to leave, it has Trainer save after the step and ends with status 143."""

    def __init__(self, report_s: float = 30.0) -> None:
        self._report_s = report_s
        self._loop: LoopCallback | None = None
        self._loss: float | None = None

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Trainer's own reports to the service would say the same less well."""
        os.environ.pop("KUBEFLOW_TRAINER_SERVER_URL", None)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """From here on SIGTERM is answered."""
        data: Any = getattr(more.get("train_dataloader"), "dataset", None)
        self._loop = LoopCallback(
            total_steps=state.max_steps or None,
            dataset_samples=len(data) if hasattr(data, "__len__") else None,
            local_batch=args.train_batch_size,
            accumulation=args.gradient_accumulation_steps,
            report_s=self._report_s,
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Count, report, and ask Trainer to save and stop where all have agreed to leave."""
        assert self._loop is not None
        self._loop.tell(epoch=int(state.epoch or 0))
        self._loop.on_step(state.global_step, self._loss)
        if self._loop.should_leave():
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # there may be no time for it

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """The loss, as Trainer averages it."""
        self._loss = (logs or {}).get("loss", self._loss)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **more: Any,
    ) -> None:
        """The metric that the best model is chosen by, else the first that is none of Trainer's own."""
        values = metrics or {}
        chosen = args.metric_for_best_model or next(
            (name for name in values if name.startswith("eval_") and not name.endswith(BESIDE)), "eval_loss"
        )
        value = values.get(chosen, values.get(f"eval_{chosen}"))
        if self._loop is not None and value is not None:
            self._loop.tell(metric=float(value))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """A checkpoint is complete; the end, where it was the last one."""
        if self._loop is None:
            return
        path = Path(args.output_dir or ".", f"checkpoint-{state.global_step}").resolve()
        if self._loop.should_leave():
            self._loop.leave(state.global_step, path)
        self._loop.checkpointed(state.global_step, path)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """A last report."""
        if self._loop is not None:
            self._loop.close(state.global_step, self._loss)
            self._loop = None


def newest_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest of Trainer's checkpoints that is complete, None where there is none.

    Trainer writes its state last; without it, or with half of it, the writer was stopped in between.
    """
    by_step = [(int(name[1]), path) for path in Path(folder).glob("*") if (name := NAME.fullmatch(path.name))]
    for _, path in sorted(by_step, reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        return str(path)
    return None
