"""The package's own generation-D server (0.3.7) over the workflow and grader of `cases.py`.

Run it with the 0.3.7 environment's Python. It prints `listening on http://127.0.0.1:PORT` when ready.
"""

from __future__ import annotations

from osmosis_ai.rollout.server import create_rollout_server

import baseline
import serving


def main() -> None:
    parser = serving.arguments(__doc__.splitlines()[0])
    parser.add_argument("--api-key", help="required in every request; default: none")
    parser.add_argument("--wait-secs", type=float, default=30.0, help="longest long-poll")
    parser.add_argument("--lease-secs", type=float, default=120.0, help="must exceed --wait-secs")
    args = parser.parse_args()
    serving.serve(
        lambda: create_rollout_server(
            backend=baseline.backend(args),
            configure_logging=False,
            api_key=args.api_key,
            result_wait_timeout_sec=args.wait_secs,
            polling_lease_timeout_sec=args.lease_secs,
        ),
        args,
    )


if __name__ == "__main__":
    main()
