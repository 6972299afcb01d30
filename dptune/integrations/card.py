"""What a script's training guarantees, on one page for people."""

from dptune.accounting.assumptions import EXPLANATIONS
from dptune.accounting.certificates import Certificate
from dptune.planning import RunPlan
from dptune.reports.formatting import epsilon, number, upper


def script_card(certificate: Certificate, plan: RunPlan) -> str:
    """Write a claim and what it rests on as Markdown.

    **Privacy**: may be released; it holds what was planned and what is claimed.

    Args:
        certificate: of everything that was paid.
        plan: of the training.
    """
    stage = plan.stages[0]
    figures = {
        "claim": certificate.label,
        "epsilon": epsilon(certificate.epsilon),
        "delta": upper(certificate.delta),
        "status": certificate.status.value,
        "accountant": certificate.accountant,
        "steps": number(stage.num_steps),
        "sample rate": number(stage.sample_rate),
        "noise multiplier": number(stage.noise_multiplier),
    }
    if stage.settings.clipping is not None:
        figures["clip norm"] = number(stage.settings.clipping.max_grad_norm)
    rows = "\n".join(f"| {name} | {value} |" for name, value in figures.items())
    rests = "\n".join(f"- {EXPLANATIONS[a].sentence}" for a in certificate.assumptions)
    return (
        "# Privacy card\n\n"
        f"{certificate.explanation}\n\n"
        "| what | value |\n|---|---|\n"
        f"{rows}\n\n"
        "The claim is about rows of the training data set as the trainer was given "
        "them, or about their owners where a column names them. What was made of "
        "records before, the training loss, and everything that was measured on an "
        "evaluation set, are not covered.\n\n"
        f"It rests on this:\n\n{rests}\n"
    )
