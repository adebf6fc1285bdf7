"""Python side of rollout-host: clients of its servers, and adapters for trainers.

- [`rollout_host.client`](client.py): starts rollouts on a server and waits for their results.
- [`rollout_host.verifiers`](verifiers.py): a taskset and a harness for `verifiers`.
- [`rollout_host.trl`](trl.py): a `rollout_func` for TRL's `GRPOTrainer`.

A module whose optional packages are missing names them when it is imported.
"""
