"""What a controller did in training: facts, and traces of clip norms and noise."""

import statistics

from matplotlib.axes import Axes

from dptune.reports import _figure as fig
from dptune.reports.blocks import Block, Notice, Plot, Section, Tone, facts
from dptune.reports.formatting import count, number
from dptune.results import ControllerReport

_SOURCES = {
    "public_text": "the loss on public text",
    "released": "a median of losses that was released under the noise",
    "private_batch": "the loss of private batches, as it was",
}


def controller_section(report: ControllerReport, *, outside: bool = False) -> Section:
    """Describe a controller; its traces are released values, unless it read raw ones.

    Args:
        report: of one stage.
        outside: for readers outside the trust boundary: no traces of a raw run.
    """
    is_raw = report.rewards_from == "private_batch"
    seen = facts(
        ("Actions after the warm-up", count(report.num_actions)),
        ("Warm-up", f"{count(report.warmup_steps)} steps"),
        ("Between two actions", f"{count(report.interval)} steps"),
        ("Clip norms", f"{count(len(report.pairs))}, one for each LoRA pair"),
        ("Rewards come from", _SOURCES[report.rewards_from]),
        ("Noise it started at", number(report.start_noise), "stddev over C"),
    )
    blocks: tuple[Block, ...] = (seen, *((_raw_notice(),) if is_raw else ()))
    if report.trace and not (outside and is_raw):
        blocks = (*blocks, _clip_trace(report), _noise_trace(report))
    return Section(title=f"Controller of stage {report.stage}", blocks=blocks)


def clip_plot(report: ControllerReport) -> str:
    """Draw the clip norm of every pair over the steps, and their median."""
    steps = [point.step for point in report.trace]
    columns = list(zip(*(point.clip_norms for point in report.trace), strict=True))
    medians = [statistics.median(point.clip_norms) for point in report.trace]

    def paint(axes: Axes) -> None:
        for column in columns:
            axes.plot(steps, column, color=fig.SKY, linewidth=0.8, alpha=0.7)
        axes.plot([], [], color=fig.SKY, linewidth=0.8, label="one LoRA pair")
        axes.plot(steps, medians, color=fig.BLUE, linewidth=2.2, label="median")
        axes.axvline(report.warmup_steps, color=fig.MUTED, linewidth=1, linestyle=":")
        axes.set_yscale("log")
        axes.set_xlabel("step; the dotted line ends the warm-up")
        axes.set_ylabel("clip norm (log scale)")
        fig.legend_below(axes)

    label = f"Clip norms of {len(report.pairs)} LoRA pairs over the steps"
    return fig.draw(paint, label=label)


def sigma_plot(report: ControllerReport) -> str:
    """Draw the noise multiplier that every step was granted."""
    steps = [point.step for point in report.trace]
    granted = [point.noise_multiplier for point in report.trace]

    def paint(axes: Axes) -> None:
        axes.step(steps, granted, where="mid", color=fig.VERMILION, linewidth=1.4)
        axes.axhline(
            report.start_noise,
            color=fig.INK,
            linewidth=1,
            linestyle="--",
            label="where it started",
        )
        axes.axvline(report.warmup_steps, color=fig.MUTED, linewidth=1, linestyle=":")
        axes.set_xlabel("step; the dotted line ends the warm-up")
        axes.set_ylabel("noise multiplier")
        fig.legend_below(axes)

    label = f"Granted noise multipliers from {min(granted):.3g} to {max(granted):.3g}"
    return fig.draw(paint, label=label)


def _clip_trace(report: ControllerReport) -> Plot:
    """Return the figure of the clip norms."""
    return Plot(svg=clip_plot(report), caption="Clip norms that the controller named.")


def _noise_trace(report: ControllerReport) -> Plot:
    """Return the figure of the noise."""
    return Plot(
        svg=sigma_plot(report),
        caption="Noise that was granted and drawn. A deck was charged whole before the "
        "first step: its order costs nothing.",
    )


def _raw_notice() -> Notice:
    """Say what a raw controller has done to the claim."""
    return Notice(
        tone=Tone.BLOCK,
        title="No guarantee.",
        text="The controller read private batches without noise, as its paper has it. "
        "Clip norms and noise follow from them.",
    )
