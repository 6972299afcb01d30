"""Move a champion, relying on a decision that is read again and never on a tag.

What lies in a registry or a store can be edited there. So the signature of the decision
is checked with the configured key, and its version, outcome, policy and files with what
is there now. What cannot be checked, for want of a key for instance, is said and kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from dptune.errors import ArtifactError, GateFailedError, MalformedEvidenceError
from dptune.gates.decision import GateDecision, GateOutcome
from dptune.gates.manifest import Manifest, difference, differs_in_size
from dptune.gates.policy import GatePolicy
from dptune.gates.signing import (
    Statement,
    open_envelope,
    open_unverified,
    public_key_of,
    signer_of,
)
from infra.workspace import read_signing_key
from steps import _champions, _registry, _tracking
from steps._deciding import ENVELOPE, kept_envelope, read_dossier
from steps._evidence import refuse_changed_evidence, refuse_unnoted_evidence
from steps._files import manifest_of
from steps._noting import cut_trail, refuse_superseded

_BACK = "rollback"
_AGAIN = "Run `dptune gate` on it again."
_NO_BYTES = (
    "the bytes of the files, only names and sizes (`status --weights` reads them)"
)


@dataclass(frozen=True, kw_only=True)
class Reliance:
    """What a champion was made on.

    Args:
        decision: that let it; None where somebody took the responsibility.
        files: that were compared with those in the store.
        unchecked: what could not be checked, one clause each.
    """

    decision: GateDecision | None
    files: Manifest
    unchecked: tuple[str, ...] = ()

    @property
    def trail(self: Self) -> Mapping[str, str]:
        """Name all of it, for the trail of promotions."""
        return {
            "policy": self.decision.policy if self.decision else "none",
            "decision": self.decision.decision_hash if self.decision else "none",
            "files": self.files.digest,
            "unchecked": "; ".join(self.unchecked) or "nothing",
        }


def promote_decided(
    model_name: str,
    version: str,
    *,
    policy: GatePolicy | None = None,
    action: str = "promote",
) -> Reliance:
    """Make a version the champion if the newest decision on it lets it.

    Called while `moving_champion`.

    Args:
        model_name: as registered.
        version: its number.
        policy: that it must have passed; by default the one that its run planned for.
        action: for the trail.

    Raises:
        GateFailedError: it did not pass, passed under another policy, or the decision,
            the evidence or a file is not what it was.
    """
    text = _tracking.read_file(model_name, version, ENVELOPE)
    known = _tracking.decision_hash_of(_tracking.get_version(model_name, version))
    relied = _rely_on(model_name, version, text=text, known=known)
    _refuse_other_policy(relied.decision, model_name, version, policy)
    if relied.decision is not None:
        refuse_superseded(model_name, version, relied.decision)
        refuse_changed_evidence(
            _tracking.describe(model_name, version), relied.decision
        )
    reason = f"gate PASS, decision {known[:16]}"
    _registry.promote_version(
        model_name, version, reason=reason, action=action, relied=relied.trail
    )
    return relied


def promote_by_hand(
    model_name: str, version: str, *, policy: GatePolicy | None, override: str | None
) -> Reliance:
    """Promote a version that passed, or any with a reason that stays on record.

    A reason stands in for the gate's decision, and not for the files that were
    registered.

    Raises:
        GateFailedError: `promote_decided` refuses and no reason was given, or files are
            not those that were registered.
    """
    action = "promote by hand"
    with _registry.moving_champion(model_name):
        try:
            return promote_decided(model_name, version, policy=policy, action=action)
        except GateFailedError as refusal:
            if not any(map(str.isalnum, override or "")):
                raise GateFailedError(
                    f"{refusal} Or use --override 'reason' to promote it all the same; "
                    "the reason stays on record."
                ) from None
        relied = _rely_on_nothing_but_files(model_name, version, weights=True)
        reason = f"override: {override}"
        _registry.promote_version(
            model_name, version, reason=reason, action=action, relied=relied.trail
        )
        return relied


def roll_back(
    model_name: str, *, to: str | None, reason: str, policy: GatePolicy | None = None
) -> tuple[str, Reliance]:
    """Make an earlier champion the champion again, if it is still what it was.

    It relies on the decision that made it the champion, which the trail names.

    Args:
        model_name: as registered.
        to: a version that was champion before; by default the `earlier_champion`. One
            that a rollback has made the champion already is that again, so that a
            command that was cut off may be repeated.
        reason: kept in the trail.
        policy: that it must have passed; by default the one that its run planned for.

    Raises:
        ArtifactError: no earlier champion fits.
        GateFailedError: it was promoted past the gate or under another policy, was
            refused since, or its decision or a file is not what it was.
    """
    with _registry.moving_champion(model_name):
        to = earlier_champion(model_name) if to is None else to
        trail = _champions.history(model_name)
        done = [e for e in trail[-1:] if (e.get("action"), e["version"]) == (_BACK, to)]
        earlier = _earlier(model_name, trail)
        fits = [*done, *(e for e in earlier if e["version"] == to)]
        if not fits:
            raise _no_earlier(model_name, earlier, to)
        version, known = str(fits[0]["version"]), _decision_in(fits[0])
        text = kept_envelope(model_name, version, known)
        relied = _rely_on(model_name, version, text=text, known=known)
        _refuse_other_policy(relied.decision, model_name, version, policy)
        if relied.decision is not None:
            refuse_superseded(model_name, version, relied.decision, is_return=True)
        _registry.promote_version(
            model_name, version, reason=reason, action=_BACK, relied=relied.trail
        )
        return version, relied


def earlier_champion(model_name: str) -> str:
    """Return the version that was the champion before this one.

    What a rollback has left is none: whoever wants to go there must name it.

    Raises:
        ArtifactError: there is none, or nobody can say which one: the alias was moved
            past the trail. A rollback that was cut off goes on.
    """
    trail = _champions.history(model_name)
    moved = _champions.misplaced_champion(model_name)
    if moved and trail and trail[-1].get("action") != _BACK:
        raise ArtifactError(f"{moved} Name the version that it must be with --to.")
    stands: list[str] = []
    for entry in trail:
        version = str(entry["version"])
        if entry.get("action") == _BACK and version in stands:
            del stands[stands.index(version) :]
        stands.append(version)
    earlier = _earlier(model_name, trail)
    found = {e["version"] for e in earlier}
    fits = [version for version in reversed(stands) if version in found]
    if not fits:
        raise _no_earlier(model_name, earlier, None)
    return fits[0]


def _earlier(
    model_name: str, trail: Sequence[Mapping[str, str]]
) -> list[Mapping[str, str]]:
    """List promotions of other versions than the champion, the newest first.

    Where alias and trail differ there is none yet: either may be set right.
    """
    moved = _champions.misplaced_champion(model_name)
    current = None if moved else _champions.champion(model_name)
    return [entry for entry in reversed(trail) if entry["version"] != current]


def _no_earlier(
    model_name: str, earlier: Sequence[Mapping[str, str]], to: str | None
) -> ArtifactError:
    """Say that there is nothing to go back to."""
    names = ", ".join(dict.fromkeys(entry["version"] for entry in earlier))
    which = f"({names}), got {to}. Name one with --to." if names else "and has none."
    return ArtifactError(f"rollback needs an earlier champion of {model_name} {which}")


def look_at_champion(
    model_name: str, version: str, *, weights: bool
) -> tuple[str, tuple[str, ...]]:
    """Check what a champion relies on.

    Args:
        model_name: as registered.
        version: that was promoted last, and that the alias names.
        weights: whether every file is read; else names and sizes are compared.

    Returns:
        What is wrong, empty if nothing is, and what was not checked.
    """
    if problem := _champions.misplaced_champion(model_name):
        return (
            f"{problem} Somebody moved it by hand, or a promotion was cut off. `gate` "
            f"and runs go by the trail: promote the version that it must be, or run "
            f"`dptune rollback {model_name} --to` the one that it was."
        ), ()
    trail = _champions.history(model_name)
    known = _decision_in(trail[-1])
    try:
        if problem := cut_trail(model_name):
            return problem, ()
        if known == "none":
            relied = _rely_on_nothing_but_files(model_name, version, weights=weights)
        else:
            text = kept_envelope(model_name, version, known)
            relied = _rely_on(
                model_name, version, text=text, known=known, weights=weights
            )
        if relied.decision is not None:
            refuse_superseded(model_name, version, relied.decision, is_return=True)
        refuse_unnoted_evidence(_tracking.describe(model_name, version))
    except (ArtifactError, GateFailedError) as error:
        return str(error), ()
    return "", relied.unchecked


def _decision_in(entry: Mapping[str, str]) -> str:
    """Name the decision that an entry of the trail relied on."""
    return str(entry.get("decision", "none"))


def _rely_on(
    model_name: str,
    version: str,
    *,
    text: str | None,
    known: str,
    weights: bool = True,
) -> Reliance:
    """Open a decision, and compare all that it says with what is there.

    Args:
        model_name: as registered.
        version: its number.
        text: the envelope; None if there is none.
        known: the decision's hash, as the registry keeps it.
        weights: whether files are read.

    Raises:
        GateFailedError: names what is not so.
    """
    who = f"version {version} of {model_name}"
    if text is None:
        tag = _tracking.outcome_of(_tracking.get_version(model_name, version))
        raise GateFailedError(
            f"{who} must have a decision to rely on, but has none: gate outcome {tag} "
            "is a tag. Restore it in MLflow's store, or run `dptune gate` and `dptune "
            "promote` on it."
        )
    statement, unchecked = _open(text, who)
    if (statement.model_name, statement.model_version) != (model_name, version):
        raise GateFailedError(
            f"{who} must have a decision of its own, but it is on {statement.subject}."
        )
    if statement.decision_hash != known:
        raise GateFailedError(
            f"{who} must have the decision that the registry names, {known[:16]}, but "
            f"holds {statement.decision_hash[:16]}. {_AGAIN}"
        )
    decision = statement.decision
    if decision.outcome is not GateOutcome.PASS:
        failed = ", ".join(criterion.name for criterion in decision.failed())
        raise GateFailedError(
            f"{who} has gate outcome {decision.outcome} ({failed}), so it is not "
            "promoted."
        )
    rest = _compare(model_name, version, statement.manifest, weights=weights)
    return Reliance(
        decision=decision, files=statement.manifest, unchecked=(*unchecked, *rest)
    )


def _open(text: str, who: str) -> tuple[Statement, tuple[str, ...]]:
    """Open an envelope, with the configured key if there is one.

    Raises:
        GateFailedError: it is not what was signed.
    """
    private = read_signing_key()
    try:
        if private is not None:
            return open_envelope(text, public_key=public_key_of(private)), ()
        statement = open_unverified(text)
    except ArtifactError as error:
        raise GateFailedError(f"{who}: {error}") from None
    said = f"no key is configured here, and the decision says {signer_of(text)}"
    return statement, (f"the signature: {said}",)


def _refuse_other_policy(
    decision: GateDecision | None,
    model_name: str,
    version: str,
    policy: GatePolicy | None,
) -> None:
    """Refuse a pass under a policy that nobody asked for.

    Raises:
        GateFailedError: the digests differ.
    """
    who = f"version {version} of {model_name}"
    try:
        wanted = (
            policy.reference
            if policy
            else read_dossier(model_name, version).planned_for
        )
    except (ArtifactError, MalformedEvidenceError) as error:
        raise GateFailedError(f"{who}: {error}") from None
    if wanted is None:
        raise GateFailedError(
            f"{who} must have passed under the policy that its run planned for, but "
            "its evidence names none. Name the policy with --policy."
        )
    if decision is None or decision.policy_digest != wanted.digest:
        raise GateFailedError(
            f"{who} must have passed under policy {wanted.title}, but the "
            f"decision is under {decision.policy if decision else 'none'}. Decide "
            "under that policy, or name the other one with --policy."
        )


def _rely_on_nothing_but_files(
    model_name: str, version: str, *, weights: bool
) -> Reliance:
    """Check that the files are those that were registered, whatever was decided.

    Raises:
        GateFailedError: they are not, or nobody knows which were.
    """
    who = f"version {version} of {model_name}"
    try:
        registered = read_dossier(model_name, version).manifest
    except (ArtifactError, MalformedEvidenceError) as error:
        raise GateFailedError(f"{who}: {error}") from None
    if registered is None:
        raise GateFailedError(
            f"{who} must have a list of the files that were registered, but is from "
            "before they were listed. Train it again."
        )
    rest = _compare(model_name, version, registered, weights=weights)
    alone = "the decision: somebody took the responsibility"
    return Reliance(decision=None, files=registered, unchecked=(alone, *rest))


def _compare(
    model_name: str, version: str, expected: Manifest, *, weights: bool
) -> tuple[str, ...]:
    """Compare the files of a version; return what was not compared.

    Raises:
        GateFailedError: a file is too many, missing or changed; names it.
    """
    known = _tracking.describe(model_name, version)
    if weights:
        with _tracking.version_folder(model_name, version) as folder:
            try:
                differs = difference(expected, manifest_of(known, folder))
            except ArtifactError as error:
                differs = str(error)
    else:
        sizes = _tracking.version_sizes(model_name, version)
        differs = differs_in_size(expected, sizes)
    if differs:
        raise GateFailedError(
            f"the files of version {version} of {model_name} must be those that were "
            f"decided on, byte for byte, but are not ({differs}). Restore them in "
            "MLflow's store."
        )
    return () if weights else (_NO_BYTES,)
