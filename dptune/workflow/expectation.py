"""What a run will claim if all goes as planned, and what its own gate says to that."""

from dptune.accounting.assumptions import weakens
from dptune.accounting.certificates import Certificate
from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.planting import plant_assumes
from dptune.config import PrivacySettings, TrainConfig
from dptune.errors import ConfigError, Problem
from dptune.gates.claims import not_accepted
from dptune.planning import RunPlan, spent_epsilon
from dptune.privacy import Mode, NeighboringRelation
from dptune.results import CorpusReport
from dptune.review.store import ListsOfProject
from dptune.rounding import written_at_most
from dptune.workflow.charging import planned_ledger
from dptune.workflow.detect import marks_assume


def expected_ledger(
    config: TrainConfig,
    plan: RunPlan,
    corpus: CorpusReport,
    *,
    lists: ListsOfProject | None = None,
) -> PrivacyLedger:
    """Return the ledger that a run leaves if all goes as planned.

    Args:
        config: of the run.
        plan: its noise and steps.
        corpus: as it was ingested, before canaries and marks.
        lists: review lists of the project, if there are any.
    """
    used = lists if config.detection.use_review else None
    seen = corpus.model_copy(
        update={
            "assumes": (*corpus.assumes, *plant_assumes(config.canaries)),
            "marks_assume": tuple(
                marks_assume(config.detection, used, config.budget.data_set)
            ),
        }
    )
    return planned_ledger(
        plan,
        seen,
        redaction=config.redaction.name,
        fixed_seed=config.seed is not None,
    )


def gate_doubts(config: TrainConfig, ledger: PrivacyLedger) -> tuple[str, ...]:
    """Say why the run's own gate will refuse what it can claim, whatever it measures.

    A warning and no refusal: a policy may come to accept it, and models are trained to
    be compared. Of recipes without noise, and in the paper's mode, nothing is said.

    Args:
        config: of the run.
        ledger: that it leaves if all goes as planned.
    """
    policy = config.gate
    if not config.recipe.private or config.privacy.mode is not Mode.SOUND:
        return ()
    found = [claim_doubt(config, claim) for claim in asked_claims(config, ledger)]
    if policy.require_step_audit and not config.audit.num_steps:
        asks = f"gate {policy.name} asks for an audit of steps"
        found.append(f"audit.num_steps is 0, and {asks}.")
    return tuple(filter(None, found))


def asked_claims(config: TrainConfig, ledger: PrivacyLedger) -> tuple[Certificate, ...]:
    """Return the claims that the run's own gate asks for, as a ledger has them."""
    policy = config.gate
    return tuple(
        ledger.certificate(
            policy.notion, delta=config.privacy.target_delta, relation=relation
        )
        for relation in policy.relations_for(config.data.privacy_unit)
    )


def claim_doubt(config: TrainConfig, claim: Certificate) -> str:
    """Say why the run's own gate will refuse a claim; nothing where it may pass.

    Args:
        config: of the run.
        claim: of the notion and a relation that the policy asks for.
    """
    policy, unit = config.gate, config.data.privacy_unit
    about = f"the {claim.notion} claim under {claim.relation} will be"
    refuses = f"gate {policy.name} will refuse it."
    rests_on = [
        a for a in claim.assumptions if weakens(a, claim.notion, claim.relation)
    ]
    on = f" on {', '.join(rests_on)}" if rests_on else ""
    if unit.coarseness < policy.privacy_unit.coarseness:
        wanted = f"gate {policy.name} asks for one about a {policy.privacy_unit}."
        return f"{about} about a {unit}, and {wanted}"
    if claim.status not in policy.accepted_statuses:
        return f"{about} {claim.status}{on}, and {refuses}"
    if claim.epsilon > policy.max_epsilon or claim.delta > policy.max_delta:
        epsilon = written_at_most(claim.epsilon, digits=4)
        return (
            f"{about} for epsilon {epsilon} at delta {written_at_most(claim.delta)}, "
            f"and gate {policy.name} accepts at most {policy.max_epsilon:g} at "
            f"{policy.max_delta:g}."
        )
    if found := not_accepted(rests_on, policy):
        return (
            f"{about} {claim.status} on {', '.join(found)}, and {refuses} Set what "
            "makes that unnecessary (data.public_units for num_units_is_public), or "
            "list it under gate.accepted_assumptions."
        )
    return ""


def _is_promised(config: TrainConfig) -> bool:
    """Whether a run means to claim what its own gate asks for."""
    privacy = config.privacy
    return (
        config.recipe.private
        and privacy.notion is config.gate.notion
        and privacy.mode is Mode.SOUND
    )


def _planned_epsilon(
    privacy: PrivacySettings, plan: RunPlan | None, relation: NeighboringRelation
) -> float:
    """Return what a run means to spend, its target where nothing else is known."""
    if plan is None or privacy.relation is relation:
        return privacy.target_epsilon or (plan.epsilon if plan else 0.0)
    return spent_epsilon(
        plan.stages,
        delta=plan.target_delta,
        relation=relation,
        releases=plan.releases,
    )


def check_gate(config: TrainConfig, plan: RunPlan | None) -> None:
    """Refuse to train for hours towards what the run's own gate will refuse.

    Recipes without noise, and what a paper would print, are trained to be looked at.

    Args:
        config: of the run.
        plan: its noise and cost; None where it has none, and only the target is known.

    Raises:
        ConfigError: epsilon or delta is above the policy's, or the strongest attack is
            left out.
    """
    privacy, policy = config.privacy, config.gate
    if not _is_promised(config):
        return
    problems = []
    unit = config.data.privacy_unit
    relations = policy.relations_for(unit)
    epsilon, relation = max((_planned_epsilon(privacy, plan, r), r) for r in relations)
    if epsilon > policy.max_epsilon:
        terms = f"{policy.notion}, {relation}"
        cost = written_at_most(epsilon, digits=4)
        problems.append(
            Problem(
                path="privacy.target_epsilon",
                message=f"must lead to at most gate.max_epsilon "
                f"({policy.max_epsilon:g}; {terms}), got {cost}: the gate would "
                "refuse what the run trains.",
                next_step="Lower it, or let `gate` name a policy that accepts it"
                + (f", such as one about a {unit}." if len(relations) > 1 else "."),
            )
        )
    if privacy.target_delta > policy.max_delta:
        problems.append(
            Problem(
                path="privacy.target_delta",
                message=f"must be at most gate.max_delta ({policy.max_delta:g}), got "
                f"{privacy.target_delta:g}: the gate would refuse what the run trains.",
                next_step="Lower it, or let `gate` name a policy that accepts it.",
            )
        )
    shadows = config.attack.shadows
    if (shadows.num_models if shadows else 0) < policy.min_shadow_models:
        problems.append(
            Problem(
                path="attack.shadows",
                message=f"must hold at least gate.min_shadow_models "
                f"({policy.min_shadow_models}) models: without them the strongest "
                "attack does not run, and the gate cannot pass.",
                next_step="Raise attack.shadows.num_models, or let `gate` name a "
                "policy that asks for fewer.",
            )
        )
    if problems:
        raise ConfigError(problems)
