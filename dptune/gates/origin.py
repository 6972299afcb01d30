"""Is the evidence what was written down when it was measured, and how often was tried?

**Attempts.** Who trains and evaluates K models may promote the one that was lucky. So
the bounds that a pass rests on (`assurance`, `membership`, `utility`) are taken at
their level divided by K (Bonferroni), K being the evaluations of the data set up to the
decision: of all that were evaluated, each decided on now, some version passes without
having earned it with probability at most the level. Who decides after every evaluation,
when K was smaller, has at most 1 + ln K times the level, and not K times. `assurance`
keeps to that for exposures of an exponential law. If a model knows few secrets by heart
and no others, the chance that none of them was planted does not fall with the level:
more canaries are needed the more often was tried (`null_law.few_known_upper`). Of 20
versions that leak 2.5 bits by any share of the canaries, at any rank, one passed in at
most 1.1 % of simulated runs, of 100 in at most 2 %, at level .5 %. `utility` keeps to
it where changes of losses are not few and large, see `paired_bootstrap_upper`.

Tests that block a leak are left at their level: an attempt more makes none of them
weaker. Those that find evidence invalid too.
"""

from dptune.gates.criterion import Criterion, Verdict, broken, missing
from dptune.gates.evidence import AttemptsEvidence, Evidence
from dptune.gates.policy import GatePolicy


def origin(evidence: Evidence, policy: GatePolicy) -> list[Criterion]:
    """All checks of where the evidence comes from."""
    return [_origin(evidence), _attempts(evidence, policy)]


def counts(found: AttemptsEvidence) -> str:
    """Say in a sentence how often a data set was tried."""
    kinds = {
        "training": found.trainings,
        "evaluation": found.evaluations,
        "decision": found.decisions,
    }
    parts = [f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in kinds.items()]
    return f"Data set {found.data_set} has seen {', '.join(parts)}."


def _origin(evidence: Evidence) -> Criterion:
    """Whatever speaks against the evidence makes it invalid."""
    name, found = "evidence_origin", evidence.origin
    if found is None:
        return missing(name, "record of where the evidence comes from")
    if found.faults:
        return broken(name, " ".join(found.faults)).model_copy(
            update={
                "what_would_change_it": "Run the same `train` command again: finished "
                "stages are kept, and what was measured is registered anew. If it "
                "recurs, find out who changed it."
            }
        )
    signed = f"Key {found.signer} signed it when it was registered."
    if not found.is_verified:
        known = (
            "registry and budget store know it" if found.run else "nobody registered it"
        )
        signed = (
            f"Its signature ({found.signer}) was not checked, since no key is "
            f"configured here; {known}."
        )
    return Criterion(
        name=name,
        verdict=Verdict.PASS,
        reason=" ".join(
            (f"The digest is {found.digest[:16]}.", signed, *found.remarks)
        ),
    )


def _attempts(evidence: Evidence, policy: GatePolicy) -> Criterion:
    """The data set must not have been tried more often than the policy allows."""
    name, found, limit = "attempts", evidence.attempts, policy.max_evaluations
    if found is None:
        way = "Let a budget store pay, and name it to who decides: it counts them."
        unknown = missing(name, "count of attempts on the data set")
        return unknown.model_copy(update={"what_would_change_it": way})
    within = limit is None or found.evaluations <= limit
    corrected = f" Bounds are taken at 1/{evidence.num_looks} of their level."
    return Criterion(
        name=name,
        verdict=Verdict.PASS if within else Verdict.BLOCK,
        measured=float(found.evaluations),
        threshold=None if limit is None else float(limit),
        reason=counts(found) + (corrected if evidence.num_looks > 1 else ""),
        what_would_change_it=""
        if within
        else "Collect new data: on these a version that passes is to be expected by "
        "luck.",
    )
