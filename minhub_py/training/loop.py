"""The training loop: batches, loss, gradients, AdamW steps, evaluation on held-out text, and checkpoints.

Sources: Williams & Zipser (1989) for teacher forcing; Williams & Peng (1990) for truncated
backpropagation through time: an LSTM's state is carried to the next step, its gradient is not.

Everything random in a step (rows and dropout) follows from the seed, the step number and the process's rank. So a run
can be resumed without any generator state, and repeats the same steps bit for bit.
"""

import copy
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

import weights_map
from minhub_py.checkpoints.storage import write_checkpoint
from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_files
from minhub_py.inference.generate import generate
from minhub_py.models.base import LanguageModel
from minhub_py.models.skeleton import skeleton
from minhub_py.registry import Architecture
from minhub_py.system.spelling import setting
from minhub_py.training.checkpoint import LossRow, Progress, RunFolder, progress_json, read_state, write_state
from minhub_py.training.data import Corpus, held_out_streams, held_out_windows, source_of
from minhub_py.training.data_parallel import Processes, distribute_like, full_tensor, gather_on_first
from minhub_py.training.errors import reading
from minhub_py.training.faster import Faster
from minhub_py.training.listener import Listener, StoppedError
from minhub_py.training.optimizer import is_fused, learning_rate, optimizer_of, random_seed
from minhub_py.training.settings import CONTEXT, Settings

# Seconds between two progress reports: each reads the loss, which waits for the GPU.
REPORT_INTERVAL = 0.5
# A training step takes about three times as long as the forward pass alone.
STEP_PER_FORWARD = 3
# A first batch that takes this many seconds or more is representative, although it includes set-up.
SETTLED = 2.0
# AdamW's state for each parameter.
MOMENTS = ("exp_avg", "exp_avg_sq")
STATES = ("h", "c")  # of an LSTM, for each layer


class Trainer:
    """A model in training, with its optimizer, its data and its progress.

    ValueError: the batch cannot be shared among the processes, or the text is too short for it.
    """

    def __init__(
        self, settings: Settings, folder: RunFolder, corpus: Corpus, tokenizer: Tokenizer, family: Architecture,
        model: LanguageModel, processes: Processes, device: torch.device, listener: Listener,
    ) -> None:  # fmt: skip
        self.settings, self.folder, self.corpus, self.tokenizer = settings, folder, corpus, tokenizer
        self.family, self.processes, self.device, self.listener = family, processes, device, listener
        self.progress = Progress()
        self.saved = -1  # the step of the last checkpoint
        self.estimated = False
        self.interrupted: Callable[[], bool] = lambda: False
        self.context = settings.context or CONTEXT
        self.carry = settings.carry and family.training.carries_state
        together = settings.batch // settings.accumulate  # rows in one micro-batch of all processes
        self.micro_batch = len(range(together)[processes.share(together)])
        self.share = processes.share(settings.batch)
        self.source = source_of(corpus.train, settings.batch, self.context, settings.seed, carry=self.carry)
        if self.carry:
            self.held_out = held_out_streams(
                corpus.held_out, self.context, settings.batch, together, settings.evaluate_tokens
            )
        else:
            self.held_out = held_out_windows(corpus.held_out, self.context, together, settings.evaluate_tokens)

        self.model = model.to(device).train()
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.initial_state = self.model.new_cache(self.micro_batch, self.context) if self.carry else None
        self.states = [self.fresh_state(self.micro_batch) for _ in range(settings.accumulate)]
        self.wrapped = processes.wrap(self.model, device)
        self.compiled = torch.compile(self.wrapped) if settings.compile else self.wrapped
        # torch.compile generates its own kernels.
        self.faster = Faster if device.type == "cpu" and not settings.compile else nullcontext
        self.optimizer = optimizer_of(self.model, settings)
        exact = torch.float64 if device.type in ("cpu", "cuda") else torch.float32
        self.sums = torch.zeros(2, dtype=exact, device=device)  # losses and gradient norms since the last row

    def fresh_state(self, rows: int) -> Any:
        """An LSTM's state before the first token; None for a model that carries no state."""
        if self.initial_state is None:
            return None
        state = copy.deepcopy(self.initial_state)
        state.select(list(range(rows)))
        return state

    def run(self, interrupted: Callable[[], bool]) -> bool:
        """Train until the last step. Returns False if it was stopped earlier, after a checkpoint.

        Without a first evaluation there is no checkpoint: the run then resumes from its beginning.
        """
        progress = self.progress
        self.interrupted = interrupted
        self.started = time.perf_counter() - progress.seconds
        self.row_step, self.row_began = progress.step, self.started
        try:
            self.run_steps()
        except StoppedError:
            if progress.best_loss is not None:
                self.save()
            return False
        return True

    def run_steps(self) -> None:
        """All remaining steps. StoppedError: before the last one."""
        settings, progress = self.settings, self.progress
        if progress.best_loss is None:
            self.evaluate()
        elif self.evaluation_due:  # stopped in this evaluation
            if self.processes.first:
                self.folder.forget_after(progress.step - 1)
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
        """Whether the last step requires an evaluation, which has not been made."""
        step, settings = self.progress.step, self.settings
        return self.progress.steps_in_sums > 0 and (step == settings.steps or step % settings.evaluate_every == 0)

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or the loss has not improved for `patience` evaluations."""
        patience = self.settings.patience
        return self.progress.step >= self.settings.steps or (patience is not None and self.progress.waited >= patience)

    def check_stop(self, asked: bool) -> None:
        """StoppedError, in all processes: one of them was interrupted, or its listener has asked."""
        asked = asked or self.interrupted()
        if self.processes.sum([float(asked)], self.device) != [0.0]:
            raise StoppedError

    def begin_batch(self, task: str, number: int, count: int) -> None:
        """Report a batch before it is computed. StoppedError: as `check_stop`."""
        self.check_stop(self.listener.cancelled())
        if self.processes.first:
            self.listener.working(self.progress.step, task, number, count)

    def step(self) -> None:
        """One optimizer step, over all micro-batches.

        StoppedError: between two of them; the step has changed nothing. An LSTM's state has changed by then, so a run
        that carries it stops only after the step.
        """
        settings, step = self.settings, self.progress.step
        torch.manual_seed(random_seed(settings.seed, step, self.processes.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        rows, fresh = self.source.at(step, self.share)
        loss = torch.zeros((), device=self.device)
        micro_batches = rows.to(self.device).split(self.micro_batch)
        for number, micro_batch in enumerate(micro_batches):
            if number and not self.carry:
                try:
                    self.begin_batch("step", number + 1, len(micro_batches))
                except StoppedError:
                    self.optimizer.zero_grad()
                    raise
            elif self.processes.first:
                self.listener.working(step, "step", number + 1, len(micro_batches))
            if fresh:
                self.states[number] = self.fresh_state(self.micro_batch)
            with self.processes.gradient_sync(self.wrapped, number == len(micro_batches) - 1):
                part = self.loss(self.compiled, micro_batch, self.states[number]) / len(micro_batches)
                part.backward()
            loss += part.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.sums += torch.stack((loss, full_tensor(norm)))
        self.progress.steps_in_sums += 1

    def loss(self, model: Any, rows: Tensor, state: Any) -> Tensor:
        """Mean cross-entropy in nats per token; rows (B, T + 1) are inputs and, shifted by one, targets."""
        with self.precision(), self.faster():
            logits = model(rows[:, :-1]) if state is None else model(rows[:, :-1], state)  # (B, T, V)
            return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    def precision(self) -> AbstractContextManager[object]:
        """Autocast to the dtype of matrix products; weights, gradients and the optimizer stay float32."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.settings.dtype == "bfloat16" else nullcontext()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Mean loss on the held-out text, in nats per token. StoppedError: between two batches."""
        total, count = 0.0, 0
        state = None
        self.model.eval()
        try:
            for number, (starts, length, fresh) in enumerate(self.held_out, 1):
                self.begin_batch("evaluation", number, len(self.held_out))
                part = -(-len(starts) // self.processes.count)
                mine = starts[self.processes.rank * part :][:part]
                weight = len(mine) * length
                mine = mine or starts[:1]  # a process without rows takes part in the others' collectives
                if fresh:
                    state = self.fresh_state(len(mine))
                rows = self.corpus.held_out.rows(mine, length + 1).to(self.device)
                began = time.perf_counter()
                total += self.loss(self.wrapped, rows, state).item() * weight
                self.estimate(number, time.perf_counter() - began, len(mine) * length)
                count += weight
        finally:
            self.model.train()
        total, count = self.processes.sum([total, float(count)], self.device)  # type: ignore[assignment]
        return total / count

    def estimate(self, number: int, seconds: float, tokens: int) -> None:
        """Report the duration of the run once, from the time that a batch of `tokens` held-out tokens took."""
        if self.estimated or not self.processes.first or (number == 1 and seconds < SETTLED):
            return
        self.estimated = True
        settings, progress = self.settings, self.progress
        steps = settings.steps - progress.step
        evaluations = 1 + -(-steps // settings.evaluate_every)
        held_out = sum(len(starts) * length for starts, length, _ in self.held_out) / self.processes.count
        trained = steps * self.micro_batch * settings.accumulate * self.context * STEP_PER_FORWARD
        self.listener.estimated((trained + evaluations * held_out) * seconds / tokens, steps, evaluations)

    def evaluate(self) -> None:
        """Evaluate on the held-out text: adds a row to losses.csv, keeps the best model, writes a sample."""
        progress, settings = self.progress, self.settings
        train_loss, norm = self.means()  # waits for the GPU
        seconds = time.perf_counter() - self.row_began
        found = self.held_out_loss()
        if not math.isfinite(found):
            raise ValueError(self.not_finite())
        best = progress.best_loss is None or found < progress.best_loss
        progress.waited = 0 if best else progress.waited + 1
        if best:
            progress.best_loss, progress.best_step = found, progress.step
            with self.folder.writing(self.folder.path):
                self.write_model(self.folder.path)
        tokens = settings.batch * self.context
        row: LossRow = {
            "step": progress.step, "tokens": progress.step * tokens, "train_loss": train_loss, "held_out_loss": found,
            "learning_rate": learning_rate(settings, progress.step), "gradient_norm": norm,
            "tokens_per_second": round((progress.step - self.row_step) * tokens / seconds, 1),
            "seconds": round(time.perf_counter() - self.started, 2),
        }  # fmt: skip
        if self.processes.first:
            self.folder.write_row(row)
            self.listener.evaluated(row, best)
        self.sums.zero_()
        progress.steps_in_sums = 0
        if settings.sample is not None:
            self.sample()

    def means(self) -> tuple[float, float]:
        """The mean loss and gradient norm of the steps since the last row. ValueError: one is infinite or NaN."""
        steps = self.progress.steps_in_sums
        if not steps:
            return math.nan, math.nan
        loss, norm = self.processes.sum(self.sums.tolist(), self.device)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise ValueError(self.not_finite())
        return loss / steps / self.processes.count, norm / steps / self.processes.count

    def not_finite(self) -> str:
        """The error message for a loss that is infinite or NaN."""
        newest = self.folder.newest()
        kept = f"the checkpoint {newest.name} is intact" if newest else "no checkpoint was made yet"
        return (f"the loss is infinite or NaN at step {self.progress.step} or shortly before; {kept}. Start a new "
                f"run with a lower {setting('learning_rate')} or a longer {setting('warm_up')}")  # fmt: skip

    def reset_timer(self) -> None:
        """Measure speed from here, so that it excludes evaluations and earlier sessions."""
        self.row_step = self.reported_step = self.progress.step
        self.row_began = self.reported_at = time.perf_counter()
        self.reported_sum = self.sums[0].item()

    def report_progress(self) -> None:
        """Call `Listener.stepped`, at most once per REPORT_INTERVAL."""
        now, step = time.perf_counter(), self.progress.step
        if now - self.reported_at < REPORT_INTERVAL or step == self.reported_step or not self.processes.first:
            return
        loss = self.sums[0].item()
        if not math.isfinite(loss):
            raise ValueError(self.not_finite())
        steps = step - self.reported_step
        speed = steps / (now - self.reported_at)
        self.listener.stepped(
            step, self.settings.steps, (loss - self.reported_sum) / steps,
            speed * self.settings.batch * self.context, (self.settings.steps - step) / speed,
        )  # fmt: skip
        self.reported_at, self.reported_step, self.reported_sum = now, step, loss

    def sample(self) -> None:
        """Generate text from the prompt, with the same random numbers each time."""
        model = self.model
        if self.processes.strategy == "fsdp" and self.processes.count > 1:
            state = gather_on_first(self.model.state_dict(), self.processes)
            if self.processes.first:
                model = skeleton(self.family, self.model.config)
                model.load_state_dict(state, assign=True)
        if not self.processes.first:
            return
        prompt = self.settings.sample or ""
        ids = self.tokenizer.encode(prompt).ids
        model.eval()
        [new] = generate(model, [ids], self.settings.sample_tokens, seed=self.settings.seed, temperature=0.8)
        self.model.train()
        text = prompt + self.tokenizer.decode(new)
        samples = self.folder.samples
        with self.folder.writing(samples), samples.open("a", encoding="utf-8", newline="") as file:
            file.write(f"==== step {self.progress.step}\n{text}\n\n")
        self.listener.sampled(self.progress.step, text)

    def write_model(self, folder: Path) -> None:
        """Write the current model in Hub layout."""
        state = gather_on_first(self.model.state_dict(), self.processes)
        if not self.processes.first:
            return
        config = self.model.config
        companions = tokenizer_files(self.tokenizer)
        tensors = weights_map.to_hub(self.family.model_type, state, config)
        whole = sum(tensor.nbytes for tensor in state.values()) + 1  # one file, so that it can be replaced atomically
        settings = {**config.to_hub(), "dtype": "float32"}
        write_checkpoint(folder, tensors, settings, companions=companions, max_shard_size=whole)

    def save(self) -> None:
        """Write a checkpoint of this step. OSError: the disk is full; the previous checkpoint is intact."""
        if self.saved == self.progress.step:
            return
        self.means()  # raises if the weights have diverged: such a checkpoint is useless
        mean = [total / self.processes.count for total in self.processes.sum(self.sums.tolist(), self.device)]
        self.progress.sums = mean  # per process, since a resumed run may have another number of them
        self.progress.seconds = time.perf_counter() - self.started
        with self.folder.new_checkpoint(self.progress.step, really=self.processes.first) as partial:
            self.write_model(partial)
            tensors = gather_on_first(self.optimizer_tensors() | self.state_tensors(), self.processes)
            if self.processes.first:
                write_state(partial, tensors, self.progress)
        self.processes.wait()
        self.saved = self.progress.step

    def save_progress(self) -> None:
        """Add an evaluation to the checkpoint that was resumed, whose tensors remain the same."""
        newest = self.folder.newest()
        if self.processes.first and newest is not None:
            self.progress.sums = [0.0, 0.0]
            self.folder.write(newest / "progress.json", progress_json(self.progress))
        self.processes.wait()

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """AdamW's two moments of each parameter, by name."""
        return {
            f"{moment}.{name}": self.optimizer.state[parameter][moment]
            for name, parameter in self.model.named_parameters()
            for moment in MOMENTS
            if self.progress.step  # there are none before the first step
        }

    def state_tensors(self) -> dict[str, Tensor]:
        """An LSTM's state (L, B, H) for all rows of a step, collected from micro-batches and processes."""
        if not self.carry:
            return {}
        found = {}
        for place, name in enumerate(STATES):
            by_layer = [[tensors[place] for tensors in state.layers] for state in self.states]
            mine = torch.cat([torch.stack(layers).float() for layers in by_layer], dim=1)
            found[f"state.{name}"] = self.processes.concatenate(mine, dim=1)
        return found

    def resume(self, checkpoint: Path) -> None:
        """Load optimizer, progress and state from a checkpoint, whose weights the model already has.

        DamagedError: it is damaged, or belongs to another model.    ValueError: it has more steps than `steps`.
        """
        tensors, self.progress = read_state(checkpoint)
        if self.settings.steps < self.progress.step:
            made = self.progress.step
            raise ValueError(f"this run has made {made} steps: {setting('steps')} must be at least {made}")
        self.saved = self.progress.step
        wanted = {
            f"{moment}.{name}": parameter.shape for name, parameter in self.model.named_parameters()
            for moment in MOMENTS if self.progress.step
        }  # fmt: skip
        if self.carry:
            layers = self.states[0].layers
            shape = torch.Size((len(layers), self.settings.batch, layers[0][0].size(1)))
            wanted |= {f"state.{name}": shape for name in STATES}
        with reading(checkpoint / "optimizer.safetensors"):
            if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
                raise ValueError("it does not fit the model")
        for name, parameter in self.model.named_parameters() if self.progress.step else ():
            place = parameter.device if is_fused(parameter.device) else "cpu"
            step = torch.tensor(float(self.progress.step), device=place)
            moments = {moment: distribute_like(tensors[f"{moment}.{name}"], parameter) for moment in MOMENTS}
            self.optimizer.state[parameter] = {"step": step, **moments}
        if self.carry:
            for which, name in enumerate(STATES):
                mine = tensors[f"state.{name}"][:, self.share].to(self.device)
                for state, part in zip(self.states, mine.split(self.micro_batch, dim=1), strict=True):
                    for kept, layer in zip(state.layers, part, strict=True):
                        kept[which].copy_(layer)
        self.sums += torch.tensor(self.progress.sums, dtype=self.sums.dtype, device=self.device)
