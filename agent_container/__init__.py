"""agent-container: coding agents in a sandbox whose only way out is an egress sidecar."""

__version__ = "0.1.0"
