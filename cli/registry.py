"""The `gate`, `promote`, `rollback` and `status` commands."""

from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli import account
from cli.budget import show_budgets
from cli.printing import folding_table, speaker
from cli.runs import CONFIGS, require_workspace
from dptune.configfile import load_policy
from dptune.errors import ArtifactError, ConfigError, GateFailedError
from dptune.gates.decision import GateDecision, GateOutcome
from dptune.gates.policy import GatePolicy
from dptune.gates.signing import UNSIGNED, signer_of
from dptune.reports.formatting import visible
from dptune.reports.pages.decisions import compared
from steps import _champions, _promoting, _registry, _tracking
from steps._deciding import ENVELOPE, decide_on, record_override
from steps._noting import noted_outcomes
from steps._promoting import Reliance, look_at_champion, promote_by_hand


def decide_again(
    model: str, version: str | None, policy_name: str, *, output: Path | None = None
) -> None:
    """Decide on a registered version under a policy, and record the decision.

    Args:
        model: as registered.
        version: its number; the newest by default.
        policy_name: or path.
        output: where the signed decision is written, a refusal too.

    Raises:
        GateFailedError: the outcome is not PASS.
        ArtifactError: there is no such version, or it has no evidence.
    """
    policy = load_policy(policy_name, configs=CONFIGS, key="--policy")
    require_workspace()
    _tracking.connect()
    number = version or newest(model)
    decision, _ = decide_on(model, number, policy=policy)
    print_decision(decision, title=f"{model} version {number}")
    if output is not None:
        write_envelope(model, number, output)
    if decision.outcome != "PASS":
        raise GateFailedError(
            f"version {number} of {model}: {decision.outcome}. The champion stays."
        )


def write_envelope(model: str, version: str, file: Path) -> None:
    """Write the decision as it was signed, for a deploy job.

    Raises:
        ArtifactError: it is not there any more, or the file cannot be written.
    """
    envelope = _tracking.read_file(model, version, ENVELOPE)
    if envelope is None:
        raise ArtifactError(f"version {version} of {model} must have {ENVELOPE}.")
    try:
        file.write_text(envelope, encoding="utf-8")
    except OSError as error:
        raise ConfigError.at(
            "--output", f"must be writable, {error.strerror}."
        ) from None
    signer = signer_of(envelope)
    console = speaker()
    console.print(f"written to {file}, signed by {signer}")
    if signer == UNSIGNED:
        console.print(
            "no deploy job will take it: set DPTUNE_SIGNING_KEY_FILE to sign",
            style="dim",
        )


def newest(model: str) -> str:
    """Return the newest version of a model.

    Raises:
        ArtifactError: the model has none.
    """
    names = _tracking.model_names()
    found = _tracking.versions(model) if model in names else []
    if not found:
        raise ArtifactError(
            f"model must be a registered one ({', '.join(names) or 'there is none'}), "
            f"got {model}. `dptune status` lists them."
        )
    return str(found[0].version)


def print_decision(decision: GateDecision, *, title: str) -> None:
    """Print every criterion with its verdict and reason."""
    console = speaker()
    columns = ("criterion", "verdict", "measured", "threshold", "reason")
    table = folding_table(f"{title}: {decision.outcome}", *columns)
    for criterion in decision.criteria:
        table.add_row(
            criterion.name,
            str(criterion.verdict),
            *compared(criterion),
            criterion.reason,
        )
    console.print(table)
    console.print(
        f"decision {decision.decision_hash[:16]} under policy {decision.policy}, files "
        f"{decision.manifest_digest[:16]}",
        style="dim",
    )


def promote_version(
    model: str, version: str, override: str | None, *, policy_name: str | None = None
) -> None:
    """Promote a version by hand.

    Args:
        model: as registered.
        version: its number.
        override: why it is promoted past the gate.
        policy_name: the policy that it must have passed, if not the one of its run.
    """
    policy = _named_policy(policy_name)
    require_workspace()
    _tracking.connect()
    relied = promote_by_hand(model, version, policy=policy, override=override)
    if relied.decision is None and override:
        record_override(model, version, reason=override)
    _print_champion(f"version {version} of {model} is the champion", relied)


def _named_policy(name: str | None) -> GatePolicy | None:
    """Read the policy that a version must have passed, if one is named."""
    return load_policy(name, configs=CONFIGS, key="--policy") if name else None


def roll_back(
    model: str, to: str | None, reason: str, *, policy_name: str | None = None
) -> None:
    """Go back to an earlier champion.

    Args:
        model: as registered.
        to: its version; the last champion by default.
        reason: kept on record.
        policy_name: the policy that it must have passed, if not the one of its run.
    """
    policy = _named_policy(policy_name)
    require_workspace()
    _tracking.connect()
    if model not in _tracking.model_names():
        newest(model)
    if to is None:  # once it is done, the same again would go one further
        to = _promoting.earlier_champion(model)
        account.completes(f"rollback {model} --to {to}")
    version, relied = _promoting.roll_back(model, to=to, reason=reason, policy=policy)
    _print_champion(f"version {version} of {model} is the champion again", relied)


def _print_champion(text: str, relied: Reliance) -> None:
    """Say on what a champion was moved, and what nobody checked."""
    console = speaker()
    console.print(text)
    for name, value in relied.trail.items():
        console.print(f"{name}: {value}", style="dim", soft_wrap=True)


def show_status(*, weights: bool = False) -> None:
    """Print models, the budget of every data set, and the last runs.

    Args:
        weights: whether every file of a champion is read.
    """
    require_workspace()
    _tracking.connect()
    console = speaker()
    for name in _tracking.model_names():
        _registry.mend(name)
        console.print(_model_table(name))
        _print_look(console, name, weights=weights)
    show_budgets(console)
    console.print(_run_table())


def _print_look(console: Console, name: str, *, weights: bool) -> None:
    """Say whether a champion is still what it was when it was promoted."""
    champion = _champions.champion(name) or _champions.alias(name, _champions.CHAMPION)
    if champion is None:
        return
    wrong, unchecked = look_at_champion(name, champion, weights=weights)
    if wrong:
        console.print(f"champion {wrong}", style="bold red", soft_wrap=True)
        return
    rest = "; ".join(unchecked) or "nothing"
    console.print(
        f"champion {champion}: as it was promoted. Not checked: {rest}",
        style="dim",
        soft_wrap=True,
    )


def _model_table(name: str) -> Table:
    """List a model's versions with their place and verdict."""
    champion = _champions.alias(name, _champions.CHAMPION)
    challenger = _champions.alias(name, _champions.CHALLENGER)
    places = {challenger: "challenger", champion: "champion"}
    noted = _noted_outcomes(name)
    columns = ("version", "place", "recipe", "gate", "why")
    table = folding_table(f"model {name}", *columns)
    for version in _tracking.versions(name)[:10]:
        number, tag = str(version.version), _tracking.outcome_of(version)
        known, why = noted.get(number, tag), _tracking.reason_of(version)
        if known != tag:
            why = f"noted was {known}, its tag says {tag}. Run `dptune gate` again"
        outcome = tag if known == GateOutcome.PASS else known  # a PASS is one in both
        row = (number, places.get(number, ""), _tracking.recipe_of(version))
        table.add_row(*map(visible, (*row, outcome, why)))
    return table


def _noted_outcomes(name: str) -> dict[str, str]:
    """Return what the log noted of versions; a broken one says nothing."""
    with suppress(GateFailedError):  # the champion's line says so
        return noted_outcomes(name)
    return {}


def _run_table() -> Table:
    """List the last pipeline runs."""
    from zenml.client import Client

    table = folding_table("last runs", "run", "status", "started")
    for run in Client().list_pipeline_runs(sort_by="desc:created", size=5).items:
        started = run.start_time.strftime("%Y-%m-%d %H:%M") if run.start_time else ""
        table.add_row(run.name, str(run.status), started)
    return table
