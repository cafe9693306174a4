"""What the outside is told of errors, and what it is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.stream_stage import staged, talking

SOCKET = "/v1/sessions/s1/socket"
QUESTION = {"model": "laneway", "messages": [{"role": "user", "content": "hello"}]}


async def test_where_the_store_lies_is_told_to_nobody_who_cannot_write_to_it(tmp_path: Path) -> None:
    async with staged(tmp_path, store=None) as (stage, app), talking(app, SOCKET) as talk:
        os.rename(tmp_path / "laneway.db", tmp_path / "aside")
        plain = await stage.client.post("/v1/sessions/s1/messages", json={"text": "hello"})
        shaped = await stage.client.post("/v1/chat/completions", json=QUESTION)
        talk.say({"type": "message", "text": "hello"})
        told = await talk.next("problem")
        os.rename(tmp_path / "aside", tmp_path / "laneway.db")
    answers = [plain.text, shaped.text, json.dumps(told)]
    assert (plain.status_code, shaped.status_code, told["data"]["status"]) == (503, 503, 503)
    assert all("the store was moved" in answer and str(tmp_path) not in answer for answer in answers)
