"""Reads trajectories with a published reader, and prints one line of JSON for each.

    python read_trajectories.py FILE...

In an environment with harbor, which defines the format ATIF, its own validator is used; else the package `osmosis-ai`,
with its checks before the upload of an evaluation.
"""

import json
import sys
from pathlib import Path


def problems(path: Path) -> list[str]:
    """Returns the reader's objections to the file."""
    try:
        from harbor.utils.trajectory_validator import TrajectoryValidator
    except ImportError:
        from osmosis_ai.rollout.trajectory.atif import Trajectory

        try:
            Trajectory.model_validate(json.loads(path.read_text()), strict=True)
        except ValueError as error:
            return [str(error)]
        return []
    validator = TrajectoryValidator()
    validator.validate(path)
    return validator.get_errors()


def main() -> None:
    """Reads every file that is named."""
    all_read = True
    for name in sys.argv[1:]:
        path = Path(name)
        found = problems(path)
        all_read = all_read and not found
        version = json.loads(path.read_text())["schema_version"]
        print(json.dumps({"scenario": path.name, "ok": not found, "version": version, "problems": found}))
    sys.exit(0 if all_read else 1)


if __name__ == "__main__":
    main()
