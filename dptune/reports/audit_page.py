"""The page of step-level checks: what the engine did beside what its plan says."""

from dptune.audits.step_report import StepAudit, StepCheck
from dptune.reports.blocks import Chip, Page, Section, facts, table, verdict_chip
from dptune.reports.formatting import count, number, short_digest, words


def step_audit_page(audit: StepAudit) -> Page:
    """List every check with its figure; failed ones first."""
    ordered = sorted(audit.checks, key=lambda check: check.passed)
    return Page(
        kicker="Step-level audit",
        title=f"{audit.recipe}, stage {words(audit.stage)}",
        chip=verdict_chip(_verdict(audit)),
        lede="Nobody looked at the steps of this stage."
        if not audit.checks
        else "The engine does what the plan of this stage says."
        if audit.passed
        else "The engine does not do what the plan of this stage says: its epsilon "
        "means nothing.",
        sections=(
            Section(
                title="Checks",
                blocks=(
                    table(
                        ("Check", "Verdict", "Measured", "Limit", "What it is"),
                        map(_row, ordered),
                        numeric=(2, 3),
                        caption="`Run`: while the stage trained. `Again`: in a few "
                        "steps of training run again. The others: on the stage's own "
                        "data, through the functions that train. A sound engine fails "
                        "one check in a million. Figures of private data are left out.",
                    ),
                ),
            ),
            Section(
                title="What was checked",
                blocks=(
                    facts(
                        ("Corpus", short_digest(audit.data_fingerprint)),
                        ("Steps of the stage", count(audit.num_steps)),
                        ("Seconds that the checks took", number(audit.seconds)),
                        (
                            "Recorded while it trained",
                            audit.unrecorded or count(audit.num_recorded or 0),
                        ),
                    ),
                ),
            ),
        ),
    )


def _verdict(audit: StepAudit) -> str:
    """What the checks say together."""
    if not audit.checks:
        return "INCONCLUSIVE"
    return "PASS" if audit.passed else "BLOCK"


def _row(check: StepCheck) -> tuple[str | Chip, ...]:
    """One check."""
    return (
        words(check.name),
        verdict_chip("PASS" if check.passed else "BLOCK"),
        number(check.measured),
        number(check.limit),
        check.detail,
    )
