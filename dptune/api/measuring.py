"""What a model has memorised: canaries, membership, and a lower bound of epsilon."""

from collections.abc import Sequence
from itertools import chain
from typing import Final, Literal

from pydantic import ValidationError
from torch import nn
from transformers import PreTrainedTokenizerFast

from dptune.accounting.certificates import Certificate
from dptune.api.arguments import Arguments
from dptune.api.language_models import check_language_models
from dptune.api.rows import named_owners
from dptune.attacks.canaries import CanarySet, CanarySpec, draw_canaries
from dptune.attacks.candidates import longest_canary, plain_tokenizer
from dptune.attacks.exposure import exposure_report, measure_exposure
from dptune.attacks.extraction import SamplingSettings, sample_canaries
from dptune.attacks.membership import membership_report
from dptune.attacks.trie import CandidateTrie
from dptune.audits.canary_audit import CONFIDENCE, AuditedClaim, audit_canaries
from dptune.errors import ConfigError, Problem
from dptune.gates.evidence import AuditEvidence
from dptune.models.digest import weights_digest
from dptune.privacy import CertificateStatus
from dptune.results import CanarySampling, ExposureReport, MembershipReport
from dptune.workflow.sides import one_of_each

MOST_CANARIES: Final = 1_000_000


def canaries(
    *,
    num_planted: int,
    num_held_out: int,
    template: str = "my access code is {secret}",
    alphabet: Literal["digits", "alphanumeric"] = "digits",
    length: int = 6,
) -> CanarySet:
    """Draw secrets to plant in training data, and controls of the same law.

    Train on `[drawn.spec.record(secret) for secret in drawn.planted]`, each a unit of
    its own, and on none of `held_out`; then ask `exposure`, `extraction` and `audit`.

    Args:
        num_planted: secrets that join the training data; 100 for a verdict.
        num_held_out: controls that do not.
        template: text of one canary record, with `{secret}` once.
        alphabet: what secrets are made of.
        length: of a secret, 1 to 32.

    Raises:
        ConfigError: an argument is wrong, or there are fewer candidates than canaries;
            all at once.

    Privacy:
        Restricted: whoever knows a secret can find it in a model.

    >>> drawn = canaries(num_planted=2, num_held_out=1)
    >>> drawn.spec.record("123456")
    'my access code is 123456'
    >>> drawn.planted[0] in repr(drawn)
    False
    """
    given = Arguments()
    counts = {
        "num_planted": given.whole("num_planted", num_planted, most=MOST_CANARIES),
        "num_held_out": given.whole("num_held_out", num_held_out, most=MOST_CANARIES),
        "length": given.whole("length", length, least=1, most=32),
    }
    given.kind("template", template, str)
    given.choice("alphabet", alphabet, ["digits", "alphanumeric"])
    given.check()
    try:
        spec = CanarySpec.model_validate(
            {"template": template, "alphabet": alphabet, **counts}
        )
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(
                    path=".".join(map(str, fault["loc"])) or "num_planted",
                    message=fault["msg"].removeprefix("Value error, "),
                )
                for fault in error.errors(include_url=False, include_input=False)
            ]
        ) from None
    return draw_canaries(spec)


def exposure(
    model: nn.Module,
    base_model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    drawn: CanarySet,
    *,
    bos_token_id: int | None = None,
    batch_size: int = 1024,
) -> ExposureReport:
    """Rank planted and held-out canaries among all candidates, exactly.

    Exposure is log2(candidates) - log2(rank), in bits: a model that never saw a canary
    gives 1.44 on average.

    Args:
        model: the fine-tuned model.
        base_model: the model before fine-tuning.
        tokenizer: of both, fast.
        drawn: by `canaries`; those planted were trained on.
        bos_token_id: what opened a record in training; None if nothing did.
        batch_size: candidates' prefixes forwarded at once.

    Raises:
        ConfigError: an argument is wrong; all at once.
        ModelError: the tokenizer drops symbols, or there are too many candidates.

    Privacy:
        A function of private data outside any epsilon.

    >>> from dptune.testing import tiny_model, tiny_tokenizer
    >>> model, tokenizer = tiny_model(), tiny_tokenizer()
    >>> drawn = canaries(num_planted=3, num_held_out=3, length=2)
    >>> report = exposure(model, model, tokenizer, drawn)
    >>> len(report.planted()), report.space_size, report.exact
    (3, 100, True)
    """
    given = _of_models(model=model, base_model=base_model, tokenizer=tokenizer)
    given.kind("drawn", drawn, CanarySet)
    bos_token_id = _bos(given, bos_token_id)
    batch_size = given.whole("batch_size", batch_size, least=1)
    given.check()
    check_language_models(
        {"model": model, "base_model": base_model},
        tokenizer,
        longest=_longest(tokenizer, drawn),
        bos_token_id=bos_token_id,
    )
    trie = CandidateTrie.build(drawn.spec, tokenizer, bos=bos_token_id)
    measured, base = (
        measure_exposure(one, trie, drawn, batch_size=batch_size)
        for one in (model, base_model)
    )
    return exposure_report(
        measured=measured,
        base=base,
        canary_set=drawn,
        model_digest=weights_digest(model),
        base_model_digest=weights_digest(base_model),
        planted_found=drawn.num_expected,
    )


def extraction(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    drawn: CanarySet,
    *,
    bos_token_id: int | None = None,
    num_trials: int = 4000,
    max_new_tokens: int = 10,
) -> CanarySampling:
    """Let a model continue the canaries' template, and count the secrets it writes.

    Args:
        model: a causal language model.
        tokenizer: the model's, fast.
        drawn: by `canaries`.
        bos_token_id: what opened a record in training; None if nothing did.
        num_trials: continuations that are drawn.
        max_new_tokens: of each.

    Raises:
        ConfigError: an argument is wrong; all at once.

    Privacy:
        A function of private data outside any epsilon; the continuations are dropped.

    >>> from dptune.testing import tiny_model, tiny_tokenizer
    >>> drawn = canaries(num_planted=1, num_held_out=1)
    >>> found = extraction(tiny_model(), tiny_tokenizer(), drawn, num_trials=20)
    >>> found.num_trials, found.planted_found
    (20, 0)
    """
    given = _of_models(model=model, tokenizer=tokenizer)
    given.kind("drawn", drawn, CanarySet)
    bos_token_id = _bos(given, bos_token_id)
    num_trials = given.whole("num_trials", num_trials, least=1, most=10**9)
    max_new_tokens = given.whole("max_new_tokens", max_new_tokens, least=1)
    given.check()
    check_language_models(
        {"model": model},
        tokenizer,
        longest=_longest(tokenizer, drawn) + max_new_tokens,
        bos_token_id=bos_token_id,
    )
    settings = SamplingSettings(num_trials=num_trials, max_new_tokens=max_new_tokens)
    return sample_canaries(model, tokenizer, drawn, bos=bos_token_id, settings=settings)


def membership(
    model: nn.Module,
    base_model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    *,
    members: Sequence[str],
    non_members: Sequence[str],
    max_tokens: int,
    member_owners: Sequence[str | int] | None = None,
    non_member_owners: Sequence[str | int] | None = None,
    batch_size: int = 32,
) -> MembershipReport:
    """Tell texts that were trained on from others, by the model's token losses.

    Without shadow models, which the command trains. Beside each attack stands one that
    sees no model: where that beats chance, the texts differ and the figures mean
    nothing.

    Intervals hold for independent texts: one of each owner is attacked, a copy counts
    once, and what both sides have is left out.

    Args:
        model: the fine-tuned model.
        base_model: the model before fine-tuning.
        tokenizer: of both.
        members: texts that were trained on, at least ten; leave canaries out.
        non_members: of the same law, that were not.
        max_tokens: where texts were cut in training.
        member_owners: the person whose each of `members` is, as text or a whole number.
            None where each is of another.
        non_member_owners: likewise.
        batch_size: records forwarded at once.

    Raises:
        ConfigError: an argument is wrong; all at once.
        DataError: a group is too small, an owner is on both sides, or a loss is NaN.

    Privacy:
        A function of private data outside any epsilon.

    >>> from dptune.testing import tiny_model, tiny_tokenizer
    >>> texts = [f"call {number} on day {number % 7}" for number in range(40)]
    >>> report = membership(
    ...     tiny_model(),
    ...     tiny_model(),
    ...     tiny_tokenizer(),
    ...     members=texts[:20],
    ...     non_members=texts[20:],
    ...     max_tokens=16,
    ... )
    >>> report.num_members, report.num_non_members
    (20, 20)
    """
    given = _of_models(model=model, base_model=base_model, tokenizer=tokenizer)
    given.texts("members", members)
    given.texts("non_members", non_members)
    given_owners = {
        "member_owners": (members, member_owners),
        "non_member_owners": (non_members, non_member_owners),
    }
    owners = {
        name: named_owners(given, name, own, texts)
        for name, (texts, own) in given_owners.items()
    }
    max_tokens = given.whole("max_tokens", max_tokens, least=1)
    batch_size = given.whole("batch_size", batch_size, least=1)
    given.check()
    members, non_members = one_of_each(members, non_members, **owners)

    def encoded(texts: Sequence[str]) -> list[list[int]]:
        return [list(tokenizer(text)["input_ids"][:max_tokens]) for text in texts]

    sides = encoded(members), encoded(non_members)
    check_language_models(
        {"model": model, "base_model": base_model},
        tokenizer,
        longest=max(map(len, chain(*sides))),
    )
    return membership_report(
        *sides,
        member_texts=members,
        non_member_texts=non_members,
        model=model,
        base_model=base_model,
        model_digest=weights_digest(model),
        base_model_digest=weights_digest(base_model),
        batch_size=batch_size,
    )


def audit(
    report: ExposureReport,
    certificate: Certificate,
    *,
    confidence: float = CONFIDENCE,
) -> tuple[AuditEvidence, ...]:
    """Bound epsilon from below by what canaries show, and compare with a claim.

    **Formal guarantee**: all bounds are at most the true epsilon with probability
    `confidence`, if the canaries were drawn by `canaries` and planted as it says. A
    bound above the certificate's epsilon refutes it.

    Args:
        report: by `exposure`.
        certificate: the claim about the model.
        confidence: that all bounds hold.

    Returns:
        One for each method that can test the claim: `epsilon_lower_bound`, and
        `capacity`, the largest false claim that these canaries could have refuted.

    Raises:
        ConfigError: an argument is wrong; all at once.

    >>> from dptune.api.claims import account
    >>> from dptune.testing import tiny_model, tiny_tokenizer
    >>> model, tokenizer = tiny_model(), tiny_tokenizer()
    >>> drawn = canaries(num_planted=20, num_held_out=20, length=2)
    >>> claim = account(
    ...     noise_multiplier=1.0, sample_rate=0.1, num_steps=100, delta=1e-3
    ... )
    >>> found = audit(exposure(model, model, tokenizer, drawn), claim)
    >>> all(one.epsilon_lower_bound <= claim.epsilon for one in found)
    True
    """
    given = Arguments()
    given.kind("report", report, ExposureReport)
    given.kind("certificate", certificate, Certificate)
    confidence = given.number("confidence", confidence, above=0, below=1)
    given.check()
    has_curve = (
        certificate.status is not CertificateStatus.NONE and certificate.epsilon > 0
    )
    claim = AuditedClaim(
        notion=certificate.notion,
        relation=certificate.relation,
        delta=certificate.delta,
        guarantees=((certificate.epsilon, certificate.delta),) if has_curve else (),
    )
    return audit_canaries(report, [claim], confidence=confidence)


def _of_models(**named: object) -> Arguments:
    """Begin with the models and the tokenizer of a call."""
    given = Arguments()
    for name, value in named.items():
        kind = PreTrainedTokenizerFast if name == "tokenizer" else nn.Module
        given.kind(name, value, kind)
    return given


def _longest(tokenizer: PreTrainedTokenizerFast, drawn: CanarySet) -> int:
    """Count the tokens of the longest canary, with one that opens it."""
    secrets = [*drawn.planted, *drawn.held_out]
    return 1 + longest_canary(drawn.spec, plain_tokenizer(tokenizer), secrets)


def _bos(given: Arguments, token: int | None) -> int | None:
    """Check the id of a token that may be left out."""
    return None if token is None else given.whole("bos_token_id", token)
