"""Python side of rollout-host: clients of its servers, and adapters for trainers.

- [`rollout_host.client`](client.py): starts rollouts on a server and waits for their results.
- [`rollout_host.verifiers`](verifiers.py): a taskset and a harness for `verifiers`.
- [`rollout_host.trl`](trl.py): a `rollout_func` for TRL's `GRPOTrainer`.

Each module says at import which optional packages it needs.
"""
