"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No time limit per example: compiling on first use and busy machines would make tests fail by chance.
settings.register_profile("checkmate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("checkmate")
