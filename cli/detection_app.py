"""`detect` and `evaluate-detector`: arguments in, one call, a table out."""

from pathlib import Path
from typing import Annotated

import typer

from cli.options import AsJson
from dptune.detection.recognizer import Tier

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="Take tier and recognizers from a training config."
    ),
]
TierOption = Annotated[
    Tier | None, typer.Option(help="What counts as sensitive; low_entity by default.")
]
RecognizerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--recognizer",
        "-r",
        help="Add presidio, or one that a package offers, to the default recognizers. "
        "Repeat it.",
    ),
]
OnlyOption = Annotated[
    bool,
    typer.Option("--only", help="Leave the default recognizers out."),
]
TokenClassifierOption = Annotated[
    str | None,
    typer.Option(help="Folder of a token classification model to add."),
]
SpacyOption = Annotated[
    str | None, typer.Option(help="Name or folder of a spaCy pipeline to add.")
]
GlinerOption = Annotated[
    str | None, typer.Option(help="Folder of a GLiNER model to add.")
]
ListsOption = Annotated[
    bool, typer.Option("--no-lists", help="Leave the lists of imported reviews out.")
]


def detect(  # noqa: PLR0917 - typer passes them by name
    text: Annotated[
        str | None,
        typer.Argument(
            help="A text, a file, a folder of files, or - for standard input. Left "
            "out, the corpus of --config is read."
        ),
    ] = None,
    config: ConfigOption = None,
    tier: TierOption = None,
    recognizers: RecognizerOption = None,
    only: OnlyOption = False,
    spacy_pipeline: SpacyOption = None,
    gliner_model: GlinerOption = None,
    token_classifier: TokenClassifierOption = None,
    no_lists: ListsOption = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write a page. It quotes the text: keep it private."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON object a text: offsets and types."),
    ] = False,
    redact: Annotated[
        str | None,
        typer.Option(
            help="Print the redacted text: mask, typed, pseudonym or another operator, "
            "or config for what --config says."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="New file, or for a folder a new folder, for redacted texts.",
        ),
    ] = None,
) -> None:
    """Show what the detector marks in texts. They are not stored anywhere else."""
    from cli.detecting import DetectOptions, detect_command
    from cli.detection import DetectorChoice

    choice = DetectorChoice(
        config=config,
        tier=tier,
        recognizers=tuple(recognizers or ()),
        only=only,
        spacy_pipeline=spacy_pipeline,
        gliner_model=gliner_model,
        token_classifier=token_classifier,
        use_lists=not no_lists,
    )
    options = DetectOptions(html=html, as_json=as_json, redact=redact, output=output)
    detect_command(text, choice, options)


def evaluate_detector(  # noqa: PLR0917 - typer passes them by name
    gold: Annotated[
        Path,
        typer.Option(help="Texts with gold spans; see docs/REVIEW.md."),
    ],
    config: ConfigOption = None,
    tier: TierOption = None,
    recognizers: RecognizerOption = None,
    only: OnlyOption = False,
    spacy_pipeline: SpacyOption = None,
    gliner_model: GlinerOption = None,
    token_classifier: TokenClassifierOption = None,
    no_lists: ListsOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The page (.html); its figure goes beside it (.png, .svg). By default "
            "in the project folder's reports.",
        ),
    ] = None,
    misses: Annotated[
        Path | None,
        typer.Option(
            help="New file for misses and false alarms, to read. It quotes the texts."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure recall, precision and masked share against gold spans, per type."""
    from cli.detection import DetectorChoice, evaluate_command

    choice = DetectorChoice(
        config=config,
        tier=tier,
        recognizers=tuple(recognizers or ()),
        only=only,
        spacy_pipeline=spacy_pipeline,
        gliner_model=gliner_model,
        token_classifier=token_classifier,
        use_lists=not no_lists,
    )
    evaluate_command(gold, choice, output=output, misses=misses, as_json=as_json)
