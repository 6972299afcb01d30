"""Certificates and the gate in a ZenML pipeline that is not ours.

```python
@step
@certified
def fine_tune() -> Annotated[Path, "model"]:
    trainer = DPTrainer(...)
    trainer.train()
    ...


@pipeline
def mine():
    dossier, folder = fine_tune_and_measure()
    gate(dossier, folder, policy=policy)
```

`certified` says on the step, its pipeline run and its ZenML model version what
`dptune train` says there; `gate` ends the pipeline unless the decision is PASS.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from zenml import get_step_context, log_metadata, step
from zenml.types import HTMLString

from dptune.accounting.certificates import Certificate
from dptune.errors import GateFailedError, PrivacyError
from dptune.gates.decision import GateDecision, GateOutcome
from dptune.gates.policy import GatePolicy
from dptune.integrations.claims import issued_here
from dptune.integrations.evidence import decide_on
from dptune.reports.card.page import render_html
from dptune.reports.card.statements import at_a_glance, claim_words
from dptune.workflow.dossier import Dossier

P = ParamSpec("P")
T = TypeVar("T")


def certified(function: Callable[P, T]) -> Callable[P, T]:
    """Attach to a step, its run and its model version what its training guarantees.

    Claims are those of every `DPTrainer` or `DPSFTTrainer` that ends in the step, and
    of what it returns: a `Certificate`, or a tuple with one. Of several with one notion
    and unit the largest epsilon is said. Write it below `@step`.

    Raises:
        PrivacyError: the step ended without any: a model would go on without a claim.
    """

    @functools.wraps(function)
    def attached(*args: P.args, **kwargs: P.kwargs) -> T:
        with issued_here() as found:
            made = function(*args, **kwargs)
        claims = [*found, *_returned(made)]
        if not claims:
            raise PrivacyError(
                f"step {function.__name__} must end with a certificate, got none. "
                "Train with DPTrainer in it, or return the certificate."
            )
        claims.sort(key=lambda claim: claim.epsilon)  # of one name, the last is said
        words: dict[str, Any] = dict(claim_words(claims))
        context = get_step_context()
        log_metadata(words)
        log_metadata(metadata=words, run_id_name_or_prefix=context.pipeline_run.id)
        if context.model_version is not None:
            log_metadata(metadata=words, infer_model=True)
        return made

    return attached


def _returned(made: object) -> Iterator[Certificate]:
    """Find certificates among what a step returns."""
    for one in made if isinstance(made, tuple) else (made,):
        if isinstance(one, Certificate):
            yield one


@step(enable_cache=False)
def gate(
    dossier: Dossier, folder: str, policy: GatePolicy, budget_url: str | None = None
) -> tuple[Annotated[GateDecision, "decision"], Annotated[HTMLString, "privacy_card"]]:
    """Return the decision on a measured model, and its privacy card as a page.

    Args:
        dossier: by `dptune.integrations.evidence.measure`.
        folder: that it was measured in, which this step can read.
        policy: what the model must show.
        budget_url: of the store that paid for its training, without a password in it:
            parameters are shown in the dashboard.

    Raises:
        GateFailedError: the decision is not PASS, so that no step behind this runs.
    """
    decision, card = decide_on(
        dossier, Path(folder), policy=policy, budget_url=budget_url
    )
    reasons = "; ".join(f"{c.name}: {c.reason}" for c in decision.failed())
    words: dict[str, Any] = {
        **at_a_glance(card, decision),
        **claim_words(dossier.certificates),
        "gate": decision.outcome.value,
        "gate_reason": reasons or "every criterion met",
        "policy": decision.policy,
    }
    log_metadata(words)
    log_metadata(
        metadata=words, run_id_name_or_prefix=get_step_context().pipeline_run.id
    )
    if decision.outcome is not GateOutcome.PASS:
        raise GateFailedError(f"{Path(folder).name}: {decision.outcome}. {reasons}")
    return decision, HTMLString(render_html(card))
