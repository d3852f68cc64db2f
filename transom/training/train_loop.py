"""The training loop: steps, validations and checkpoints of one recipe in one run folder."""

import time
from collections.abc import Callable, Sequence

from transom.checkpoints.run_files import ADAPTER, WEIGHTS
from transom.config.plugins import plugins_of
from transom.config.training import NoAverageConfig, TrainingConfig
from transom.data.batch import Batch
from transom.errors import DivergedError
from transom.parallel.mesh import Ranks
from transom.parallel.processes.launcher import launch_processes
from transom.planning.freed_memory import trim_malloc
from transom.planning.memory import peak_memory
from transom.planning.precision import num_threads_set_to
from transom.training.checkpoint_selection import is_better, validate_candidates
from transom.training.events import (
    Callback,
    CheckpointSaved,
    Event,
    Forecast,
    MemoryIsShort,
    MicroBatchesHalved,
    StepFinished,
    StopReason,
    TrainingFinished,
    TrainingStarted,
    ValidationFinished,
)
from transom.training.lr_schedule import learning_rate
from transom.training.metrics_window import MetricsWindow, read_metrics_history
from transom.training.rank_process import Command, encode_result
from transom.training.rank_state import RankState
from transom.training.setup import TrainingSetup
from transom.training.step_timer import MIN_FORECAST_STEPS, StepTimer
from transom.training.time_limit import FIRST_PLAN_SHARE, LATEST_FIRST_PLAN_SHARE, limit_notes, plan_steps
from transom.training.train_state import TrainState
from transom.training.train_step import StepResult

MAX_CHECKPOINT_SHARE = 0.01
"""Maximum fraction of the time that checkpoints between those by steps may take."""

MAX_CONSECUTIVE_SKIPS = 20
"""Number of consecutive steps that may be skipped for a non-finite loss or gradient before the run stops."""


def train(setup: TrainingSetup, callbacks: Sequence[Callback] = (), should_stop: Callable[[], bool] = lambda: False) -> TrainingFinished:
    """Train until the steps or minutes are used up, validation stops improving, or ``should_stop`` returns True; then save a checkpoint.

    Args:
        setup: the run, from ``build_training_setup``.
        callbacks: called with each event of ``training.events``.
        should_stop: called after each step; True ends the run.

    Returns:
        The last event, which callbacks receive too.

    Raises:
        DivergedError: twenty consecutive steps had a non-finite loss or gradient; the last checkpoint is kept.
    """
    plugins = [part for plugin in plugins_of(setup.recipe) for part in (plugin.home, plugin.where)]
    arguments = [str(setup.folder.path.resolve()), setup.task.data_hash, setup.recipe.TASK, *plugins]
    with (
        num_threads_set_to(setup.processes.threads),
        launch_processes("transom.training.rank_process", arguments, setup.processes.count, setup.processes.threads) as world,
    ):
        run = _TrainingLoop(setup, callbacks, Ranks(world, setup.recipe.parallel, setup.model.device))
        with run.rank.checkpoints:
            run.restore()
            return run.fit(should_stop)


FORECAST_TOLERANCE = 0.2
"""Relative change of the number of steps that fit into a time limit, above which the forecast is sent again."""


class _TrainingLoop:
    def __init__(self, setup: TrainingSetup, callbacks: Sequence[Callback], ranks: Ranks) -> None:
        self.setup = setup
        self.world = ranks.world
        self.recipe_training: TrainingConfig = setup.recipe.training
        self.training = self.recipe_training  # with the values that a time limit changes
        self.callbacks = callbacks
        self.state = TrainState()
        self.notes: tuple[str, ...] = ()
        self.step_timer, self.forecast_steps = StepTimer(), 0
        self.saved_at, self.save_seconds, self.validation_seconds = time.perf_counter(), 0.0, 0.0
        self.previous_snapshots: list[int] = []
        checkpoints = setup.folder.checkpoints
        self.rank = RankState(setup.recipe, setup.model, setup.task, setup.precision.dtype, ranks, checkpoints, self.after_save)
        self.train_step, self.freed, self.reported_shortage = self.rank.train_step, self.rank.freed, ""
        self.window = MetricsWindow({}, self.train_step.metrics)

    def notify(self, event: Event) -> None:
        for callback in self.callbacks:
            callback(event)

    def restore(self) -> None:
        """Resume from the latest checkpoint that fits the run, if there is one. All of it is checked before anything is loaded."""
        restored = self.rank.restore()
        if restored is None:
            self.setup.folder.metrics.truncate(None)
            return
        read_metrics_history(self.setup.folder.metrics)  # the report will need it
        self.state, self.notes = restored.state.progress, restored.notes
        self.setup.folder.metrics.truncate(self.state.step)
        self.previous_snapshots = restored.state.snapshots
        if self.state.plan is not None and self.state.plan.max_minutes != self.training.max_minutes:
            self.state.plan = None  # it is made anew
        self.apply_plan()
        self.window = MetricsWindow(self.state.window, self.train_step.metrics)

    def command(self, command: Command, argument: float = 0.0) -> None:
        """Let the other ranks take part in what this rank does next."""
        self.world.broadcast_scalars(command, argument)

    def fit(self, should_stop: Callable[[], bool]) -> TrainingFinished:
        """Take steps until the run ends; return the last event."""
        self.setup.model.train()
        p = self.state
        notes = (*self.setup.task.report.lines(), *self.setup.notes, *self.notes)
        reason = self.stop_reason(lambda: False)
        notes = (*notes, *limit_notes(self.recipe_training, reason, p.step, p.seconds))
        setup, max_steps, autocast = self.setup, self.training.max_steps, self.train_step.autocast
        model = None if self.rank.ranks.splits_model else setup.model
        self.notify(TrainingStarted(setup.folder.path, p.step, max_steps, setup.facts, notes, model, self.first_batch, autocast))
        if reason and p.last_validation_step < p.step:  # the run already stopped at this end
            self.validate_and_save(reason)
        batches = self.setup.task.loader.batches_from(p.position)
        while not reason:
            start = time.perf_counter()
            lr = learning_rate(p.step + 1, self.training, self.setup.recipe.model.d_model)
            self.command(Command.STEP, lr)
            position, micro_batches = next(batches)
            result = self.rank.step(micro_batches, lr)
            p.position = position
            self.after_step(result, lr, time.perf_counter() - start)
            start = time.perf_counter()
            reason = self.validate_and_save(self.stop_reason(should_stop))
            paused = time.perf_counter() - start
            p.seconds += paused
            self.step_timer.after_pause(paused)
            if p.last_validation_step == p.step and not reason:
                self.validation_seconds = paused
                self.plan()
                if self.forecast_steps and abs(self.training.max_steps / self.forecast_steps - 1) > FORECAST_TOLERANCE:
                    self.forecast()
        return self.finish(reason)

    def after_step(self, result: StepResult, lr: float, seconds: float) -> None:
        """Update counters and averages after a step, send ``StepFinished``, and write to ``metrics.jsonl``."""
        p, t = self.state, self.training
        p.step += 1
        p.seconds += seconds
        p.n_target_tokens += 0 if result.skipped else result.n_target_tokens
        p.n_skipped += bool(result.skipped)
        p.consecutive_skips = p.consecutive_skips + 1 if result.skipped else 0
        self.window.add(result, seconds)
        self.step_timer.after_step(seconds)
        self.rank.checkpoints.check()
        left = (t.max_steps - p.step) * self.step_timer.seconds_per_step
        if t.max_minutes is not None:
            left = min(left, max(t.max_minutes * 60 - p.seconds, 0.0))
        n = result.n_target_tokens
        share = result.flops / seconds / self.setup.peak
        places = tuple(map(self.setup.task.describe_sample, result.skipped))
        rates = lr, result.grad_norm, n, n / seconds, share, left, self.epochs
        self.notify(StepFinished(p.step, result.loss / n, result.nll / n, *rates, places, result.aux_metrics))
        if self.train_step.n_splits != p.n_splits:
            p.n_splits = self.train_step.n_splits
            self.notify(MicroBatchesHalved(p.step, result.rows, p.n_splits))
            self.setup.folder.metrics.append({"step": p.step, "kind": "halved", "rows": result.rows, "n_splits": p.n_splits})
        if self.freed.room is not None and self.freed.shortage != self.reported_shortage:
            self.reported_shortage = self.freed.shortage
            self.notify(MemoryIsShort(p.step, *self.freed.room, ran_out=self.reported_shortage == "ran out"))
        if places:
            self.setup.folder.metrics.append({"step": p.step, "kind": "skipped", "samples": list(places)})
        if p.step % t.log_every == 0:
            metrics = {"epochs": self.epochs, "learning_rate": lr, **self.window.flush(self.setup.peak)}
            metrics["peak_memory"] = peak_memory(self.setup.model.device) - self.setup.memory_before
            if self.freed.room is not None:
                metrics["needed_memory"] = self.freed.room.needed - self.setup.memory_before
            self.setup.folder.metrics.append({"step": p.step, "kind": "train", **metrics})
        if not self.forecast_steps and (self.step_timer.is_reliable or self.is_time_to_plan()):
            self.plan()
            self.forecast()
        if p.consecutive_skips >= MAX_CONSECUTIVE_SKIPS:
            self.rank.checkpoints.wait()
            kept = self.setup.folder.checkpoints.steps()
            where = f"the checkpoint of step {kept[-1]} is kept" if kept else "no checkpoint was written yet"
            raise DivergedError(
                f"expected a finite loss and gradient, found none in {MAX_CONSECUTIVE_SKIPS} consecutive steps up to step {p.step};"
                f" {where}; lower training.learning_rate, set training.max_grad_norm, or set training.precision = 'fp32'"
            )

    @property
    def epochs(self) -> float:
        """Number of passes over the training data so far."""
        return self.state.position / self.setup.task.loader.n_samples

    def first_batch(self) -> Batch:
        """Build the first micro-batch of the training data, which changes no state of the run."""
        return next(self.setup.task.loader.batches_from(0))[1][0]

    def is_time_to_plan(self) -> bool:
        """Return whether the run has a time limit and enough of that time has passed to plan the remaining steps."""
        minutes, timer = self.training.max_minutes, self.step_timer
        share = FIRST_PLAN_SHARE if timer.n_steps >= MIN_FORECAST_STEPS else LATEST_FIRST_PLAN_SHARE
        return minutes is not None and timer.total_seconds >= share * 60 * minutes

    def plan(self) -> None:
        """Fit steps, warmup and intervals into the time limit, if there is one, by the measured time per step."""
        p = self.state
        if self.recipe_training.max_minutes is not None:
            p.plan = plan_steps(self.recipe_training, p.step, p.seconds, self.step_timer.step_seconds, self.validation_seconds)
            self.apply_plan()

    def apply_plan(self) -> None:
        """Apply the plan of the run's state to the training settings."""
        self.training = self.recipe_training
        if self.state.plan is not None:
            self.training = self.state.plan.apply(self.recipe_training, self.setup.recipe.model.d_model)

    def forecast(self) -> None:
        """Send ``Forecast`` with the epochs of the whole run and, if a time limit ends the run early, the plan."""
        p, steps = self.state, self.training.max_steps
        self.forecast_steps = steps
        notes = [f"{steps:,} steps are about {float(f'{self.epochs / p.step * steps:.2g}'):,g} epochs, passes over the training data"]
        self.notify(Forecast(p.step, steps, (*([] if p.plan is None else [p.plan.note]), *notes)))

    def stop_reason(self, should_stop: Callable[[], bool]) -> StopReason | None:
        """Return the reason to end the run after the current step; None to continue."""
        p, t = self.state, self.training
        if should_stop():
            return "stopped"
        if p.step >= self.recipe_training.max_steps:
            return "max_steps"
        if t.max_minutes is not None and (p.seconds >= t.max_minutes * 60 or p.step >= t.max_steps):
            return "max_minutes"
        if t.patience is not None and p.validations_since_best >= t.patience:
            return "patience"
        return None

    def validate_and_save(self, reason: StopReason | None) -> StopReason | None:
        """Validate and save if the current step is due or the run ends; return the reason to end the run, perhaps "patience".

        If a signal or early stopping ends the run, a checkpoint is written, but averaging and validation keep their schedule: a resumed run
        must average and validate at the same steps as an uninterrupted one. After a skipped step nothing is due: the weights may be
        broken, and a checkpoint of them must not replace the last good one.
        """
        step, t = self.state.step, self.training
        over = reason not in (None, "stopped")
        scheduled = self.state.consecutive_skips == 0
        checkpoint_due = scheduled and step % t.checkpoint_every == 0
        if over or checkpoint_due:
            self.command(Command.AVERAGE, step)
            self.rank.after_checkpoint(step)
        if over or (scheduled and step % t.validate_every == 0):
            self.validate()
            reason = reason or self.stop_reason(lambda: False)  # patience
        if reason or checkpoint_due or (scheduled and self.is_time_to_save()):
            self.save()
            trim_malloc()
        return reason

    def validate(self) -> None:
        """Validate the raw and the averaged weights; write the better ones to the run folder if they are the best so far."""
        p, t, setup = self.state, self.training, self.setup
        self.command(Command.VALIDATE, p.step)
        candidates = self.rank.candidates(p.step)
        with num_threads_set_to(setup.threads.count):  # the other processes are waiting
            chosen = validate_candidates(setup, candidates, self.train_step.autocast())
        metrics, samples = chosen.metrics, chosen.samples
        weights = None if isinstance(t.average, NoAverageConfig) else chosen.weights
        best = not p.best or is_better(metrics, p.best, t.best_checkpoint_metric)
        p.validations_since_best = 0 if best else p.validations_since_best + 1
        p.last_validation_step = p.step
        if best:
            p.best, p.best_weights = {"step": p.step, **metrics}, weights
            setup.folder.write_tensors(WEIGHTS, setup.eval_model.state_dict(), p.step)
            if t.adapter is not None:
                setup.folder.write_tensors(ADAPTER, candidates[chosen.weights], p.step)
        candidate_metrics = {} if weights is None else {"weights": weights, **chosen.candidate_metrics}
        setup.folder.metrics.append(
            {"step": p.step, "kind": "validation", "best": best, "seconds": p.seconds, **metrics, **candidate_metrics, "samples": samples}
        )
        self.notify(ValidationFinished(p.step, metrics, best, samples, weights))

    def is_time_to_save(self) -> bool:
        """Return whether the last checkpoint is old enough for another one between those by steps. It changes nothing but what is lost."""
        minutes, age = self.training.checkpoint_minutes, time.perf_counter() - self.saved_at
        return minutes is not None and age >= max(60 * minutes, self.save_seconds / MAX_CHECKPOINT_SHARE)

    def save(self) -> None:
        """Save a checkpoint, then delete older ones that are needed for nothing: resuming, averaging, or ``training.keep_checkpoints``.

        Training continues while it is written. ``save_seconds`` is the time for which it waits: to copy the tensors, and for the end of the
        checkpoint before.
        """
        p, t, setup, averager = self.state, self.training, self.setup, self.rank.averager
        start = time.perf_counter()
        p.window, p.n_averaged = self.window.sums, averager.n_averaged
        snapshots = sorted(averager.snapshots)
        state = {
            "progress": p.model_dump(),
            "scaler": self.train_step.scaler.state_dict(),
            "snapshots": snapshots,
            "data": setup.task.data_hash,
        }
        setup.folder.metrics.sync()
        needed = {*self.previous_snapshots, *snapshots}  # from which both complete checkpoints resume
        self.previous_snapshots = snapshots

        def prune() -> None:
            by_steps = [step for step in setup.folder.checkpoints.steps() if step % t.checkpoint_every == 0]
            kept = by_steps[-t.keep_checkpoints :] if t.keep_checkpoints else []
            setup.folder.checkpoints.prune(keep_full=2, keep_weights={*needed, *kept})

        self.command(Command.SAVE, p.step)
        self.rank.save(p.step, state, prune)
        self.saved_at = time.perf_counter()
        self.save_seconds = self.saved_at - start

    def after_save(self, step: int) -> None:
        """Send ``CheckpointSaved``, once the checkpoint of ``step`` is durable."""
        self.notify(CheckpointSaved(step, self.setup.folder.path))

    def finish(self, reason: StopReason) -> TrainingFinished:
        """End the other processes, send ``TrainingFinished`` and return it."""
        p = self.state
        facts = {
            "n_target_tokens": p.n_target_tokens,
            "n_skipped": p.n_skipped,
            "target_tokens_per_second": p.n_target_tokens / max(p.seconds, 1e-9),
        }
        self.rank.checkpoints.wait()
        finished = TrainingFinished(p.step, reason, p.best, p.seconds, facts, p.best_weights)
        self.command(Command.END)
        self.world.broadcast_text(encode_result(finished))
        self.notify(finished)
        return finished
