"""Audit a run's claims by its canaries; count the secrets that detection found."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from datasets import Dataset

from dptune.accounting.accountants import epsilon
from dptune.accounting.certificates import Certificate
from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySet
from dptune.attacks.planting import canary_rows, secret_place
from dptune.audits.canary_audit import AuditedClaim, audit_canaries
from dptune.gates.evidence import AuditEvidence
from dptune.parts import find
from dptune.privacy import CertificateStatus
from dptune.results import DetectionReport, ExposureReport

_CURVE_DELTAS: Final = (1e-3, 1e-2, 0.05, 0.15, 0.3)


def audit_run(
    exposure: ExposureReport,
    *,
    ledger: PrivacyLedger,
    certificates: Sequence[Certificate],
    delta: float,
    detection: DetectionReport,
) -> tuple[AuditEvidence, ...]:
    """Bound every claim of a run from below, by the canaries that it trained on.

    **Privacy**: a function of the trained model, outside any epsilon; the card says so.

    Args:
        exposure: of all canaries under the model and its base.
        ledger: what ran.
        certificates: the claims that follow from it.
        delta: of the bounds.
        detection: says how many secrets were marked.
    """
    return audit_canaries(
        exposure,
        [audited_claim(c, ledger, delta=delta) for c in certificates],
        num_detected=detection.num_canaries_detected,
    )


def audited_claim(
    certificate: Certificate, ledger: PrivacyLedger, *, delta: float
) -> AuditedClaim:
    """Return a claim with its whole privacy curve, where it has one."""
    return AuditedClaim(
        notion=certificate.notion,
        relation=certificate.relation,
        delta=delta,
        guarantees=_curve(certificate, ledger, delta),
    )


def _curve(
    certificate: Certificate, ledger: PrivacyLedger, delta: float
) -> tuple[tuple[float, float], ...]:
    """Epsilons of the claim at `delta` and at larger ones; nothing without a claim."""
    if certificate.status is CertificateStatus.NONE or certificate.epsilon == 0.0:
        return ()
    event = ledger.event(certificate.notion)
    larger = [d for d in _CURVE_DELTAS if d > delta]
    return (
        (certificate.epsilon, delta),
        *((epsilon(event, delta=d, relation=certificate.relation), d) for d in larger),
    )


def count_detected(labelled: Dataset, canaries: CanarySet) -> int:
    """Count planted canaries all of whose copies have the whole secret in spans.

    Args:
        labelled: columns `id`, `text`, `unit_id`, `split` and `spans`, with all canary
            rows: own records, or hosts of appended copies.
        canaries: what was planted.
    """
    rows = canary_rows(labelled, canaries)
    covered = Counter(
        rows[row["id"]]
        for row in labelled.select(find(labelled, "id", rows))
        if _covers(row["spans"] or [], *secret_place(row["text"], canaries.spec))
    )
    return sum(n == canaries.spec.insertions for n in covered.values())


def _covers(spans: Sequence[dict[str, int]], start: int, end: int) -> bool:
    """Whether spans together mark every code point of `[start, end)`."""
    marked = {i for span in spans for i in range(span["start"], span["end"])}
    return marked >= set(range(start, end))
