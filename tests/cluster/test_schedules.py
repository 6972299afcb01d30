"""A schedule's whole life on a cluster: its first run is the story's killed one."""

import time

import pytest
from zenml.client import Client

from .commands import command
from .story import TINY, pods_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def profile(site):
    return ("--profile", site.profile_file)


def test_created_schedule_forbids_overlap_and_has_deadlines(killed, profile):
    spec = killed.cronjob["spec"]
    assert spec["schedule"] == "0 3 * * 1"
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["startingDeadlineSeconds"] == 1800
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] == 36000
    again = ("schedule", "create", killed.schedule, TINY, "--cron", "0 3 * * 1")
    assert command(*again, *profile) == 2  # the name is taken


def test_only_the_first_step_looks_at_the_data_in_every_run(killed):
    steps = killed.run.snapshot.step_configurations
    assert steps["ingest"].config.enable_cache is False
    assert steps["detect"].config.enable_cache is True


def test_triggered_run_trains_and_the_next_one_says_that_nothing_changed(site, killed):
    assert killed.run.status == "completed"
    cluster, schedule = site.cluster, Client().get_schedule(killed.schedule)
    assert cluster.wait(cluster.fire(killed.cronjob["metadata"]["name"]))
    runs = Client().list_pipeline_runs(schedule_id=schedule.id, sort_by="desc:created")
    assert len(runs.items) == 2
    again = ended(runs.items[0].id)
    assert again.status == "stopped"
    assert killed.run.name in again.run_metadata["schedule"]
    assert [name for name, _ in pods_of(site, again)] == ["ingest"]


def ended(identifier):
    """A run whose last step may end after the pod that watched it."""
    for _ in range(600):
        run = Client().get_pipeline_run(identifier)
        if run.status.is_finished:
            break
        time.sleep(0.5)
    return run


def test_schedule_is_listed_paused_resumed_and_deleted(site, killed, profile, capsys):
    name = killed.schedule
    known = ("cronjobs", killed.cronjob["metadata"]["name"])

    def listed():
        capsys.readouterr()
        assert command("schedule", "list", *profile) == 0
        lines = capsys.readouterr().out.splitlines()
        return "\n".join(line for line in lines if name in line)

    assert "active" in listed()
    for word, is_suspended in (("pause", True), ("resume", False)):
        assert command("schedule", word, name, *profile) == 0
        assert site.cluster.objects[known]["spec"]["suspend"] is is_suspended
        assert ("paused" in listed()) == is_suspended
    assert listed()
    assert command("schedule", "delete", name, *profile) == 0
    assert known not in site.cluster.objects
    assert not listed()
    assert command("schedule", "delete", name, *profile) == 2
    kept = Client().get_pipeline_run(killed.run.id)
    assert kept.status == "completed"
