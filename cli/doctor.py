"""The `doctor` command: what a model can, and what it takes, before it trains."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
import typer
import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers.utils import logging as hf_logging

from cli.printing import say_next, speaker
from cli.runs import CONFIGS, read_config
from dptune.attacks.canaries import CanarySpec
from dptune.attacks.settings import AttackSettings
from dptune.config import ModelSettings, PerformanceSettings
from dptune.configfile import read_yaml, validate
from dptune.errors import ConfigError, DptuneError, Problem
from dptune.models.source import HubSource, PathSource, Task
from dptune.recipes import Recipe, StageSettings
from dptune.reports.formatting import duration
from dptune.results import AttackCost
from dptune.results.doctor import Diagnosis, Examined
from dptune.workflow.attack_cost import attack_costs, load_unfitted
from dptune.workflow.device import memory_there, pick_device
from dptune.workflow.doctor import Examination, examine
from infra.allocator import freed_memory_kept
from infra.workspace import data_root

_RECIPES = {"full": "dp_default", "lora": "dp_lora"}
_LENGTH, _BATCH, _BATCH_OF_LARGE = 64, 4, 2
_ROWS = (1, 2, 4, 8, 16, 32, 64)
_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the options of the command say; None leaves it open."""

    trains: Literal["full", "lora"] | None = None
    task: Task | None = None
    dtype: Literal["float32", "bfloat16"] | None = None
    quantization: int | None = None
    length: int | None = None
    batch: int | None = None

    @property
    def given(self) -> list[str]:
        """Names of those that say something."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]


def diagnose_and_report(
    model: str, overrides: Sequence[str], asked: Asked, *, as_json: bool
) -> None:
    """Examine a model, print what was found, and fail if it cannot be trained.

    Args:
        model: a directory, a hub id, or a training configuration.
        overrides: `KEY=VALUE` pairs, for a configuration.
        asked: for anything else.
        as_json: print everything as JSON instead.

    Raises:
        ConfigError: with every refusal; nothing was written.
        DptuneError: the model cannot be loaded.
    """
    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity(logging.ERROR)  # new heads are no news here
    try:
        with Console(stderr=True).status("reading the model") as status:
            found = _diagnosis(model, overrides, asked, on_progress=status.update)
    finally:
        hf_logging.set_verbosity(verbosity)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        _print(speaker(), found)
    if not found.can:
        raise ConfigError(
            [
                Problem(path=f"{stage.stage}, {stage.way}:", message=refusal)
                for stage in found.stages
                for refusal in stage.refusals
            ]
        )


def _diagnosis(
    model: str,
    overrides: Sequence[str],
    asked: Asked,
    *,
    on_progress: Callable[[str], None],
) -> Diagnosis:
    """Examine every stage that was asked for."""
    is_config = model.endswith((".yaml", ".yml"))
    unfit = asked.given if is_config else ["set"] if overrides else []
    if unfit:
        raise ConfigError(
            [
                Problem(
                    path=f"--{'adapters or --full' if name == 'trains' else name}",
                    message="must be left out for a configuration."
                    if is_config
                    else "must be left out for a model without a configuration.",
                    next_step="Change the configuration with --set."
                    if is_config
                    else "Use the other options; --help lists them.",
                )
                for name in unfit
            ]
        )
    examinations = [
        replace(one, on_progress=on_progress)
        for one in (
            _of_config(Path(model), overrides) if is_config else _of_model(model, asked)
        )
    ]
    first = examinations[0]
    with freed_memory_kept(first.device):
        stages = tuple(examine(one) for one in examinations)
        attacks: tuple[AttackCost, ...] = ()
        if any(stage.can for stage in stages):
            asked_for = _attacked(model, overrides)
            attacks = _attacks(first, asked_for, on_progress=on_progress)
    best = next((stage for stage in stages if stage.can), None)
    return Diagnosis(
        name=model,
        family=first.metadata.family,
        task=first.model.task,
        num_weights=first.metadata.num_weights,
        stored=first.metadata.types,
        device=first.device,
        memory=memory_there(first.device),
        dtype=first.performance.dtype,
        quantization=first.model.quantization,
        length=first.model.max_tokens,
        stages=stages,
        settings={} if best is None else _settings(first, best, whole=not is_config),
        attacks=attacks,
    )


def _attacked(
    model: str, overrides: Sequence[str]
) -> tuple[AttackSettings, CanarySpec]:
    """Return attacks and canaries of a configuration, or what a run has by default."""
    if not model.endswith((".yaml", ".yml")):
        return AttackSettings(), CanarySpec(num_planted=100, num_held_out=100)
    config = read_config(Path(model), overrides)
    return config.attack, config.canaries


def _attacks(
    examination: Examination,
    attacked: tuple[AttackSettings, CanarySpec],
    *,
    on_progress: Callable[[str], None],
) -> tuple[AttackCost, ...]:
    """Measure what attacks will take."""
    on_progress("timing what attacks will do")
    try:
        return attack_costs(
            load_unfitted(examination.model, data_root=examination.data_root),
            *attacked,
            max_tokens=examination.model.max_tokens,
            performance=examination.performance,
        )
    except DptuneError:  # such as a model without keys and values to attack by
        return ()


def _of_config(path: Path, overrides: Sequence[str]) -> Iterator[Examination]:
    """Yield the stages of a configuration that clip gradients."""
    config = read_config(path, overrides)
    stages = [stage for stage in config.recipe.stages if stage.clipping is not None]
    if not stages:
        raise ConfigError.at(
            "recipe",
            "must have a stage that clips gradients, got "
            f"{config.recipe.name}, which has none to check.",
            "Choose another with --set recipe=dp_default.",
        )
    for stage in stages:
        yield Examination(
            model=config.model,
            performance=config.performance,
            stage=stage,
            data_root=data_root(),
            may_choose=False,
        )


def _of_model(model: str, asked: Asked) -> Iterator[Examination]:
    """Yield the ways to train a model that were asked for, or are cheap to look at."""
    if asked.quantization and asked.trains == "full":
        raise ConfigError.at(
            "--quantization",
            "must be left out with --full: weights that train are float32.",
            "Ask for --adapters.",
        )
    folder, device = Path(model), pick_device("auto")
    is_folder = bool(model) and folder.is_dir()
    source = (
        validate(PathSource, {"kind": "path", "path": folder.resolve().name})
        if is_folder
        else _hub_source(model)
    )
    is_fast = device == "cuda" and torch.cuda.is_bf16_supported()
    examination = Examination(
        model=validate(
            ModelSettings,
            {
                "source": source.model_dump(),
                "max_tokens": asked.length or _LENGTH,
                "quantization": asked.quantization,
            },
        ),
        performance=PerformanceSettings(
            physical_batch_size=asked.batch or _BATCH,
            dtype=asked.dtype or ("bfloat16" if is_fast else "float32"),
        ),
        stage=_stage("lora"),
        data_root=folder.resolve().parent if is_folder else data_root(),
        may_choose=True,
    )
    examination = replace(examination, model=_that_fits(examination, asked))
    if asked.batch is None and not examination.is_quick:
        examination = examination.with_performance(physical_batch_size=_BATCH_OF_LARGE)
    if (asked.task or examination.metadata.task) == "sequence_classification":
        labels = tuple(range(examination.metadata.num_classes))
        classes = {"task": "sequence_classification", "labels": labels}
        settings = examination.model.model_copy(update=classes)
        examination = replace(examination, model=settings)
    is_both = examination.is_quick and not asked.quantization
    if asked.trains == "full" or (asked.trains is None and is_both):
        yield replace(examination, stage=_stage("full"))
    if asked.trains != "full":
        yield examination


def _that_fits(examination: Examination, asked: Asked) -> ModelSettings:
    """Choose a length within the positions of a model, unless one was asked for.

    Raises:
        ConfigError: the one that was asked for is beyond them.
    """
    model, most = examination.model, examination.metadata.positions
    if most is None or model.max_tokens <= most:
        return model
    if asked.length is not None:
        raise ConfigError.at(
            "--length",
            f"must be at most {most}, the positions of the model, got {asked.length}.",
        )
    return model.model_copy(update={"max_tokens": most})


def _hub_source(model: str) -> HubSource:
    """Take the name of a model for a hub id, if it can be one.

    Raises:
        ConfigError: it is a file, or no id, or seems to lie in a folder that is here.
    """
    here, is_here = Path(model).parent, Path(model).exists()
    is_lost = here != Path() and here.is_dir() and not is_here
    wanted = Problem(
        path="MODEL",
        message="must be a model's folder, a hub id or a configuration (.yaml), got "
        f"{model!r}.",
        next_step=f"{here}/ holds no such folder." if is_lost else "Check the path.",
    )
    if is_lost or is_here:
        raise ConfigError([wanted])
    try:
        return validate(HubSource, {"kind": "hub", "id": model})
    except ConfigError:
        raise ConfigError([wanted]) from None


def _stage(trains: Literal["full", "lora"]) -> StageSettings:
    """Return the private stage of the recipe for one way to train."""
    file = CONFIGS / "recipes" / f"{_RECIPES[trains]}.yaml"
    return validate(Recipe, read_yaml(file)).stages[-1]


def _settings(
    examination: Examination, found: Examined, *, whole: bool
) -> dict[str, Any]:
    """Return what to write into a configuration; `whole` if there is none yet."""
    performance = {
        "physical_batch_size": found.rows,
        "dtype": examination.performance.dtype,
        "gradient_checkpointing": found.gradient_checkpointing,
        "fixed_shapes": found.fixed_shapes,
    }
    if not whole:
        return {"performance": performance}
    model, recipe = examination.model, _RECIPES[found.trains]
    keys = {"source", "max_tokens", "dtype", "quantization"}
    keys |= {"task", "labels"} if model.labels else set()
    values = model.model_dump(mode="json", include=keys)
    if isinstance(model.source, PathSource):
        folder = examination.data_root / model.source.path
        is_inside = folder.is_relative_to(data_root())
        path = folder.relative_to(data_root()) if is_inside else Path(folder.name)
        values["source"]["path"] = path.as_posix()
    settings = {"model": values, "recipe": recipe, "performance": performance}
    if examination.stage.lora is not None and found.trains == "lora":
        lora = examination.stage.lora.model_dump(mode="json")
        settings["stages"] = {recipe: {found.stage: {"lora": lora}}}
    return settings


def _print(console: Console, found: Diagnosis) -> None:
    """Print the verdict, what was measured, and what to write."""
    can = [stage for stage in found.stages if stage.can]
    ways = " or ".join(stage.way for stage in found.stages if not stage.can)
    verdict = Text(f"cannot be trained privately and exactly {ways}", "bold red")
    if can:
        named = " and ".join(stage.way for stage in can)
        verdict = Text(f"can be trained privately and exactly {named}", "bold green")
        verdict.append(f", but not {ways}" if ways else "", "default not bold")
    room = f", which has {found.memory / _GB:.1f} GB" if found.memory else ""
    console.print(verdict, soft_wrap=True)
    console.print(
        f"{found.name}: {found.family}, {found.num_weights / 1e6:,.1f} million "
        f"weights in {', '.join(found.stored)}, as {found.task}, in {found.dtype} on "
        f"{found.device}{room}",
        style="dim",
        soft_wrap=True,
    )
    if not can:
        return
    for stage in found.stages:
        for refusal in stage.refusals:
            console.print(f"not {stage.way}: {refusal}", soft_wrap=True)
        for reason in stage.instead_of:
            chosen = "one row at a time" if stage.batch == 1 else "in fixed shapes"
            line = f"{stage.way} {chosen}: {reason}"
            console.print(line, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"rows of {found.length} tokens")
    for stage in can:
        table.add_column(f"{stage.stage}, {stage.way}", justify="right")
    columns = [_column(stage) for stage in can]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)
    costs = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("attacks, of model and base", "tokens at most", "time"):
        costs.add_column(name, justify="left" if name.startswith("a") else "right")
    for cost in found.attacks:
        time = duration(round(cost.seconds))
        costs.add_row(cost.attack, f"{cost.num_tokens:,}", time)
    console.print(costs)
    _print_memory(console, can[0])
    _print_settings(console, found, can[0])


def _column(stage: Examined) -> dict[str, str]:
    """Write what was measured of one way."""
    need, speed = stage.need, stage.speed
    if need is None or speed is None:
        return {}
    return {
        "rows side by side": f"{stage.batch}",
        "weights that train": f"{stage.num_trained:,}",
        "distance from single records": f"{stage.distance:.1e}",
        "GB in the check before a stage": _size(need.checked),
        "GB in a private step": _size(dict(need.steps).get(stage.batch)),
        "tokens per second, private": f"{speed.private:,.0f}",
        "tokens per second, ordinary": f"{speed.ordinary:,.0f}",
        "private over ordinary time": f"{speed.ratio:.2f}",
    }


def _size(num_bytes: int | None) -> str:
    """Write gigabytes, nothing where the machine does not tell."""
    return f"{num_bytes / _GB:.2f}" if num_bytes else ""


def _print_memory(console: Console, best: Examined) -> None:
    """Say what other sizes would take."""
    need = best.need
    if need is None or need.at(1) is None:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("GB, estimated")
    for rows in _ROWS:
        table.add_column(f"{rows} rows", justify="right")
    for length in (need.length, 2 * need.length, 4 * need.length):
        sizes = [_size(need.at(rows, length=length)) for rows in _ROWS]
        table.add_row(f"{length} tokens", *sizes)
    console.print(table)
    measured = " and ".join(str(rows) for rows, _ in need.steps)
    console.print(
        f"Estimates for private steps {best.way}: linear in tokens through {measured} "
        f"rows of {need.length}, which were measured, and no less than the check. Long "
        "rows take more where a model writes its attention down.",
        style="dim",
        soft_wrap=True,
    )


def _print_settings(console: Console, found: Diagnosis, best: Examined) -> None:
    """Print what to paste, and what to do then."""
    text = yaml.safe_dump(
        found.settings,
        sort_keys=False,
        default_flow_style=None,
        width=100,
        allow_unicode=True,
    )
    console.print(f"\n{text}", soft_wrap=True, end="")
    command, notes = f"dptune calibrate {found.name}", []
    if "model" in found.settings:
        command = "paste this over the same keys of a copy of configs/train/own_text"
        command += ".yaml, and run `dptune doctor` on it"
        notes.append("Paths of models start from DPTUNE_DATA_ROOT.")
        if "labels" in found.settings["model"]:
            notes.append("Labels are those of your column data.source.label_column.")
        if best.layers:
            layers = ", ".join(best.layers)
            notes.append(f"No target_modules are all linear layers: {layers}.")
    for note in notes:
        console.print(note, style="dim", soft_wrap=True)
    say_next(console, command)
