"""The command line and a server with a certificate of somebody's own authority, as companies have them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import trustme
from typer.testing import CliRunner

from laneway.cli.app import app
from laneway.cli.client import Target
from laneway.cli.link import Link
from laneway.errors import TransportUnavailableError
from tests.cli_stage import run
from tests.server_process import server_process

pytestmark = pytest.mark.slow


def certificates(folder: Path, *names: str) -> str:
    """The files of a server's certificate, and that of its authority."""
    authority = trustme.CA()
    certificate = authority.issue_cert(*names)
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    (folder / "laneway.yaml").write_text("gateway: {tls_certificate: certificate.pem, tls_key: key.pem}\n")
    return str(folder / "authority.pem")


def test_a_server_is_believed_whose_authority_is_named(tmp_path: Path) -> None:
    authority = certificates(tmp_path, "127.0.0.1")
    with server_process(tmp_path, "--config", "laneway.yaml") as server:
        url = server.url
        for words in (("status",), ("send", "s1", "hello"), ("worker", "ls"), ("task", "ls")):
            done = run(*words, "--url", url, "--ca", authority)
            assert done.exit_code == 0, (words, done.output)
        refused = run("token", "ls", "--url", url, "--ca", authority)
        assert "the scope 'admin'" in refused.stderr  # which the server says
        assert run("session", "ls", URL=url, CA=authority).exit_code == 0
        checks = json.loads(run("doctor", "--json", "--url", url, "--ca", authority).stdout)["checks"]
        (said,) = [each["state"] for each in checks if each["check"] == "server"]
        assert said == "ok"
        by_everybody = CliRunner().invoke(app, ["status", "--url", url], env={"SSL_CERT_FILE": authority})
        assert by_everybody.exit_code == 0, by_everybody.output

        for words in (("status",), ("send", "s1", "hello"), ("task", "ls"), ("token", "ls")):
            done = run(*words, "--url", url, STORE=f"sqlite:///{tmp_path}/laneway.db")
            assert done.exit_code == 4, (words, done.output)  # and no store is read in its place
            assert "its certificate is not known here" in done.stderr
            assert "--ca FILE" in done.stderr
            assert "laneway serve" not in done.stderr
        assert "its certificate is not known here" in run("doctor", "--url", url).stdout
        with pytest.raises(TransportUnavailableError, match="not known here"):  # it is not tried again and again
            asyncio.run(asyncio.wait_for(sent(url), 60))

        other = run("status", "--url", url.replace("127.0.0.1", "localhost"), "--ca", authority)
        assert other.exit_code == 4
        assert "a certificate of another name" in other.stderr
        assert "is it https://?" in run("status", "--url", url.replace("https:", "http:")).stderr


async def sent(url: str) -> None:
    async with Link(Target(url=url)) as link:
        await link.send("/sessions/s1", {"text": "hello"}, key="k1")
