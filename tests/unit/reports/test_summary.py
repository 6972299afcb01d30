from dptune.gates.decision import GateOutcome
from dptune.reports.summary import at_a_glance, summary_markdown, verdict_tag

from .samples import card, gate_decision


def test_refusal_says_why_and_what_would_change_it():
    decision = gate_decision()
    shown = at_a_glance(card("jft"), decision)

    failed = {c.name for c in decision.failed()}
    assert failed
    assert shown["verdict"] == decision.outcome
    assert set(shown["why it was refused"]) == failed
    assert set(shown["what would change it"]) <= failed


def test_pass_has_no_reason_for_a_refusal():
    refusal = gate_decision()
    kept = tuple(c for c in refusal.criteria if c not in refusal.failed())
    passed = refusal.model_copy(update={"criteria": kept, "outcome": GateOutcome.PASS})
    shown = at_a_glance(card("jft"), passed)
    assert shown["verdict"] == "PASS"
    assert "why it was refused" not in shown


def test_every_claim_is_shown_with_its_standing():
    for kind in ("private", "jft", "none"):
        given = card(kind)
        shown = at_a_glance(given, None)["epsilon"]
        assert set(shown) == {c.label for c in given.certificates}
        for claim in given.certificates:
            assert shown[claim.label].endswith(str(claim.status))
    assert all("no guarantee" in words for words in shown.values())


def test_markdown_has_every_heading_and_word():
    shown = at_a_glance(card("jft"), gate_decision())
    text = summary_markdown(shown)
    for heading, words in shown.items():
        assert f"**{heading}**" in text
        for word in [words] if isinstance(words, str) else words.values():
            assert word in text


def test_verdicts_have_tags_of_their_own():
    assert len({verdict_tag(outcome) for outcome in GateOutcome}) == len(GateOutcome)
