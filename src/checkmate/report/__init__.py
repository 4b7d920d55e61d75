"""What a person looks at: pictures of schedules and of memory over a step."""

from __future__ import annotations

from .plots import plot_curves, plot_schedule, plot_timelines

__all__ = ["plot_curves", "plot_schedule", "plot_timelines"]
