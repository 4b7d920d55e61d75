"""The version of the package: part of what cached plans and costs depend on."""

__version__ = "0.1.0"
