"""Misuses of a script: each is refused by name, and nothing is charged for it."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from datasets import Dataset, concatenate_datasets, interleave_datasets
from peft import (
    AdaLoraConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, Subset
from transformers import (
    EarlyStoppingCallback,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
)
from transformers.integrations import MLflowCallback

from dptune import planning
from dptune.errors import ConfigError, DptuneError, ModelError, PrivacyError
from dptune.integrations import private_training, refused_arguments, steering
from dptune.integrations.transformers import DPTrainer
from tests.support import models
from tests.unit.integrations.conftest import (
    WORDS,
    asked,
    make_rows,
    pad,
    word_tokenizer,
)

EVAL = {"eval_strategy": "steps", "eval_steps": 5}
BEST = EVAL | {"load_best_model_at_end": True, "save_steps": 5}


def refused(script, paid, match, *, error=ConfigError, **changes):
    """A script that never trains, with nothing charged."""
    with pytest.raises(error, match=match):
        script(**changes).train()
    assert paid() == []


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy"),
        ({"train_sampling_strategy": "sequential"}, "Poisson sampling"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last"),
        ({"data_seed": 7}, "data_seed"),
        ({"ignore_data_skip": True}, "ignore_data_skip"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"torch_compile": True}, "torch_compile"),
        ({"use_liger_kernel": True}, "use_liger_kernel"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen"),
        ({"debug": "underflow_overflow"}, "debug"),
        ({"max_grad_norm": 0.25}, "two clips are asked for"),
        ({"skip_memory_metrics": False}, "how much memory"),
        ({"bf16": True}, "privacy.max_tokens"),
        ({"report_to": "wandb"}, "training loss is private"),
        ({"report_to": "tensorboard"}, "training loss is private"),
        (
            {
                "gradient_checkpointing": True,
                "gradient_checkpointing_kwargs": {"use_reentrant": True},
            },
            "args.gradient_checkpointing_kwargs: must not ask for use_reentrant",
        ),
        ({"optim": "lion_32bit"}, "can be made here, got lion_32bit: You need"),
        ({"optim": "galore_adamw"}, "args.optim: must be an optimizer that can be"),
        (
            {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 1}}},
            "gradient_accumulation_kwargs",
        ),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"} | EVAL, "lr_scheduler_type"),
        (BEST, "load_best_model_at_end"),
        (
            EVAL | {"save_strategy": "best", "metric_for_best_model": "x"},
            "model is kept",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.filterwarnings("ignore")  # transformers says what is deprecated
def test_argument_is_refused(script, paid, changes, match):
    if changes.keys() & EVAL.keys():
        changes = changes | {
            "parts": {"eval_dataset": Dataset.from_list(make_rows(8, seed=5))}
        }
    refused(script, paid, match, **changes)


@pytest.mark.parametrize("name", ["fp16", "tf32", "full_determinism", "push_to_hub"])
def test_argument_that_needs_a_device_or_network_is_refused(script, paid, name):
    class Set(TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            setattr(self, name, True)

    refused(script, paid, f"args.{name}", args_class=Set)


def test_noise_that_no_certificate_can_price_is_refused(script, paid, monkeypatch):
    """Of full batches the plan found an epsilon, and the certificate none."""
    whole = {"per_device_train_batch_size": 20, "num_train_epochs": 20}
    privacy = asked(noise_multiplier=1e-5, block_size=100)
    words = "noise_multiplier must be one that a certificate can be issued for"
    refused(script, paid, words, privacy=privacy, **whole)

    monkeypatch.setattr(planning, "check_certifiable", lambda *_, **__: None)  # before
    with pytest.raises(PrivacyError, match="double precision"):
        script(privacy=privacy, **whole).train()
    assert paid() == [20]


def test_optimizer_that_steps_in_the_backward_pass_is_refused(script, paid):
    class Lomo(TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            self.optim = "adalomo"

    refused(script, paid, "before they are clipped", args_class=Lomo)


@pytest.mark.parametrize("name", ["lomo", "adalomo", "galore_adamw_layerwise"])
def test_optimizer_that_arguments_turn_into_an_enum_is_refused(script, paid, name):
    refused(script, paid, f"args.optim: must not be {name}", optim=name)


def test_optimizer_that_hooks_gradients_when_it_is_made_is_refused(script, paid):
    class Hooking(DPTrainer):
        def create_optimizer(self, *given):
            made = super().create_optimizer(*given)
            next(self.model.parameters()).register_hook(lambda gradient: None)
            return made

    trainer = script(cls=Hooking)
    with pytest.raises(PrivacyError, match="no hooks on gradients, got 1"):
        trainer.train()
    assert not paid()


def test_optimizer_that_a_script_makes_itself_need_not_be_there(script, paid):
    class Own(DPTrainer):
        def create_optimizer(self, *_):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            return self.optimizer

    script(cls=Own, optim="lion_32bit").train()
    assert sum(paid()) == 15


def test_spans_of_answers_name_the_way_out(script, paid):
    def spans(rows):
        batch = pad(rows)
        ends = batch.pop("labels")[:, 0] * 0
        return batch | {"start_positions": ends, "end_positions": ends + 1}

    refused(script, paid, r"\(QA\), which are not trained.*`loss` of", collator=spans)


@pytest.mark.filterwarnings("ignore")  # transformers says what is deprecated
def test_adapters_that_need_another_way_name_it(script, paid):
    sizes = {"init_r": 2, "target_r": 1, "total_step": 9, "target_modules": ["q_proj"]}
    adaptive = get_peft_model(models.tiny_llama(), AdaLoraConfig(**sizes))
    refused(script, paid, "AdaLoRA's: it adds a term.*make_private", model=adaptive)

    def prefixed():
        config = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        return get_peft_model(models.tiny_llama(), config)

    words = "must be off for prefix tuning.*Turn it off"
    recomputed = {"gradient_checkpointing": True}
    refused(script, paid, words, error=ModelError, model=prefixed(), **recomputed)
    script(model=prefixed()).train()
    assert sum(paid()) == 15


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed_plugin"])
def test_foreign_sums_of_gradients_are_refused(script, paid, name):
    class Set(TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            setattr(self, name, {"stage": 3})

    refused(script, paid, "clipped by unit", args_class=Set)


def test_several_devices_are_refused(script, paid):
    class Two(TrainingArguments):
        n_gpu = 2

    refused(script, paid, "args.world_size: .* got 2", args_class=Two)


def test_sharding_in_one_process_is_refused(script, paid):
    refused(script, paid, "several processes to shard", fsdp=True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"cpu_offload": True}, "cpu_offload: must be off"),
        ({"activation_checkpointing": True}, "engine recomputes layers"),
        ({"state_dict_type": "SHARDED_STATE_DICT"}, "weights are stored whole"),
        ({"version": 1}, "must have version 2"),
    ],
)
def test_forms_of_sharding_that_the_engine_does_not_have_are_refused(
    script, paid, config, words
):
    class Sharded(TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            self.fsdp, self.fsdp_config = True, config

    refused(script, paid, words, args_class=Sharded)


def test_processes_that_do_not_find_each_other_are_refused(script, paid, monkeypatch):
    # a launcher on the CPU, of which TrainingArguments without use_cpu know nothing
    monkeypatch.setattr(
        refused_arguments,
        "get_cpu_distributed_information",
        lambda: SimpleNamespace(world_size=2),
    )
    refused(script, paid, "got 1 where 2 were started")


@pytest.mark.parametrize("kind", [DistributedDataParallel, nn.DataParallel])
def test_model_that_is_spread_already_is_refused(script, paid, kind):
    model = models.tiny_gpt2(num_layers=1)
    wrapped = kind.__new__(kind)
    torch.nn.Module.__init__(wrapped)
    wrapped.module, wrapped.config = model, model.config
    refused(script, paid, "spread over devices or processes", model=wrapped)


def as_wrapper(model):
    return torch.compile(model, backend="eager")


def in_place(model):
    model.compile(backend="eager")
    return model


def in_place_of_a_layer(model):
    model.transformer.h[0].compile(backend="eager")
    return model


def by_forward(model):
    """Rows that are run one by one need no rule, and passed all checks."""
    mlp = model.transformer.h[0].mlp
    mlp.forward = torch.compile(mlp.forward, backend="eager")
    return model


@pytest.mark.parametrize("way", [as_wrapper, in_place, in_place_of_a_layer, by_forward])
def test_compiled_model_is_refused(script, paid, way):
    """A wrapped one takes any arguments: rows seemed to lack their columns."""
    model = way(models.tiny_gpt2(num_layers=1))
    sizes = {"per_device_train_batch_size": 1}
    refused(script, paid, "must not be compiled", model=model, **sizes)


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.MEGATRON_LM])
def test_launcher_that_wraps_the_model_is_refused(script, paid, kind):
    trainer = script()
    trainer.accelerator.state.distributed_type = kind
    try:
        with pytest.raises(ConfigError, match="before they are clipped by unit"):
            trainer.train()
    finally:
        trainer.accelerator.state.distributed_type = DistributedType.NO
    assert paid() == []


class OwnLoss(DPTrainer):
    def compute_loss(self, model, inputs, **named):
        return model(**inputs).loss


class OwnBatches(DPTrainer):
    def get_train_dataloader(self):
        return []


class OwnSampler(DPTrainer):
    def _get_train_sampler(self, dataset=None):
        return None


class OwnStep(DPTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        return torch.zeros(())


@pytest.mark.parametrize("cls", [OwnLoss, OwnBatches, OwnSampler, OwnStep])
def test_override_of_what_the_engine_does_is_refused(script, paid, cls):
    refused(script, paid, f"{cls.__name__}.*must not be overridden", cls=cls)


def test_override_that_was_hung_on_the_trainer_is_refused(script, paid):
    trainer = script()
    trainer.compute_loss = lambda model, inputs: model(**inputs).loss
    with pytest.raises(ConfigError, match="compute_loss"):
        trainer.train()
    assert paid() == []


def test_loss_function_of_a_batch_is_refused(script, paid):
    parts = {"compute_loss_func": lambda outputs, labels, **_: outputs.loss}
    refused(script, paid, "compute_loss_func", parts=parts)


def test_model_that_is_made_later_is_refused(script, paid):
    parts = {"model_init": models.tiny_gpt2}
    refused(script, paid, "model_init", parts=parts)


@pytest.mark.parametrize("late", [False, True])
def test_early_stopping_on_private_records_is_refused(script, paid, late):
    stop = EarlyStoppingCallback(early_stopping_patience=1)
    if not late:
        refused(script, paid, "EarlyStopping", parts={"callbacks": [stop]})
        return
    trainer = script()
    trainer.add_callback(stop)
    with pytest.raises(ConfigError, match="EarlyStopping"):
        trainer.train()
    assert paid() == []


@pytest.mark.parametrize("late", [False, True])
def test_tracker_that_is_passed_by_hand_is_refused(script, paid, late):
    """`report_to` is not the only way in: the training loss would be kept there."""
    if not late:
        refused(script, paid, "MLflowCallback", parts={"callbacks": [MLflowCallback]})
        return
    trainer = script()
    trainer.add_callback(MLflowCallback)
    with pytest.raises(ConfigError, match="must not hold MLflowCallback"):
        trainer.train()
    assert paid() == []
    inside = asked(reports_stay_inside=True)
    script(privacy=inside, parts={"callbacks": [MLflowCallback]})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_steps", 3),
        ("gradient_accumulation_steps", 4),
        ("max_grad_norm", 0.01),
        ("load_best_model_at_end", True),
        ("lr_scheduler_type", "reduce_lr_on_plateau"),
    ],
)
def test_argument_that_is_changed_on_the_trainer_is_refused(script, paid, name, value):
    trainer = script()
    setattr(trainer.args, name, value)
    with pytest.raises(ConfigError, match=rf"args\.{name}.*must stay"):
        trainer.train()
    assert paid() == []


class RateOfLoss(TrainerCallback):
    """Sets the learning rate to the training loss, which the weights then tell."""

    def on_log(self, args, state, control, logs=None, optimizer=None, **kwargs):
        self.rate = (logs or {}).get("loss")

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        if getattr(self, "rate", None) is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.rate


def test_rate_that_follows_the_training_loss_is_refused(script, paid):
    trainer = script(parts={"callbacks": [RateOfLoss()]})
    with pytest.raises(PrivacyError, match="must step by what it began with"):
        trainer.train()
    assert paid() == [4]
    assert trainer.state.global_step == 1


def test_twin_that_takes_any_rate_moves_weights_by_the_loss(script, paid, monkeypatch):
    monkeypatch.setattr(steering.WatchedSchedule, "check", lambda *_: None)
    trainer = script(parts={"callbacks": [RateOfLoss()]})
    trainer.train()
    assert trainer.optimizer.param_groups[0]["lr"] != trainer.lr_scheduler.get_last_lr()


def test_padding_token_that_the_model_does_not_have_is_refused(script, paid):
    """Tokenizers are given one, and embeddings are not."""
    model = models.tiny_gpt2(num_layers=1)
    model.config.pad_token_id = models.VOCABULARY
    match = f"pad_token_id must be below the {models.VOCABULARY} tokens"
    refused(script, paid, match, error=ModelError, model=model)


def test_single_class_is_refused(script, paid):
    model = models.tiny_bert_classifier(num_labels=1)
    rows = make_rows(labels=1)
    refused(script, paid, "two at least", model=model, rows=rows)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_prompt_tuning_is_refused_by_name(script, paid):
    asked_for = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = get_peft_model(models.tiny_gpt2(num_layers=1), asked_for)
    refused(script, paid, "prompt tuning", error=ModelError, model=model)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_optimizer_that_a_release_is_not_enough_for_is_refused(script, paid, kind):
    model = models.tiny_gpt2(num_layers=1)
    parts = {"optimizers": (kind(list(model.parameters()), lr=1e-3), None)}
    refused(script, paid, kind.__name__, model=model, parts=parts)


class Fork(TrainerCallback):
    """Goes on in two processes from the first step on."""

    child = None

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.child = os.fork()


def test_fork_of_a_training_draws_nothing(script, paid):
    fork = Fork()
    code = 2
    try:
        script(parts={"callbacks": [fork]}).train()
    except PrivacyError as error:
        code = 0 if "got a fork" in str(error) else 1
    finally:
        if fork.child == 0:
            os._exit(code)
    _, status = os.waitpid(fork.child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert sum(paid()) == 15


def test_evaluation_on_the_training_data_is_refused(script, paid):
    rows = Dataset.from_list(make_rows())
    parts = {"eval_dataset": rows}
    refused(script, paid, "eval_dataset", train_dataset=rows, parts=parts, **EVAL)
    copied = {"eval_dataset": {"held out": Dataset.from_list(make_rows(20))}}
    refused(script, paid, "eval_dataset", parts=copied, **EVAL)


def test_measuring_on_the_training_data_by_hand_is_refused(script):
    trainer = script(max_steps=1)
    with pytest.raises(PrivacyError, match="must not be the training data"):
        trainer.evaluate(trainer.train_dataset)
    with pytest.raises(PrivacyError, match="must not be the training data"):
        trainer.evaluate(Dataset.from_list(make_rows()))
    others = Dataset.from_list(make_rows(30)[25:])
    trainer.train_dataset = Dataset.from_list(make_rows()[:5])
    assert trainer.evaluate(Dataset.from_list(make_rows()[10:]))["eval_loss"] > 0
    assert trainer.evaluate(others)["eval_loss"] > 0
    trainer.train_dataset = Dataset.from_list(make_rows())
    trainer.train()
    with pytest.raises(PrivacyError, match="test_dataset"):
        trainer.predict(Dataset.from_list(make_rows()))
    trainer.eval_dataset = {"known": trainer.train_dataset}
    with pytest.raises(PrivacyError, match="eval_dataset"):
        trainer.evaluate()


def test_batches_are_left_to_training(script):
    with pytest.raises(PrivacyError, match="must be left to train"):
        script(max_steps=1).get_train_dataloader()


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(make_rows())


@pytest.mark.parametrize(
    "data", [Stream(), Dataset.from_list(make_rows()).to_iterable_dataset()]
)
def test_stream_is_refused(script, paid, data):
    refused(script, paid, "known length", train_dataset=data, max_steps=3)


FIVE = range(5)
REPEATED = {
    "list": lambda rows: rows + rows[:5],
    "subset": lambda data: Subset(data, [*range(40), *FIVE]),
    "ConcatDataset": lambda data: ConcatDataset([data, data]),
    "select": lambda data: data.select([*range(40), *FIVE]),
    "concatenate_datasets": lambda data: concatenate_datasets(
        [data, data.select(FIVE)]
    ),
    "interleave_datasets": lambda data: interleave_datasets(
        [data, data.select(FIVE)], stopping_strategy="all_exhausted"
    ),
}
ONCE = {
    "shuffled": lambda data: data.shuffle(seed=0),
    "split": lambda data: data.train_test_split(test_size=0.2, seed=0)["train"],
    "parts": lambda data: concatenate_datasets(
        [data.select(FIVE), data.select(range(5, 40))]
    ),
    "others that say the same": lambda data: concatenate_datasets(
        [data, Dataset.from_list(make_rows())]
    ),
}


@pytest.mark.parametrize("way", REPEATED)
def test_rows_that_stand_several_times_are_refused(script, paid, way):
    rows = make_rows() if way == "list" else Dataset.from_list(make_rows())
    refused(script, paid, "each row once", train_dataset=REPEATED[way](rows))


@pytest.mark.parametrize("way", ONCE)
def test_rows_that_stand_once_are_taken(script, way):
    script(train_dataset=ONCE[way](Dataset.from_list(make_rows())))


WRITTEN_ANEW = {
    "map": lambda data: concatenate_datasets([data, data.select(FIVE)]).map(dict),
    "batches": lambda data: data.map(
        lambda rows: {name: values * 2 for name, values in rows.items()}, batched=True
    ),
    "frame": lambda data: Dataset.from_pandas(
        data.to_pandas().sample(90, replace=True, random_state=0)
    ),
    "list": lambda data: [dict(row) for row in [*data, *data]],
}


@pytest.mark.parametrize("way", WRITTEN_ANEW)
def test_rows_that_were_written_anew_are_one_unit(script, paid, way):
    """Each was a unit of its own: a record in k copies moved sums by k C."""
    data = WRITTEN_ANEW[way](Dataset.from_list(make_rows()))
    own = script(train_dataset=data, max_steps=1, save_strategy="no")
    with pytest.warns(UserWarning, match="rows that say the same") as told:
        own.train()
    assert len(told) == 1
    rows, different = own.script_run.rows, {tuple(row["input_ids"]) for row in data}
    assert rows.data.num_units == len(different)
    assert len(rows.unit_ids) == len(data)  # all are charged to a budget
    assert own.certificate.epsilon == script_of(different, script).certificate.epsilon


def script_of(different, script):
    """A script of rows of which each stands once, after a step."""
    rows = [row for row in make_rows() if tuple(row["input_ids"]) in different]
    own = script(rows=rows, folder="once", max_steps=1, save_strategy="no")
    own.train()
    return own


def test_rows_of_an_owner_may_stand_several_times(script):
    rows = [row | {"who": f"u{i}"} for i, row in enumerate(make_rows())]
    owned = asked(privacy_unit="user", unit_column="who", max_rows_per_unit=2)
    script(privacy=owned, train_dataset=rows + rows[:5])


@pytest.mark.parametrize("column", ["seq_lengths", "position_ids"])
def test_columns_of_packing_are_refused(script, paid, column):
    rows = [row | {column: [1, 2]} for row in make_rows()]
    refused(script, paid, "of packing", rows=rows)


def test_rows_of_one_length_are_refused_unless_they_are_said_to_be_single(script, paid):
    rows = make_rows(length=8)
    refused(script, paid, "one length", rows=rows)
    script(rows=rows, privacy=asked(rows_are_single_units=True), max_steps=1).train()


def test_rows_of_packing_that_keeps_what_is_left_over_are_refused(script, paid):
    """One block that is not filled, as `group_texts` may leave, let all others in."""
    for few in (1, 2):
        rows = [*make_rows(40 - few, length=8), *make_rows(few, length=5, seed=1)]
        refused(script, paid, "or nearly all", rows=rows)
    script(rows=[*make_rows(30, length=8), *make_rows(10, length=5, seed=1)])


def pieces_of_long_texts(*, num_texts=12, longest=6):
    """Texts as a tokenizer cuts them that returns what overflows, in a data set."""
    words = np.random.default_rng(0).choice(WORDS, size=(num_texts, 15))
    texts = [" ".join(row[: 3 + index]) for index, row in enumerate(words)]
    encode = word_tokenizer()

    def cut(batch):
        options = {"max_length": longest, "return_overflowing_tokens": True}
        rows = encode(batch["text"], truncation=True, **options)
        return {**rows, "labels": rows["input_ids"]}

    data = Dataset.from_dict({"text": texts})
    return data.map(cut, batched=True, remove_columns=["text"])


@pytest.mark.parametrize("way", ["cut", "shuffled", "part"])
def test_pieces_of_one_text_are_refused_without_owners(script, paid, way):
    """Each was a unit: who wrote a long text had the guarantee of a group."""
    data = pieces_of_long_texts()
    data = {
        "cut": data,
        "shuffled": data.shuffle(seed=0),
        "part": data.train_test_split(test_size=0.2, seed=0)["train"],
    }[way]
    refused(script, paid, "go on with the text of another", train_dataset=data)
    owned = asked(
        privacy_unit="document",
        unit_column="overflow_to_sample_mapping",
        max_rows_per_unit=3,
    )
    script(train_dataset=data, privacy=owned)


def test_texts_that_do_not_overflow_are_taken(script):
    short = pieces_of_long_texts(longest=20)
    assert "overflow_to_sample_mapping" in short.column_names
    script(train_dataset=short)


def shifted(rows):
    """Collate rows so that each gets the tokens of another one."""
    batch = pad(rows)
    if len(rows) > 1:
        batch["input_ids"] = batch["input_ids"].roll(1, 0)
        batch["labels"] = batch["labels"].roll(1, 0)
    return batch


def masked(rows):
    """Collate rows for a masked language model."""
    batch = pad(rows)
    batch["input_ids"] = batch["input_ids"].clone()
    batch["input_ids"][:, 1] = 0
    return batch


@pytest.mark.parametrize("made", [str, lambda text: [ord(text[-1]) - 47]])
@pytest.mark.parametrize("suffix", ["", "_input_ids"])
def test_rows_of_preferences_are_refused_with_what_is_supported(
    script, paid, made, suffix
):
    rows = [
        {f"chosen{suffix}": made(f"w{i % 9}"), f"rejected{suffix}": made("w1")}
        for i in range(40)
    ]
    match = f"chosen{suffix}, rejected{suffix} of preferences.*on the chosen answers"
    refused(script, paid, match, rows=rows)


class Buffering:
    """Puts the row before in front of the next one."""

    def __init__(self):
        self.last = None

    def __call__(self, rows):
        batch = pad(rows if self.last is None else [self.last])
        self.last = rows[-1]
        return batch


@pytest.mark.parametrize(
    ("collator", "match"),
    [
        (shifted, "treat each row by itself"),
        (Buffering(), "treat each row by itself"),
        (
            masked,
            "labels that are its own tokens.*Tags of tokens .NER. are not trained",
        ),
        (
            lambda rows: pad(rows) | {"token_type_ids": torch.ones(1, 4)},
            "token_type_ids",
        ),
        (lambda rows: {"input_ids": pad(rows)["input_ids"]}, "input_ids and labels"),
        (lambda rows: rows, "as a mapping, got list"),
        (lambda rows: pad(rows) if len(rows) == 1 else [], "treat each row by itself"),
        (
            lambda rows: pad(rows) if len(rows) == 1 else {"labels": 0},
            "treat each row by itself",
        ),
        (
            lambda rows: (
                pad(rows) | {"labels": [row["input_ids"] for row in rows] + [[1]]}
            ),
            "tensors of numbers, which raised ValueError",
        ),
        (
            lambda rows: pad(rows) | {"input_ids": [["who", "knows"]]},
            "tensors of numbers, which raised ValueError",
        ),
        (
            lambda rows: pad(rows) | {"input_ids": pad(rows)["input_ids"].float()},
            "whole numbers as input_ids",
        ),
        (
            lambda rows: pad(rows) | {"attention_mask": None, "note": "a word"},
            "tensors of numbers, which raised TypeError",
        ),
    ],
)
def test_collator_is_refused(script, paid, collator, match):
    refused(script, paid, match, collator=collator)


class Drawing(torch.utils.data.Dataset):
    """Gives another row each time, under the name of its place."""

    def __init__(self, first):
        self.rows, self.first = make_rows(), first
        self.chance = np.random.default_rng(0)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index < self.first:
            return self.rows[index]
        return self.rows[self.chance.integers(len(self.rows))]


@pytest.mark.parametrize("first", [0, 10])
def test_rows_that_are_drawn_anew_each_time_are_refused(script, paid, first):
    refused(script, paid, "same rows each time", train_dataset=Drawing(first))


class Owned(Drawing):
    """Counts how often a row is asked for."""

    def __init__(self):
        super().__init__(first=len(make_rows()))
        self.asked = []

    def __getitem__(self, index):
        self.asked.append(index)
        return super().__getitem__(index) | {"who": f"person {index}"}


def test_row_and_its_owner_are_read_together(script, paid):
    rows = Owned()
    privacy = asked(privacy_unit="user", unit_column="who")
    script(train_dataset=rows, privacy=privacy, max_steps=1).train()
    assert rows.asked.count(37) == 1  # none of those that are compared


def telling(rows):
    """A collator that fails, and says what it saw."""
    raise ValueError(f"no such row: {rows[0]['input_ids']}")


def unpadded(rows):
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize(
    ("data", "collator", "match"),
    [
        (Dataset.from_list([]), pad, "must hold a row, got none"),
        ([None, *make_rows()], pad, "row 0: must be a mapping of columns"),
        ({"train": make_rows()}, pad, "take one split"),
        (make_rows(), telling, "row 0, 1.* pass the collator.* raised ValueError"),
        (make_rows(), unpadded, "data_collator: must collate .* raised ValueError"),
        (
            [*make_rows(), {"input_ids": [1, 2, 900], "labels": [1, 2, 900]}],
            pad,
            "embeddings for, got others in 1 rows",
        ),
        (
            [*make_rows(), {"input_ids": [1, -2, 3], "labels": [1, -2, 3]}],
            pad,
            "embeddings for, got others in 1 rows",
        ),
    ],
    ids=["none", "no mapping", "splits", "failing", "unpadded", "unknown", "negative"],
)
def test_rows_that_cannot_be_read_are_refused_and_not_shown(
    script, paid, data, collator, match
):
    """Mutant: a message of the script's own code, which may quote a row."""
    if isinstance(data, list):
        data = [
            row and {"attention_mask": [1] * len(row["input_ids"])} | row
            for row in data
        ]
    with pytest.raises(ConfigError, match=match) as caught:
        script(train_dataset=data, collator=collator).train()
    assert paid() == []
    assert "no such row" not in str(caught.value)


def test_schedule_of_what_is_measured_is_refused_as_an_object_too(script, paid):
    model = models.tiny_gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    parts = {"optimizers": (optimizer, plateau)}
    refused(script, paid, "schedule of steps alone", model=model, parts=parts)


def test_values_that_are_text_are_refused_all_at_once():
    with pytest.raises(ConfigError) as caught:
        asked(target_delta="1e-5", max_grad_norm="1", max_rows_per_unit=2.5)
    for name in ("target_delta", "max_grad_norm", "max_rows_per_unit"):
        assert f"privacy.{name}: must be" in str(caught.value)
    with pytest.raises(ConfigError, match="must be PrivacyArguments, got dict"):
        DPTrainer(args=TrainingArguments(use_cpu=True), privacy={"target_epsilon": 8})


def test_owner_that_is_missing_is_refused(script, paid):
    rows = [
        row | {"who": None if i == 3 else str(i)} for i, row in enumerate(make_rows())
    ]
    privacy = asked(privacy_unit="user", unit_column="who")
    refused(script, paid, "row 3: must name an owner", rows=rows, privacy=privacy)
    rows = [row | {"who": float(i)} for i, row in enumerate(make_rows())]
    refused(script, paid, "a whole number: write ids", rows=rows, privacy=privacy)
    other = asked(privacy_unit="user", unit_column="author")
    refused(script, paid, "column of train_dataset", rows=rows, privacy=other)


def test_owner_that_looks_like_another_is_refused(script, paid):
    rows = [
        row | {"who": f"{i // 2}" + " " * (i % 2)} for i, row in enumerate(make_rows())
    ]
    privacy = asked(privacy_unit="user", unit_column="who")
    refused(script, paid, "differ from others only by", rows=rows, privacy=privacy)


def test_batch_norm_is_refused(script, paid):
    model = models.tiny_gpt2()
    model.transformer.ln_f = nn.BatchNorm1d(models.WIDTH)
    refused(script, paid, "batch normalisation", model=model)


def test_half_precision_weights_are_refused(script, paid):
    refused(script, paid, "float32", model=models.tiny_gpt2().bfloat16())


def test_hooks_on_gradients_are_refused(script, paid):
    model = models.tiny_gpt2()
    next(model.parameters()).register_hook(lambda grad: grad)
    refused(script, paid, "hooks on gradients", model=model)


def test_loss_of_a_models_own_is_refused(script, paid):
    class Doubled(GPT2LMHeadModel):
        def forward(self, input_ids, attention_mask=None, labels=None, **named):
            rows = {"attention_mask": attention_mask, "labels": labels}
            output = super().forward(input_ids, **rows, **named)
            output.loss = None if output.loss is None else 2 * output.loss
            return output

    model = Doubled(models.tiny_gpt2().config)
    words = "cross-entropy of the tokens that come next as its loss"
    refused(script, paid, words, error=ModelError, model=model)


def test_router_loss_is_refused(script, paid):
    model = models.tiny_gpt2()
    model.config.output_router_logits = True
    refused(script, paid, "routers.*router_aux_loss_coef=0.0", model=model)


class Mixing(nn.Module):
    """Moves every row by the mean of the batch."""

    def forward(self, hidden):
        return hidden + hidden.mean(0, keepdim=True)


def test_model_that_mixes_rows_is_refused(script, paid):
    model = models.tiny_gpt2()
    model.transformer.drop = Mixing()
    refused(script, paid, "with it|record", error=ModelError, model=model)


def test_optimizer_of_other_parameters_is_refused(script, paid):
    model = models.tiny_gpt2()
    foreign = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([*model.parameters(), foreign], lr=0.1)
    refused(
        script, paid, "1 others", model=model, parts={"optimizers": (optimizer, None)}
    )


class Thaw(TrainerCallback):
    """Trains more than the clip covers."""

    def on_step_begin(self, args, state, control, model=None, **named):
        for parameter in model.parameters():
            parameter.requires_grad_(True)


def test_weights_that_are_thawed_while_training_are_refused(script, paid):
    model = models.tiny_gpt2()
    model.transformer.wte.weight.requires_grad_(False)
    trainer = script(model=model)
    trainer.add_callback(Thaw())
    with pytest.raises(PrivacyError, match="what the clip covers"):
        trainer.train()
    assert paid() == []


def test_search_over_hyperparameters_is_refused(script, paid):
    with pytest.raises(ConfigError, match="every trial"):
        script().hyperparameter_search()
    with pytest.raises(ConfigError, match="every trial"):
        script().train(trial={"learning_rate": 1.0})
    assert paid() == []


def test_classes_that_the_model_lacks_are_refused(script, paid):
    model = models.tiny_gpt2()
    model.config.num_labels = 2
    refused(script, paid, "num_labels=2", model=model, rows=make_rows(labels=3))


def test_delta_that_publishes_a_record_is_refused(script, paid):
    refused(script, paid, "target_delta", privacy=asked(target_delta=0.1))


def test_batch_larger_than_the_data_is_refused(script, paid):
    refused(script, paid, "expected_batch_size", gradient_accumulation_steps=20)


def test_all_misuses_are_told_at_once(script, paid):
    with pytest.raises(ConfigError) as caught:
        script(
            label_smoothing_factor=0.1,
            train_sampling_strategy="sequential",
            cls=OwnLoss,
            parts={"compute_loss_func": print},
        )
    told = {problem.path for problem in caught.value.problems}
    assert told == {
        "args.label_smoothing_factor",
        "args.train_sampling_strategy",
        "OwnLoss.compute_loss",
        "compute_loss_func",
    }
    assert paid() == []


def test_trainer_without_arguments_is_refused():
    with pytest.raises(ConfigError, match="args must be given"):
        DPTrainer(models.tiny_gpt2(), privacy=asked())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"target_delta": 0}, "target_delta"),
        ({"max_grad_norm": -1}, "max_grad_norm"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier"),
        ({"noise_multiplier": None}, "target_epsilon"),
        ({"target_epsilon": 1.0}, "target_epsilon"),
        ({"relation": "swap"}, "relation"),
        ({"privacy_unit": "user"}, "unit_column"),
        ({"unit_column": "who"}, "unit_column"),
        ({"max_rows_per_unit": 2}, "max_rows_per_unit"),
        ({"num_units": 123}, "Say 120"),
        ({"loss_normalizer": "public"}, "max_tokens"),
        ({"fixed_shapes": True}, "max_tokens"),
        ({"fixed_shapes": 1, "max_tokens": 8}, "fixed_shapes"),
        ({"block_size": 0}, "block_size"),
    ],
)
def test_privacy_arguments_that_contradict_themselves_are_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        asked(**changes)


def test_public_evaluation_may_choose_a_model(script):
    public = Dataset.from_list(make_rows(8, seed=5))
    trainer = script(
        privacy=asked(evaluation_is_public=True),
        parts={"eval_dataset": public},
        max_steps=5,
        **BEST,
    )
    trainer.train()
    assert trainer.state.best_model_checkpoint is not None


def test_refusals_that_are_skipped_would_be_seen(script, paid, monkeypatch):
    monkeypatch.setattr(private_training, "argument_problems", lambda *_: [])
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        refused(script, paid, "x", label_smoothing_factor=0.1, max_steps=1)


def test_error_quotes_no_row(script):
    rows = make_rows()
    rows[2]["labels"] = [28] * len(rows[2]["input_ids"])
    with pytest.raises(DptuneError) as caught:
        script(rows=rows).train()
    assert "28" not in str(caught.value)
