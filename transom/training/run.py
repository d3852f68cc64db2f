"""The training loop: steps, validations and checkpoints of one recipe in one run folder."""

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from transom.checkpoints.run_files import ADAPTER, WEIGHTS
from transom.config.plugins import plugins_of
from transom.config.training import NoAverage, Training
from transom.errors import TransomError
from transom.parallel.workers import working_together
from transom.parallel.world import World
from transom.planning.memory import give_back_freed_memory
from transom.planning.precision import using_threads
from transom.training.average import Averager
from transom.training.events import Event, Finished, Foreseen, Observer, Reason, Saved, Started, Stepped, Validated
from transom.training.follower import END, NOTHING, SAVE, STEP
from transom.training.pace import SETTLED, Pace
from transom.training.record import Window, read_history
from transom.training.resume import read_run
from transom.training.schedule import ends_early, learning_rate
from transom.training.selection import better, validate_candidates
from transom.training.setup import Parts
from transom.training.state import (
    Progress,
    gather_generators,
    learned_tensors,
    optimizer_tensors,
    restore_generators,
    restore_learned,
    restore_optimizer,
)
from transom.training.step import Stepper, StepResult

SKIPS_ALLOWED = 20
"""Steps in a row that may be skipped for a non-finite loss or gradient before the run stops."""


def train(parts: Parts, observers: Sequence[Observer] = (), should_stop: Callable[[], bool] = lambda: False) -> Finished:
    """Train until the steps or minutes are over, validation stops improving, or ``should_stop`` says so; always leaves a checkpoint.

    Args:
        parts: from ``set_up``.
        observers: called with each event of ``training.events``.
        should_stop: asked after each step.

    Returns:
        The last event.

    Raises:
        TransomError: twenty steps in a row had a non-finite loss or gradient; the last checkpoint is kept.
    """
    plugins = [part for plugin in plugins_of(parts.recipe) for part in (plugin.home, plugin.where)]
    arguments = [str(parts.folder.path.resolve()), parts.task.data, parts.recipe.TASK, *plugins]
    with (
        using_threads(parts.processes.threads),
        working_together("transom.training.follower", arguments, parts.processes.count, parts.processes.threads) as world,
    ):
        run = _Run(parts, observers, world)
        run.restore()
        world.copied(list(learned_tensors(parts.model).values()))
        return run.fit(should_stop)


class _Run:
    def __init__(self, parts: Parts, observers: Sequence[Observer], world: World) -> None:
        self.parts = parts
        self.world = world
        self.training: Training = parts.recipe.training
        self.observers = observers
        self.progress = Progress()
        self.notes: tuple[str, ...] = ()
        self.pace = Pace()
        self.averaged: list[int] = []
        self.averager = Averager(self.training.average, parts.model)
        model, task = parts.model, parts.task
        self.stepper = Stepper(model, parts.optimizer, self.training, parts.precision.dtype, task.objective(model), world)
        self.window = Window({}, self.stepper.figures)

    def tell(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)

    def restore(self) -> None:
        """Resume from the newest checkpoint that fits the run, if there is one; nothing is assigned before all of it was checked."""
        saved = None
        checkpoints = self.parts.folder.checkpoints

        def accept(step: int) -> None:
            nonlocal saved
            saved = read_run(checkpoints, step, self.stepper, self.parts.task)

        newest = checkpoints.latest(accept)
        self.world.from_first(NOTHING if newest is None else newest.step)
        if newest is None or saved is None:
            self.parts.folder.metrics.cut(None)
            return
        read_history(self.parts.folder.metrics)  # the report will need it
        self.parts.folder.metrics.cut(newest.step)
        restore_learned(self.parts.model, saved.model)
        restore_optimizer(self.parts.model, self.parts.optimizer, saved.optimizer)
        restore_generators(saved.generators)
        self.averaged = saved.state.snapshots
        self.progress = saved.state.progress
        renewed = self.averager.restore(self.progress.n_averaged, saved.ema, saved.snapshots)
        if saved.state.scaler is not None:
            self.stepper.scaler.load_state_dict(saved.state.scaler.model_dump(by_alias=True))
        self.window = Window(self.progress.window, self.stepper.figures)
        self.notes = (*newest.passed_over, *renewed)

    def fit(self, should_stop: Callable[[], bool]) -> Finished:
        """Step until something ends the run."""
        self.parts.model.train()
        p, t = self.progress, self.training
        notes = (*self.parts.task.report.lines(), *self.parts.notes, *self.notes)
        self.tell(Started(self.parts.folder.path, p.step, t.max_steps, self.parts.facts, notes))
        reason = self.ending(lambda: False)
        if reason and p.validated_at < p.step:  # stopped at what is its end now
            self.milestones(reason)
        batches = self.parts.task.loader.batches_from(p.position)
        while not reason:
            start = time.perf_counter()
            self.world.from_first(STEP)
            position, slices = next(batches)
            rate = learning_rate(p.step + 1, t, self.parts.recipe.model.d_model)
            result = self.stepper.step(slices, rate, sum(map(self.parts.task.flops, slices)))
            p.position = position
            self.stepped(result, rate, time.perf_counter() - start)
            start = time.perf_counter()
            reason = self.milestones(self.ending(should_stop))
            paused = time.perf_counter() - start
            p.seconds += paused
            self.pace.paused(paused)
        return self.finish(reason)

    def stepped(self, result: StepResult, rate: float, seconds: float) -> None:
        """Count a step and tell of it."""
        p, t = self.progress, self.training
        p.step += 1
        p.seconds += seconds
        p.n_target_tokens += 0 if result.skipped else result.n_target_tokens
        p.n_skipped += bool(result.skipped)
        p.skips_in_a_row = p.skips_in_a_row + 1 if result.skipped else 0
        if not result.skipped:
            self.averager.stepped()
        self.window.add(result, seconds)
        self.pace.stepped(seconds)
        left = (t.max_steps - p.step) * self.pace.seconds_a_step
        if t.max_minutes is not None:
            left = min(left, max(t.max_minutes * 60 - p.seconds, 0.0))
        n = result.n_target_tokens
        share = result.flops / seconds / self.parts.peak
        places = tuple(map(self.parts.task.place, result.skipped))
        rates = rate, result.grad_norm, n, n / seconds, share, left, self.epochs
        self.tell(Stepped(p.step, result.loss / n, result.nll / n, *rates, places, result.measured))
        if places:
            self.parts.folder.metrics.append({"step": p.step, "kind": "skipped", "places": list(places)})
        if p.step % t.log_every == 0:
            figures = {"epochs": self.epochs, "learning_rate": rate, **self.window.close(self.parts.peak)}
            self.parts.folder.metrics.append({"step": p.step, "kind": "train", **figures})
        if self.pace.n_steps == SETTLED:
            self.foresee()
        if p.skips_in_a_row >= SKIPS_ALLOWED:
            kept = self.parts.folder.checkpoints.steps()
            where = f"the checkpoint of step {kept[-1]} is kept" if kept else "no checkpoint was written yet"
            raise TransomError(
                f"expected a finite loss and gradient, found {SKIPS_ALLOWED} steps in a row without, up to step {p.step}; {where};"
                " lower training.learning_rate, set training.clip_norm, or set training.precision = 'fp32'"
            )

    @property
    def epochs(self) -> float:
        """Passes over the training data so far."""
        return self.progress.position / self.parts.task.loader.n_samples

    def foresee(self) -> None:
        """Tell what the pace says of the run's end."""
        p, t = self.progress, self.training
        notes = [
            f"{t.max_steps:,} steps are about {float(f'{self.epochs / p.step * t.max_steps:.2g}'):,g} epochs, passes over the training data"
        ]
        if t.max_minutes is not None:
            notes += ends_early(t, t.max_minutes * 60 - p.seconds, p.step, self.pace.seconds_a_step)
        self.tell(Foreseen(p.step, tuple(notes)))

    def ending(self, should_stop: Callable[[], bool]) -> Reason | None:
        """Return why the run ends now; None if it goes on."""
        p, t = self.progress, self.training
        if should_stop():
            return "stopped"
        if p.step >= t.max_steps:
            return "max_steps"
        if t.max_minutes is not None and p.seconds >= t.max_minutes * 60:
            return "max_minutes"
        if t.patience is not None and p.validations_since_best >= t.patience:
            return "patience"
        return None

    def milestones(self, reason: Reason | None) -> Reason | None:
        """Validate and save where it is time, and at the end; return why the run ends now, which the validation may have decided.

        A stop that was asked for, or that the validation decides, adds nothing but a checkpoint to what is done on schedule: a run that
        goes on from it must average and validate the same steps.
        While steps are being skipped, nothing is done on schedule: it may be the weights that are broken, and the last good checkpoint,
        which twenty skips in a row leave the run with, must not make room for theirs.
        """
        step, t = self.progress.step, self.training
        over = reason not in (None, "stopped")
        scheduled = self.progress.skips_in_a_row == 0
        checkpoint_due = scheduled and step % t.checkpoint_every == 0
        if over or checkpoint_due:
            self.averager.checkpointed(step)
        if over or (scheduled and step % t.validate_every == 0):
            self.validate()
            reason = reason or self.ending(lambda: False)  # patience
        if reason or checkpoint_due:
            self.save()
            give_back_freed_memory()
        return reason

    def validate(self) -> None:
        """Read the validation set with the raw weights and with their average; keep the better ones if they are the best so far."""
        p, t, parts = self.progress, self.training, self.parts
        candidates = self.averager.candidates(p.step)
        with using_threads(parts.threads.count):  # the other processes are waiting
            chosen = validate_candidates(parts, candidates, self.stepper.autocast())
        figures, samples = chosen.figures, chosen.samples
        weights = None if isinstance(t.average, NoAverage) else chosen.weights
        best = not p.best or better(figures, p.best, t.select_by)
        p.validations_since_best = 0 if best else p.validations_since_best + 1
        p.validated_at = p.step
        if best:
            p.best, p.best_weights = {"step": p.step, **figures}, weights
            parts.folder.write_tensors(WEIGHTS, parts.validated.state_dict(), p.step)
            if t.adapter is not None:
                parts.folder.write_tensors(ADAPTER, candidates[chosen.weights], p.step)
        compared = {} if weights is None else {"weights": weights, **chosen.compared}
        parts.folder.metrics.append(
            {"step": p.step, "kind": "validation", "best": best, "seconds": p.seconds, **figures, **compared, "samples": samples}
        )
        self.tell(Validated(p.step, figures, best, samples, weights))

    def save(self) -> None:
        """Write a checkpoint, then prune the older ones."""
        p, parts = self.progress, self.parts
        p.window, p.n_averaged = self.window.sums, self.averager.n_averaged
        self.world.from_first(SAVE)
        groups: dict[str, dict[str, Tensor]] = {
            "model": learned_tensors(parts.model),
            "optimizer": optimizer_tensors(parts.model, parts.optimizer),
            "generators": gather_generators(self.world),
        }
        if self.averager.ema:
            groups["ema"] = self.averager.ema
        snapshots = sorted(self.averager.snapshots)
        state = {"progress": p.model_dump(), "scaler": self.stepper.scaler.state_dict(), "snapshots": snapshots, "data": parts.task.data}
        parts.folder.metrics.sync()
        parts.folder.checkpoints.save(p.step, groups, state)
        parts.folder.checkpoints.prune(keep_full=2, keep_weights={*self.averaged, *snapshots})  # what both whole ones go on from
        self.averaged = snapshots
        self.tell(Saved(p.step, parts.folder.path))

    def finish(self, reason: Reason) -> Finished:
        """Tell of the end."""
        self.world.from_first(END)
        p = self.progress
        facts = {
            "n_target_tokens": p.n_target_tokens,
            "n_skipped": p.n_skipped,
            "target_tokens_per_second": p.n_target_tokens / max(p.seconds, 1e-9),
        }
        finished = Finished(p.step, reason, p.best, p.seconds, facts, p.best_weights)
        self.tell(finished)
        return finished
