"""The training loop: batches, loss, gradients, AdamW steps, validation, and checkpoints.

Sources: Williams & Zipser (1989) for teacher forcing; Williams & Peng (1990) for truncated
backpropagation through time: an LSTM carries its state to the next step, but not its gradient.

All random numbers of a step (batch and dropout) depend on the seed, the step number and the rank. A
resumed run therefore needs no generator state, and its steps are bitwise identical.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from minhub_py.inference.quantize import count
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache
from minhub_py.models.registry import Architecture
from minhub_py.models.skeleton import skeleton
from minhub_py.system.heap import release_free_pages
from minhub_py.system.spelling import setting
from minhub_py.training import adapter_run, trainer_state
from minhub_py.training.checkpoint import (
    HeldOutMeasures,
    LossRow,
    Progress,
    RunFolder,
    progress_json,
    read_state,
    write_state,
)
from minhub_py.training.cpu_kernels import CPUKernels
from minhub_py.training.data import Corpus, DataLoader, evaluation_batches
from minhub_py.training.data_parallel import DataParallelGroup, full_tensor, gather_on_main
from minhub_py.training.errors import reading
from minhub_py.training.estimate import estimate, is_representative
from minhub_py.training.examples import ExampleCorpus
from minhub_py.training.listener import Listener, StoppedError
from minhub_py.training.memory import checkpoint_blocks
from minhub_py.training.objectives import ExampleBatch, ExampleTask, example_task
from minhub_py.training.optimizer import create_optimizer, learning_rate, random_seed
from minhub_py.training.outputs import sample_text, write_model
from minhub_py.training.settings import CONTEXT, Settings

# seconds between progress reports, which read the loss and therefore wait for the GPU
REPORT_INTERVAL = 0.5
# steps between releases of memory, which cost time because the pages are mapped again
RELEASE_EVERY = 2


class Trainer:
    """A model in training, with its optimizer, data and progress.

    ValueError: the batch is not divisible by the world size, or the text is too short.
    """

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        corpus: Corpus | ExampleCorpus,
        tokenizer: Tokenizer,
        family: Architecture,
        model: LanguageModel,
        group: DataParallelGroup,
        device: torch.device,
        listener: Listener,
    ) -> None:
        self.settings, self.folder, self.corpus, self.tokenizer = (
            settings,
            folder,
            corpus,
            tokenizer,
        )
        self.family, self.group, self.device, self.listener = family, group, device, listener
        self.progress = Progress()
        self.saved_step = -1  # step of the last checkpoint
        self.has_estimate = False
        self.pending = "the first batch"
        self.interrupted: Callable[[], bool] = lambda: False
        self.context = settings.context or CONTEXT
        self.task: ExampleTask | None = None
        self.carry = settings.carry and family.training.carries_state and isinstance(corpus, Corpus)
        global_micro_batch = settings.batch // settings.accumulate  # over all processes
        self.micro_batch = len(range(global_micro_batch)[group.shard(global_micro_batch)])
        self.shard = group.shard(settings.batch)
        self.tokens_per_step = float(settings.batch * self.context)
        if isinstance(corpus, Corpus):
            self.loader = DataLoader(
                corpus.train, settings.batch, self.context, settings.seed, self.carry
            )
            self.evaluation_batches: list[Any] = evaluation_batches(
                corpus.held_out,
                self.context,
                settings.batch,
                global_micro_batch,
                settings.evaluate_tokens,
                self.carry,
            )
        else:
            self.task = example_task(settings, corpus, tokenizer, model, self.micro_batch)
            self.evaluation_batches = self.task.evaluation_batches()
            self.tokens_per_step = settings.batch * len(corpus.train.ids) / len(corpus.train)
        if self.task is not None and group.world_size > 1:
            raise ValueError(
                "training on examples needs a single process: start it without torchrun"
            )

        self.model = model.to(device)
        self.set_training_mode()
        if settings.checkpointing:
            checkpoint_blocks(self.model)
        self.initial_state = (
            self.model.new_cache(self.micro_batch, self.context) if self.carry else None
        )
        self.states = [self.new_state(self.micro_batch) for _ in range(settings.accumulate)]
        self.wrapped = group.wrap(self.model, device)
        # FSDP has replaced the parameters
        self.trained = adapter_run.trained_parameters(self.model)
        self.parameters = sum(parameter.numel() for parameter in self.trained.values())
        self.all_parameters = count(self.model) if settings.lora else self.parameters
        self.compiled = torch.compile(self.wrapped) if settings.compile else self.wrapped
        # torch.compile generates its own kernels.
        self.kernels = CPUKernels if device.type == "cpu" and not settings.compile else nullcontext
        self.optimizer = create_optimizer(self.model, settings)
        dtype = torch.float64 if device.type in ("cpu", "cuda") else torch.float32
        # losses and gradient norms since the last row
        self.sums = torch.zeros(2, dtype=dtype, device=device)

    def new_state(self, batch_size: int) -> Cache | None:
        """An LSTM's initial state; None for a model that carries no state."""
        if self.initial_state is None:
            return None
        state = copy.deepcopy(self.initial_state)
        state.select(list(range(batch_size)))
        return state

    def run(self, interrupted: Callable[[], bool]) -> bool:
        """Train until the last step. Returns False if the run stopped earlier, after a checkpoint.

        There is no checkpoint before the first evaluation: the run then resumes from its start.
        """
        progress = self.progress
        self.interrupted = interrupted
        self.started = time.perf_counter() - progress.seconds
        self.row_step, self.row_started = progress.step, self.started
        try:
            self.run_steps()
        except StoppedError:
            if progress.best_loss is not None:
                self.save()
            return False
        return True

    def run_steps(self) -> None:
        """Run all remaining steps. StoppedError: the run stopped before the last step."""
        settings, progress = self.settings, self.progress
        if progress.best_loss is None:
            self.evaluate()
        elif self.evaluation_due:  # the run stopped during this evaluation
            if self.group.is_main:
                self.folder.truncate_after(progress.step - 1)
            self.evaluate()
            self.save_progress()
        self.reset_timer()
        while not self.finished:
            self.check_stop(self.listener.asks_to_stop())
            self.step()
            progress.step += 1
            if self.evaluation_due:
                self.evaluate()
                self.reset_timer()
            if self.finished or progress.step % settings.checkpoint_every == 0:
                self.save()
            self.report_progress()

    @property
    def evaluation_due(self) -> bool:
        """Whether the last step requires an evaluation that has not run yet."""
        step, settings = self.progress.step, self.settings
        return self.progress.steps_in_sums > 0 and (
            step == settings.steps or step % settings.evaluate_every == 0
        )

    @property
    def finished(self) -> bool:
        """Whether all steps are complete, or the validation loss has not improved for `patience`
        evaluations.
        """
        patience = self.settings.patience
        return self.progress.step >= self.settings.steps or (
            patience is not None and self.progress.waited >= patience
        )

    def check_stop(self, requested: bool) -> None:
        """StoppedError, in all processes: a signal or the listener of any process requests a stop."""
        stop = requested or self.interrupted()
        if self.group.all_reduce([float(stop)], self.device) != [0.0]:
            raise StoppedError

    def begin_batch(self, task: str, number: int, count: int) -> None:
        """Report a batch before its computation. StoppedError: as `check_stop`."""
        self.check_stop(self.listener.cancelled())
        self.report_batch(task, number, count)

    def report_batch(self, task: str, number: int, count: int) -> None:
        """Report a batch before its computation."""
        title = "the evaluation" if task == "evaluation" else f"step {self.progress.step + 1:,}"
        self.pending = f"batch {number:,} of {count:,} of {title}"
        if self.group.is_main:
            self.listener.working(self.progress.step, task, number, count)

    def step(self) -> None:
        """One optimizer step, over all micro-batches.

        StoppedError: the run stopped between micro-batches, without changes. A run that carries an
        LSTM's state does not stop there, because the state has changed already.
        """
        settings, step = self.settings, self.progress.step
        torch.manual_seed(random_seed(settings.seed, step, self.group.rank))
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(settings, step)
        micro_batches, reset = self.micro_batches(step)
        loss = torch.zeros((), device=self.device)
        for index, micro_batch in enumerate(micro_batches):
            try:
                report = self.begin_batch if index and not self.carry else self.report_batch
                report("step", index + 1, len(micro_batches))
            except StoppedError:
                self.optimizer.zero_grad()
                raise
            if reset:
                self.states[index] = self.new_state(self.micro_batch)
            with self.group.gradient_sync(self.wrapped, index == len(micro_batches) - 1):
                micro_loss = self.micro_loss(micro_batch, index, len(micro_batches))
                micro_loss.backward()
            loss += micro_loss.detach()
        for parameter in self.trained.values():
            if parameter.grad is None:  # of an expert that no token has chosen
                parameter.grad = torch.zeros_like(parameter)
        norm = nn.utils.clip_grad_norm_(self.trained.values(), settings.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.task is not None and self.device.type == "cpu" and step % RELEASE_EVERY == 0:
            release_free_pages()
        self.sums += torch.stack((loss, full_tensor(norm)))
        self.progress.steps_in_sums += 1

    def set_training_mode(self) -> None:
        """Training mode; without dropout for preference pairs, so that policy and reference are
        comparable.
        """
        self.model.train(self.corpus.objective != "preference")

    def micro_batches(self, step: int) -> tuple[Sequence[Tensor] | Sequence[ExampleBatch], bool]:
        """A step's micro-batches, and whether an LSTM's state is reset before it."""
        if self.task is not None:
            return [
                batch.to(self.device) for batch in self.task.step_batches(step, self.shard)
            ], False
        batch, reset = self.loader.at(step, self.shard)
        return batch.to(self.device).split(self.micro_batch), reset

    def micro_loss(self, micro_batch: Any, index: int, count: int) -> Tensor:
        """The part of a micro-batch in a step's mean loss."""
        if self.task is None:
            return self.loss(self.compiled, micro_batch, self.states[index]) / count
        with self.autocast(), self.kernels():
            return self.task.loss(self.model, micro_batch) * micro_batch.scale

    def loss(self, model: Callable[..., Tensor], sequences: Tensor, state: Cache | None) -> Tensor:
        """Mean cross-entropy in nats per token; sequences (B, T + 1) are inputs and, shifted by
        one, targets.
        """
        with self.autocast(), self.kernels():
            inputs = sequences[:, :-1]
            logits = model(inputs) if state is None else model(inputs, state)  # (B, T, V)
            return F.cross_entropy(logits.float().flatten(0, 1), sequences[:, 1:].flatten())

    def autocast(self) -> AbstractContextManager[object]:
        """Autocast of matrix products; weights, gradients and optimizer state remain float32."""
        return (
            torch.autocast(self.device.type, torch.bfloat16)
            if self.settings.dtype == "bfloat16"
            else nullcontext()
        )

    @torch.no_grad()
    def validate(self) -> tuple[float, HeldOutMeasures]:
        """The mean loss on the held-out data, and the measures of examples with labels.

        StoppedError: the run stopped between two batches.
        """
        if self.task is not None:
            return self.validate_examples(self.task)
        assert isinstance(self.corpus, Corpus)
        held_out = self.corpus.held_out
        loss, tokens = 0.0, 0
        state = None
        self.model.eval()
        try:
            for number, (starts, length, reset) in enumerate(self.evaluation_batches, 1):
                self.begin_batch("evaluation", number, len(self.evaluation_batches))
                size = -(-len(starts) // self.group.world_size)
                shard = starts[self.group.rank * size :][:size]
                weight = len(shard) * length
                # an empty shard still takes part in the collective calls
                shard = shard or starts[:1]
                if reset:
                    state = self.new_state(len(shard))
                sequences = held_out.sequences(shard, length + 1).to(self.device)
                started = time.perf_counter()
                loss += self.loss(self.wrapped, sequences, state).item() * weight
                last = number == len(self.evaluation_batches)
                self.estimate(number, time.perf_counter() - started, len(shard) * length, last)
                tokens += weight
        finally:
            self.set_training_mode()
        total_loss, total_tokens = self.group.all_reduce([loss, float(tokens)], self.device)
        return total_loss / total_tokens, {}

    def validate_examples(self, task: ExampleTask) -> tuple[float, HeldOutMeasures]:
        """`validate` of examples; the loss is per target."""
        loss, targets = 0.0, 0.0
        scored: list[tuple[Tensor, Tensor]] = []
        self.model.eval()
        try:
            for number, numbers in enumerate(self.evaluation_batches, 1):
                self.begin_batch("evaluation", number, len(self.evaluation_batches))
                batch = task.held_out_batch(numbers).to(self.device)
                started = time.perf_counter()
                with self.autocast(), self.kernels():
                    loss += task.loss(self.model, batch, scored).item()
                last = number == len(self.evaluation_batches)
                self.estimate(number, time.perf_counter() - started, int(batch.mask.sum()), last)
                targets += batch.targets
        finally:
            self.set_training_mode()
        return loss / targets, task.measures(scored)

    def estimate(self, number: int, seconds: float, tokens: int, last: bool) -> None:
        """Report the duration of the run once, from the duration of a batch of `tokens` held-out
        tokens.
        """
        left = self.settings.steps - self.progress.step
        if self.has_estimate or not (
            left and self.group.is_main and is_representative(number, seconds, last)
        ):
            return
        self.has_estimate = True
        if isinstance(self.corpus, Corpus):
            evaluated = sum(len(batch.starts) * batch.length for batch in self.evaluation_batches)
        else:
            held_out = self.corpus.held_out
            evaluated = sum(
                held_out.length(number) for batch in self.evaluation_batches for number in batch
            )
        per_token, every = seconds / tokens / self.group.world_size, self.settings.evaluate_every
        self.listener.estimated(*estimate(per_token, self.tokens_per_step, evaluated, left, every))

    def evaluate(self) -> None:
        """Compute the validation loss, add a row to losses.csv, save the best model, and write a
        sample.
        """
        progress, settings = self.progress, self.settings
        steps = progress.steps_in_sums
        # waits for the GPU
        train_loss, norm = (total / steps if steps else math.nan for total in self.mean_sums())
        seconds = time.perf_counter() - self.row_started
        loss, measures = self.validate()
        if not math.isfinite(loss):
            raise self.divergence()
        best = progress.best_loss is None or loss < progress.best_loss
        progress.waited = 0 if best else progress.waited + 1
        if best:
            progress.best_loss, progress.best_step = loss, progress.step
            state = gather_on_main(self.state(), self.group)
            if self.group.is_main:
                with self.folder.writing(self.folder.path):
                    self.write_model(self.folder.path, state)
        tokens = self.tokens_per_step
        row: LossRow = {
            "step": progress.step,
            "tokens": round(progress.step * tokens),
            "train_loss": train_loss,
            "held_out_loss": loss,
            "learning_rate": learning_rate(settings, progress.step),
            "gradient_norm": norm,
            "tokens_per_second": round((progress.step - self.row_step) * tokens / seconds, 1),
            "seconds": round(time.perf_counter() - self.started, 2),
            **measures,
        }
        if self.group.is_main:
            self.folder.write_row(row)
            self.listener.evaluated(row, best)
        self.sums.zero_()
        progress.steps_in_sums = 0
        if settings.sample is not None:
            self.sample(settings.sample)

    def mean_sums(self) -> list[float]:
        """Sums of losses and gradient norms since the last row: means over the processes, for any
        world size.

        ValueError: a sum is infinite or NaN.
        """
        sums = self.group.all_reduce(self.sums.tolist(), self.device)
        if not all(map(math.isfinite, sums)):
            raise self.divergence()
        return [total / self.group.world_size for total in sums]

    def divergence(self) -> ValueError:
        """The error for an infinite or NaN loss."""
        newest = self.folder.newest()
        checkpoint = (
            f"the checkpoint {newest.name} is intact" if newest else "there is no checkpoint yet"
        )
        return ValueError(
            f"the loss is infinite or NaN at step {self.progress.step} or shortly before;"
            f" {checkpoint}. Start a new run with a lower {setting('learning_rate')} or a longer"
            f" {setting('warm_up')}"
        )

    def reset_timer(self) -> None:
        """Restart the measurement of speed, which excludes evaluations and earlier sessions."""
        self.row_step = self.reported_step = self.progress.step
        self.row_started = self.reported_at = time.perf_counter()
        self.reported_sum = self.sums[0].item()

    def report_progress(self) -> None:
        """Call `Listener.stepped`, at most once per REPORT_INTERVAL. ValueError: the loss is
        infinite or NaN.
        """
        now, step = time.perf_counter(), self.progress.step
        if (
            now - self.reported_at < REPORT_INTERVAL
            or step == self.reported_step
            or not self.group.is_main
        ):
            return
        loss = self.sums[0].item()
        if not math.isfinite(loss):
            raise self.divergence()
        steps = step - self.reported_step
        speed = steps / (now - self.reported_at)
        self.listener.stepped(
            step,
            self.settings.steps,
            (loss - self.reported_sum) / steps,
            speed * self.tokens_per_step,
            (self.settings.steps - step) / speed,
        )
        self.reported_at, self.reported_step, self.reported_sum = now, step, loss

    def sample(self, prompt: str) -> None:
        """Generate text from the prompt, with the same random numbers at each evaluation."""
        model = self.model
        state = gather_on_main(model.state_dict(), self.group) if self.group.is_sharded else {}
        if not self.group.is_main:
            return
        if self.group.is_sharded:
            model = skeleton(self.family.Model, model.config)
            model.load_state_dict(state, assign=True)
        text = sample_text(
            model, self.tokenizer, prompt, self.settings.sample_tokens, self.settings.seed
        )
        self.set_training_mode()
        samples = self.folder.samples
        with self.folder.writing(samples), samples.open("a", encoding="utf-8", newline="") as file:
            file.write(f"==== step {self.progress.step}\n{text}\n\n")
        self.listener.sampled(self.progress.step, text)

    def state(self) -> dict[str, Tensor]:
        """The tensors that `write_model` converts; none for an adapter, which is written as it is."""
        return {} if self.settings.lora else self.model.state_dict()

    def write_model(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Write the model in Hub layout, or its adapter."""
        write_model(folder, self.model, self.family.model_type, state, self.tokenizer)

    def save(self) -> None:
        """Write a checkpoint of this step. OSError: the disk is full; the previous checkpoint is
        intact.
        """
        if self.saved_step == self.progress.step:
            return
        self.progress.sums = self.mean_sums()  # raises before a checkpoint of diverged weights
        self.progress.seconds = time.perf_counter() - self.started
        model = gather_on_main(self.state(), self.group)
        tensors = self.state_tensors()
        if self.group.is_main:
            with self.folder.new_checkpoint(self.progress.step) as partial:
                self.write_model(partial, model)
                write_state(partial, tensors, self.progress)
        self.group.barrier()
        self.saved_step = self.progress.step

    def save_progress(self) -> None:
        """Add an evaluation to the resumed checkpoint, whose tensors remain the same."""
        newest = self.folder.newest()
        if self.group.is_main and newest is not None:
            self.progress.sums = [0.0, 0.0]
            self.folder.write(newest / "progress.json", progress_json(self.progress))
        self.group.barrier()

    def state_tensors(self) -> dict[str, Tensor]:
        """A checkpoint's tensors without the model's, gathered on the main process."""
        tensors = (
            trainer_state.moment_tensors(self.optimizer, self.trained) if self.progress.step else {}
        )
        tensors |= trainer_state.lstm_tensors(self.states, self.group) if self.carry else {}
        return gather_on_main(tensors, self.group)

    def resume(self, checkpoint: Path) -> None:
        """Load optimizer state, progress and LSTM state from a checkpoint, whose weights the model
        already has.

        CorruptError: the checkpoint is corrupt or of another model.    ValueError: it has more
        steps than `steps`.
        """
        tensors, self.progress = read_state(checkpoint)
        step = self.progress.step
        if self.settings.steps < step:
            raise ValueError(
                f"this run has completed {step} steps: {setting('steps')} must be at least {step}"
            )
        self.saved_step = step
        trained = self.trained if step else {}
        shapes = {name: parameter.shape for name, _, parameter in trainer_state.moments(trained)}
        shapes |= trainer_state.lstm_shapes(self.states, self.settings.batch) if self.carry else {}
        with reading(checkpoint / "optimizer.safetensors"):
            if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
                raise ValueError("it is of another model")
        trainer_state.load_moments(self.optimizer, trained, tensors, step)
        if self.carry:
            trainer_state.load_lstm(self.states, tensors, self.shard, self.micro_batch)
        self.sums += torch.tensor(self.progress.sums, dtype=self.sums.dtype, device=self.device)
