"""What a person looks at: pictures of schedules and of memory over a step, and a page on both."""

from __future__ import annotations

from .page import write_report
from .plots import plot_curves, plot_schedule, plot_timelines
from .trace_events import write_trace_events

__all__ = ["plot_curves", "plot_schedule", "plot_timelines", "write_report", "write_trace_events"]
