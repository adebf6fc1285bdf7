"""The package's own generation-C server (0.3.2) over the workflow and grader of `cases.py`.

Run it with the 0.3.2 environment's Python. It prints `listening on http://127.0.0.1:PORT` when ready.
"""

from __future__ import annotations

from osmosis_ai.rollout.server import create_rollout_server

import baseline
import serving


def main() -> None:
    args = serving.arguments(__doc__.splitlines()[0]).parse_args()
    serving.serve(
        lambda: create_rollout_server(backend=baseline.backend(args), configure_logging=False),
        args,
    )


if __name__ == "__main__":
    main()
