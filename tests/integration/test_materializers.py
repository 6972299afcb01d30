"""One contract for all materializers: exact round trips, closed types, no text told."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from zenml.client import Client

import materializers
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.data.building import build_corpus
from dptune.data.source import SyntheticSource
from dptune.detection.engine import build_engine
from dptune.detection.labelling import SpanShard, detect_shard
from dptune.detection.recognizer import Tier
from dptune.errors import ArtifactError
from dptune.models.loading import load_model, model_digest, save_model
from dptune.models.source import ArchitectureSource, ModelBundle
from dptune.privacy import PrivacyUnit
from dptune.results import (
    BudgetLine,
    BudgetReport,
    BudgetReservation,
    ChampionReport,
    Interval,
    Report,
    TrainedCanaries,
    UtilityReport,
)
from materializers import CorpusMaterializer
from materializers._place import file_of
from materializers.report import ReportMaterializer
from tests.unit.reports import samples

ALL = tuple(getattr(materializers, name) for name in materializers.__all__)
SECRET = "Zebediah Quartermain"


def canaries():
    spec = CanarySpec(num_planted=3, num_held_out=2, template=f"{SECRET} {{secret}}")
    return draw_canaries(spec, seed=1)


def budget_report():
    line = BudgetLine(
        notion="record",
        relation="replace_one",
        delta=1e-5,
        allowance=8.0,
        spent=math.inf,
        committed=math.inf,
        tuning=0.5,
        worst_cohort_units=7,
    )
    return BudgetReport(
        data_set="people",
        privacy_unit="record",
        num_units=9,
        num_cohorts=2,
        num_runs=4,
        num_open=1,
        sweeps={"rates": 2},
        lines=(line,),
        head_sequence=12,
        head_hash="ab",
    )


REPORTS = {
    type(report): report
    for report in (
        *samples.every_report(),
        ChampionReport(),
        budget_report(),
        BudgetReservation(
            id="4f", data_set="people", num_units=7, head_sequence=3, head_hash="aa"
        ),
        canaries(),
        TrainedCanaries(stage="finetune", copies=(1, 0, 2)),
    )
}


@pytest.fixture
def place(project, tmp_path):
    """A fresh place in the artifact store."""
    store = Client().active_stack.artifact_store
    folder = f"{store.path}/contract/{tmp_path.name}"
    store.makedirs(folder)
    yield folder
    store.rmtree(folder)  # the privacy scan looks at all that is left


@pytest.fixture(scope="module")
def corpus():
    source = SyntheticSource(num_records=30, seed=3)
    return build_corpus(source, privacy_unit=PrivacyUnit.RECORD)


@pytest.fixture
def bundle(tmp_path):
    source = ArchitectureSource(
        kind="architecture",
        num_layers=1,
        num_heads=2,
        hidden_size=16,
        max_tokens=32,
        vocab_size=258,
        tokenizer={"kind": "trained"},
    )
    loaded = load_model(source)
    folder = tmp_path / "model"
    save_model(loaded.model, loaded.tokenizer, folder)
    return ModelBundle(path=folder, digest=model_digest(folder))


def test_no_type_has_two_materializers_and_samples_cover_all_reports():
    types = [kind for each in ALL for kind in each.ASSOCIATED_TYPES]
    assert len(set(types)) == len(types)
    assert set(ReportMaterializer.ASSOCIATED_TYPES) <= set(REPORTS)


@pytest.mark.parametrize(
    "kind", ReportMaterializer.ASSOCIATED_TYPES, ids=lambda kind: kind.__name__
)
def test_report_comes_back_exactly(kind, place):
    report = REPORTS[kind]
    ReportMaterializer(place).save(report)
    back = ReportMaterializer(place).load(kind)
    assert type(back) is kind
    assert back.model_dump_json() == report.model_dump_json()
    again = ReportMaterializer(place)
    assert again.compute_content_hash(back) == again.compute_content_hash(report)
    json.dumps(again.extract_metadata(back), allow_nan=False)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 0.1 + 0.2, 5e-324])
def test_every_float_comes_back_exactly(number, place):
    values = samples.utility_report().model_dump() | {"perplexity": number}
    ReportMaterializer(place).save(UtilityReport.model_validate(values))
    back = ReportMaterializer(place).load(UtilityReport)
    assert repr(back.perplexity) == repr(number)


def test_equal_reports_share_a_hash_and_others_do_not(place):
    one = ReportMaterializer(place)
    first, second = (samples.corpus_report(num_read=n) for n in (7, 8))
    assert one.compute_content_hash(first) != one.compute_content_hash(second)


def test_corpus_comes_back_exactly(corpus, place):
    one = materializers.CorpusMaterializer(place)
    one.save(corpus)
    back = materializers.CorpusMaterializer(place).load(type(corpus))
    assert back == corpus
    assert back.dataset.features == corpus.dataset.features
    assert back.dataset.to_list() == corpus.dataset.to_list()
    assert one.compute_content_hash(back) == one.compute_content_hash(corpus)


def test_corpus_hash_sees_one_changed_text(corpus, place):
    one = materializers.CorpusMaterializer(place)
    rows = corpus.dataset.to_list()
    rows[7]["text"] += "."
    changed = corpus.with_dataset(
        type(corpus.dataset).from_list(rows, features=corpus.dataset.features)
    )
    assert one.compute_content_hash(changed) != one.compute_content_hash(corpus)


def test_corpus_hash_sees_what_claims_rest_on_besides_rows(corpus, place):
    one = materializers.CorpusMaterializer(place)
    for field in ("deduplicated", "sampled"):
        report = corpus.report.model_copy(
            update={field: not getattr(corpus.report, field)}
        )
        other = replace(corpus, report=report)
        assert one.compute_content_hash(other) != one.compute_content_hash(corpus)
        assert one.earlier_content_hash(other) == one.earlier_content_hash(corpus)


def test_corpus_that_was_saved_under_the_hash_of_before_is_read(corpus, place):
    one = materializers.CorpusMaterializer(place)
    one.save(corpus)
    one.expected_content_hash = one.earlier_content_hash(corpus)
    assert one.load(type(corpus)) == corpus


def test_corpus_of_another_version_is_refused(corpus, place):
    one = materializers.CorpusMaterializer(place)
    one.save(corpus)
    store = Client().active_stack.artifact_store
    with store.open(f"{place}/corpus.json", "r") as source:
        head = json.load(source)
    with store.open(f"{place}/corpus.json", "w") as sink:
        json.dump(head | {"schema_version": 99}, sink)
    with pytest.raises(ArtifactError, match="schema_version must be 2, got 99"):
        one.load(type(corpus))


def test_spans_of_a_part_come_back_exactly(corpus, place):
    engine = build_engine(tier=Tier.LOW_ENTITY)
    shard, other = (
        detect_shard(corpus.dataset, engine, index=i, num_shards=2) for i in range(2)
    )
    one = materializers.SpanShardMaterializer(place)
    one.save(shard)
    back = materializers.SpanShardMaterializer(place).load(SpanShard)
    assert back == shard
    assert back.spans.features == shard.spans.features
    assert back.spans.to_list() == shard.spans.to_list()
    assert one.compute_content_hash(back) == one.compute_content_hash(shard)
    assert one.compute_content_hash(other) != one.compute_content_hash(shard)


def test_model_comes_back_exactly_and_the_original_stays(bundle, place):
    one = materializers.ModelBundleMaterializer(place)
    one.save(bundle)
    back = materializers.ModelBundleMaterializer(place).load(ModelBundle)
    assert back.digest == bundle.digest == model_digest(bundle.path)
    names = {file.name for file in bundle.path.iterdir()}
    assert {file.name for file in back.path.iterdir()} == names
    for name in names:
        assert (back.path / name).read_bytes() == (bundle.path / name).read_bytes()


@pytest.mark.parametrize("name", ["weights.bin", "a.pkl", "code.py", "m.pt"])
def test_model_with_a_file_that_could_be_pickle_is_refused(name, bundle, place):
    (bundle.path / name).write_bytes(b"x")
    with pytest.raises(ArtifactError, match=name):
        materializers.ModelBundleMaterializer(place).save(bundle)


@pytest.mark.parametrize("one", ALL)
def test_type_that_is_not_on_the_table_is_refused(one, place):
    class Stranger(Report):
        """Not on any table."""

    for kind in (Stranger, dict, Interval):
        with pytest.raises(ArtifactError):
            one(place).load(kind)


def test_restricted_artifacts_tell_nothing_of_themselves(corpus, place):
    secret = canaries()
    one = ReportMaterializer(place)
    assert one.save_visualizations(secret) == {}
    assert one.extract_metadata(secret) == {"restricted": True}
    told = repr(materializers.CorpusMaterializer(place).extract_metadata(corpus))
    assert not any(text[:20] in told for text in corpus.dataset["text"])
    assert not any(unit in told for unit in corpus.dataset["unit_id"])


@pytest.mark.parametrize(
    "kind",
    [k for k in ReportMaterializer.ASSOCIATED_TYPES if k in REPORTS],
    ids=lambda kind: kind.__name__,
)
def test_public_report_has_one_page_without_outside_parts(kind, place):
    pages = ReportMaterializer(place).save_visualizations(REPORTS[kind])
    store = Client().active_stack.artifact_store
    for path in pages:
        with store.open(path, "r") as source:
            page = source.read()
        assert 'src="http' not in page
        assert "<script src" not in page


def test_metadata_of_a_report_is_its_own_short_values(place):
    told = ReportMaterializer(place).extract_metadata(samples.run_plan())
    assert told["target_delta"] == samples.run_plan().target_delta
    assert "stages" not in told


@pytest.mark.parametrize(
    "kind", ReportMaterializer.ASSOCIATED_TYPES, ids=lambda kind: kind.__name__
)
def test_metadata_counts_nobody_and_names_no_corpus(kind, place):
    """A dashboard says what the card says: no count tells who joined."""
    told = ReportMaterializer(place).extract_metadata(REPORTS[kind])
    private = ("num_", "fingerprint", "tokens", "seconds", "characters")
    assert not [name for name in told if name.startswith(private)]


def test_metadata_of_a_corpus_counts_nobody_and_does_not_name_it(corpus, place):
    told = materializers.CorpusMaterializer(place).extract_metadata(corpus)
    assert set(told) == {"restricted", "columns"}


def test_model_that_is_not_on_this_machine_is_there_after_it_was_loaded(
    bundle, place, monkeypatch
):
    materializers.ModelBundleMaterializer(place).save(bundle)
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda p: str(p) != str(place) and is_dir(p))
    back = materializers.ModelBundleMaterializer(place).load(ModelBundle)
    assert str(back.path) != str(place)
    assert model_digest(back.path) == bundle.digest == back.digest


def test_a_file_in_a_bucket_keeps_both_slashes():
    for uri in ("s3://bucket/ingest/corpus/1", "s3://bucket/ingest/corpus/1/"):
        assert file_of(uri, "a.json") == "s3://bucket/ingest/corpus/1/a.json"
    assert file_of("artifacts/1", "a.json") == "artifacts/1/a.json"


def one_bit(folder):
    file = folder / "model.safetensors"
    body = bytearray(file.read_bytes())
    body[-1] ^= 1
    file.write_bytes(body)


CHANGED = {
    "one bit": one_bit,
    "setting": lambda folder: (folder / "generation_config.json").write_text("{}"),
    "adapter": lambda folder: (folder / "adapter_config.json").write_text("{}"),
    "below": lambda folder: (folder / "more").mkdir(),
    "gone": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "link": lambda folder: (folder / "more.json").symlink_to("config.json"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_model_whose_files_changed_in_the_store_is_refused(case, bundle, place):
    saved = materializers.ModelBundleMaterializer(place)
    saved.save(bundle)
    one = materializers.ModelBundleMaterializer(place)
    one.expected_content_hash = saved.compute_content_hash(bundle)  # as ZenML does
    assert one.load(ModelBundle).digest == bundle.digest
    CHANGED[case](Path(place))
    with pytest.raises(ArtifactError):
        one.load(ModelBundle)


def test_model_from_before_files_were_listed_is_known_by_its_weights(bundle, place):
    one = materializers.ModelBundleMaterializer(place)
    one.save(bundle)
    one.expected_content_hash = bundle.digest
    assert one.load(ModelBundle).digest == bundle.digest
    one_bit(Path(place))
    with pytest.raises(ArtifactError, match="files that were saved"):
        one.load(ModelBundle)


def test_twin_that_compares_nothing_loads_a_swapped_model(bundle, place):
    """What `load` did: the digest of whatever lay there."""
    one = materializers.ModelBundleMaterializer(place)
    one.save(bundle)
    one_bit(Path(place))
    one.expected_content_hash = None
    assert one.load(ModelBundle).digest != bundle.digest


def as_saved(one, data):
    """A second materializer that knows the hash, as ZenML hands it over."""
    one.save(data)
    other = type(one)(one.uri)
    other.expected_content_hash = one.compute_content_hash(data)
    return other


def another_draw(place, corpus):
    spec = canaries().spec
    return (place / "report.json").write_text(
        draw_canaries(spec, seed=9).model_dump_json()
    )


def another_text(place, corpus):
    rows = corpus.dataset.map(lambda row: {**row, "text": row["text"] + "."})
    materializers.CorpusMaterializer(str(place)).save(corpus.with_dataset(rows))


def another_report(place, corpus):
    report = corpus.report.model_copy(update={"sampled": not corpus.report.sampled})
    changed = replace(corpus, report=report)
    materializers.CorpusMaterializer(str(place)).save(changed)


EDITED = {
    "canaries of another draw": (another_draw, "canaries"),
    "canaries that are no JSON": (
        lambda place, _: (place / "report.json").write_bytes(b"{"),
        "canaries",
    ),
    "texts of the corpus": (another_text, "corpus"),
    "what is known of the corpus": (another_report, "corpus"),
    "table cut short": (
        lambda place, _: (place / "records.arrow").write_bytes(b"ARROW1"),
        "corpus",
    ),
    "head of the corpus": (
        lambda place, _: (place / "corpus.json").write_text("[]"),
        "corpus",
    ),
}


@pytest.mark.parametrize("case", EDITED)
def test_artifact_that_was_edited_in_the_store_is_refused(case, corpus, place):
    edit, kind = EDITED[case]
    data = canaries() if kind == "canaries" else corpus
    makers = {"canaries": ReportMaterializer, "corpus": CorpusMaterializer}
    one = as_saved(makers[kind](place), data)
    one.load(type(data))
    edit(Path(place), corpus)
    before = len(materializers.failures)
    with pytest.raises(ArtifactError, match="must be what its step wrote"):
        one.load(type(data))
    assert len(materializers.failures) == before + 1  # the command line names it


def test_twin_that_compares_nothing_loads_another_runs_canaries(place):
    one = as_saved(ReportMaterializer(place), canaries())
    another_draw(Path(place), None)
    one.expected_content_hash = None
    assert one.load(type(canaries())) != canaries()
