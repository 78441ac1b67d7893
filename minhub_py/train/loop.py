"""The loop: rows in, loss, gradients, a step of AdamW; looks at the held-out text, and checkpoints.

Sources: Loshchilov & Hutter (2019) for AdamW, (2017) for the cosine; Radford et al. (2019) and nanoGPT for what decays
and what does not; Williams & Zipser (1989) for teacher forcing; Williams & Peng (1990) for truncated backpropagation
through time, where an LSTM's state is carried on and its gradient is not.

All that is random in a step (its rows, what is dropped) is made from the seed, the step and the process's number. So a
run that goes on from a checkpoint needs no state of a generator, and makes the same steps to the last bit.
"""

import copy
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weights_map
from minhub_py.files.storage import write_checkpoint
from minhub_py.files.tokenizer import tokenizer_files
from minhub_py.inference.generate import generate
from minhub_py.registry import Family
from minhub_py.skeleton import skeleton
from minhub_py.train.checkpoint import Progress, RunFolder, read_state, write_state
from minhub_py.train.damage import reading
from minhub_py.train.data import Corpus, held_out_streams, held_out_windows, source_of
from minhub_py.train.faster import Faster
from minhub_py.train.parallel import Processes, gathered, like, whole
from minhub_py.train.settings import CONTEXT, Settings
from minhub_py.train.words import setting

# Seconds between two looks of the progress line at the loss: on a GPU each waits for the device.
LOOK = 0.5
# What AdamW keeps for each parameter.
MOMENTS = ("exp_avg", "exp_avg_sq")


class Listener:
    """What a person, or a program, hears of a run. This one does nothing; the shell's and R's are made of it."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """The text is read: bytes."""

    def begins(self, trainer: "Trainer") -> None:
        """All is ready."""

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """Now and then; the loss is the mean since the last time."""

    def evaluated(self, row: dict[str, Any], best: bool) -> None:
        """A line of losses.csv; whether the loss is the lowest so far."""

    def sampled(self, step: int, text: str) -> None:
        """What the model writes now."""

    def note(self, text: str) -> None:
        """Something that should be known."""

    def asks_to_stop(self) -> bool:
        """Asked before each step: whether to make a checkpoint and stop."""
        return False


class Trainer:
    """A model in training: what it is made of, and where it stands.

    ValueError: the batch cannot be shared among the processes, or the text is too short for it.
    """

    def __init__(
        self, settings: Settings, folder: RunFolder, corpus: Corpus, tokenizer: Any, family: Family, model: Any,
        processes: Processes, device: torch.device, listener: Listener,
    ) -> None:  # fmt: skip
        self.settings, self.folder, self.corpus, self.tokenizer = settings, folder, corpus, tokenizer
        self.family, self.processes, self.device, self.listener = family, processes, device, listener
        self.progress = Progress()
        self.saved = -1  # the step of the last checkpoint
        self.context = settings.context or CONTEXT
        self.carry = settings.carry and family.training.carries_state
        together = settings.batch // settings.accumulate  # rows that the processes read at a time
        self.piece = len(range(together)[processes.share(together)])
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
        self.zero = self.model.new_cache(self.piece, self.context) if self.carry else None
        self.states = [self.fresh_state(self.piece) for _ in range(settings.accumulate)]
        self.spread = processes.spread(self.model, device)
        self.called = torch.compile(self.spread) if settings.compile else self.spread
        # torch.compile has its own ways.
        self.quick = Faster if device.type == "cpu" and not settings.compile else nullcontext
        self.optimizer = optimizer_of(self.model, settings)
        exact = torch.float64 if device.type in ("cpu", "cuda") else torch.float32
        self.sums = torch.zeros(2, dtype=exact, device=device)  # of losses and gradient norms since the last row

    def fresh_state(self, rows: int) -> Any:
        """An LSTM's state before the first id; None for what carries none."""
        if self.zero is None:
            return None
        state = copy.deepcopy(self.zero)
        state.select(list(range(rows)))
        return state

    def run(self, interrupted: Callable[[], bool]) -> bool:
        """Train until the last step. False: it was told to stop before, and can go on."""
        settings, progress = self.settings, self.progress
        self.started = time.perf_counter() - progress.seconds
        self.row_step, self.row_began = progress.step, self.started
        if progress.best_loss is None:
            self.evaluate()
        self.begin_timing()
        while not self.finished:
            if self.should_stop(interrupted):
                self.save()
                return False
            self.step()
            progress.step += 1
            last = progress.step == settings.steps
            if last or progress.step % settings.evaluate_every == 0:
                self.evaluate()
                self.begin_timing()
            if self.finished or progress.step % settings.checkpoint_every == 0:
                self.save()
            self.look()
        return True

    @property
    def finished(self) -> bool:
        """All steps are made, or the loss has not become lower for long enough."""
        patience = self.settings.patience
        return self.progress.step >= self.settings.steps or (patience is not None and self.progress.waited >= patience)

    def should_stop(self, interrupted: Callable[[], bool]) -> bool:
        """Whether somebody wants it; all processes answer alike."""
        asked = interrupted() or self.listener.asks_to_stop()
        return self.processes.sum([float(asked)], self.device) != [0.0]

    def step(self) -> None:
        """One update of the weights."""
        settings, step = self.settings, self.progress.step
        torch.manual_seed(random_seed(settings.seed, step, self.processes.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        rows, fresh = self.source.at(step, self.share)
        loss = torch.zeros((), device=self.device)
        pieces = rows.to(self.device).split(self.piece)
        for number, piece in enumerate(pieces):
            if fresh:
                self.states[number] = self.fresh_state(self.piece)
            with self.processes.last_piece(self.spread, number == len(pieces) - 1):
                part = self.loss(self.called, piece, self.states[number]) / len(pieces)
                part.backward()
            loss += part.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.sums += torch.stack((loss, whole(norm)))
        self.progress.steps_in_sums += 1

    def loss(self, model: Any, rows: Tensor, state: Any) -> Tensor:
        """Mean negative log-likelihood in nats per token; rows (B, T + 1) are inputs and, one further, targets."""
        with self.precision(), self.quick():
            logits = model(rows[:, :-1]) if state is None else model(rows[:, :-1], state)  # (B, T, V)
            return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    def precision(self) -> AbstractContextManager[object]:
        """What products are computed in; weights, gradients and the optimizer are float32."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.settings.dtype == "bfloat16" else nullcontext()

    @torch.no_grad()
    def measure(self) -> float:
        """The loss over the held-out text, in nats per token."""
        self.model.eval()
        total, count = 0.0, 0
        state = None
        for starts, length, fresh in self.held_out:
            part = -(-len(starts) // self.processes.count)
            mine = starts[self.processes.rank * part :][:part]
            weight = len(mine) * length
            mine = mine or starts[:1]  # with nothing to measure a process still has its part in the others' shards
            if fresh:
                state = self.fresh_state(len(mine))
            rows = self.corpus.held_out.rows(mine, length + 1).to(self.device)
            total += self.loss(self.spread, rows, state).item() * weight
            count += weight
        self.model.train()
        total, count = self.processes.sum([total, float(count)], self.device)  # type: ignore[assignment]
        return total / count

    def evaluate(self) -> None:
        """Look at the held-out text: a line of losses.csv, the best model so far, a sample."""
        progress, settings = self.progress, self.settings
        train_loss, norm = self.means()  # which waits for a GPU
        seconds = time.perf_counter() - self.row_began
        found = self.measure()
        if not math.isfinite(found):
            raise ValueError(self.not_finite())
        best = progress.best_loss is None or found < progress.best_loss
        progress.waited = 0 if best else progress.waited + 1
        if best:
            progress.best_loss, progress.best_step = found, progress.step
            with self.folder.writing(self.folder.path):
                self.write_model(self.folder.path)
        tokens = settings.batch * self.context
        row = {
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
        """The mean loss and gradient norm of the steps since the last row. ValueError: they are no numbers."""
        steps = self.progress.steps_in_sums
        if not steps:
            return math.nan, math.nan
        loss, norm = self.processes.sum(self.sums.tolist(), self.device)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise ValueError(self.not_finite())
        return loss / steps / self.processes.count, norm / steps / self.processes.count

    def not_finite(self) -> str:
        """What to do when weights have blown up."""
        newest = self.folder.newest()
        kept = f"the checkpoint {newest.name} is intact" if newest else "no checkpoint was made yet"
        return (f"the loss is no number any more, at step {self.progress.step} or shortly before; {kept}. A lower "
                f"{setting('learning_rate')} or a longer {setting('warm_up')} helps, in a new run")  # fmt: skip

    def begin_timing(self) -> None:
        """Speeds are counted from here: neither evaluations nor earlier sessions belong to them."""
        self.row_step = self.look_step = self.progress.step
        self.row_began = self.looked = time.perf_counter()
        self.look_sum = self.sums[0].item()

    def look(self) -> None:
        """Tell the listener how it goes, now and then."""
        now, step = time.perf_counter(), self.progress.step
        if now - self.looked < LOOK or step == self.look_step or not self.processes.first:
            return
        loss = self.sums[0].item()
        if not math.isfinite(loss):
            raise ValueError(self.not_finite())
        steps = step - self.look_step
        speed = steps / (now - self.looked)
        self.listener.stepped(
            step, self.settings.steps, (loss - self.look_sum) / steps,
            speed * self.settings.batch * self.context, (self.settings.steps - step) / speed,
        )  # fmt: skip
        self.looked, self.look_step, self.look_sum = now, step, loss

    def sample(self) -> None:
        """What the model writes on from the prompt; the same random numbers each time."""
        model = self.model
        if self.processes.way == "fsdp" and self.processes.count > 1:
            state = gathered(self.model.state_dict(), self.processes)
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

    def write_model(self, folder: Any) -> None:
        """The model as it is now, in Hub layout."""
        state = gathered(self.model.state_dict(), self.processes)
        if not self.processes.first:
            return
        config = self.model.config
        companions = tokenizer_files(self.tokenizer)
        tensors = weights_map.to_hub(self.family.model_type, state)
        whole = sum(tensor.nbytes for tensor in state.values()) + 1  # in one file, which is replaced in one moment
        settings = {**config.to_hub(), "dtype": "float32"}
        write_checkpoint(folder, tensors, settings, companions=companions, max_shard_size=whole)

    def save(self) -> None:
        """A checkpoint of this step. OSError: the disk is full; the one before it is still there."""
        if self.saved == self.progress.step:
            return
        self.means()  # weights that have blown up are not kept
        mean = [total / self.processes.count for total in self.processes.sum(self.sums.tolist(), self.device)]
        self.progress.sums = mean  # as if each process had it: how many there are may change
        self.progress.seconds = time.perf_counter() - self.started
        with self.folder.new_checkpoint(self.progress.step, really=self.processes.first) as partial:
            self.write_model(partial)
            tensors = gathered(self.optimizer_tensors() | self.state_tensors(), self.processes)
            if self.processes.first:
                write_state(partial, tensors, self.progress)
        self.processes.wait()
        self.saved = self.progress.step

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """AdamW's two moments of each parameter."""
        return {
            f"{moment}.{name}": self.optimizer.state[parameter][moment]
            for name, parameter in self.model.named_parameters()
            for moment in MOMENTS
            if self.progress.step  # before the first one there are none
        }

    def state_tensors(self) -> dict[str, Tensor]:
        """An LSTM's state (L, B, H) for all rows of a step, whichever process and piece has them."""
        if not self.carry:
            return {}
        found = {}
        for name in ("h", "c"):
            mine = torch.cat([getattr(state, name).float() for state in self.states], dim=1)
            found[f"state.{name}"] = self.processes.side_by_side(mine, dim=1)
        return found

    def resume(self, checkpoint: Any) -> None:
        """Go on from a checkpoint, whose model this one has already. DamagedError: it is damaged, or of another model.

        ValueError: it has made more steps than there are to be.
        """
        tensors, self.progress = read_state(checkpoint)
        if self.settings.steps < self.progress.step:
            raise ValueError(f"this run has made {self.progress.step} steps: give {setting('steps')} of at least so "
                             "many")  # fmt: skip
        self.saved = self.progress.step
        wanted = {
            f"{moment}.{name}": parameter.shape for name, parameter in self.model.named_parameters()
            for moment in MOMENTS if self.progress.step
        }  # fmt: skip
        if self.carry:
            layers, _, width = self.states[0].h.shape
            wanted |= dict.fromkeys(("state.h", "state.c"), torch.Size((layers, self.settings.batch, width)))
        with reading(checkpoint / "optimizer.safetensors"):
            if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
                raise ValueError("it does not fit the model")
        for name, parameter in self.model.named_parameters() if self.progress.step else ():
            place = parameter.device if is_fused(parameter.device) else "cpu"
            step = torch.tensor(float(self.progress.step), device=place)
            moments = {moment: like(tensors[f"{moment}.{name}"], parameter) for moment in MOMENTS}
            self.optimizer.state[parameter] = {"step": step, **moments}
        if self.carry:
            for name in ("h", "c"):
                mine = tensors[f"state.{name}"][:, self.share].to(self.device)
                for state, part in zip(self.states, mine.split(self.piece, dim=1), strict=True):
                    setattr(state, name, part.contiguous())
        self.sums += torch.tensor(self.progress.sums, dtype=self.sums.dtype, device=self.device)


def optimizer_of(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW; matrices decay, and biases and gains do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    fused = is_fused(next(model.parameters()).device)
    return torch.optim.AdamW(groups, lr=learning_rate(settings, 0), betas=(0.9, settings.beta2), fused=fused)


def is_fused(device: torch.device) -> bool:
    """Whether AdamW goes over all parameters at once there."""
    return device.type in ("cpu", "cuda")


def learning_rate(settings: Settings, step: int) -> float:
    """Up a straight line, then down a cosine to `floor`."""
    peak = settings.learning_rate or 0.0
    warm_up = min(settings.warm_up, settings.steps // 2)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    way = min(1.0, (step - warm_up) / max(settings.steps - warm_up, 1))
    return peak * (settings.floor + (1 - settings.floor) * 0.5 * (1 + math.cos(math.pi * way)))


def random_seed(*numbers: int) -> int:
    """A seed that depends on all of them."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
