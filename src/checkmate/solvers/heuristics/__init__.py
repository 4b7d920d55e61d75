"""Searches for good schedules, which prove nothing."""
