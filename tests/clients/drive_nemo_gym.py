"""Calls a host as NeMo Gym's agents do, with the client and the types of the package: session, verification, close.

Reads a JSON object {"host", "port", "rows": [...]} from standard input, where each row is that of `/verify`, and prints the
answers. Results of `/run` under "results" are read with the package's types, too.
"""

import asyncio
import json
import sys

from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import ServerClient, get_response_json

SERVER = "rollout_host"


async def main():
    asked = json.load(sys.stdin)
    for result in asked["results"]:
        NeMoGymResponse.model_validate(result["response"])
    head = BaseServerConfig(host=asked["host"], port=asked["port"])
    client = ServerClient.load_from_global_config(head)
    shown = {"verified": []}
    for row in asked["rows"]:
        seeded = await client.post(server_name=SERVER, url_path="/seed_session", json=row)
        if seeded.status != 200:
            shown["seed"] = [seeded.status, await get_response_json(seeded)]
            continue
        assert seeded.cookies, "the seed establishes a session"
        cookies = {name: morsel.value for name, morsel in seeded.cookies.items()}
        verified = await client.post(server_name=SERVER, url_path="/verify", json=row, cookies=cookies)
        assert verified.status == 200, await verified.text()
        answer = await get_response_json(verified)
        BaseVerifyResponse.model_validate(answer)
        shown["verified"].append(answer)
    session = {"resources_session_id": "s1", "episode_id": {"rollout_id": "0-0", "attempt": 0}}
    task = {"task_id": {"taskset": "t", "task_id": "1"}, "task_data": {}}
    opened = await client.post(server_name=SERVER, url_path="/seed_session", json={**session, **task})
    shown["session"] = await get_response_json(opened)
    closed = await client.post(server_name=SERVER, url_path="/close_session", json=session)
    shown["closed"] = await get_response_json(closed)
    mode = await client.get(server_name=SERVER, url_path="/reverify_mode")
    shown["mode"] = await get_response_json(mode)
    print(json.dumps(shown))


asyncio.run(main())
