"""`laneway serve` as a process: what it prints, what it refuses, how it stops, and what goes on afterwards."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import trustme

from tests.chaos.gateway_world import free_port
from tests.server_process import LANEWAY, READY, environment, server_process, until

pytestmark = pytest.mark.slow

OPEN = (
    "default_model: scripted\npermissions: {default_decision: allow}\nqueue: {mode: followup, debounce_idle: false}\n"
)
WAIT_THEN_WRITE = "wait {seconds}\nthen\nrun echo done >> done.txt"


def workspace(folder: Path, text: str = OPEN) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.yaml").write_text(text)
    return folder


def is_done(folder: Path) -> bool:
    file = folder / "done.txt"
    return file.exists() and file.read_text() == "done\n"


def refused(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """The exit code and the error of a server that does not start; it has said nothing on standard output."""
    done = subprocess.run(
        [LANEWAY, "serve", *arguments],
        cwd=folder,
        env=environment(folder, **{"LANEWAY_PORT": "0", **variables}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_it_prints_its_address_and_nothing_else_and_stops_on_a_signal(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.send("a", "hello")["message_id"]
        assert server.stop() == 0
    assert server.lines == [f"{READY}{server.url}"]
    said = "\n".join(server.errors)
    assert "THE MODEL IS SCRIPTED" in said
    assert "everything else asks an operator" in said
    assert "Traceback" not in said
    assert "lw_" not in said  # no token where nobody looks at the screen


def test_where_a_program_reads_the_log_every_line_of_it_is_json(tmp_path: Path) -> None:
    with server_process(tmp_path, "--log-format", "json", "--log-level", "debug") as server:
        assert server.call("GET", "/healthz")[0] == 200
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.errors]
    assert {"at", "level", "logger", "message"} <= set(lines[0])
    said = " ".join(line["message"] for line in lines)
    assert "THE MODEL IS SCRIPTED" in said
    assert "Stopping" in said


def test_the_port_of_the_address_line_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    port = free_port()
    with server_process(tmp_path, "--port", str(port)) as server:
        assert server.url == f"http://127.0.0.1:{port}"
        assert server.stop(signal.SIGINT) == 0


def test_a_run_that_does_not_end_in_time_goes_on_after_the_restart(tmp_path: Path) -> None:
    workspace(tmp_path)
    with server_process(tmp_path, "--set", "gateway.drain_ms=100") as server:
        server.send("a", f"run touch begun\nthen\n{WAIT_THEN_WRITE.format(seconds=8)}")
        until((tmp_path / "begun").exists, "the begin of the run")
        assert server.stop() == 0
        assert not is_done(tmp_path)
    with server_process(tmp_path) as server:
        assert server.url
        until(lambda: is_done(tmp_path), "the rest of the run")
        assert server.stop() == 0


def test_a_run_that_ends_in_time_is_waited_for(tmp_path: Path) -> None:
    workspace(tmp_path)
    with server_process(tmp_path, "--set", "gateway.drain_ms=60000") as server:
        sent = server.send("a", f"run touch begun\nthen\n{WAIT_THEN_WRITE.format(seconds=1)}")
        until((tmp_path / "begun").exists, "the begin of the run")
        assert server.stop() == 0
        assert is_done(tmp_path)
    with server_process(tmp_path) as server:
        _, message = server.call("GET", f"/v1/messages/{sent['message_id']}")
        assert message["outcome"] == "succeeded"
        assert server.stop() == 0
    assert is_done(tmp_path)  # and not a second time


def test_a_second_signal_ends_it_at_once_and_the_run_goes_on_later(tmp_path: Path) -> None:
    workspace(tmp_path)
    with server_process(tmp_path, "--set", "gateway.drain_ms=30000") as server:
        server.send("a", WAIT_THEN_WRITE.format(seconds=8))
        server.process.send_signal(signal.SIGTERM)
        until(lambda: any(line.startswith("Stopping") for line in server.errors), "the first signal")
        assert server.stop() == 0
        assert not is_done(tmp_path)  # as it would be if the run had been waited for
    with server_process(tmp_path) as server:
        assert server.url
        until(lambda: is_done(tmp_path), "the rest of the run")
        assert server.stop() == 0


def test_the_tools_do_not_outlive_a_second_signal(tmp_path: Path) -> None:
    workspace(tmp_path)
    with server_process(tmp_path, "--set", "gateway.drain_ms=30000") as server:
        server.send("a", "run echo $$ > pid.txt; exec sleep 60")
        pid = int(until(lambda: (tmp_path / "pid.txt").exists() and (tmp_path / "pid.txt").read_text(), "the tool"))
        server.process.send_signal(signal.SIGTERM)
        until(lambda: any(line.startswith("Stopping") for line in server.errors), "the first signal")
        assert server.stop() == 0
        until(lambda: not is_alive(pid), "the end of the tool")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    workspace(tmp_path)
    with server_process(tmp_path) as server:
        server.send("a", WAIT_THEN_WRITE.format(seconds=1))
        server.kill()
    with server_process(tmp_path) as server:
        assert server.url
        until(lambda: is_done(tmp_path), "the rest of the run")
        assert server.stop() == 0


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, error = refused(tmp_path, "--port", str(taken.getsockname()[1]))
    assert code == 4
    assert error.count("\n") == 1
    assert "it is in use" in error
    assert "--port 0" in error
    assert not (tmp_path / "laneway.db").exists()  # nothing was opened


def test_a_store_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        assert server.url
        code, error = refused(tmp_path)
        assert (code, error.count("\n")) == (3, 1)
        assert f"pid {server.process.pid}" in error


def test_a_store_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    code, error = refused(tmp_path, "--store", f"sqlite:///{tmp_path}/no/such/folder/x.db")
    assert (code, error.count("\n")) == (4, 1)
    assert "folder" in error


def test_all_problems_of_all_files_come_at_once(tmp_path: Path) -> None:
    workspace(tmp_path / "a", "quue: {}\n")
    workspace(tmp_path / "b", "default_model: 5\nmax_tool_rounds: -1\n")
    (tmp_path / "laneway.yaml").write_text("workspaces:\n  a: {path: a}\n  b: {path: b}\n")
    code, error = refused(tmp_path, "--config", "laneway.yaml")
    assert code == 2
    assert "3 problems" in error
    assert all(word in error for word in ("quue", "default_model", "max_tool_rounds"))
    assert not (tmp_path / "laneway.db").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workspace", "nowhere"), "there is no such folder"),
        (("--config", "nowhere.yaml"), "there is no such file"),
        (("--model", "gpt"), "--model"),
        (("--model", "nobody/model"), "nobody"),
        (("--store", "postgres://x"), "there is no store"),
        (("--host", "no.such.host.invalid"), "no.such.host.invalid"),
        (("--port", "70000"), "65535"),
        (("--log-level", "loud"), "--log-level"),
        (("--set", "gateway.prot=1"), "did you mean port?"),
        (("--set", "gateway.tls_key=/nowhere"), "tls_certificate"),
    ],
)
def test_a_wrong_option_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    code, error = refused(tmp_path, *arguments)
    assert code == 2, error
    assert words in error


def test_a_public_address_without_tokens_is_refused_with_the_way_out(tmp_path: Path) -> None:
    code, error = refused(tmp_path, "--host", "0.0.0.0")  # noqa: S104 - that is what is refused
    assert code == 2
    assert "there are no tokens" in error
    assert "laneway token create" in error


def test_a_public_address_with_a_token_needs_it_on_every_route(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/laneway.db"
    made = subprocess.run(
        [LANEWAY, "token", "create", "me", "--scope", "chat", "--store", store],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    secret = next(word for word in made.stdout.split() if word.startswith("lw_"))
    with server_process(tmp_path, "--host", "0.0.0.0", "--store", store) as server:  # noqa: S104 - the subject
        assert server.url.startswith("http://0.0.0.0:")
        assert server.call("GET", "/v1/sessions")[0] == 401
        assert server.call("GET", "/v1/sessions", headers={"Authorization": f"Bearer {secret}"})[0] == 200
        assert server.stop() == 0
    assert secret not in "\n".join(server.errors)


def test_https_by_two_files(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for number, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(tmp_path / "certificate.pem", append=number > 0)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    (tmp_path / "laneway.yaml").write_text("gateway: {tls_certificate: certificate.pem, tls_key: key.pem}\n")
    with server_process(tmp_path, "--config", "laneway.yaml") as server:
        assert server.url.startswith("https://127.0.0.1:")
        code, _ = server.call("GET", "/healthz", trust=str(tmp_path / "authority.pem"))
        assert code == 200
        assert server.stop() == 0


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("nonsense")
    code, error = refused(tmp_path, "--set", "gateway.tls_certificate=key.pem", "--set", "gateway.tls_key=key.pem")
    assert code == 2
    assert "TLS cannot be set up" in error


def test_several_workspaces_each_with_its_own_agent(tmp_path: Path) -> None:
    workspace(tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "agent.hcl").write_text(
        'name = "second"\ndefault_model = "scripted"\npermissions { default_decision = "allow" }\n'
    )
    with server_process(tmp_path, "--workspace", "one", "--workspace", "two") as server:
        for name, folder in (("one", "one"), ("second", "two")):
            path = f"/v1/sessions/a/messages?workspace={name}"
            code, _ = server.call("POST", path, {"text": "run echo done >> done.txt"})
            assert code == 202
            until(lambda folder=folder: is_done(tmp_path / folder), name)  # type: ignore[misc]
        code, problem = server.call("POST", "/v1/sessions/a/messages?workspace=third", {"text": "x"})
        assert (code, "second" in problem["detail"] + str(problem)) == (404, True)
        assert server.stop() == 0


def test_variables_stand_for_flags_and_flags_beat_them(tmp_path: Path) -> None:
    folder = workspace(tmp_path / "place")
    with server_process(
        tmp_path, "--store", f"sqlite:///{tmp_path}/b.db", LANEWAY_STORE="sqlite:///a.db", LANEWAY_WORKSPACE=str(folder)
    ) as server:
        server.send("a", "run echo done >> done.txt")
        until(lambda: is_done(folder), "the run in that folder")
        assert server.stop() == 0
    assert (tmp_path / "b.db").exists()
    assert not (tmp_path / "a.db").exists()


def test_whoever_looks_at_the_screen_is_shown_an_operator_token(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = environment(tmp_path, LANEWAY_PORT="0")
    process = subprocess.Popen([LANEWAY, "serve"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"#token=lw_" not in shown or not shown.endswith(b"\n"):
        shown += os.read(ours, 65_536)
    assert b"Operator token, until this server ends: lw_" in shown
    secret = shown.split(b"ends: ")[1].split()[0]
    assert process.stdout is not None
    ready = process.stdout.readline()
    assert secret not in ready
    assert ready.split()[-1] + b"/#token=" + secret in shown  # opens the dashboard with what it needs
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()
    os.close(ours)
    assert secret not in (tmp_path / "laneway.db").read_bytes()


def test_a_client_that_hangs_up_does_not_end_the_server(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as rude:
                rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                rude.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20)
        assert server.call("GET", "/healthz")[0] == 200
        assert server.stop() == 0
