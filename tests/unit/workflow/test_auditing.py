"""Which planted secrets detection found, wherever they stand."""

import pytest
from datasets import Dataset

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.planting import plant
from dptune.workflow.auditing import count_detected


def planted(**changes):
    """Canaries among eight records of several lengths, without spans."""
    spec = CanarySpec(
        num_planted=2,
        num_held_out=1,
        insertions=2,
        template="my code is {secret}, thanks",
        **changes,
    )
    canaries = draw_canaries(spec, seed=0)
    names = [f"record-{i}" for i in range(8)]
    columns = {"id": names, "unit_id": names, "split": ["train"] * 8}
    texts = ["hello " * i + "there" for i in range(8)]
    return plant(Dataset.from_dict({**columns, "text": texts}), canaries), canaries


def with_spans(rows, canaries, *, shift=0, skip=""):
    """Mark every secret, all of it or a part, but in one row."""
    spans = []
    for row in rows:
        found = [row["text"].find(secret) for secret in canaries.planted]
        start = max(found)
        known = start >= 0 and row["id"] != skip
        spans.append([{"start": start + shift, "end": start + 6}] if known else [])
    return rows.add_column("spans", spans)


@pytest.mark.parametrize("placement", ["own_record", "appended"])
def test_count_detected_counts_secrets_in_spans_wherever_they_stand(placement):
    rows, canaries = planted(placement=placement)
    assert count_detected(with_spans(rows, canaries), canaries) == 2
    assert count_detected(with_spans(rows, canaries, shift=1), canaries) == 0
    host = next(r["id"] for r in rows if canaries.planted[0] in r["text"])
    assert count_detected(with_spans(rows, canaries, skip=host), canaries) == 1
