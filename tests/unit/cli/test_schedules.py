"""The `schedule` command on one machine; a cluster's is in tests/cluster."""

import pytest

from cli.schedules import with_schedule
from infra.pods import run_options
from infra.profiles import read_profile


def create(run_cli, *arguments):
    return run_cli("schedule", "create", *arguments, "--timer", "cron")


def test_create_prints_a_line_for_cron_and_creates_nothing(
    run_cli, write_config, values
):
    path = write_config(values)
    outcome = create(run_cli, "weekly", path, "--cron", "0 3 * * 1", "--set", "seed=1")
    assert outcome.code == 0, outcome.err
    (line,) = outcome.out.splitlines()
    assert line.startswith("0 3 * * 1 cd ")
    assert f"train {path} --if-changed --set seed=1" in line
    assert f"DPTUNE_HOME={outcome.home}" in line
    assert not outcome.home.exists()


@pytest.mark.parametrize(
    ("name", "cron", "says"),
    [
        ("weekly", "0 25 * * *", "--cron"),
        ("weekly", "0 0 30 2 *", "fires"),
        ("Weekly run", "0 3 * * 1", "lower-case"),
        ("../x", "0 3 * * 1", "lower-case"),
        ("weekly-", "0 3 * * 1", "at both ends"),
        ("weekly\n", "0 3 * * 1", "lower-case"),
        ("w" * 64, "0 3 * * 1", "at most 63"),
    ],
)
def test_unusable_schedule_is_refused(run_cli, write_config, values, name, cron, says):
    create(run_cli, name, write_config(values), "--cron", cron).assert_refused(says)


def test_unusable_configuration_is_refused_before_anything_is_scheduled(
    run_cli, write_config, values
):
    path = write_config(values | {"recipe": "magic"})
    create(run_cli, "weekly", path, "--cron", "0 3 * * 1").assert_refused("recipe")


def test_all_that_is_wrong_with_a_schedule_is_told_at_once(
    run_cli, write_config, values
):
    path = write_config(values | {"recipe": "magic"})
    outcome = run_cli(
        *("schedule", "create", "weekly-", path, "--cron", "0 25 * * *"),
        *("--timer", "sundial", "--profile", "nowhere"),
    )
    outcome.assert_refused("at both ends", "--cron", "recipe", "--timer", "nowhere")


def test_longest_name_of_a_schedule_is_taken(run_cli, write_config, values):
    outcome = create(run_cli, "w" * 63, write_config(values), "--cron", "0 3 * * 1")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("command", ["pause", "resume", "delete"])
def test_unknown_schedule_is_refused(run_cli, monkeypatch, tmp_path, command):
    monkeypatch.setenv("HOME", str(tmp_path))
    run_cli("schedule", command, "nobody").assert_refused("there is none")


def test_scheduled_runs_never_overlap_and_have_deadlines():
    options = run_options(read_profile("kubernetes"), ["ingest", "attack"])
    made = with_schedule(options, deadline_seconds=3600, start_within_seconds=60)
    settings = made["settings"]["orchestrator.kubernetes"]
    assert settings["concurrency_policy"] == "Forbid"
    assert settings["starting_deadline_seconds"] == 60
    assert settings["active_deadline_seconds"] == 3600
    assert made["steps"] == options["steps"]
