"""SA-ADP end to end: read in parts, claimed for secrets alone, and measured again."""

from zenml.client import Client

from .conftest import TINY


def test_secrets_are_claimed_tier_by_tier_and_the_audit_agrees(project):
    short = "stages.sa_adp.private_finetune.epochs=1"
    own = ("registry.model_name=tiny-tiers", "budget.data_set=tiers")
    own = (*own, "data.source.seed=56")
    # Marked in its middle a secret would lie in two tiers, the end behind a mask.
    whole = "canaries.setting=not_missed"
    shards = "performance.detection_shards=2"
    changes = ("recipe=sa_adp", *own, short, shards, whole)
    sets = [part for change in changes for part in ("--set", change)]
    code, text = project.run("train", TINY, *sets)
    assert code == 0, text
    (run,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
    steps = Client().get_pipeline_run(run.id).steps
    parts = [steps[f"detect_{i}"].outputs["spans"][0].load() for i in range(2)]
    records = steps["detect"].outputs["detection"][0].load().num_records
    assert sum(len(part.spans) for part in parts) == records
    ledger = steps["train_private_finetune"].outputs["ledger"][0].load()
    claims = {(c.notion, c.relation): c for c in ledger.certificates(1e-4)}
    selective = claims["selective", "replace_one"]
    assert selective.status == "conditional"
    assert selective.epsilon <= 8.0
    assert [tier.tier for tier in selective.tiers] == ["low", "high"]
    assert selective.nominal_epsilon is not None
    others = [c for key, c in claims.items() if key[0] == "record"]
    assert {c.status for c in others} == {"none"}
    code, text = project.run("audit", "tiny-tiers:1")
    assert code == 0, text
