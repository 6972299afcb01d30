"""The detector of a configuration, and whether it can run."""

from dptune.config import DetectionSettings
from dptune.detection.endpoint import NO_ACCESS, Endpoint, LlmAccess, endpoint_of
from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.llm import LlmRecognizer
from dptune.errors import ConfigError, Problem


def engine_of(
    settings: DetectionSettings, access: LlmAccess = NO_ACCESS
) -> DetectionEngine:
    """Build the detector of a configuration, without lists.

    Args:
        settings: which recognizers.
        access: key and memory of the recognizer `llm`. Neither changes the fingerprint.
    """
    endpoint: Endpoint | None = None
    if settings.llm is not None:
        endpoint = endpoint_of(settings.llm, access, path="detection.llm")
    gliner = settings.gliner
    return build_engine(
        tier=settings.tier,
        recognizers=settings.recognizers,
        spacy_pipeline=settings.spacy_pipeline,
        gliner_model=gliner.model if gliner else None,
        gliner_threshold=gliner.threshold if gliner else 0.3,
        llm_endpoint=endpoint,
    )


def check_detector(settings: DetectionSettings, access: LlmAccess) -> None:
    """Load what the recognizers need; ask a language model about a public sentence.

    A model that is away would make every sentence sensitive, so a run does not start.

    Raises:
        ConfigError: a name that nobody offers, or an endpoint that does not answer.
        DependencyError: a package, a pipeline or a model is not there.
    """
    engine = engine_of(settings, access)
    _ = engine.fingerprint  # reads pipelines and models
    for recognizer in engine.parts:
        if isinstance(recognizer, LlmRecognizer) and (why := recognizer.failure()):
            raise ConfigError(
                [
                    Problem(
                        path="detection.llm",
                        message="must be an endpoint that answers as asked, got "
                        f"{why} to a public sentence.",
                        next_step="Start the server, correct base_url, model or key, "
                        "or leave llm out of detection.recognizers.",
                    )
                ]
            )
