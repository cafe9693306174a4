"""Spans reach a collector over OTLP, from the request to the tool."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from laneway.models import call, say
from tests.gateway_stage import serving

TEXT = "default_model: scripted\npermissions:\n  default_decision: allow\nqueue:\n  mode: followup\n"
INCOMING = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector:
    """A stand-in for an OpenTelemetry collector."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> dict[str, list[object]]:
        found: dict[str, list[object]] = {}
        for request in self.requests:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        found.setdefault(span.name, []).append(span)
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.mark.slow
async def test_the_trace_of_a_request_goes_on_in_the_run_and_reaches_the_collector(
    tmp_path: Path, collector: Collector
) -> None:
    script = [[call("ls")], [say("done")]]
    async with serving(tmp_path, script=script, text=TEXT, otel_endpoint=collector.url) as stage:
        answer = await stage.client.post(
            "/v1/sessions/s/messages", json={"text": "hello"}, headers={"traceparent": INCOMING}
        )
        assert answer.status_code == 202, answer.text
        await stage.gateway.default.inbox.wait(answer.json()["message_id"])
    spans = collector.spans()
    assert {name: len(each) for name, each in spans.items()} == {
        "send default": 1,
        "invoke_agent default": 1,
        "chat scripted": 2,
        "execute_tool ls": 1,
    }
    (sent,), (run,) = spans["send default"], spans["invoke_agent default"]
    assert sent.trace_id.hex() in INCOMING  # type: ignore[attr-defined]
    assert [link.span_id for link in run.links] == [sent.span_id]  # type: ignore[attr-defined]
