"""Every command of `dptune`: arguments in, one call, a table out."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.budget import build_budget_app
from cli.cluster import build_cluster_app
from cli.decisions import verify_decision
from cli.decrypting import decrypt
from cli.detection_app import detect, evaluate_detector
from cli.models import build_models_app
from cli.options import (
    AsJson,
    ConfigPath,
    ModelName,
    Overrides,
    PassedPolicy,
    Port,
    ProfileName,
    Reason,
    Retrain,
)
from cli.preparing import prepare
from cli.projects import configs, init, invent
from cli.review import build_review_app
from cli.schedules import build_schedule_app
from cli.stack import build_stack_app

_HELP = """Fine-tune a language model on personal text, prove the privacy, measure the
leakage, and promote only what passes both.

Begin with `dptune quickstart`. Then copy configs/train/own_text.yaml, point it
at your data, see what a budget costs with `calibrate`, and `train`.

Exit codes: 0 done or passed, 1 refused by the gate, 2 input that cannot be used, 3
crash, 4 a fault of the machine (disk, memory, rights, a server), 128 + n ended by
signal n. All but 0 and 1 say what was created and spent.
"""


def build_app() -> typer.Typer:
    """Build the command line."""
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback()(prepare)
    for command in (
        init,
        quickstart,
        invent,
        train,
        compare,
        calibrate,
        doctor,
        detect,
        evaluate_detector,
        decrypt,
        audit,
        register,
        gate,
        verify_decision,
        promote,
        rollback,
        status,
        configs,
        dashboard,
        mlflow,
    ):
        app.command()(command)
    app.add_typer(build_budget_app(), name="budget")
    app.add_typer(build_review_app(), name="review")
    app.add_typer(build_stack_app(), name="stack")
    app.add_typer(build_cluster_app(), name="cluster")
    app.add_typer(build_schedule_app(), name="schedule")
    app.add_typer(build_models_app(), name="models")
    return app


def quickstart(
    seed: Annotated[
        int,
        typer.Option(help="Decides the invented corpus; noise stays secret.", min=0),
    ] = 0,
    retrain: Annotated[
        bool,
        typer.Option("--retrain", help="Train again instead of using finished runs."),
    ] = False,
) -> None:
    """Show the whole product on invented dialogues: one refusal, one promotion."""
    from cli.training import run_quickstart

    run_quickstart(seed=seed, retrain=retrain)


def train(
    config: ConfigPath,
    overrides: Overrides = None,
    retrain: Retrain = False,
    profile: ProfileName = None,
    if_changed: Annotated[
        bool,
        typer.Option(
            "--if-changed",
            help="Do nothing if a finished run did the same on the same data.",
        ),
    ] = False,
) -> None:
    """Run one training configuration, from raw text to a gate decision.

    An identical run that was finished before is not trained again and costs nothing.
    """
    from cli.training import train_and_report

    train_and_report(
        config,
        overrides or [],
        retrain=retrain,
        profile=profile,
        if_changed=if_changed,
    )


def compare(
    config: Annotated[
        Path,
        typer.Argument(help="A file under configs/compare/.", show_default=False),
    ],
    overrides: Overrides = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Show every cell's noise and cost, and stop."),
    ] = False,
    retrain: Retrain = False,
) -> None:
    """Put recipes side by side on one corpus: budgets x seeds, one table.

    Each combination is a cell, trained and attacked as `train` does; nothing is
    registered or promoted. All cells are checked before the first one is trained, and
    all are charged to one data set as one tuning sweep. Killed in the middle? Run the
    same command again: finished cells are neither trained nor charged again.

    Keys of the file: `base` (a file under configs/train), `recipes`, `budgets` (target
    epsilons), `seeds` (numbers of repetitions; noise stays secret), `set` (changes of
    the base, for all or per recipe), `measure`. Exit 2 if some cells failed; the others
    are reported.
    """
    from cli.comparing import compare_and_report

    compare_and_report(config, overrides or [], retrain=retrain, plan_only=plan)


def calibrate(
    config: ConfigPath,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where the report goes: a page (.html) or its figures (.png). By "
            "default a page in the project folder's reports.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run will cost before it trains, and what other choices would cost."""
    from cli.calibration import show_calibration

    show_calibration(config, overrides or [], output=output, as_json=as_json)


def doctor(
    model: Annotated[
        str,
        typer.Argument(
            help="A model's folder, a hub id, or a configuration (.yaml).",
            show_default=False,
        ),
    ],
    *,
    overrides: Overrides = None,
    full: Annotated[
        bool | None,
        typer.Option(
            "--full/--adapters",
            help="Train all weights, or LoRA on all linear layers. By default both; of "
            "a large model on a CPU, adapters.",
        ),
    ] = None,
    task: Annotated[
        Literal["causal_lm", "sequence_classification"] | None,
        typer.Option(help="What it is trained for; by default what it was made for."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(
            help="Precision of the passes; bfloat16 by default on a GPU that has it."
        ),
    ] = None,
    quantization: Annotated[
        Literal["4", "8"] | None, typer.Option(help="Bits of the base under adapters.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="Longest sequence in tokens; 64, or the model's positions.", min=8
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Sequences side by side; 4, or 2 of a large model on a CPU.", min=1
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say if a model can be trained privately and exactly, and what that takes.

    Runs the checks that precede a private stage, compares gradients with a loop over
    single records, and measures memory and time of a few steps, on made-up tokens: no
    text is read, nothing is spent or written. Of a configuration it takes all settings;
    change them with --set. The last lines are settings to use.

    Exit 0 if it can be trained as asked, 2 if not, with every reason.
    """
    from cli.doctor import Asked, diagnose_and_report

    asked = Asked(
        trains=None if full is None else "full" if full else "lora",
        task=task,
        dtype=dtype,
        quantization=None if quantization is None else int(quantization),
        length=length,
        batch=batch,
    )
    diagnose_and_report(model, overrides or [], asked, as_json=as_json)


def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="A configuration (its last run), MODEL, MODEL:VERSION, or a model "
            "directory that was trained elsewhere.",
            show_default=False,
        ),
    ],
    *,
    base: Annotated[
        Path | None, typer.Option(help="Directory of the model it was trained from.")
    ] = None,
    members: Annotated[
        Path | None, typer.Option(help="Texts it was trained on: .txt or .jsonl.")
    ] = None,
    non_members: Annotated[
        Path | None, typer.Option(help="Texts of the same law that it was not.")
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="A canary set as JSON, planted in the members.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest sequence.", min=8)] = 256,
) -> None:
    """Check the engine on a recorded run's steps, or attack a model from elsewhere.

    Exit 0 if every check passes, 1 if the engine does not do what the plan says.
    """
    from cli.auditing import audit_directory, audit_recorded

    if not Path(target).is_dir():
        audit_recorded(target)
        return
    audit_directory(
        Path(target),
        base=base,
        members=members,
        non_members=non_members,
        canaries=canaries,
        max_tokens=max_tokens,
    )


def register(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A model that a script trained and measured.", show_default=False
        ),
    ],
    model: Annotated[str, typer.Option("--as", help="Name in the registries.")],
    evidence: Annotated[
        Path, typer.Option(help="What `measure` returned, as JSON.", show_default=False)
    ],
    policy: Annotated[
        str, typer.Option(help="A policy under configs/gates/.")
    ] = "script",
) -> None:
    """Register what a script of transformers trained, and decide on it.

    Exit 0 pass, 1 refused, 2 evidence that is not of this folder or was not paid from
    this project's budget store.
    """
    from cli.registering import register_measured_model

    register_measured_model(
        folder, evidence=evidence, model_name=model, policy_name=policy
    )


def gate(
    model: ModelName,
    version: Annotated[
        str | None, typer.Option(help="Version to decide on; the newest by default.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="A policy under configs/gates/.")
    ] = "default",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the signed decision, for `verify-decision`."
        ),
    ] = None,
) -> None:
    """Decide again on a registered version. Exit 0 pass, 1 refused."""
    from cli.registry import decide_again

    decide_again(model, version, policy, output=output)


def promote(
    model: ModelName,
    version: Annotated[str, typer.Option(help="Version to promote.")],
    override: Annotated[
        str | None,
        typer.Option(help="Promote past the gate; the reason stays on record."),
    ] = None,
    policy: PassedPolicy = None,
) -> None:
    """Make a version the champion in both registries, if its decision still holds."""
    from cli.registry import promote_version

    promote_version(model, version, override, policy_name=policy)


def rollback(
    model: ModelName,
    to: Annotated[
        str | None, typer.Option(help="An earlier champion; the last one by default.")
    ] = None,
    reason: Reason = "no reason given",
    policy: PassedPolicy = None,
) -> None:
    """Make an earlier champion the champion again."""
    from cli.registry import roll_back

    roll_back(model, to, reason, policy_name=policy)


def status(
    weights: Annotated[
        bool,
        typer.Option(
            "--weights", help="Read every file of the champions, which takes time."
        ),
    ] = False,
) -> None:
    """Show champions, challengers, the budget of every data set, and the last runs."""
    from cli.registry import show_status

    show_status(weights=weights)


def dashboard(port: Port = 8237) -> None:
    """Open the ZenML dashboard on this project's runs; Ctrl-C stops it."""
    from cli.servers import serve_dashboard

    serve_dashboard(port)


def mlflow(port: Port = 5050) -> None:
    """Open MLflow on this project's runs and models; Ctrl-C stops it."""
    from cli.servers import serve_mlflow

    serve_mlflow(port)
