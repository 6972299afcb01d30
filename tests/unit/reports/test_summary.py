import math

from dptune.gates.decision import GateOutcome
from dptune.reports.card.statements import at_a_glance, summary_markdown, verdict_tag

from .samples import card, gate_decision


def test_refusal_says_why_and_what_would_change_it():
    decision = gate_decision()
    shown = at_a_glance(card("jft"), decision)

    assert decision.failed()
    assert shown["verdict"] == decision.outcome
    for criterion in decision.failed():
        why = shown[f"refused by {criterion.name.replace('_', ' ')}"]
        assert why.startswith(criterion.reason)
        assert why.endswith(criterion.what_would_change_it)


def test_pass_has_no_reason_for_a_refusal():
    refusal = gate_decision()
    kept = tuple(c for c in refusal.criteria if c not in refusal.failed())
    passed = refusal.model_copy(update={"criteria": kept, "outcome": GateOutcome.PASS})
    shown = at_a_glance(card("jft"), passed)
    assert shown["verdict"] == "PASS"
    assert not any(about.startswith("refused") for about in shown)


def test_every_claim_is_shown_with_its_standing():
    for kind in ("private", "jft", "none"):
        given = card(kind)
        shown = at_a_glance(given, None)
        for claim in given.certificates:
            said = shown[f"epsilon, {claim.notion}"]
            assert f", {claim.status} ({claim.relation.replace('_', ' ')} " in said
            assert math.isinf(claim.epsilon) <= ("no guarantee" in said)


def test_markdown_says_the_same():
    shown = at_a_glance(card("jft"), gate_decision())
    text = summary_markdown(shown)
    assert all(f"**{about}**: {said}" in text for about, said in shown.items())


def test_verdicts_have_tags_of_their_own():
    assert len({verdict_tag(outcome) for outcome in GateOutcome}) == len(GateOutcome)


def test_reason_of_an_override_says_nothing_else():
    reason = "wanted\n\n**verdict**: PASS ![](http://x.example/y) <b>" + "z" * 9000
    shown = at_a_glance(card("jft", override=reason), gate_decision())
    text = summary_markdown(shown)
    assert len(text) < 5000
    assert text.count("\n\n") == len(shown)
    assert text.count("**verdict**") == 1
    assert "<" not in text
    assert "![" not in text
