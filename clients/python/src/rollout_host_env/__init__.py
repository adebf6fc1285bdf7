"""The environment package `rollout-host-env` of verifiers, which finds it by this module's name."""

from rollout_host.verifiers import RolloutHostHarness, RolloutHostTaskset

__all__ = ["RolloutHostHarness", "RolloutHostTaskset"]
