"""What a script does on two ranks that torchrun starts; tests compare it with one.

    torchrun --standalone --nproc-per-node 2 --max-restarts 2 -m tests.script_ranks OUT

Processes are started once, for all scenarios together, and forked, see
`tests.forked_agents`. In the first start the second rank is killed while it trains,
and the agent starts both again. Every rank writes what it got to
`<scenario>.<rank>.safetensors` or `.json`. Twins are planted here.
"""

import copy
import json
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainingArguments

from dptune.accounting.chain import LedgerJournal
from dptune.dpsgd import steps as engine_steps
from dptune.dpsgd.distributed import Ranks, ReplicatedSums
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.noise import IndependentNoise
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.sharding import gathered, held
from dptune.errors import BudgetExceededError, DptuneError, PrivacyError
from dptune.integrations import private_training
from dptune.integrations.script_run import ScriptRun
from dptune.integrations.transformers import DPTrainer
from tests.support import models
from tests.support.checked import use_passed_checks
from tests.unit.integrations.conftest import (
    asked,
    make_prompts,
    make_rows,
    pad,
    word_tokenizer,
)

LATER = ("trl", "dptune.integrations.trl")  # takes seconds, and few need it
UNITS = 20
STDDEV = 0.5 / 8  # noise multiplier 1, C 0.5, divided by the expected batch size 8
KNOWN = {"seed": 3, "block_size": 4}
BY_USER = {
    **KNOWN,
    "privacy_unit": "user",
    "unit_column": "user",
    "max_rows_per_unit": 2,
    "max_grad_norm": 0.05,
}


def rows_of_users():
    """Two rows for each of 20 users."""
    return [row | {"user": n % UNITS} for n, row in enumerate(make_rows(2 * UNITS))]


class Watch(TrainerCallback):
    """Keeps the released gradients of every step, whole."""

    def __init__(self):
        self.steps = []
        self.losses = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.losses += [logs["loss"]] if "loss" in logs else []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        trained = (p for p in model.parameters() if p.requires_grad)
        found = [gathered(p.grad).flatten() for p in trained]
        self.steps.append(torch.cat(found).clone())


def make(folder, *, processes, rows=None, privacy=None, model=None, **changes):
    """Make the trainer of a script of six steps of eight units."""
    cls, callbacks = changes.pop("cls", DPTrainer), changes.pop("callbacks", [])
    collator = changes.pop("collator", pad)
    more = changes.pop("more", {})
    args = changes.pop("args_class", TrainingArguments)(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2 // processes,
            "max_steps": 6,
            "learning_rate": 0.05,
            "optim": "sgd",
            "save_steps": 3,
            "logging_steps": 1,
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
        }
        | changes
    )
    return cls(
        model=model or models.tiny_gpt2(num_layers=1),
        args=args,
        data_collator=collator,
        train_dataset=Dataset.from_list(rows or make_rows()),
        privacy=privacy or asked(**KNOWN),
        callbacks=callbacks,
        **more,
    )


def silent(patch):
    """Take the noise away, so that sums can be compared."""
    patch.setattr(IndependentNoise, "add", lambda self, sums, *, step: None)


def unchecked(patch):
    """Skip the check of the model, which other scenarios have made."""
    patch.setattr(private_training, "check_private", lambda *_, **__: None)


def journal(folder):
    """Steps of each block that was paid in a script's folder."""
    entries = LedgerJournal(folder / "privacy" / "ledger.jsonl").read().entries
    return [entry.num_steps for entry in entries]


def watched(folder, *, processes, patches=(), **changes):
    """Train with eyes on every step: released gradients, and what came when."""
    watch, events = Watch(), []
    with pytest.MonkeyPatch.context() as patch:
        for plant in patches:
            plant(patch)
        drawn, charge = Ranks.drawn, LedgerJournal.charge

        def seen_draw(self, draw):
            found = drawn(self, draw)
            events.append(["draw", found.tolist()])
            return found

        def seen_charge(self, entry):
            charge(self, entry)
            events.append(["charge", entry.num_steps])

        patch.setattr(Ranks, "drawn", seen_draw)
        patch.setattr(LedgerJournal, "charge", seen_charge)
        trainer = make(folder, processes=processes, callbacks=[watch], **changes)
        trainer.train()
    figures = {
        "events": events,
        "paid": journal(Path(folder)),
        "certificate": trainer.certificate.model_dump(mode="json"),
        "losses": watch.losses,
        "weights": type(trainer.model).__name__,
    }
    return trainer, torch.stack(watch.steps), figures


def _keep(folder, name, rank, sums, figures):
    save_file({"sums": sums}, folder / f"{name}.{rank}.safetensors")
    (folder / f"{name}.{rank}.json").write_text(json.dumps(figures))


def _sums(folder, rank):
    """Units of two rows, clipped at a norm that is far below theirs."""
    for name, changes in SUMS.items():
        trainer, sums, figures = watched(folder / name, processes=2, **changes)
        trainer.save_model(str(folder / name / "saved"))
        held_out = Dataset.from_list(make_rows(16, seed=5, length=6))
        figures["evaluated"] = trainer.evaluate(held_out)["eval_loss"]
        _keep(folder, name, rank, sums, figures)


SUMS = {
    "sums-ddp": {
        "rows": rows_of_users(),
        "privacy": asked(**BY_USER),
        "patches": (silent,),
    },
    "sums-fsdp": {
        "rows": rows_of_users(),
        "privacy": asked(**BY_USER),
        "patches": (silent,),
        "fsdp": True,
        "optim": "adamw_torch",
    },
}


def adapted_chats(*, processes):
    """Changes that make it a script of TRL, which trains adapters on completions."""
    from trl import SFTConfig  # noqa: PLC0415 - takes seconds, and few need it

    from dptune.integrations.trl import DPSFTTrainer  # noqa: PLC0415

    def begin(**parts):
        torch.manual_seed(7)  # of the adapters
        adapters = LoraConfig(r=4, task_type="CAUSAL_LM")
        words = word_tokenizer()
        return DPSFTTrainer(peft_config=adapters, processing_class=words, **parts)

    return {
        "cls": begin,
        "args_class": SFTConfig,
        "collator": None,
        "rows": make_prompts(),
        "privacy": asked(**KNOWN, max_grad_norm=0.05),
        "processes": processes,
        "patches": (silent,),
        "max_length": 12,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
    }


def _adapters(folder, rank):
    """Adapters by TRL, whose units are clipped at a norm that is below theirs."""
    home = folder / "adapters"
    trainer, sums, figures = watched(home, **adapted_chats(processes=2))
    trainer.save_model(str(home / "saved"))
    _keep(folder, "adapters", rank, sums, figures)


def nobody(patch):
    """Draw no unit, so that a step is its noise."""
    patch.setattr(Ranks, "drawn", lambda self, draw: np.zeros(0, np.int64))


def _noise(folder, rank):
    for name, (planted, fsdp) in NOISE.items():
        _, sums, figures = watched(
            folder / name,
            processes=2,
            privacy=asked(block_size=4),
            model=models.tiny_gpt2(vocabulary=1000, width=64, num_heads=2),
            max_steps=2,
            save_strategy="no",
            fsdp=fsdp,
            patches=(unchecked, nobody, planted),
        )
        _keep(folder, name, rank, sums, figures)


def honest(patch):
    """Plant nothing."""


def noise_on_every_rank(patch):
    """Let other ranks add noise to their part before sums are added up."""
    combine = ReplicatedSums.combine

    def noisy(self):
        for value in self.lent.values():
            if not self._ranks.is_first:
                value.add_(0.5 * torch.randn_like(value))
        combine(self)

    patch.setattr(ReplicatedSums, "combine", noisy)


NOISE = {
    "noise-ddp": (honest, None),
    "noise-fsdp": (honest, True),
    "twin-noise-twice": (noise_on_every_rank, None),
    "twin-no-noise": (silent, None),
}


def clip_of_parts(patch):
    """Give each rank every other row of a unit, and clip what it has of it."""
    batches = Feed.batches

    def parts(self, indices):
        data = copy.copy(self.data)  # a part of each unit, which no data set may be
        own = [rows[self.ranks.rank :: 2] for rows in self.data.units]
        units = Ragged.of(own, np.int64)
        object.__setattr__(data, "units", units)
        return batches(replace(self, data=data, ranks=Ranks()), indices)

    patch.setattr(Feed, "batches", parts)


def draws_of_their_own(patch):
    """Let every rank draw for itself."""
    patch.setattr(Ranks, "drawn", lambda self, draw: (draw(), draw())[self.rank])


def charge_after_the_draw(patch):
    """Draw the units of a step before its block is paid."""
    draw = engine_steps.ChargedSteps.draw

    def eager(self, step):
        ranks, sample = self._feed.ranks, self._sampler.sample
        found = ranks.drawn(lambda: sample(self.generator))
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Ranks, "drawn", lambda self, _: found)
            return draw(self, step)

    patch.setattr(engine_steps.ChargedSteps, "draw", eager)


TWINS = {
    "twin-parts": clip_of_parts,
    "twin-draws": draws_of_their_own,
    "twin-late-charge": charge_after_the_draw,
}


def _twins(folder, rank):
    for name, planted in TWINS.items():
        _, sums, figures = watched(
            folder / name,
            processes=2,
            rows=rows_of_users(),
            privacy=asked(**BY_USER),
            save_strategy="no",
            patches=(unchecked, silent, planted),
        )
        _keep(folder, name, rank, sums, figures)


def _refusals(folder, rank):
    """What ranks must agree on, and a budget that is empty."""
    other = {
        "train_dataset": {"rows": make_rows(seed=rank)},
        "privacy": {"privacy": asked(**KNOWN, noise_multiplier=1.0 + rank)},
        "args": {"learning_rate": 0.05 + rank},
        "model": {"model": _frozen(rank)},
        "output_dir": {},
        "budget": {"patches": (_empty_budget,)},
        "fsdp": {"fsdp": True, "fsdp_config": {"state_dict_type": "LOCAL"}},
    }
    for name, changes in other.items():
        home = folder / f"refused-{name}"
        mine = home if name != "output_dir" else home / str(rank)
        kind = "nothing"
        try:
            watched(mine, processes=2, **changes)
        except DptuneError as error:
            kind, words = type(error).__name__, str(error)
        (folder / f"refused-{name}.{rank}.json").write_text(
            json.dumps([kind, words if kind != "nothing" else "", journal(mine)])
        )


def _frozen(rank):
    model = models.tiny_gpt2(num_layers=1)
    first = next(model.parameters()).requires_grad_(False)
    first.data.add_(rank)
    return model


def _empty_budget(patch):
    def reserve(self, model):
        raise BudgetExceededError("no budget left")
        yield

    patch.setattr(ScriptRun, "charging", contextmanager(reserve))


class KillSecond(TrainerCallback):
    """Kills the second rank before the optimizer acts on a step that was paid."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if dist.get_rank() == 1 and state.global_step == 4:
            os.kill(os.getpid(), signal.SIGKILL)


class Killed(BaseException):
    """What no handler catches."""


class StopAll(TrainerCallback):
    """Ends the training of all ranks before the optimizer acts on a paid step."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 4:
            raise Killed


def _killed(folder, rank):
    """Go on from the checkpoint of the first start, whose second rank is killed."""
    home = folder / "killed"
    again = (home / "checkpoint-3" / "trainer_state.json").exists()
    trainer = make(
        home,
        processes=2,
        privacy=asked(block_size=2),
        callbacks=[] if again else [KillSecond()],
    )
    trainer.train(resume_from_checkpoint=again or None)
    _told(folder / f"killed.{rank}.json", trainer, home)


def _told(file, trainer, home):
    figures = {
        "steps": trainer.state.global_step,
        "paid": journal(home),
        "certificate": trainer.certificate.model_dump(mode="json"),
    }
    file.write_text(json.dumps(figures))


def _resumed(folder, rank):
    """Shard, stop, and go on from a checkpoint of parts that was stored whole."""
    for name in ("resumed", "left"):
        home, known = folder / name, asked(**KNOWN)
        stopped = {"fsdp": True, "optim": "adamw_torch", "callbacks": [StopAll()]}
        trainer = make(home, processes=2, privacy=known, **stopped)
        with pytest.MonkeyPatch.context() as patch:
            silent(patch)
            with pytest.raises(Killed):
                trainer.train()
    with pytest.MonkeyPatch.context() as patch:
        silent(patch)
        trainer = make(
            folder / "resumed",
            processes=2,
            privacy=asked(**KNOWN),
            fsdp=True,
            optim="adamw_torch",
        )
        trainer.train(resume_from_checkpoint=True)
        trainer.save_model()
    _told(folder / f"resumed.{rank}.json", trainer, folder / "resumed")


class WriteWeights(TrainerCallback):
    """Writes to this rank's part of a weight between two steps."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            held(next(model.parameters())).add_(1.0)


class WriteGradients(TrainerCallback):
    """Writes to this rank's part of a released gradient."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        held(next(model.parameters()).grad).mul_(2.0)


def _meddled(folder, rank):
    """Callbacks that write to parts of weights or gradients."""
    for callback in (WriteWeights(), WriteGradients()):
        for fsdp in (None, True):
            name = f"{type(callback).__name__}-{'fsdp' if fsdp else 'ddp'}"
            with pytest.MonkeyPatch.context() as patch:
                unchecked(patch)
                trainer = make(
                    folder / name, processes=2, fsdp=fsdp, callbacks=[callback]
                )
                with pytest.raises(PrivacyError) as caught:
                    trainer.train()
            (folder / f"{name}.{rank}.json").write_text(json.dumps(str(caught.value)))


SCENARIOS = (_killed, _sums, _adapters, _resumed, _noise, _twins, _meddled, _refusals)


def main(folder, *names):
    """Run all scenarios on this rank, or those that are named."""
    rank = int(os.environ["RANK"])
    with pytest.MonkeyPatch.context() as patch:
        use_passed_checks(patch, sys.modules[__name__])
        for scenario in SCENARIOS:
            if not names or scenario.__name__ in names:
                scenario(folder, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
