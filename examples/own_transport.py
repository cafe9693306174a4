"""A transport of one's own: frames over a socket, to a worker in another process."""

import asyncio
import os
import sys
import tempfile

from laneway import AsyncAgent, SessionQueueConfig, Worker, tool
from laneway.models import ScriptedModel, call, say
from laneway.transports import FRAME_MAX, Desk, FrameTransport, serve


def connect(path: str) -> FrameTransport:
    async def exchange(frame: str) -> str:  # a connection for each question: one that waits holds up no other
        reader, writer = await asyncio.open_unix_connection(path, limit=FRAME_MAX)
        try:
            writer.write(frame.encode() + b"\n")
            return (await reader.readline()).decode()
        finally:
            writer.close()

    return FrameTransport(exchange)


async def listen(desk: Desk, path: str) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.ensure_future(serve(desk, await reader.readline()))
        hanging_up = asyncio.ensure_future(reader.read())  # whoever has gone wants no answer any more
        await asyncio.wait([serving, hanging_up], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            writer.write(serving.result().encode() + b"\n")
        serving.cancel()
        hanging_up.cancel()
        writer.close()

    return await asyncio.start_unix_server(answer, path, limit=FRAME_MAX)


@tool(effect="read")
def lint(package: str) -> str:
    """Look for mistakes in a package."""
    return f"process {os.getpid()} found nothing in {package}"


async def main() -> None:
    model = ScriptedModel([[call("lint", package="web"), call("lint", package="api")], [say("All is well.")]])
    queue = SessionQueueConfig().set_lane_handler("execute", "external")
    async with AsyncAgent(model, tools=[lint], queue_config=queue) as agent:
        session = agent.session()
        async with await listen(await session.desk(), path := os.path.join(tempfile.mkdtemp(), "desk.sock")):
            worker = await asyncio.create_subprocess_exec(sys.executable, __file__, path)
            print(await session.send("Look at web and api"), (await session.history())[-2], sep="\n")
            worker.terminate()
            await worker.wait()


if __name__ == "__main__":
    asyncio.run(Worker(connect(sys.argv[1]), [lint]).run() if len(sys.argv) > 1 else main())
